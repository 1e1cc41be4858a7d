"""Training over slow networks: each rank makes many steps alone, and then all come together.

Begin with ``diloco.py``. What is due when is decided in ``rhythm.py``, and who goes on from where
after a change of the world in ``standings.py``, both without any I/O.
"""
