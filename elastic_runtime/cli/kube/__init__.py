"""``elasticctl`` on a Kubernetes cluster.

It may ask the API server, with the user's own credentials, and knows no store and no checkpoint.
Begin with ``kube_commands.py``.
"""
