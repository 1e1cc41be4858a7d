"""The two commands: ``elastic-run`` and ``elasticctl``.

It may use every other part of the package and holds no logic that another program would need. Begin
with ``run/elastic_run.py`` and ``ctl/elasticctl.py``.
"""
