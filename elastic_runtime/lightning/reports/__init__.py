"""What each rank has noted for itself, and what belongs to the rank 0 of the moment.

Begin with ``observations.py``. Nothing of it is a part of the State: ranks may differ in it.
"""
