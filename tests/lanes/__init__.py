"""Which tests run, where, and what follows from how they ended.

``plugin`` is what pytest loads: what a lane leaves out, and what a person sees. ``pieces`` hands
tests out to processes. ``share`` decides what a change has to pass beside the quick lane (pure);
``changes`` and ``__main__`` do the I/O for it. ``seconds`` is the tracked table of processor time,
``passed`` what ``--resume`` skips, ``second_try`` runs failed tests once more, and ``flaky`` reads
the list of those that fail by chance.
"""
