"""``elasticctl`` on a run in a store: look at it, and change its bounds.

The commands that serve both worlds, a run in a store and a job of a Kubernetes cluster, are here.
With etcd they never import torch, so that they answer at once.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live

from elastic_runtime.cli.ctl import run_screen
from elastic_runtime.cli.ctl.run_report import RunRecords, RunReport, make_report, read_records
from elastic_runtime.cli.ctl.slurm_option import (
    found_in_store,
    or_slurm,
    scaled_by_slurm,
    shown_with_elements,
)
from elastic_runtime.cli.kube import kube_commands
from elastic_runtime.cli.kube.command_options import JobRef, cluster_options
from elastic_runtime.cli.printing import FORMAT_OPTION, console, show
from elastic_runtime.cli.run_in_store import C10D_RUN, RunInStore
from elastic_runtime.endpoint import C10D, parse_endpoint, read_credentials
from elastic_runtime.errors import (
    StoreUnavailable,
    UsageError,
)
from elastic_runtime.kubernetes.cluster_access import ClusterRef
from elastic_runtime.protocol.records import GONE
from elastic_runtime.rendezvous.probe import ask_node
from elastic_runtime.rendezvous.stores.open_store import store_complaint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.records import NodeRecord
    from elastic_runtime.rendezvous.store_contract import Store, StoreEntry

_ASK = 1.0
_ASKERS = 64
_CREDENTIALS = ("etcd_user", "etcd_password_file", "etcd_ca", "etcd_cert", "etcd_key")
_STORE_OPTIONS = ("rdzv_endpoint", "rdzv_backend", "run_id", *_CREDENTIALS)

_F = Callable[..., Any]


def _with_store(run: bool, required: bool = True) -> Callable[[_F], _F]:
    """The options that say which store, and which run in it; the command gets a ``RunInStore``."""

    def decorate(command: _F) -> _F:
        @functools.wraps(command)  # with the options that were put on it before
        def called(**values: Any) -> Any:
            credentials = read_credentials(
                {name: values.pop(name) for name in _CREDENTIALS}, os.environ
            )
            text, backend = values.pop("rdzv_endpoint"), values.pop("rdzv_backend") or ""
            endpoint = parse_endpoint(text, backend, credentials)
            run_id = values.pop("run_id", None) or (C10D_RUN if endpoint.backend == C10D else "")
            if run and not run_id:
                raise RunInStore(endpoint, run_id).unnamed()
            return command(RunInStore(endpoint, run_id), **values)

        options = [
            _option(
                "--rdzv-endpoint",
                "etcd://h1:2379,h2:2379/prefix, etcds://… or c10d://h:p",
                required=required,
            ),
            _option("--rdzv-backend", "only for an endpoint without a scheme"),
            *([_option("--run-id", "the run", "--rdzv-id")] if run else []),
            _option("--etcd-user", "user of etcd's own authentication"),
            _option("--etcd-password-file", "its password (or ELASTIC_ETCD_PASSWORD)"),
            _option("--etcd-ca", "certificates that sign the server's"),
            _option("--etcd-cert", "our certificate"),
            _option("--etcd-key", "its key"),
        ]
        decorated: _F = called
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _with_store_or_job(command: _F) -> _F:
    """A run in a store, or a JOB of a cluster: a ``RunInStore`` or a ``JobRef``.

    A job that is named is one in the cluster: an endpoint in the environment, as in every pod of a
    job, does not count then.
    """
    with_store = _with_store(run=True, required=False)(command)

    @cluster_options
    @functools.wraps(with_store)
    def called(cluster: ClusterRef, job: str | None, **values: Any) -> Any:
        if job is not None:
            if said := [name for name in _STORE_OPTIONS if _is_typed(name)]:
                raise UsageError(
                    f"{job!r} is a job of a cluster, --{said[0].replace('_', '-')} belongs to a "
                    "store: give one of them"
                )
            rest = {name: value for name, value in values.items() if name not in _STORE_OPTIONS}
            return command(JobRef(cluster, job), **rest)
        if cluster != ClusterRef():
            raise UsageError("-n and --context are for a job of a cluster: name it")
        if not values["rdzv_endpoint"]:
            raise UsageError(
                "which job? Name one of the cluster (elasticctl jobs lists them), or the store of "
                "a run with --rdzv-endpoint"
            )
        return with_store(**values)

    decorated: _F = click.argument("job", metavar="[JOB]", required=False)(called)
    return decorated


def _is_typed(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _option(flag: str, text: str, *aliases: str, required: bool = False) -> Callable[[_F], _F]:
    name = flag.removeprefix("--").replace("-", "_")
    names = [name, *(alias.removeprefix("--").replace("-", "_") for alias in aliases)]
    variables = [f"{prefix}{n.upper()}" for prefix in ("PET_", "ELASTIC_") for n in names]
    spelled = [f"--{n.replace('_', '-')}" for n in names]
    return click.option(*spelled, name, envvar=variables, help=text, required=required)


def _checked_interval(context: click.Context, option: click.Parameter, value: float) -> float:
    if value != value:  # not a number: click takes it to be in every range
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


@click.command()
@or_slurm(shown_with_elements)
@_with_store_or_job
@FORMAT_OPTION
@click.option("--watch", is_flag=True, help="continue until the job ends")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86400),
    callback=_checked_interval,
    default=1.0,
    show_default=True,
    help="s",
)
def status(target: RunInStore | JobRef, form: str, watch: bool, interval: float) -> None:
    """Shows a run in a store, or a JOB of a cluster: its round, nodes or pods, step and faults."""
    if isinstance(target, JobRef):
        kube_commands.show_status(target, form, watch, interval)
        return
    with target.store() as store:
        report = _look(target, store)
        if not watch:
            show(form, report.as_dict(), run_screen.status(report))
        elif form == "json":
            _watch_json(target, store, report, interval)
        else:
            _watch_screen(target, store, report, interval)


@click.command()
@_with_store(run=False)
@FORMAT_OPTION
def runs(target: RunInStore, form: str) -> None:
    """Lists the runs under an etcd prefix, or in a store that a job hosts itself."""
    found = _runs_of_c10d(target) if target.endpoint.backend == C10D else _runs_of_etcd(target)
    answers = _ask_all(*found.values())
    where = str(target.endpoint)
    reports = [make_report(run_id, where, records, answers) for run_id, records in found.items()]
    show(form, [report.as_dict() for report in reports], run_screen.runs(reports))


def _runs_of_etcd(target: RunInStore) -> dict[str, RunRecords]:
    # To the store, the prefix of all runs is a run one level up.
    parent, _, last = target.endpoint.prefix.rpartition("/")
    with RunInStore(replace(target.endpoint, prefix=parent), last).store() as store:
        return by_run(store.read(""))


def _runs_of_c10d(target: RunInStore) -> dict[str, RunRecords]:
    from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore

    with target.store() as store:
        assert isinstance(store, EmbeddedStore)
        names = store.runs()
    found = {}
    for name in names:
        with RunInStore(target.endpoint, name).store() as store:
            found[name] = read_records(store.read(""))
    return {name: records for name, records in found.items() if records.job or records.nodes}


@click.command()
@or_slurm(found_in_store)
@_with_store_or_job
@FORMAT_OPTION
def events(target: RunInStore | JobRef, form: str) -> None:
    """Lists the last events of a run in a store, or of a JOB of a cluster."""
    if isinstance(target, JobRef):
        kube_commands.show_events(target, form)
        return
    with target.store() as store:
        report = _look(target, store)
    show(form, report.as_dict()["events"], run_screen.events(report.events))


@click.command()
@or_slurm(scaled_by_slurm)
@_with_store_or_job
@click.argument("size", metavar="[N]", type=int, required=False)
@click.option("--min", "low", type=int, help="of a run: fewest nodes that train")
@click.option("--max", "high", type=int, help="of a run: most nodes that train")
def scale(target: RunInStore | JobRef, size: int | None, low: int | None, high: int | None) -> None:
    """Gives a JOB of a cluster N pods, or changes the bounds of a run in a store.

    With --slurm JOB, N elements of that array of Slurm's run at a time.
    """
    if isinstance(target, JobRef):
        if low is not None or high is not None:
            raise UsageError(
                "--min and --max are for a run in a store: a job gets a number of pods"
            )
        kube_commands.scale_to(target, size)
        return
    if low is None and high is None:
        raise UsageError("scale to what? Give --min, --max or both")
    scaled = target.rescale(low, high)
    click.echo(f"run {target.run_id}: {scaled.min_nodes} to {scaled.max_nodes} nodes")


def by_run(entries: Sequence[StoreEntry]) -> dict[str, RunRecords]:
    """Sorts what lies under a prefix by run; what is none of ours is left out."""
    sorted_: dict[str, list[StoreEntry]] = {}
    for entry in entries:
        run, slash, key = entry.key.partition("/")
        if slash:
            sorted_.setdefault(urllib.parse.unquote(run), []).append(replace(entry, key=key))
    found = {run: read_records(of_run) for run, of_run in sorted_.items()}
    return {run: found[run] for run in sorted(found) if found[run].job or found[run].nodes}


def _look(target: RunInStore, store: Store) -> RunReport:
    records = read_records(store.read(""))
    if records.empty:
        raise target.unknown()
    report = make_report(target.run_id, str(target.endpoint), records, _ask_all(records))
    return replace(report, trouble=store_complaint(target.endpoint))


def _ask_all(*runs: RunRecords) -> Mapping[str, Mapping[str, Any]]:
    """Asks every node for its step, all at the same time; those out of reach do not answer."""
    asked = [
        (node, records.job.secret)
        for records in runs
        if records.job is not None
        for node in records.nodes.values()
        if node.probe_port and node.status != GONE
    ]
    if not asked:
        return {}

    def answer(one: tuple[NodeRecord, str]) -> Mapping[str, Any] | None:
        node, secret = one
        try:
            return ask_node(node.node, node.address, node.probe_port, _ASK, secret)
        except OSError:
            return None

    with ThreadPoolExecutor(min(len(asked), _ASKERS)) as pool:
        answered = list(pool.map(answer, asked))
    nodes = [node for node, _ in asked]
    return {
        n.node: a for n, a in zip(nodes, answered, strict=True) if a and a.get("node") == n.node
    }


def _watch_json(target: RunInStore, store: Store, report: RunReport, interval: float) -> None:
    """One line of JSON for each change."""
    shown = None
    for now in _until_over(target, store, report, interval):
        if now is not None and now != shown:
            click.echo(json.dumps(now.as_dict(), ensure_ascii=False))
            shown = now


def _watch_screen(target: RunInStore, store: Store, report: RunReport, interval: float) -> None:
    out = console()
    with Live(run_screen.fitted(report, out), console=out, auto_refresh=False) as live:
        for now in _until_over(target, store, report, interval):
            if now is not None:
                report = now
            live.update(run_screen.fitted(report, out, unreachable=now is None), refresh=True)


def _until_over(
    target: RunInStore, store: Store, report: RunReport, interval: float
) -> Iterator[RunReport | None]:
    """The report, time and again, until the job is over; None while the store does not answer."""
    yield report
    pause = threading.Event()
    while not report.over:
        pause.wait(interval)
        try:
            report = _look(target, store)
        except StoreUnavailable:
            yield None
        else:
            yield report
