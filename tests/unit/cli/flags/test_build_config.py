"""Settings: which source wins, what values can be, and what they come to in a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.cli.flags import value_types
from elastic_runtime.cli.flags.build_config import notes
from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import Level, read_settings
from elastic_runtime.cli.flags.value_types import seconds
from elastic_runtime.cli.run.store_target import TorchrunTarget
from elastic_runtime.config import JobConfig, MemoryLimit
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser
    from elastic_runtime.cli.flags.value_types import ValueType
    from tests.unit.cli.conftest import ConfigOf, JobOf, SettingsOf


# Two values of each value_type: as typed, and as TOML.
_SAMPLES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    value_types.TEXT.what: (("a", '"a"'), ("b", '"b"')),
    value_types.NAME.what: (("a", '"a"'), ("ä", '"ä"')),
    value_types.WHOLE.what: (("2", "2"), ("3", "3")),
    value_types.COUNT.what: (("2", "2"), ("0", "0")),
    value_types.PORT.what: (("9404", "9404"), ("0", "0")),
    value_types.NUMBER.what: (("0.5", "0.5"), ("2", "2")),
    value_types.WORKERS.what: (("auto", '"auto"'), ("2", "2")),
    value_types.NODES.what: (("1:2", '"1:2"'), ("3", "3")),
    value_types.MEMORY.what: (("8GiB", '"8GiB"'), ("0", "0")),
    value_types.SECONDS.what: (("10m", '"10m"'), ("1.5", "1.5")),
    value_types.POSITIVE_SECONDS.what: (("10m", '"10m"'), ("1.5", "1.5")),
    value_types.SWITCH.what: (("1", "true"), ("0", "false")),
    value_types.STREAMS.what: (("3", "3"), ("0:1,1:2", '"0:1,1:2"')),
    value_types.RANKS.what: (("0,1", '"0,1"'), ("2", "2")),
    value_types.WORDS.what: (("a,b", '["a", "b"]'), ("c", '"c"')),
    value_types.FILTERS.what: (("a,b", '["a", "b"]'), ("c,,d", '"c,,d"')),
    value_types.SIGNALS.what: (("SIGTERM", '"SIGTERM"'), ("SIGINT,SIGHUP", '"SIGINT,SIGHUP"')),
    value_types.TOPOLOGY.what: (("z/r", '"z/r"'), ("-", '"-"')),
    value_types.PAIRS.what: (("a=1,b=2", '"a=1,b=2"'), ("c=3", '"c=3"')),
}


def _samples(value_type: ValueType) -> tuple[tuple[str, str], tuple[str, str]]:
    if value_type.what.startswith("one of "):
        first, second, *_ = value_type.what.removeprefix("one of ").split(", ")
        return (first, f'"{first}"'), (second, f'"{second}"')
    return _SAMPLES[value_type.what]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_the_highest_source_wins(
    parser: Parser, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    dest = data.draw(st.sampled_from(sorted(set(parser.options) - {"config"})))
    option = parser.options[dest]
    sources = list(Level)[1:]
    if not option.flags:  # only launchers say it, in the environment
        sources = [level for level in sources if level not in (Level.FLAG, Level.FILE)]
    said = data.draw(st.dictionaries(st.sampled_from(sources), st.integers(0, 1)), label="sources")
    samples = _samples(option.value_type)
    name = data.draw(st.sampled_from(option.names))
    flags = {dest: samples[said[Level.FLAG]][0]} if Level.FLAG in said else {}
    environ = {}
    if Level.PET in said:
        environ[f"PET_{name.upper()}"] = samples[said[Level.PET]][0]
    if Level.ELASTIC in said:
        environ[f"ELASTIC_{name.upper()}"] = samples[said[Level.ELASTIC]][0]
    if Level.FILE in said:
        path = tmp_path_factory.getbasetemp() / "settings.toml"
        dashed = data.draw(st.sampled_from([name, name.replace("_", "-")]))
        path.write_text(f"{dashed} = {samples[said[Level.FILE]][1]}")
        flags["config"] = str(path)

    settings = read_settings(parser.options, flags, environ)
    if Level.PLACE in said:
        settings = settings.with_places({dest: ("SLURM_IT", samples[said[Level.PLACE]][0])})
    found = settings.of(dest)

    if said:
        level = max(said)
        assert found.level == level
        assert found.value == option.value_type.read(samples[said[level]][0])
    else:
        assert found.value == option.default
        assert not found.given


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ("--run-id a\udcff", {}, "--rdzv-id='a\\udcff' is not a name in UTF-8"),
        ("", {"PET_RDZV_ID": "\udcff"}, "PET_RDZV_ID='\\udcff' is not a name in UTF-8"),
        ("--node-name n\udcff", {}, "--node-name='n\\udcff' is not a name in UTF-8"),
    ],
)
def test_a_name_that_is_no_text_is_named_by_its_source(
    settings_of: SettingsOf, flags: str, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(flags, **environ)
    assert str(caught.value).startswith(message)


def test_an_empty_variable_says_nothing(settings_of: SettingsOf) -> None:
    assert settings_of(PET_MAX="", ELASTIC_MAX="3")["max"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lease_tll = 4", "unknown key 'lease_tll'; did you mean 'lease-ttl'?"),
        ("etcd-password = 'x'", "did you mean 'etcd-password-file'?"),
        ("max = '4'", "job.toml: max = '4' is not a whole number"),
        ("max = 1.5", "job.toml: max = 1.5 is not a whole number"),
        ("cold = 1", "job.toml: cold = 1 is not a switch"),
        ("preload = [1]", "job.toml: preload = [1] is not a list of names"),
        ("role = ['a']", "job.toml: role = ['a'] is not text"),
        ("max = 4 \udcff", "not TOML"),  # a byte that is no text
    ],
)
def test_a_bad_file(settings_of: SettingsOf, folder: Path, text: str, message: str) -> None:
    (folder / "job.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError) as caught:
        settings_of("--config job.toml")
    assert message in str(caught.value)


def test_flags_that_say_the_same_again(settings_of: SettingsOf, folder: Path) -> None:
    (folder / "job.toml").write_text('preload = ["a", "b"]\ncold = true\nrole = "-x"\n')
    found = settings_of("--config job.toml --lease-ttl 9", PET_TEE="3", ELASTIC_STANDALONE="0")
    again = found.as_flags(without=["config"])
    assert again == ["--lease-ttl", "9", "--preload", "a,b", "--cold", "--role=-x", "--tee", "3"]


@given(st.floats(0, 1e6), st.sampled_from(["", "s", " s", "ms", "m", "h"]))
def test_durations(number: float, unit: str) -> None:
    factor = {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600}[unit.strip()]
    assert seconds(f"{number:.3f}{unit}") == pytest.approx(round(number, 3) * factor)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("8GiB", MemoryLimit(bytes=8 << 30)),
        ("1.5 g", MemoryLimit(bytes=3 << 29)),
        ("500MB", MemoryLimit(bytes=500_000_000)),
        ("500 Mi", MemoryLimit(bytes=500 << 20)),
        ("4194304", MemoryLimit(bytes=4 << 20)),
        ("0", MemoryLimit()),
        ("25%", MemoryLimit(share=0.25)),
        ("0%", MemoryLimit()),
    ],
)
def test_amounts_of_memory(text: str, limit: MemoryLimit) -> None:
    assert value_types.memory(text) == limit


@pytest.mark.parametrize(
    "text", ["", "much", "-1", "25", "4096", "101%", "1e9", "8 GiBit", "8i", "%", "1" * 30]
)
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError):
        value_types.memory(text)


def test_text_with_a_zero_byte_is_refused_and_a_small_float_is_read() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        value_types.TEXT.from_toml("a\0b")
    assert value_types.SECONDS.from_toml(1e-5) == 1e-5


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ("", {}, (1, 1)),
        ("--max 4", {}, (1, 4)),
        ("--min 2", {}, (2, 2)),
        ("--min 2 --max 4", {}, (2, 4)),
        ("--nnodes 2", {}, (2, 2)),
        ("--nnodes 1:4", {}, (1, 4)),
        ("--local-nodes 3", {}, (1, 3)),
        ("--local-nodes 3 --max 2", {}, (1, 2)),
        ("--local-nodes 3 --min 2", {}, (2, 3)),
        ("--max 4", {"PET_NNODES": "2:3"}, (2, 4)),
        ("--nnodes 2", {"PET_MIN": "1", "ELASTIC_MAX": "5"}, (2, 2)),
        ("", {"ELASTIC_NNODES": "2:6", "PET_MIN": "3"}, (3, 6)),
    ],
)
def test_bounds(
    settings_of: SettingsOf, arguments: str, environ: dict[str, str], expected: tuple[int, int]
) -> None:
    bounds = read_bounds(settings_of(arguments, **environ))
    assert (bounds.low, bounds.high) == expected


ETCD = "--rdzv-endpoint etcd://h --run-id a "


def test_torchs_own_log_files_may_be_asked_for(
    job_of: JobOf, config_of: ConfigOf, settings_of: SettingsOf
) -> None:
    assert config_of("--logs-specs default").output == config_of("").output
    assert notes(settings_of("--logs-specs default")) == []
    assert job_of("--logs-specs mine --rdzv-backend static") == TorchrunTarget("static")


def test_each_worker_needs_a_device_for_a_virtual_local_rank(
    job_of: JobOf, config_of: ConfigOf
) -> None:
    for devices in ("0", "", "0,1"):
        with pytest.raises(UsageError, match="--virtual-local-rank: each of the 3 workers needs"):
            config_of("--nproc-per-node 3 --virtual-local-rank", CUDA_VISIBLE_DEVICES=devices)
    for flags, environ in (
        ("--virtual-local-rank", {"CUDA_VISIBLE_DEVICES": "0,1,2"}),
        ("--virtual-local-rank", {}),
        ("", {"CUDA_VISIBLE_DEVICES": "0"}),
    ):
        assert config_of(f"--nproc-per-node 3 {flags}", **environ).workers == 3


def test_everything_reaches_the_config(config_of: ConfigOf) -> None:
    config = config_of(
        ETCD + "--min 2 --max 4 --node-unit 2 --nproc-per-node 3 --node-name n --local-addr l "
        "--max-restarts 7 --preload a,b --cold --role r --signals-to-handle SIGUSR1 "
        "--virtual-local-rank --numa-binding node --event-log-handler console --log-format json "
        "--log-dir logs -r 3 -t 0:1 --local-ranks-filter 0,2 --duplicate-stdout-filters x,,y,z "
        "--last-call 1 --join-timeout 2 --rejoin-timeout 3 --fence-timeout 4m --lease-ttl 6 "
        "--grace 7 --keep-logs 8",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${rank}]",
        TORCHELASTIC_HEALTH_CHECK_PORT="9",
        PYTHON_EXEC="/usr/bin/python3",
    )
    times, output = config.timeouts, config.output
    assert (config.min_nodes, config.max_nodes, config.node_unit, config.workers) == (2, 4, 2, 3)
    assert (config.node_name, config.local_addr, config.max_restarts) == ("n", "l", 7)
    assert (config.preload, config.cold, config.role) == (("a", "b"), True, "r")
    assert (config.signals, config.virtual_local_rank) == (("SIGUSR1",), True)
    assert (config.numa_binding, config.event_log_handler) == ("node", "console")
    assert (config.log_format, config.health_port) == ("json", 9)
    assert config.entry.python == "/usr/bin/python3"
    assert (times.last_call, times.join_timeout, times.rejoin_timeout) == (1, 2, 3)
    assert times.fence_timeout == 240
    assert (times.lease_ttl, times.grace) == (6, 7)
    assert (output.log_dir, output.keep, output.redirects) == ("logs", 8, {-1: 3})
    assert output.tee == {0: 1}
    assert (output.ranks, output.stdout_filters) == (frozenset({0, 2}), ("x,y", "z"))
    assert output.prefix == "[${rank}]"


def test_defaults_are_those_of_the_config(config_of: ConfigOf) -> None:
    config = config_of(ETCD)
    plain = JobConfig(entry=config.entry, endpoint=config.endpoint, run_id="a")
    assert config == plain


@pytest.mark.parametrize(
    ("arguments", "environ", "field", "expected"),
    [
        ("--rdzv-conf join_timeout=9", {}, "join_timeout", 9),
        ("--rdzv-conf last_call_timeout=9", {}, "last_call", 9),
        ("--rdzv-conf lease_ttl=9", {}, "lease_ttl", 9),
        ("--rdzv-conf 'join_timeout=9,lease_ttl=8'", {}, "lease_ttl", 8),  # as of YAML
        ("--rdzv-conf read_timeout=9", {}, "connect_timeout", 9),
        ("--rdzv-conf fence_timeout=99,batch=9", {}, "fence_timeout", 99),
        ("--rdzv-conf fence_timeout=99,batch=9", {}, "join_batch", 9),
        ("--rdzv-conf batch=0", {}, "join_batch", 0),
        ("--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=4", {}, "lease_ttl", 8),
        ("--rdzv-conf keep_alive_interval=2", {}, "lease_ttl", 6),
        ("--rdzv-conf join_timeout=9 --join-timeout 8", {}, "join_timeout", 8),
        ("--rdzv-conf join_timeout=9", {"PET_JOIN_TIMEOUT": "8"}, "join_timeout", 9),
        ("", {"PET_RDZV_CONF": "join_timeout=9", "ELASTIC_JOIN_TIMEOUT": "8"}, "join_timeout", 9),
        ("--shutdown-timeout 9", {}, "grace", 9),
        ("--shutdown-timeout 9", {"PET_GRACE": "8"}, "grace", 9),
        ("", {"PET_SHUTDOWN_TIMEOUT": "9", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, "grace", 9),
        ("", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, "grace", 8),
    ],
)
def test_other_spellings_of_time_outs(
    config_of: ConfigOf,
    parser: Parser,
    arguments: str,
    environ: dict[str, str],
    field: str,
    expected: float,
) -> None:
    if "SHUTDOWN" in f"{arguments} {environ}".upper() and "shutdown_timeout" not in parser.options:
        pytest.skip("torchrun has --shutdown-timeout since torch 2.12")
    assert getattr(config_of(arguments, **environ).timeouts, field) == expected


def test_what_has_no_meaning_is_said(settings_of: SettingsOf) -> None:
    said = "\n".join(
        notes(settings_of("--monitor-interval 1 --rdzv-conf close_timeout=1,join_timeout=2"))
    )
    assert "--monitor-interval=1 has no effect" in said
    assert "--rdzv-conf: no meaning here: close_timeout" in said
    assert notes(settings_of("--max 4")) == []
    assert notes(settings_of("--ssh ssh")) == ["--ssh has no effect without --hosts or --discover"]
    assert notes(settings_of("--ssh ssh --hosts f")) == []
