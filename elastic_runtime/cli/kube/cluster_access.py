"""The way to an API server: which cluster, with which credentials, over which connection.

The official client (``pip install elastic-runtime[kubernetes]``) reads kubeconfigs and service
accounts, logs in, and makes the connections. It is imported when it is needed. Its classes for the
whole API are not used: they take longer to set up than most commands take.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime import __version__
from elastic_runtime.errors import ClusterUnreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JSON = "application/json"
MERGE = "application/merge-patch+json"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CONNECT = 5.0
_CHUNK = 1 << 16
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """Which cluster a command is about.

    Attributes:
        context: a context of the kubeconfig; "" for the present one.
        namespace: "" for that of the context.
    """

    context: str = ""
    namespace: str = ""


class Refused(Exception):
    """The API server has answered with an error.

    Args:
        code: the HTTP status.
        why: what it says about it.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Connection:
    """Sends requests to the API server.

    Args:
        access: which one.

    Attributes:
        server: its address.
        namespace: the one to work in.

    Raises:
        UsageError: there is no usable configuration, or the extra is not installed.
    """

    def __init__(self, access: Access) -> None:
        self._config, self.namespace = _configure(access)
        check_name("namespace", self.namespace)
        self.server: str = self._config.host
        if not re.match("https?://[^/]", self.server):
            raise UsageError(
                f"the kubeconfig's cluster has the server {self.server!r}: that is no URL such as "
                "https://host:6443"
            )
        # It tells of failed attempts as warnings on standard error; they are told as errors here.
        logging.getLogger("urllib3").setLevel(logging.CRITICAL)
        self._urllib3 = need("urllib3")
        self._urllib3.disable_warnings()
        self._pool = need("kubernetes.client.rest").RESTClientObject(self._config).pool_manager

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: str = JSON,
    ) -> Any:
        """Sends a request, and returns what the answer's JSON says.

        Args:
            method: of HTTP.
            path: its parts need no quoting.
            query: what follows the question mark; None is left out.
            body: sent as JSON; None: nothing is.
            content: what kind of JSON that is.

        Raises:
            Refused: the answer is an error.
            ClusterUnreachable: there is none, or none that can be read.
        """
        answer = self._open(method, path, query, body, content, 30.0)
        try:
            return json.loads(answer.data)
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._lost(error) from None
        except ValueError:
            raise self._stranger("its answer is no JSON") from None

    def lines(self, path: str, query: Mapping[str, Any], patience: float) -> Iterator[bytes]:
        """Reads text line by line, as it comes.

        Args:
            path, query: as above.
            patience: seconds that may pass between two pieces.

        Raises:
            Refused: the answer is an error.
            ClusterUnreachable: there is none; also in the middle of it.
        """
        answer = self._open("GET", path, query, None, JSON, patience)
        rest = b""
        try:
            for chunk in answer.stream(_CHUNK):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._lost(error) from None
        finally:
            answer.close()
        if rest:
            yield rest

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        content: str,
        patience: float,
    ) -> Any:
        said = {key: str(value) for key, value in (query or {}).items() if value is not None}
        encoded = urllib.parse.urlencode(said)
        try:
            answer = self._pool.request(
                method,
                f"{self.server}{path}" + (f"?{encoded}" if encoded else ""),
                headers=self._headers(content),
                body=None if body is None else json.dumps(body),
                timeout=self._urllib3.Timeout(connect=_CONNECT, read=patience),
                preload_content=False,
                retries=False,  # a server that is not there is told at once, and once
            )
            if "text/html" in answer.headers.get("Content-Type", ""):
                raise self._stranger(f"it answers with a web page and HTTP {answer.status}")
            if answer.status >= 300:
                raise Refused(answer.status, _why(answer.data) or answer.reason or "")
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._lost(error) from None
        return answer

    def _headers(self, content: str) -> dict[str, str]:
        headers = {
            "Accept": "application/json, */*",
            "Content-Type": content,
            "User-Agent": f"elasticctl/{__version__}",
        }
        # A token may have to be fetched anew: that happens within.
        for way in self._config.auth_settings().values():
            if way["in"] == "header" and way["value"]:
                headers[way["key"]] = way["value"]
        return headers

    def _stranger(self, why: str) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"what answers at {self.server} is no API server of Kubernetes: {why}; is this the "
            "right kubeconfig and --context?"
        )

    def _lost(self, error: BaseException) -> ClusterUnreachable:
        if "WRONG_VERSION_NUMBER" in str(error):
            return self._stranger("it does not speak TLS, as https:// wants")
        return ClusterUnreachable(
            f"the API server {self.server} does not answer ({_cause(error)}): is the cluster up, "
            "and is this the right kubeconfig and --context?"
        )


def need(module: str) -> Any:
    """Imports a module that comes with the extra.

    Raises:
        UsageError: the extra is not installed.
    """
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


def _why(body: bytes) -> str:
    """What the server says about a request that failed; "" if not in its usual form."""
    try:
        status = json.loads(body)
    except ValueError:
        return ""
    return str(status.get("message") or "").strip() if isinstance(status, dict) else ""


def _cause(error: BaseException) -> str:
    """The innermost reason: what lies around it is the client's layers and our request."""
    while isinstance(inner := getattr(error, "reason", None) or error.__cause__, BaseException):
        error = inner
    text = str(error)
    return text.partition(": ")[2] if text.startswith("<") and ": " in text else text


def _configure(access: Access) -> tuple[Any, str]:
    """The client's configuration, and the namespace."""
    config = need("kubernetes.client").Configuration()
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
        namespace = str(access.namespace or context["context"].get("namespace") or "default")
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
