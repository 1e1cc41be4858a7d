"""Pods that come together: in the queue of Kueue, and before the scheduler."""
