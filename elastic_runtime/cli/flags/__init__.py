"""The flags of ``elastic-run``, where each setting comes from, and the ``JobConfig`` they make.

It may read files, environment variables and the number of devices, and starts nothing. Begin with
``flag_options.py``, the table of all flags; ``build_config.py`` is where they become a job.
"""
