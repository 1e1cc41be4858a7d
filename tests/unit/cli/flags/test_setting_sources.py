"""Flag > ``PET_*`` > ``ELASTIC_*`` > file > default, for every option; each source by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.cli.flags import value_types
from elastic_runtime.cli.flags.setting_sources import Level, read_settings
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser
    from elastic_runtime.cli.flags.value_types import ValueType
    from tests.unit.cli.conftest import SettingsOf

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
    said = data.draw(
        st.dictionaries(st.sampled_from(list(Level)[1:]), st.integers(0, 1)), label="sources"
    )
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
        ("--lease-ttl abc", {}, "--lease-ttl='abc' is not a number of seconds above 0"),
        ("", {"ELASTIC_LEASE_TTL": "abc"}, "ELASTIC_LEASE_TTL='abc' is not a number of seconds"),
        ("", {"PET_MAX_RESTARTS": "many"}, "PET_MAX_RESTARTS='many' is not a whole number"),
        ("", {"PET_STANDALONE": "maybe"}, "PET_STANDALONE='maybe' is not a switch"),
        ("--nnodes 1:2:3", {}, "--nnodes='1:2:3' is not a number of nodes"),
        ("--tee 7", {}, "--tee='7' is not a choice of streams"),
        ("--log-format xml", {}, "--log-format='xml' is not one of console, json, auto"),
        ("--start-method thread", {}, "--start-method='thread' is not one of spawn, fork"),
        ("--rdzv-conf a", {}, "--rdzv-conf='a' is not a list of key=value pairs"),
        ("--signals-to-handle SIGWHAT", {}, "--signals-to-handle='SIGWHAT' is not a list"),
        ("--signals-to-handle SIGKILL", {}, "--signals-to-handle='SIGKILL' is not a list"),
        ("--signals-to-handle SIGTERM,SIGSTOP", {}, "--signals-to-handle='SIGTERM,SIGSTOP' is not"),
        ("--run-id a\udcff", {}, "--rdzv-id='a\\udcff' is not a name in UTF-8"),
        ("", {"PET_RDZV_ID": "\udcff"}, "PET_RDZV_ID='\\udcff' is not a name in UTF-8"),
        ("--node-name n\udcff", {}, "--node-name='n\\udcff' is not a name in UTF-8"),
        ("--join-timeout 0", {}, "--join-timeout='0' is not a number of seconds above 0"),
        ("--max 1_000", {}, "--max='1_000' is not a whole number"),
    ],
)
def test_a_bad_value_is_named_by_its_source(
    settings_of: SettingsOf, flags: str, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(flags, **environ)
    assert str(caught.value).startswith(message)


def test_an_empty_variable_says_nothing(settings_of: SettingsOf) -> None:
    assert settings_of(PET_MAX="", ELASTIC_MAX="3")["max"] == 3


def test_the_default_of_max_restarts_is_ours(settings_of: SettingsOf) -> None:
    assert settings_of()["max_restarts"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxx = 4", "unknown key 'maxx'; did you mean 'max'?"),
        ("lease_tll = 4", "unknown key 'lease_tll'; did you mean 'lease-ttl'?"),
        ("zzz = 4", "unknown key 'zzz'"),
        ("etcd-password = 'x'", "did you mean 'etcd-password-file'?"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("max = '4'", "job.toml: max = '4' is not a whole number"),
        ("max = true", "job.toml: max = True is not a whole number"),
        ("max = 1.5", "job.toml: max = 1.5 is not a whole number"),
        ("lease-ttl = 'abc'", "job.toml: lease-ttl = 'abc' is not a number of seconds"),
        ("cold = 1", "job.toml: cold = 1 is not a switch"),
        ("preload = [1]", "job.toml: preload = [1] is not a list of names"),
        ("role = ['a']", "job.toml: role = ['a'] is not text"),
        ("[job]\nmax = 4", "[job] is a table"),
        ("run-id = 'a'\nrdzv-id = 'b'", "job.toml: rdzv-id repeats job.toml: run-id"),
        ("max = ", "not TOML"),
    ],
)
def test_a_bad_file(settings_of: SettingsOf, folder: Path, text: str, message: str) -> None:
    (folder / "job.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        settings_of("--config job.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["nothing.toml", "."])
def test_a_file_that_cannot_be_read(settings_of: SettingsOf, folder: Path, path: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(ELASTIC_CONFIG=path)
    assert str(caught.value).startswith(f"ELASTIC_CONFIG={path} cannot be read: ")


def test_a_file_with_bytes_that_are_no_text(settings_of: SettingsOf, folder: Path) -> None:
    (folder / "job.toml").write_bytes(b"max = 4 \xff")
    with pytest.raises(UsageError, match="not TOML"):
        settings_of("--config job.toml")


def test_flags_that_say_the_same_again(settings_of: SettingsOf, folder: Path) -> None:
    (folder / "job.toml").write_text('preload = ["a", "b"]\ncold = true\nrole = "-x"\n')
    found = settings_of("--config job.toml --lease-ttl 9", PET_TEE="3", ELASTIC_STANDALONE="0")
    again = found.as_flags(without=["config"])
    assert again == ["--lease-ttl", "9", "--preload", "a,b", "--cold", "--role=-x", "--tee", "3"]
