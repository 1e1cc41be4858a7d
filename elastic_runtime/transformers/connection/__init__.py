"""Who connects the ranks, and what accelerate is told of them.

Begin with ``late_connection.py``.
"""
