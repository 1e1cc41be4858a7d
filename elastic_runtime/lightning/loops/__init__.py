"""The loops that take the place of Lightning's own, with their data and counters.

Begin with ``elastic_fit_loop.py``. They know how a job goes on after a fault by ``Recovery`` only.
"""
