"""What the adapters for trainers share; each of them has a folder of its own beside this one.

A trainer of somebody else's has loops, counters and callbacks of its own, and a ``DataLoader`` of
the user's. What it takes to go on with these in another world does not depend on whose they are:
the data in our order (``epoch_batches.py``, ``known_orders.py``), a global batch that is fixed
(``batch_record.py``), and what each rank has noted for itself (``rank_notes.py``). Nothing here
imports a trainer.
"""
