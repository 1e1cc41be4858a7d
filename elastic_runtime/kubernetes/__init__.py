"""What the controller and ``elasticctl`` need of a Kubernetes API server: one way to it for both.

It speaks HTTP and knows no ElasticJob, no controller and no command. Begin with ``api_client.py``;
``cluster_access.py`` finds the cluster and the credentials, ``informer.py`` follows objects,
``leader_lease.py`` elects a leader.
"""
