"""Environment variables that look like settings of ours and are none: most often misspelt ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_runtime.cli.flags.setting_sources import VARIABLES, Level
from elastic_runtime.endpoint import PASSWORD_VARIABLE
from elastic_runtime.errors import did_you_mean
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS
from elastic_runtime.reporting.last_words import ENV_LAST_WORDS
from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_runtime.cli.flags.flag_options import Option

_PREFIX = VARIABLES[Level.ELASTIC]
_NO_OPTIONS = frozenset(
    {
        "ELASTIC_CHECKPOINT",  # for scripts, from the controller
        "ELASTIC_ETCD_IMAGE",  # the controller's own
        ENV_LAST_WORDS,
        ENV_PEER_TIMEOUT,
        ENV_SNAPSHOTS,
        # A worker may start a job of its own.
        *(value for name, value in vars(messages).items() if name.startswith("ENV_")),
    }
)
# Variables of other programs are not reported: with more than a slip or two it is not ours.
_ALIKE = 0.75
# Kubernetes tells each pod of all Services by their names, and one may be called elastic-search.
_SERVICE_NAME = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_")
_SERVICE_VALUE = ("tcp://", "udp://", "sctp://")


def unknown_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[str]:
    """What there is to say about variables that look like settings of ours and are none.

    What resembles none of them belongs to another program: variables of Elasticsearch have such
    names too.

    Args:
        options: all options; each may be set by a variable.
        environ: the environment; values are not shown, as one may be a misspelt password.
    """
    settings = sorted({name.upper() for option in options for name in option.names})
    settings.append(PASSWORD_VARIABLE.removeprefix(_PREFIX))
    known = {_PREFIX + name for name in settings} | _NO_OPTIONS
    lines = []
    for name, value in sorted(environ.items()):
        if not name.startswith(_PREFIX) or name in known or _is_of_a_service(name, value):
            continue
        # The prefix, which all have in common, would make any two look alike.
        hint = did_you_mean(name.removeprefix(_PREFIX), settings, _ALIKE)
        hint = hint.replace("'", f"'{_PREFIX}", 1)
        if hint:
            lines.append(f"{name} has no effect, as no setting is called so{hint}")
    return lines


def _is_of_a_service(name: str, value: str) -> bool:
    return bool(_SERVICE_NAME.search(name)) or value.startswith(_SERVICE_VALUE)
