"""Our rendezvous for plain torchrun, as a handler of torch's registry.

The only folder of the rendezvous that imports torch.distributed.elastic. Begin with
``handler_entry_points.py``, which torch loads by name.
"""
