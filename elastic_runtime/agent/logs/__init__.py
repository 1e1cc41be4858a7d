"""What workers print and what agents report, as lines and files.

It may hang on a full or slow disk, and only its own threads with it. Begin with
``worker_output.py``; ``log_directory.py`` says where files lie.
"""
