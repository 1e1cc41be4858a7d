"""The little of the Kubernetes API that ``elasticctl`` needs, and its errors in people's words.

A thin layer on the official client (``pip install elastic-runtime[kubernetes]``), imported when it
is needed. Objects are plain dictionaries, as in a manifest.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.spec import GROUP, PLURAL, VERSION
from elastic_runtime.errors import ClusterUnreachable, ElasticError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JOB_LABEL = "job-name"
GROUP_LABEL = "group-name"
INSTALL = (
    "kubectl apply -k deploy/base, or helm install elastic-runtime deploy/helm/elastic-runtime"
)

Object = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TIMEOUT = (5.0, 30.0)  # to connect, and between two bytes
_FOLLOWED = (5.0, 3600.0)  # a worker may say nothing for long, and a connection be lost silently
_PAGE = 500
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoSuchJob(UsageError):
    """There is no ElasticJob of this name."""


class _NoResource(UsageError):
    """ElasticJobs are not installed in the cluster."""


class NotAllowed(ClusterUnreachable):
    """The API server answers, but not to us; that trying again does not change."""


@dataclass(frozen=True)
class Access:
    """Which cluster a command is about.

    Attributes:
        context: a context of the kubeconfig; "" for the present one.
        namespace: "" for that of the context.
    """

    context: str = ""
    namespace: str = ""


def need(module: str) -> Any:
    """Imports a module that comes with the extra.

    Raises:
        UsageError: the extra is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"jobs on Kubernetes need the package {(error.name or module).partition('.')[0]!r}, "
            "which is not installed: pip install 'elastic-runtime[kubernetes]'"
        ) from None


def check_name(of: str, name: str) -> str:
    """The name itself, if it can be one: it becomes a part of paths.

    Args:
        of: what, for people.
        name: must be a DNS label.

    Raises:
        UsageError: it is none.
    """
    if not _LABEL.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a {of}: those have lower-case letters, digits and dashes "
            "within, and at most 63 of them"
        )
    return name


class Cluster:
    """Jobs, pods, events and logs in one namespace.

    Args:
        access: which cluster, and which namespace.

    Raises:
        UsageError: there is no usable configuration, or the extra is not installed.
    """

    def __init__(self, access: Access) -> None:
        kubernetes = need("kubernetes.client")
        config, namespace = _configure(access)
        check_name("namespace", namespace)
        config.retries = False  # a server that is not there is told at once, and once
        # It reports failed attempts as warnings on standard error; they are told as errors here.
        logging.getLogger("urllib3").setLevel(logging.CRITICAL)
        need("urllib3").disable_warnings()
        client = kubernetes.ApiClient(config)
        self._custom = kubernetes.CustomObjectsApi(client)
        self._core = kubernetes.CoreV1Api(client)
        self.server: str = config.host
        self.namespace = namespace

    def jobs(self, everywhere: bool = False) -> list[Object]:
        """All jobs, in the namespace or in all of them, by namespace and name."""
        found: list[Object] = []
        further = ""
        while True:
            page = {"limit": _PAGE, **({"_continue": further} if further else {})}
            with self._asking("list elasticjobs", everywhere=everywhere):
                if everywhere:
                    answer = self._custom.list_cluster_custom_object(
                        GROUP, VERSION, PLURAL, _request_timeout=_TIMEOUT, **page
                    )
                else:
                    answer = self._custom.list_namespaced_custom_object(
                        *self._place, _request_timeout=_TIMEOUT, **page
                    )
            found += answer.get("items") or []
            further = (answer.get("metadata") or {}).get("continue") or ""
            if not further:
                return sorted(found, key=_sort_key)

    def job(self, name: str) -> Object:
        """One job.

        Raises:
            NoSuchJob: it is not there.
        """
        with self._asking("get elasticjobs", name):
            job: Object = self._custom.get_namespaced_custom_object(
                *self._place, check_name("job", name), _request_timeout=_TIMEOUT
            )
            return job

    def create(self, job: Object) -> Object:
        """Makes a job.

        Raises:
            UsageError: there is one of that name already, or it is refused.
        """
        with self._asking("create elasticjobs", job["metadata"].get("name", "")):
            made: Object = self._custom.create_namespaced_custom_object(
                *self._place, job, _request_timeout=_TIMEOUT
            )
            return made

    def change(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merges a patch into a job."""
        with self._asking("patch elasticjobs", name):
            self._custom.patch_namespaced_custom_object(
                *self._place, check_name("job", name), dict(patch), _request_timeout=_TIMEOUT
            )

    def scale(self, name: str, replicas: int) -> None:
        """Sets the number of replicas through the ``scale`` subresource."""
        with self._asking("patch elasticjobs/scale", name):
            self._custom.patch_namespaced_custom_object_scale(
                *self._place,
                check_name("job", name),
                {"spec": {"replicas": replicas}},
                _request_timeout=_TIMEOUT,
            )

    def delete(self, name: str) -> None:
        """Deletes a job; what it owns follows."""
        with self._asking("delete elasticjobs", name):
            self._custom.delete_namespaced_custom_object(
                *self._place,
                check_name("job", name),
                propagation_policy="Background",
                _request_timeout=_TIMEOUT,
            )

    def pods(self, name: str) -> list[Object]:
        """All pods of a job, its etcd included."""
        with self._asking("list pods"):
            return self._items(
                self._core.list_namespaced_pod(
                    self.namespace,
                    label_selector=f"{GROUP_LABEL}={GROUP},{JOB_LABEL}={name}",
                    _preload_content=False,
                    _request_timeout=_TIMEOUT,
                )
            )

    def events(self, kind: str, name: str = "") -> list[Object]:
        """Events about objects of a kind, or about one of them."""
        selector = f"involvedObject.kind={kind}" + (f",involvedObject.name={name}" if name else "")
        with self._asking("list events"):
            return self._items(
                self._core.list_namespaced_event(
                    self.namespace,
                    field_selector=selector,
                    _preload_content=False,
                    _request_timeout=_TIMEOUT,
                )
            )

    def log(
        self,
        pod: str,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
    ) -> Iterator[bytes]:
        """The lines of a container's log, each with its time in front, without line ends.

        Args:
            pod, container: whose.
            follow: go on until the container has ended.
            tail: only the last ones.
            since: only those of so many last seconds.

        Raises:
            UsageError: there is no log.
            ClusterUnreachable: also in the middle of it.
        """
        some = {"tail_lines": tail, "since_seconds": since}
        with self._asking("get pods/log", pod):
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                timestamps=True,
                _preload_content=False,
                _request_timeout=_FOLLOWED if follow else _TIMEOUT,
                **{key: value for key, value in some.items() if value is not None},
            )
            try:
                yield from _lines(answer.stream(amt=None))
            finally:
                answer.close()

    @property
    def _place(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.namespace, PLURAL

    def _items(self, answer: Any) -> list[Object]:
        items: list[Object] = json.loads(answer.data).get("items") or []
        return items

    @contextmanager
    def _asking(self, what: str, name: str = "", everywhere: bool = False) -> Iterator[None]:
        """Says in our words what goes wrong with a request."""
        refused = need("kubernetes.client").ApiException
        lost = need("urllib3.exceptions").HTTPError
        try:
            yield
        except refused as error:
            raise self._refusal(error, what, name, everywhere) from None
        except (lost, OSError, json.JSONDecodeError) as error:
            raise ClusterUnreachable(
                f"the API server {self.server} does not answer ({_cause(error)}): is the cluster "
                "up, and is this the right kubeconfig and --context?"
            ) from None

    def _refusal(self, error: Any, what: str, name: str, everywhere: bool) -> ElasticError:
        status = _status(error.body)
        why = str(status.get("message") or error.reason or "").strip()
        where = "in all namespaces" if everywhere else f"in the namespace {self.namespace!r}"
        match error.status:
            case 401:
                return NotAllowed(
                    f"the API server {self.server} does not accept these credentials ({why}): "
                    "log in again, or choose another --context"
                )
            case 403 if "quota" in why:
                return UsageError(f"a quota of the namespace forbids it: {why}")
            case 403:
                verb, _, resource = what.partition(" ")
                return NotAllowed(
                    f"you may not {verb} {resource} {where}: {why}. Whoever administers the "
                    "cluster can bind you a Role that allows it"
                )
            case 404 if "elasticjobs" in what:
                return self._absent(what, name)
            case 404:
                return UsageError(f"there is no {name!r} {where}: {why}")
            case 409 if what.startswith("create"):
                return UsageError(
                    f"there is an ElasticJob {name!r} {where} already: choose another --name, or "
                    f"remove it with elasticctl delete {name}"
                )
            case 400 | 409 | 422:
                return UsageError(f"the API server refuses to {what} {name!r}: {why}")
        return ClusterUnreachable(
            f"the API server {self.server} failed with {error.status}: {why}; try again"
        )

    def _absent(self, what: str, name: str) -> UsageError:
        """Which of three things is not there: the resource, the namespace or the job."""
        if what.startswith("list"):
            return _NoResource(
                f"the cluster {self.server} knows no ElasticJobs: install them with {INSTALL}"
            )
        try:
            names = [job["metadata"]["name"] for job in self.jobs()]
        except _NoResource as error:
            return error
        except ElasticError:
            names = []  # whoever may get one job may not be allowed to list them
        if what.startswith("create"):
            return UsageError(
                f"there is no namespace {self.namespace!r}: kubectl create namespace "
                f"{self.namespace}, or choose another with -n"
            )
        similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = (
            f": did you mean {' or '.join(map(repr, similar))}?"
            if similar
            else "; elasticctl jobs lists those that there are"
        )
        return NoSuchJob(
            f"there is no ElasticJob {name!r} in the namespace {self.namespace!r}{hint}"
        )


def _sort_key(job: Mapping[str, Any]) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _status(body: Any) -> Mapping[str, Any]:
    """What the server says about a request that failed; {} if that is not in its usual form."""
    try:
        status = json.loads(body or "")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _cause(error: BaseException) -> str:
    """The innermost reason: what lies around it is the client's layers and our request."""
    while True:
        inner = getattr(error, "reason", None) or error.__cause__
        if not isinstance(inner, BaseException):
            break
        error = inner
    text = str(error)
    return text.partition(": ")[2] if text.startswith("<") and ": " in text else text


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _configure(access: Access) -> tuple[Any, str]:
    """The client's configuration, and the namespace."""
    kubernetes = need("kubernetes.client")
    config = kubernetes.Configuration()
    paths = os.environ.get("KUBECONFIG") or "~/.kube/config"
    there = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    if there:
        return config, _from_file(config, access, os.pathsep.join(there))
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return config, _from_pod(config, access)
    raise UsageError(
        f"which cluster? There is no kubeconfig at {paths}: name one with KUBECONFIG"
        + ("" if os.environ.get("KUBECONFIG") else ", or put it there")
    )


def _from_file(config: Any, access: Access, paths: str) -> str:
    kubeconfig = need("kubernetes.config")
    broken = (kubeconfig.ConfigException, need("yaml").YAMLError, OSError, ValueError)
    try:
        contexts, present = kubeconfig.list_kube_config_contexts(paths)
        names = [context["name"] for context in contexts]
        if access.context and access.context not in names:
            raise UsageError(
                f"the kubeconfig {paths} has no context {access.context!r}: it has "
                + (", ".join(map(repr, names)) or "none")
            )
        context = next((c for c in contexts if c["name"] == access.context), present)
        kubeconfig.load_kube_config(
            config_file=paths, context=context["name"], client_configuration=config
        )
        namespace: str = access.namespace or context["context"].get("namespace") or "default"
    except broken as error:
        why = " ".join(str(error).split())
        raise UsageError(f"the kubeconfig {paths} cannot be used: {why}") from None
    except (TypeError, KeyError, AttributeError):  # the loader takes its shape for granted
        raise UsageError(f"{paths} is no kubeconfig") from None
    return namespace


def _from_pod(config: Any, access: Access) -> str:
    kubeconfig = need("kubernetes.config")
    if access.context:
        raise UsageError("--context names a context of a kubeconfig, and there is none in this pod")
    try:
        kubeconfig.load_incluster_config(client_configuration=config)
        own = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    except (kubeconfig.ConfigException, OSError) as error:
        raise UsageError(
            f"this pod has no service account to speak to the cluster with ({error}): name a "
            "kubeconfig with KUBECONFIG"
        ) from None
    return access.namespace or own
