"""Shards that are read in order, each sample once, by however many ranks there are.

``lot_plan.py`` decides and ``sharded_stream.py`` is what users call; begin with the first.
"""
