"""What an ElasticJob asks for, read from the object as users write it.

The schema of the custom resource refuses most of what is wrong here, and fills in the defaults;
this reads objects that have not met it just as well (``elasticctl submit --dry-run``, an older
schema in the cluster), so that a default or a rule has its meaning in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.controller.spec.field_reader import InvalidSpec, Section
from elastic_runtime.controller.spec.pod_template import read_etcd_template, read_template
from elastic_runtime.controller.spec.scheduling_spec import Scheduling, read_scheduling
from elastic_runtime.controller.spec.topology_spec import read_node_labels
from elastic_runtime.endpoint import parse_endpoint
from elastic_runtime.errors import UsageError
from elastic_runtime.kubernetes.api_resources import Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.controller.spec.field_reader import Json

__all__ = ["Checkpoint", "Etcd", "InvalidSpec", "JobSpec", "Rule"]

API_GROUP = "elastic.pytorch.org"
VERSION = "v1alpha1"
KIND = "ElasticJob"
PLURAL = "elasticjobs"
JOBS = Resource(f"/apis/{API_GROUP}/{VERSION}", PLURAL)
WORKER = "Worker"
CONTAINER = "elasticjob-worker"
TEMPLATE = f"spec.replicaSpecs.{WORKER}.template"

BACKENDS = ("etcd", "etcd-v2", "etcd-v3")
RESTART_ALWAYS, RESTART_ON_FAILURE, RESTART_NEVER, RESTART_BY_EXIT_CODE = (
    "Always",
    "OnFailure",
    "Never",
    "ExitCode",
)
RESTART_POLICIES = (RESTART_ALWAYS, RESTART_ON_FAILURE, RESTART_NEVER, RESTART_BY_EXIT_CODE)
CLEAN_ALL, CLEAN_RUNNING, CLEAN_NONE = "All", "Running", "None"
CLEAN_POLICIES = (CLEAN_ALL, CLEAN_RUNNING, CLEAN_NONE)
# What becomes of pods that run when what they are made from changes.
ON_RECREATE, ROLLING = "OnRecreate", "Rolling"
ROLLOUTS = (ON_RECREATE, ROLLING)
# What a rule of the failure policy can ask for.
FAIL_JOB, RESTART, IGNORE, COUNT = "FailJob", "Restart", "Ignore", "Count"
RULE_ACTIONS = (FAIL_JOB, RESTART, IGNORE, COUNT)

# More are a slip of the keyboard, and would be made one by one.
MOST_PODS = 10_000
MOUNT_PATH = "/checkpoints"
# What ``managedBy`` says of a job that this controller looks after, if it says anything.
MANAGER = f"{API_GROUP}/controller"
# The name is part of those of pods and Services, which are DNS labels of at most 63 characters.
LONGEST_NAME = 50
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MANAGER = re.compile(_OBJECT.pattern + r"/[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?")
_NPROC = re.compile(r"auto|cpu|gpu|xpu|[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of ``failurePolicy``: which ends of pods it is about, and what follows.

    Attributes:
        action: ``FailJob``; ``Restart``: replaced, not counted; ``Count``: a failure of the user's
            code; ``Ignore``: the pod is left as it ended, and the others continue without it.
        codes: exit codes; empty: any.
        within: the code must be among them; False: must not.
        reasons: of the pod or the container (``OOMKilled``); empty: any.
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
    mount_path: str = MOUNT_PATH

    @property
    def place(self) -> str:
        """What the training script finds in ``ELASTIC_CHECKPOINT``."""
        return self.url or self.mount_path


@dataclass(frozen=True, slots=True)
class Etcd:
    """How etcd is run or reached.

    Attributes:
        image: of the job's own etcd; "" means the controller's default.
        tls_secret: a Secret with ``ca.crt``, ``tls.crt``, ``tls.key``; "" means no TLS.
        auth_secret: a Secret with ``username``, ``password``; "" means no password.
        template: what is merged into the pod of the job's own etcd.
    """

    image: str = ""
    tls_secret: str = ""
    auth_secret: str = ""
    template: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """An ElasticJob, checked, with all defaults.

    Attributes:
        name, namespace, uid, generation: from its metadata.
        template: the pod template as it was written.
        endpoint: ``rdzvEndpoint``; "" means: the controller runs an etcd for the job.
        backend: ``rdzvBackend``: how the workers speak to it.
        run_name: ``rdzvId``; "" means: the job's uid.
        minimum, maximum: bounds of the world, in pods; left out, each is ``replicas``.
        replicas: how many pods are asked for; left out, it is ``minimum``, or 1.
        spares: pods beyond ``maximum``, kept while ``replicas`` is ``maximum``. (Below it a
            further pod would be a member like any other.)
        nproc: ``nprocPerNode``: a number, ``auto``, ``gpu``, ``cpu``; "" if not given.
        max_restarts: failures of user code that the agents handle; None: their own
            default.
        restart_policy: of the workers.
        suspend: there are to be no pods.
        clean: ``cleanPodPolicy``: which pods go when the job has ended.
        ttl: seconds after the end until the job itself is deleted; None: never.
        deadline: seconds that the job may be active; None: for ever.
        backoff_limit: how often the whole job is started again after its code has failed.
        rules: ``failurePolicy``, in order.
        rollout: ``OnRecreate``: pods that run keep the template that they were made from;
            ``Rolling``: they are replaced, one after the other.
        checkpoint: where checkpoints go; None: the script knows.
        etcd: how etcd is run or reached.
        priority_class: ``priorityClassName`` of all pods that do not say another one.
        manager: ``managedBy``: who looks after the job; "": this controller.
        scheduling: how its pods are admitted and placed.
        node_labels: of nodes, nearest last, that pods are told; None: the controller's setting.
    """

    name: str
    namespace: str
    uid: str
    template: Json
    generation: int = 0
    endpoint: str = ""
    backend: str = ""
    run_name: str = ""
    minimum: int = 1
    maximum: int = 1
    replicas: int = 1
    spares: int = 0
    nproc: str = ""
    max_restarts: int | None = None
    restart_policy: str = RESTART_ON_FAILURE
    suspend: bool = False
    clean: str = CLEAN_RUNNING
    ttl: int | None = None
    deadline: int | None = None
    backoff_limit: int = 0
    rules: tuple[Rule, ...] = ()
    rollout: str = ON_RECREATE
    checkpoint: Checkpoint | None = None
    etcd: Etcd = field(default_factory=Etcd)
    priority_class: str = ""
    manager: str = ""
    scheduling: Scheduling = field(default_factory=Scheduling)
    node_labels: tuple[str, ...] | None = None

    @classmethod
    def of(cls, job: Json) -> JobSpec:
        """Reads an ElasticJob.

        Args:
            job: the object, with ``metadata`` and ``spec``.

        Raises:
            InvalidSpec: it asks for what cannot be done.
        """
        metadata = Section.of(job, "metadata")
        spec = Section.of(job, "spec")
        kinds = spec.section("replicaSpecs")
        for kind in kinds.values:
            if kind != WORKER:
                raise InvalidSpec(f"{kinds.path}.{kind}", f"there is one kind of pods: {WORKER}")
        worker = kinds.section(WORKER)
        minimum, maximum, replicas = (
            section.whole(name, least=1, most=MOST_PODS)
            for section, name in (
                (spec, "minReplicas"),
                (spec, "maxReplicas"),
                (worker, "replicas"),
            )
        )
        replicas = replicas or minimum or 1
        read = cls(
            name=_name(metadata),
            namespace=metadata.text("namespace") or "default",
            uid=metadata.text("uid"),
            generation=metadata.whole("generation") or 0,
            template=read_template(worker),
            endpoint=_endpoint(spec),
            backend=spec.choice("rdzvBackend", BACKENDS, ""),
            run_name=spec.text("rdzvId"),
            minimum=replicas if minimum is None else minimum,
            maximum=replicas if maximum is None else maximum,
            replicas=replicas,
            spares=spec.whole("spares", most=MOST_PODS) or 0,
            nproc=_nproc(spec),
            max_restarts=spec.whole("maxRestarts"),
            restart_policy=worker.choice("restartPolicy", RESTART_POLICIES, RESTART_ON_FAILURE),
            suspend=spec.switch("suspend"),
            clean=spec.choice("cleanPodPolicy", CLEAN_POLICIES, CLEAN_RUNNING),
            ttl=spec.whole("ttlSecondsAfterFinished"),
            deadline=spec.whole("activeDeadlineSeconds", least=1, most=2**63 - 1),
            backoff_limit=spec.whole("backoffLimit") or 0,
            rules=tuple(_rules(spec)),
            rollout=spec.choice("rollout", ROLLOUTS, ON_RECREATE),
            checkpoint=_checkpoint(spec),
            etcd=_etcd(spec),
            priority_class=_matching(spec, "priorityClassName", _OBJECT, 253, "high-priority"),
            manager=_matching(spec, "managedBy", _MANAGER, 63, MANAGER),
            scheduling=read_scheduling(spec),
            node_labels=read_node_labels(spec),
        )
        return read.check()

    def check(self) -> JobSpec:
        """Checks what concerns several fields.

        Raises:
            InvalidSpec: they do not go together.
        """
        low, high = self.minimum, self.maximum
        if low > high:
            raise InvalidSpec(
                "spec.minReplicas", f"{low} is above maxReplicas {high}: lower it, or raise that"
            )
        if not low <= self.replicas <= high:
            raise InvalidSpec(
                f"spec.replicaSpecs.{WORKER}.replicas",
                f"{self.replicas} is not between minReplicas {low} and maxReplicas {high}",
            )
        if not self.endpoint:
            for name, given in (
                ("etcd.tls", self.etcd.tls_secret),
                ("etcd.auth", self.etcd.auth_secret),
                ("rdzvBackend", self.backend),
            ):
                if given:
                    raise InvalidSpec(
                        f"spec.{name}",
                        "it is about an etcd of yours: name that in rdzvEndpoint, or leave it out",
                    )
        elif self.etcd.template:
            raise InvalidSpec(
                "spec.etcd.template",
                "it is about the etcd that the controller runs for a job, and this job has one of "
                "yours: leave out this field, or rdzvEndpoint",
            )
        return self

    @property
    def container(self) -> int:
        """Which container of the template is the worker's: named so, or the first one."""
        names = [each.get("name") for each in self.template["spec"]["containers"]]
        return names.index(CONTAINER) if CONTAINER in names else 0

    @property
    def images(self) -> dict[str, str]:
        """All images of the template by their fields, the worker's first."""
        pod = self.template["spec"]
        found = {
            f"{TEMPLATE}.spec.{kind}[{place}].image": str(each.get("image", ""))
            for kind in ("containers", "initContainers")
            for place, each in enumerate(pod.get(kind) or ())
        }
        first = f"{TEMPLATE}.spec.containers[{self.container}].image"
        return {first: found[first], **found}

    @property
    def secrets(self) -> dict[str, str]:
        """The Secrets that the job needs, by the field that names them."""
        named = {
            "spec.etcd.tls.secretName": self.etcd.tls_secret,
            "spec.etcd.auth.secretName": self.etcd.auth_secret,
        }
        return {field: name for field, name in named.items() if name}

    def run_id(self, attempt: int) -> str:
        """The name of the run in the store; a new one for each start of the whole job.

        The store remembers how a run ended, and agents that come later leave with that.
        """
        if self.run_name:
            return self.run_name if attempt == 0 else f"{self.run_name}-{attempt}"
        return f"{self.uid}-{attempt}"


# ---------------------------------------------------------------- fields of more than one value


def _name(metadata: Section) -> str:
    name = metadata.text("name")
    if len(name) > LONGEST_NAME or not _LABEL.fullmatch(name):
        raise InvalidSpec(
            "metadata.name",
            f"{name!r} must be at most {LONGEST_NAME} small letters, digits and dashes, a letter "
            f"first: pods are called <name>-worker-<i>",
        )
    return name


def _endpoint(spec: Section) -> str:
    text = spec.text("rdzvEndpoint")
    if not text:
        return ""
    path = f"{spec.path}.rdzvEndpoint"
    if text.startswith("c10d:"):
        raise InvalidSpec(path, "pods come and go, so that the store must be an etcd")
    try:
        parse_endpoint(text, "" if "://" in text else "etcd")
    except UsageError as error:
        raise InvalidSpec(path, str(error)) from None
    return text


def _matching(spec: Section, name: str, form: re.Pattern[str], longest: int, example: str) -> str:
    text = spec.text(name)
    if len(text) > longest:
        raise InvalidSpec(f"{spec.path}.{name}", f"it has more than {longest} characters")
    if text and not form.fullmatch(text):
        raise InvalidSpec(f"{spec.path}.{name}", f"{text!r} is not of the form of {example}")
    return text


def _nproc(spec: Section) -> str:
    value = spec.values.get("nprocPerNode")
    if value is None:
        return ""
    if isinstance(value, bool) or not _NPROC.fullmatch(str(value)):
        raise InvalidSpec(
            f"{spec.path}.nprocPerNode", f"{value!r} is neither a number nor auto, gpu, cpu or xpu"
        )
    return str(value)


def _rules(spec: Section) -> Iterator[Rule]:
    policy = spec.section("failurePolicy", needed=False)
    for place, item in enumerate(policy.items("rules")):
        rule = Section.checked(item, f"{policy.path}.rules[{place}]")
        codes = rule.section("onExitCodes", needed=False)
        if not codes.values and not rule.items("onReasons"):
            raise InvalidSpec(rule.path, "a rule needs onExitCodes or onReasons")
        values = codes.items("values")
        if codes.values and not values:
            raise InvalidSpec(f"{codes.path}.values", "name the exit codes")
        if any(isinstance(code, bool) or not isinstance(code, int) for code in values):
            raise InvalidSpec(f"{codes.path}.values", "exit codes are whole numbers")
        yield Rule(
            action=rule.choice("action", RULE_ACTIONS),
            codes=frozenset(values),
            within=codes.choice("operator", ("In", "NotIn"), "In") == "In",
            reasons=frozenset(str(reason) for reason in rule.items("onReasons")),
        )


def _checkpoint(spec: Section) -> Checkpoint | None:
    section = spec.section("checkpoint", needed=False)
    if not section.values:
        return None
    claim, url, path = (section.text(name) for name in ("claimName", "url", "mountPath"))
    if bool(claim) == bool(url):
        raise InvalidSpec(section.path, "give either claimName or url")
    if path and (url or not path.startswith("/")):
        raise InvalidSpec(
            f"{section.path}.mountPath", "it is where the claim is mounted: an absolute path"
        )
    return Checkpoint(claim, url, path or MOUNT_PATH)


def _etcd(spec: Section) -> Etcd:
    section = spec.section("etcd", needed=False)
    tls, auth = (section.section(name, needed=False) for name in ("tls", "auth"))
    template = section.section("template", needed=False)
    read_etcd_template(template)
    secrets = tls.text("secretName"), auth.text("secretName")
    return Etcd(section.text("image"), *secrets, template.values)
