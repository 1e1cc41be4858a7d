"""Ranks that train alone between two syncs, as processes that are killed and asked to leave."""
