"""Fixed limits, pauses and thresholds, each with its unit and the reason for its value.

What a user can set has its default in ``defaults.py``. Here is what only a change of the code
changes, and what a user notices: when something is reported, tried again or given up, and how much
of it is kept or shown. What nobody notices (sizes of buffers, periods inside of one algorithm)
stays in the file that uses it.
"""

from __future__ import annotations

from elastic_runtime.backoff import Backoff

# ---------------------------------------------------------------- failures of a job

# Rounds in a row without progress that end a job.
MAX_FRUITLESS_ROUNDS = 5
# Before a job tries again after rounds without progress (seconds).
RETRY_PAUSES = Backoff(first=0.5, longest=30.0)
# Failing within this time (seconds), without a step reported, is failing soon after the start.
EARLY_FAILURE = 10.0
# A script without step reports has made progress if it ran this long (seconds). A fault from
# outside says little about the script, so there a short run is enough.
RUN_THAT_COUNTS = 30.0
RUN_THAT_COUNTS_IF_KILLED = 5.0
# A node that has joined, and whose round failed at once, is left out for this long (seconds).
FAILED_JOINER_PAUSES = Backoff(first=4.0, longest=60.0)

# ---------------------------------------------------------------- the store and probes (seconds)

# One try of a call to etcd; and so many calls in a row that run out of time: the connection leads
# nowhere, and is made again.
ETCD_CALL_TIMEOUT = 2.0
MAX_UNANSWERED_CALLS = 3
# One question about what is wrong with an etcd, for the error message.
ETCD_DIAGNOSIS_TIMEOUT = 1.0
# Between two messages about the same problem with the store, and until the first one. A store that
# is connected and takes no writes is reported earlier.
OUTAGE_REPORT_INTERVAL = 30.0
FIRST_OUTAGE_REPORT = 1.0
# The share of ``fence_timeout`` that an agent without contact keeps for stopping its workers: it
# begins so much earlier than the others stop waiting for it.
FENCE_RESERVE = 0.2
# A write that failed so long ago and was not tried again says nothing about the store.
STALE_REFUSAL = 15.0
# How often a joiner that cannot reach the members tries again; and for how long after an answer to
# a probe a node counts as reached.
UNREACHABLE_PAUSE = 1.0
PROBE_ANSWER_FRESH = 5.0
# A probe without a result after so long was lost with the thread that sent it.
LOST_PROBE_AFTER = 5.0
# A round whose members cannot be read for so long counts as unreadable.
MISSING_MEMBERS_TIMEOUT = 3.0
# A node decides again after so long at most, so that no wait can last for ever.
LONGEST_WAIT = 60.0

# ---------------------------------------------------------------- agents and their workers

# A machine that refuses to start a process (no memory, too many processes) is asked again for so
# long, with these pauses (seconds): what it refuses then it will not grant by itself.
START_RETRY_TIMEOUT = 120.0
START_RETRY_PAUSES = Backoff(first=0.1, longest=10.0)
# A fork server that dies more often in a row without ever being ready is given up.
MAX_FORK_SERVER_DEATHS = 3
# ... as is the import of a script's modules ahead of its start, if it kills the server so often.
MAX_IMPORT_DEATHS = 3
# Before a server that imports ahead is tried again (seconds).
WARM_START_PAUSES = Backoff(first=60.0, longest=3600.0)
# Workers that end before they come to ``elastic.run`` are started again so often.
MAX_START_FAILURES = 3
# The trial fork of a process that has imported the script's modules (seconds).
TRIAL_FORK_TIMEOUT = 20
# Between the request for a stack dump and SIGKILL (seconds).
STACK_DUMP_TIME = 1.0
# How long the end of a worker waits for its log files (seconds).
WORKER_LOG_TIMEOUT = 0.5
# Until killed processes must be gone: of a fork server; of the workers of a node (seconds).
SERVER_END_TIMEOUT = 10.0
WORKERS_END_TIMEOUT = 10.0
# How long the last message of a node may take to reach the store (seconds).
GOODBYE_TIMEOUT = 2.0
# The host of an embedded store leaves last; the others have so long to read the outcome (seconds).
HOST_STAYS = 10.0
# A start that takes longer is reported, first after so many seconds, then each time after so many
# times more.
SLOW_START = 5.0
SLOW_START_FACTOR = 3.0
# A job that counts steps and has no checkpoint for so long gets a hint (seconds); in a shorter one
# it would not matter.
NO_CHECKPOINT_HINT = 3600.0
# Characters of a traceback and of a reason in records and messages.
LONGEST_TRACEBACK = 8000
LONGEST_REASON = 160
# Two signals to leave within this time (seconds) are one request: Slurm sends SIGTERM to a step and
# then to its job, container runtimes to a process and then to its group, a terminal to a group.
ONE_REQUEST = 2.0
# The console holds back the line of a round for so long, to add what its recovery took (seconds).
LONGEST_HOLD = 5.0

# Nodes that one command starts on one machine, a process each; a larger number is a mistake.
MAX_LOCAL_NODES = 1000
# Levels of a node's topology, and characters of each: a label of Kubernetes has no more.
MAX_TOPOLOGY_LEVELS = 8
LONGEST_TOPOLOGY_LEVEL = 64
# How long a node waits for its topology to be in ``--node-topology-file``, and between two looks
# (seconds): on Kubernetes it is there a moment after the pod has its node.
TOPOLOGY_FILE_TIMEOUT = 5.0
TOPOLOGY_FILE_INTERVAL = 0.1

# ---------------------------------------------------------------- hanging workers

# A step may take so many times as long as the usual one, which is the median of so many. Were it
# the longest that counted, a stall that has healed would let the next one be noticed three times
# as late.
HANG_FACTOR = 3.0
HANG_STEPS = 15
# Time in ``train`` without a first step that is reported (seconds); a compiler may need as long.
LONG_FIRST_STEP = 60.0
# A worker that has not answered its agent by then is silent (seconds). A machine whose cores are
# taken away now and then makes a healthy worker late by one.
SILENT_WORKER = 2.0
# An agent whose loop has not turned for so long hangs (seconds), as its probe for Kubernetes says.
# It has lost its lease long before.
HANGING_AGENT = 60.0

# ---------------------------------------------------------------- metrics and events

# Upper bounds of histograms in seconds, from a recovery in place to a model of terabytes.
HISTOGRAM_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
# Lost time is shown, in the line of a round and in a job's last one, from so many seconds on.
NOTICEABLE_LOSS = 1.0
# How long a client of a metrics server may take, from its connection to the last byte (seconds),
# and how many there may be at a time.
HTTP_TIMEOUT = 5.0
MAX_HTTP_CLIENTS = 256
# Events that ``elasticctl status`` shows.
EVENTS_SHOWN = 8

# ---------------------------------------------------------------- training in place

# Committed steps that may be lost without asking the user, where nothing was saved: the first save
# may not be durable before.
LOST_STEPS_ALLOWED = 10
# The ranks agree on requests (to save, to leave) this often, in microseconds of training, at first;
# then after a share of the time for which they have trained together; and at last after the longest
# period. A request waits no longer than that, unless steps become longer meanwhile. So later the
# number of steps has a smaller bound: if steps of some milliseconds become steps of a second, a
# request is still heard within the default ``--grace``. An agreement takes 0.3 ms from two steps.
AGREEMENT_PERIOD_US = 30_000
AGREEMENT_MAX_STEPS = 64
AGREEMENT_SHARE_OF_AGE = 8
AGREEMENT_LONGEST_PERIOD_US = 250_000
AGREEMENT_MAX_STEPS_LATER = 16
# A step that took so many times as long as the mean one is no accident: more of them may follow.
AGREEMENT_STEP_OUTLIER = 8
# A rank that has returned from train looks so often whether the others have, and in the restart
# form says after so long that they have not; both in seconds.
AGREEMENT_LOOK_PAUSE = 0.005
RETURN_PATIENCE = 30.0
# Averaged gradients are the same on all ranks but for rounding; what is not averaged differs by
# some hundredths at least. Of the first so many commits those with a power of two are compared.
REPLICA_TOLERANCE = 1e-3
REPLICA_CHECKS_UNTIL = 64
# An agent reads its workers' messages at once; one that does not is stopped or dead (seconds).
AGENT_READ_TIMEOUT = 5.0
# An agent that got the same signal as its worker sends a request to leave within this time
# (seconds).
AGENT_ANSWER_TIMEOUT = 3.0
# How long the end of a process waits for its groups to be dropped (seconds).
DROP_GROUPS_TIMEOUT = 5.0

# ---------------------------------------------------------------- checkpoints

# Before a save that failed is tried again (seconds).
SAVE_RETRY_PAUSES = Backoff(first=1.0, longest=60.0)
# ... and before the last save of a program is, or one that it waits for: one pause for each further
# try, all together well below the grace of a node that leaves.
LAST_SAVE_RETRY_PAUSES = Backoff(first=0.5, longest=4.0).pauses(4)
# How old the last save may become (``max_age`` if it is not given): so many intervals of
# ``every``, but no shorter than so many seconds, as a short interval says little about how long a
# storage may be away; and without an interval in seconds so many.
SAVE_AGE_INTERVALS = 10
SHORTEST_SAVE_AGE = 60.0
SAVE_AGE_WITHOUT_INTERVAL = 3600.0
# A save that is due waits for the one before it: the first time, and once it is put off (seconds).
PREVIOUS_SAVE_TIMEOUT = 5.0
PREVIOUS_SAVE_TIMEOUT_AGAIN = 0.1
# A save that was given up may take so long to end (seconds) before the next one goes on without it;
# so many may be left behind, as each keeps an image of the state.
ABANDONED_SAVE_TIMEOUT = 10.0
MAX_ABANDONED_SAVES = 2
# Between two reports about a save that does not end (seconds).
SLOW_SAVE_REPORT_INTERVAL = 60.0
# How long the end of a program waits for tasks that were given up (seconds): most of them end soon,
# and remove their files.
ABANDONED_TASKS_TIMEOUT = 5.0
# A save or load that takes longer shows its progress, and how often (seconds).
PROGRESS_AFTER = 2.0
PROGRESS_INTERVAL = 10.0
# Until a missing first answer of an object store is reported, and between two reports (seconds).
FIRST_STORAGE_REPORT = 5.0
NEXT_STORAGE_REPORT = 30.0
# ... and until it is an error: for a job, as long as it waits for its nodes, and for a command that
# a person has typed (seconds).
FIRST_STORAGE_TIMEOUT = 600.0
FIRST_STORAGE_TIMEOUT_OF_COMMANDS = 20.0
# Tries of a call to an object store.
OBJECT_STORE_TRIES = 4
# With more parts than that the manifest does not list them: it would have half a megabyte and more,
# and ``.metadata`` twice as much, and each rank that loads would read both. A checkpoint with fewer
# can be loaded by older versions of this package.
MAX_LISTED_PARTS = 20_000
# The share of a machine's memory that is never taken for snapshots.
MEMORY_RESERVE = 0.05
# A connection to another node's snapshots, and each answer of it (seconds).
SNAPSHOT_CONNECT_TIMEOUT = 5.0
SNAPSHOT_READ_TIMEOUT = 20.0
# Clients of a node's snapshots at a time.
MAX_SNAPSHOT_CLIENTS = 256

# ---------------------------------------------------------------- Kubernetes

# Requests to the API server: a connection, an answer, and a watch of which nothing is heard, not
# even the bookmark of each minute (seconds).
API_CONNECT_TIMEOUT = 5.0
API_REQUEST_TIMEOUT = 20.0
WATCH_SILENCE_TIMEOUT = 120.0
# Before a list or a watch that failed is tried again (seconds).
WATCH_PAUSES = Backoff(first=0.1, longest=30.0)
# The Lease of the controller: how long another one waits after the last renewal (seconds).
CONTROLLER_LEASE = 15.0
# Jobs that are reconciled at a time.
RECONCILE_WORKERS = 8
# Before the next look at a job (seconds) when the API server did not answer or an object had
# changed; and when it forbids what the job needs (a quota, a webhook).
CONFLICT_PAUSES = Backoff(first=0.2, longest=5.0)
REFUSAL_PAUSES = Backoff(first=1.0, longest=60.0)
# ... and while something else is in the way, which may go without a sign (seconds).
BLOCKED_JOB_INTERVAL = 60.0
# So many tries in a row must find a name taken before that is reported: an object may be the job's
# own, and not have been seen yet.
NAME_TAKEN_TRIES = 3
# How long the labels of a node are believed (seconds), and of how many nodes. Where they may not be
# read, or pods may not be told, nobody tries again sooner than so (seconds).
NODE_LABELS_AGE = 300.0
KNOWN_NODES = 4096
FORBIDDEN_TOPOLOGY_PAUSE = 60.0
# A pod that ends sooner after its start (seconds) has failed early, and so may the next one.
SHORT_POD_LIFE = 30.0
# Before the next pod after one that failed early (seconds); none after the first.
POD_PAUSES = Backoff(first=1.0, longest=60.0)
# How often the status of an ElasticJob takes over a step, if nothing else changes (seconds).
STATUS_STEP_INTERVAL = 30.0
# How often a controller asks an agent for its report: one that is ready, and before; and with these
# pauses one that does not answer, as some images have no such agent (seconds).
REPORT_INTERVAL = 5.0
FIRST_REPORT_INTERVAL = 0.5
NO_REPORT_PAUSES = Backoff(first=1.0, longest=60.0)
# ... no longer than the second pause while a pod may still be starting: so long after its pods have
# changed (seconds). A worker image takes its time to import torch.
STARTING_PODS_TIME = 120.0
STARTING_PODS_PAUSE = 2.0
# An agent that reports at all does so within this time (seconds).
FIRST_REPORT_TIMEOUT = 15.0
# An agent whose predecessor did not reach the store is believed to run after so long (seconds), if
# it does not say so earlier.
STORE_PROBLEM_TIMEOUT = 120.0
# The scheduler finds no place for a pod for so long before that is told (seconds): at first it says
# so of every pod whose volume is on its way, or for which another one has to go.
PLACEMENT_TIMEOUT = 10.0
# A pod that needs a Secret is looked at more closely after so long (seconds).
SLOW_POD_START = 60.0
# How long a controller may take to notice a job before ``elasticctl submit`` says so (seconds).
UNNOTICED_JOB = 10.0
# Between two looks of a command that waits for something (seconds).
POLL_INTERVAL = 1.0
# A log that is followed, and one that is not: silence after which the connection counts as lost.
FOLLOWED_LOG_SILENCE = 3600.0
LOG_SILENCE = 30.0
