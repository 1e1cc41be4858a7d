"""The flags of ``elastic-run`` and where each setting comes from; pure but for reading files.

It ends in one ``JobConfig``. Begin with ``flag_options.py``, the table of all flags;
``build_config.py`` is where they become a job.
"""
