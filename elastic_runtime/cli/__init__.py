"""The two commands: ``elastic-run`` and ``elasticctl``.

It may use every room below and holds no logic that another program would need. Begin with
``run/elastic_run.py`` and ``ctl/elasticctl.py``.
"""
