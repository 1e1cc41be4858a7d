"""The defaults of all settings of a job, each with its unit and the reason for its value.

Flags, ``JobConfig``, ``Timeouts`` and the rendezvous' ``Policy`` refer to these; no number stands
twice. Numbers that nobody can set are in ``limits.py``. What an ElasticJob takes by default is in
its CRD; those of ``State.checkpoints`` are in its signature.
"""

from __future__ import annotations

# ---------------------------------------------------------------- the job

# Nodes, and workers of a node. One of each trains: a first try needs no flag.
MIN_NODES = 1
NODE_UNIT = 1
WORKERS = 1
MIN_WORKERS = 1
# Failures of user code that the whole job may have. torchrun's is 0; but a crash by chance should
# not end a job overnight, and a script that is wrong fails three more times within a few seconds.
MAX_RESTARTS = 3
# How ranks regroup in place: by torch's own reconfigurable groups where it has them.
REGROUP = "auto"
# torch's name for a group of workers that all do the same.
ROLE = "default"
# Signals that ask an agent to leave; torchrun's list.
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")

# Exit code of a node that was asked to leave: of those in ``errors``, the one that says so.
LEAVE_CODE = 5

# ---------------------------------------------------------------- the store

# The folder of all jobs in an etcd that others may use as well.
PREFIX = "elastic"
# Ports: etcd's own for clients, and torchrun's for a c10d store.
ETCD_PORT = 2379
C10D_PORT = 29400

# ---------------------------------------------------------------- time-outs (seconds)

# For the first contact with the store. A server that starts at the same time as the nodes is there
# by then, and who has mistyped an address does not wait long to read it.
CONNECT_TIMEOUT = 15.0
# Nodes that start together are within a second of each other; more would be felt at each start.
LAST_CALL = 3.0
# Machines that are asked for may take minutes to come; torchrun waits as long.
JOIN_TIMEOUT = 600.0
# To notice the end of a round, end the workers and come back takes seconds. A node that takes a
# minute is not coming back, and the others train without it.
REJOIN_TIMEOUT = 60.0
# A silent member may train on behind a broken network, and two groups must never train at once.
# As long as ``JOIN_TIMEOUT``: networks have come back by then, and somebody looks at the job.
FENCE_TIMEOUT = 600.0
# The lease of a node. Shorter ones end by mistake when a machine is busy for a moment; most deaths
# are noticed by probes, long before this.
LEASE_TTL = 5.0
# Between SIGTERM and SIGKILL for a worker that is asked to end: as long as Kubernetes gives a pod.
GRACE = 30.0
# The same for a worker whose group is broken already: it can save nothing any more.
BROKEN_GRACE = 0.2
# A killed process may take this long to be gone: the kernel takes its memory down, and a GPU's.
KILL_TIMEOUT = 1.8
# The first one to join a running job waits so long for others: one change for all of them costs
# the members their processes once.
JOIN_BATCH = 2.0
# ... and where the members keep their processes, so that a change costs them little.
JOIN_BATCH_IN_PLACE = 0.2
# One probe over the network between the nodes, with several packets lost.
PROBE_TIMEOUT = 0.5
# No step may be committed in place for this long, at least; a collective that hangs never ends by
# itself. Evaluation and saving are known to the agent and do not count.
HANG_TIMEOUT = 30.0

# ---------------------------------------------------------------- the rendezvous (seconds)

# A write to the store that has no answer by then has failed. The shortest fence follows from it:
# a node must know in time that it has lost the store (``Timeouts.shortest_fence``).
STORE_TIMEOUT = 4.0
# How long an absent key proves nothing, after contact with the store was regained or it has lost
# its data: at least this long, and a lease. Three back-offs of a connection fit into it.
SETTLE = 3.0
# When a silent node is probed first, and then how often at most: the members of a round that breaks
# leave it within some hundredths of a second, and a dead process answers (with a reset) at once.
PROBE_AFTER = 0.01
PROBE_EVERY = 0.25
# How long the leader waits for members to say whom they reach: several probes each.
SURVEY_TIMEOUT = 3.0
# Extra wait for each rank before a waiting member probes the leader: a thousand that ask at once
# would be a storm.
PROBE_STAGGER = 0.005

# ---------------------------------------------------------------- the agent

# Seconds between two heartbeats of an agent for which nothing happens: a third of the shortest
# lease that etcd grants (2 s), so that one may be late.
AGENT_BEAT = 0.6
# Seconds after which workers that have not left a round in place are asked where they are.
LOOK_FOR_STUCK = 2.0
# The share of the machine's memory that snapshots may take: two copies (ours and a buddy's) of a
# state that fits beside training.
SNAPSHOT_MEMORY_SHARE = 0.25
# Rounds of which logs are kept on each node: a job that is resized all day fills no disk.
KEEP_LOGS = 100
# Where metrics are served: to this machine only, as there is no password.
METRICS_HOST = "127.0.0.1"
