"""From a broken round to the next one without losing the process or its memory.

It builds and drops process groups and brings all ranks to one state. Begin with
``process_groups.py``, then ``recovery_source.py`` (pure) and ``state_transfer.py``.
"""
