"""Which API server to speak to, and with which credentials.

As for ``kubectl``: a kubeconfig (``KUBECONFIG``, or ``~/.kube/config``), else the service account
of the pod that this runs in. Kubeconfigs are read by the official client, which also runs the login
programs that they may name; it is imported only when there is one to read, so that a pod does
without it.
"""

from __future__ import annotations

import importlib
import os
import re
import ssl
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class ClusterRef:
    """Which cluster is meant, and which namespace of it.

    Attributes:
        context: a context of the kubeconfig; "" for the present one.
        namespace: "" for that of the context, or of the pod.
    """

    context: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class ClusterCredentials:
    """Where an API server is, how we know that it is the right one, and what we show it.

    Attributes:
        server: its URL.
        namespace: the one to work in.
        headers: what proves who we are.
        tls: how to check who the server is; ``None`` for the ordinary check.
        tls_name: whose certificate the server has; "" for the host of its URL.
        proxy: the URL of a proxy on the way; "" for none.
    """

    server: str
    namespace: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    tls_name: str = ""
    proxy: str = ""


def login(ref: ClusterRef | None = None) -> ClusterCredentials:
    """Finds the credentials. Those of a service account are replaced every hour: ask again.

    Args:
        ref: which cluster; the present one if not given.

    Raises:
        UsageError: there are none, or they cannot be read, or the extra is not installed.
    """
    ref = ref or ClusterRef()
    named = os.environ.get("KUBECONFIG")
    paths = named or "~/.kube/config"
    there = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    if there:
        found = _from_kubeconfig(ref, os.pathsep.join(there))
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and not named:
        found = _from_pod(ref)
    else:
        raise UsageError(
            f"which cluster? There is no kubeconfig at {paths}: name one with KUBECONFIG"
            + ("" if named else ", or put it there")
        )
    check_name("namespace", found.namespace)
    return found


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


def _from_pod(ref: ClusterRef) -> ClusterCredentials:
    if ref.context:
        raise UsageError("--context names a context of a kubeconfig, and there is none in this pod")
    # An address needs no DNS.
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    shown = f"[{host}]" if ":" in host else host
    try:
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        own = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=SERVICE_ACCOUNT / "ca.crt")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"this pod has no service account to speak to the cluster with ({error}): name a "
            "kubeconfig with KUBECONFIG"
        ) from None
    headers = {"Authorization": f"Bearer {token}"}
    return ClusterCredentials(f"https://{shown}:{port}", ref.namespace or own, headers, tls)


def _from_kubeconfig(ref: ClusterRef, paths: str) -> ClusterCredentials:
    kubeconfig, yaml = need("kubernetes.config"), need("yaml")
    config = need("kubernetes.client").Configuration()
    try:
        contexts, present = kubeconfig.list_kube_config_contexts(paths)
        names = [context["name"] for context in contexts]
        if ref.context and ref.context not in names:
            raise UsageError(
                f"the kubeconfig {paths} has no context {ref.context!r}: it has "
                + (", ".join(map(repr, names)) or "none")
            )
        context = next((c for c in contexts if c["name"] == ref.context), present)
        kubeconfig.load_kube_config(
            config_file=paths, context=context["name"], client_configuration=config
        )
        namespace = str(ref.namespace or context["context"].get("namespace") or "default")
        return _configured(config, namespace)
    except yaml.YAMLError as error:  # it quotes the file, and that holds secrets
        mark = getattr(error, "problem_mark", None)
        why = f"line {mark.line + 1} is no YAML" if mark else "it is no YAML"
        raise UsageError(f"the kubeconfig {paths} cannot be used: {why}") from None
    except (kubeconfig.ConfigException, OSError, ValueError) as error:
        # It quotes what it stumbles over, and that may hold a secret.
        why = re.sub(r"\{.*\}", "…", " ".join(str(error).split()))
        raise UsageError(f"the kubeconfig {paths} cannot be used: {why}") from None
    except (TypeError, KeyError, AttributeError):  # the loader takes its shape for granted
        raise UsageError(f"{paths} is no kubeconfig") from None


def _configured(config: Any, namespace: str) -> ClusterCredentials:
    """What the official client has made of a kubeconfig, as ours."""
    if not re.match("https?://[^/]", str(config.host)):
        raise UsageError(
            f"the kubeconfig's cluster has the server {config.host!r}: that is no URL such as "
            "https://host:6443"
        )
    tls = None
    if config.host.startswith("https:"):
        tls = ssl.create_default_context(cafile=config.ssl_ca_cert)
        if not config.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if config.cert_file:
            tls.load_cert_chain(config.cert_file, config.key_file)
    headers = {
        way["key"]: way["value"]
        for way in config.auth_settings().values()
        if way["in"] == "header" and way["value"]
    }
    host = urllib.parse.urlsplit(config.host).hostname or ""
    return ClusterCredentials(
        server=config.host.rstrip("/"),
        namespace=namespace,
        headers=headers,
        tls=tls,
        tls_name=config.tls_server_name or "",
        proxy="" if urllib.request.proxy_bypass(host) else config.proxy or "",
    )
