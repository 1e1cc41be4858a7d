"""What a State holds, kind by kind: how each object is saved, remembered at a commit, and given to
another rank. Begin with ``part.py``; ``saved_parts.py`` has all of them together."""
