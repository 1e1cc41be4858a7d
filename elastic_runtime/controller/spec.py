"""What an ElasticJob asks for, read from the object as users write it.

The schema of the custom resource refuses most of what is wrong here, and fills in the defaults;
this reads objects that have not met it just as well (``elasticctl submit --dry-run``, an older
schema in the cluster), so that a default or a rule has its meaning in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_runtime.errors import UsageError

Json = Mapping[str, Any]

GROUP = "elastic.pytorch.org"
VERSION = "v1alpha1"
KIND = "ElasticJob"
PLURAL = "elasticjobs"
WORKER = "Worker"
CONTAINER = "elasticjob-worker"

ALWAYS, ON_FAILURE, NEVER, EXIT_CODE = "Always", "OnFailure", "Never", "ExitCode"
RESTART_POLICIES = (ALWAYS, ON_FAILURE, NEVER, EXIT_CODE)
CLEAN_ALL, CLEAN_RUNNING, CLEAN_NONE = "All", "Running", "None"
CLEAN_POLICIES = (CLEAN_ALL, CLEAN_RUNNING, CLEAN_NONE)
# What a rule of the failure policy can ask for.
FAIL_JOB, RESTART, IGNORE, COUNT = "FailJob", "Restart", "Ignore", "Count"
RULE_ACTIONS = (FAIL_JOB, RESTART, IGNORE, COUNT)

# The agents have mended what they could by then (``maxRestarts``).
DEFAULT_BACKOFF_LIMIT = 0
DEFAULT_MAX_RESTARTS = 3
# Users know these from Kubernetes; a pod's own default if its template says nothing.
DEFAULT_GRACE = 30


class InvalidSpec(UsageError):
    """A field of an ElasticJob says something that cannot be done.

    Args:
        field: its path, ``spec.minReplicas``.
        why: what is wrong, and what to write instead.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of ``failurePolicy``: which ends of pods it is about, and what follows.

    Attributes:
        action: ``FailJob``; ``Restart``: replaced, not counted; ``Count``: a failure of the user's
            code; ``Ignore``: the pod is left as it ended, and the others go on without it.
        codes: exit codes; empty: any.
        within: the code must be among them; False: must not.
        reasons: reasons of the pod or the container (``OOMKilled``); empty: any.
    """

    action: str
    codes: frozenset[int] = frozenset()
    within: bool = True
    reasons: frozenset[str] = frozenset()

    def meets(self, code: int | None, reason: str) -> bool:
        """Whether an end with this code and reason is one that the rule is about."""
        if self.codes and (code is None or (code in self.codes) is not self.within):
            return False
        return not self.reasons or reason in self.reasons


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where checkpoints go: a claim that is mounted, or a URL that is only passed on.

    Attributes:
        claim: name of a PersistentVolumeClaim; "" with a URL.
        url: ``s3://bucket/path``; "" with a claim.
        mount_path: where the claim is mounted.
    """

    claim: str = ""
    url: str = ""
    mount_path: str = "/checkpoints"

    @property
    def place(self) -> str:
        """What the training script is told (``ELASTIC_CHECKPOINT``)."""
        return self.url or self.mount_path


@dataclass(frozen=True, slots=True)
class Etcd:
    """How etcd is run or reached.

    Attributes:
        image: of the job's own etcd; "" means the controller's default.
        tls_secret: a Secret with ``ca.crt``, ``tls.crt``, ``tls.key``; "" means no TLS.
        auth_secret: a Secret with ``username``, ``password``; "" means no password.
    """

    image: str = ""
    tls_secret: str = ""
    auth_secret: str = ""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """An ElasticJob, checked, with all defaults.

    Attributes:
        name, namespace, uid, generation: from its metadata.
        endpoint: ``rdzvEndpoint``; "" means: the controller runs an etcd for the job.
        run_name: ``rdzvId``; "" means: the job's uid.
        minimum, maximum: bounds of the world, in pods.
        replicas: how many pods are asked for; left out, it is ``minimum``.
        spares: pods kept beyond ``maximum``; see ``wanted``.
        nproc: ``nprocPerNode``, a number or ``auto``, ``gpu``, ``cpu``; "" if not given.
        max_restarts: failures of user code that the agents mend among themselves.
        restart_policy: of the workers.
        template: the pod template as it was written.
        suspend: there are to be no pods.
        clean: ``cleanPodPolicy``: which pods go when the job has ended.
        ttl: seconds after the end until the job itself is deleted; None: never.
        deadline: seconds that the job may be active; None: for ever.
        backoff_limit: how often the whole job is started again after its code has failed.
        rules: ``failurePolicy``, in order.
        checkpoint: where checkpoints go; None: the script knows.
        etcd: how etcd is run or reached.
    """

    name: str
    namespace: str
    uid: str
    template: Json
    generation: int = 0
    endpoint: str = ""
    run_name: str = ""
    minimum: int = 1
    maximum: int = 1
    replicas: int = 1
    spares: int = 0
    nproc: str = ""
    max_restarts: int = DEFAULT_MAX_RESTARTS
    restart_policy: str = ON_FAILURE
    suspend: bool = False
    clean: str = CLEAN_RUNNING
    ttl: int | None = None
    deadline: int | None = None
    backoff_limit: int = DEFAULT_BACKOFF_LIMIT
    rules: tuple[Rule, ...] = ()
    checkpoint: Checkpoint | None = None
    etcd: Etcd = field(default_factory=Etcd)

    @classmethod
    def of(cls, job: Json) -> JobSpec:
        """Reads an ElasticJob.

        Args:
            job: the object, with ``metadata`` and ``spec``.

        Raises:
            InvalidSpec: it asks for what cannot be done.
        """
        raise NotImplementedError
