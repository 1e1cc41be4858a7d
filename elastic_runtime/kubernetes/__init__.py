"""What the controller and ``elasticctl`` need of a Kubernetes API server.

It speaks HTTP and knows no ElasticJob. Begin with ``api_client.py``; ``informer.py`` follows
objects, ``leader_lease.py`` elects a leader.
"""
