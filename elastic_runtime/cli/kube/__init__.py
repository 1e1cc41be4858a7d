"""``elasticctl`` on a Kubernetes cluster.

It talks to the API server with the user's own credentials. Begin with ``kube_commands.py``.
"""
