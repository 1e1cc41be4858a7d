"""A fake of the Kubernetes API server, spoken to over HTTP, with a kubelet that tests script.

``FakeCluster`` (``tests.kube.cluster``) is the way in; ``python -m tests.kube`` runs the same as a
process of its own.
"""
