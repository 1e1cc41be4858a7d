"""What a list of machines says, below what people say themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.hosts.host_settings import (
    bounded_by_list,
    on_hosts,
    refuse_static,
    source_of,
    ssh_of,
)
from elastic_runtime.cli.hosts.host_source import HostSource
from elastic_runtime.cli.hosts.listed_hosts import Host
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import SettingsOf

SOURCE = HostSource("hosts.txt", is_program=False)
HOSTS = (Host("n0"), Host("n1"), Host("n2"))


def test_which_list_is_meant(settings_of: SettingsOf) -> None:
    assert source_of(settings_of()) is None
    for arguments, is_program in (("--hosts f", False), ("--discover f", True)):
        source = source_of(settings_of(arguments))
        assert source is not None
        assert (source.path, source.is_program) == ("f", is_program)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--hosts f --discover g", "--hosts=f and --discover=g: give one of them"),
        ("--hosts f --standalone", "--standalone is for nodes here, --hosts=f for other"),
        ("--hosts f --local-nodes 2", "--local-nodes=2 is for nodes here"),
        ("--discover f --node-name a", "--node-name=a is for nodes here"),
        ("--hosts f --node-topology z/r", "--node-topology=z/r is for nodes here"),
        ("--hosts f --slurm job", "--slurm=job and --hosts=f"),
        ("--hosts=", "--hosts is empty: it names a list of hosts"),
        ("--discover=", "--discover is empty"),
    ],
)
def test_what_cannot_go_with_a_list_is_refused(
    arguments: str, said: str, settings_of: SettingsOf
) -> None:
    with pytest.raises(UsageError, match=said):
        source_of(settings_of(arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nnodes 2 --node-rank 0 --master-addr h", "--node-rank=0, --master-addr=h: torchrun's"),
        ("--rdzv-backend etcd-v2", "--rdzv-backend=etcd-v2: torchrun's"),
    ],
)
def test_torchs_own_launcher_knows_no_list(
    arguments: str, said: str, settings_of: SettingsOf
) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_static(settings_of(arguments), "static")


def test_a_list_says_what_people_do_not(settings_of: SettingsOf) -> None:
    settings = on_hosts(settings_of(), SOURCE, HOSTS)
    assert (settings["max"], settings["listen"], settings["log_format"]) == (3, "", "console")
    assert settings.given("listen")  # at every address
    assert bounded_by_list(settings)
    fewer = on_hosts(settings_of("--min 8"), SOURCE, HOSTS)
    assert fewer["max"] == 8  # more may be listed later


@pytest.mark.parametrize("arguments", ["--max 9", "--nnodes 2:9"])
def test_people_say_more_than_a_list(arguments: str, settings_of: SettingsOf) -> None:
    said = f"{arguments} --rdzv-endpoint etcd://h --log-format json"
    settings = on_hosts(settings_of(said), SOURCE, HOSTS)
    assert not bounded_by_list(settings)
    assert not settings.given("listen")
    assert settings["log_format"] == "json"


def test_an_empty_list_is_none(settings_of: SettingsOf) -> None:
    with pytest.raises(UsageError, match="lists no host"):
        on_hosts(settings_of(), SOURCE, ())


def test_the_client_is_split_as_a_shell_does(settings_of: SettingsOf) -> None:
    assert ssh_of(settings_of()) == ["ssh"]
    assert ssh_of(settings_of("", ELASTIC_SSH="ssh -o 'User=a b'")) == ["ssh", "-o", "User=a b"]
    for text, said in (
        ("'", "No closing quotation"),
        ("   ", "names no program"),
        ("/dev/null -v", "there is no program '/dev/null' here"),
    ):
        with pytest.raises(UsageError, match=said):
            ssh_of(settings_of("", ELASTIC_SSH=text))
