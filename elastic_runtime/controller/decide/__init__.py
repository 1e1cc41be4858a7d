"""What is to be done about one ElasticJob: pure.

It sees views of cluster objects and returns actions, conditions and events. Begin with
``decision.py``.
"""
