"""Lists of machines: how they are written, read and followed, and what they set."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.hosts import host_source
from elastic_runtime.cli.hosts.host_settings import bounded_by_list, on_hosts, source_of, ssh_of
from elastic_runtime.cli.hosts.host_source import HostSource
from elastic_runtime.cli.hosts.listed_hosts import Host, read_hosts
from elastic_runtime.errors import UsageError
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import SettingsOf


PATIENCE = 60.0


def program(folder: Path, text: str) -> HostSource:
    """One that prints a list, or does not."""
    path = folder / "discover"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return HostSource(str(path), is_program=True)


def test_a_file_and_a_program_are_read(tmp_path: Path) -> None:
    # An editor's mark is no part of a name.
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfn0\nn1:2\n")
    listed = (Host("n0"), Host("n1", 2))
    assert HostSource(str(tmp_path / "hosts"), is_program=False).look() == listed
    assert program(tmp_path, f"cat {tmp_path}/hosts").look() == listed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo cloud is away >&2; exit 3", "discover has ended with 3: cloud is away"),
        ("exec yes", "discover gives more than any list of hosts has"),
        ("exec sleep 1000", "discover has not ended after 0.1 s"),
    ],
)
def test_a_program_that_gives_no_list_is_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_source, "_LONGEST_LOOK", 0.1 if "sleep" in text else PATIENCE)
    with pytest.raises(UsageError, match=said):
        program(tmp_path, text).look()


def test_a_file_that_is_none_or_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="hosts is no file"):
        HostSource(str(path), is_program=False).look()
    path.unlink()
    path.write_bytes(b"n0\n" * 2_000_000)
    with pytest.raises(UsageError, match="hosts gives more than any list of hosts has"):
        HostSource(str(path), is_program=False).look()


@pytest.mark.parametrize("how", ["too long", "closed"])
def test_of_a_program_that_hangs_nothing_is_left(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_source, "_LONGEST_LOOK", 0.5 if how == "too long" else PATIENCE)
    noted = tmp_path / "pid"
    source = program(tmp_path, f"sleep 1000 & echo $! >{noted}.new; mv {noted}.new {noted}; wait")

    def look() -> None:
        with pytest.raises(UsageError):
            source.look()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    wait_for(noted.exists, PATIENCE, "the program")
    if how == "closed":
        source.close()
    looking.join(PATIENCE)
    assert not looking.is_alive()
    pid = int(noted.read_text())
    wait_for(lambda: state(pid) in ("", "Z"), PATIENCE, "the end of what it has started")


def test_a_signal_that_comes_while_the_program_starts_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is an error in the main thread, at any line of it."""
    started: list[int] = []

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            program(tmp_path, "sleep 1000").look()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_for(lambda: state(started[0]) in ("", "Z"), PATIENCE, "the end of the program")


def test_a_list_counts_when_it_has_been_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_source, "INTERVAL", 0.0)
    looks = iter(["n0", "n0", "n0\nn1", "n0\nn1\nn2", "n0\nn1\nn2", "n0 n1", "n0 n1", "n0", "n0"])
    known = (Host("n0"),)

    def look(source: HostSource) -> tuple[Host, ...]:
        return host_source.read_hosts(next(looks, "n0"), source.path)

    monkeypatch.setattr(HostSource, "look", look)
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    source = HostSource("hosts", is_program=False)
    source.follow(known, said.put, said.put)
    heard = [said.get(timeout=PATIENCE) for _ in range(3)]
    source.close()
    assert heard[0] == (Host("n0"), Host("n1"), Host("n2"))  # never without the last one
    assert "line 1: 'n0 n1' is no host" in str(heard[1])  # once, though it was so twice
    assert heard[2] == known


def test_both_forms_are_read() -> None:
    text = (
        "# all\n\nn0\nuser@n1:4  # the large one\nn2 slots=2 max_slots=4\n"
        "[fe80::1%eth0]:8\n10.0.0.7\n"
    )
    assert read_hosts(text, "hosts.txt") == (
        Host("n0"),
        Host("user@n1", 4),
        Host("n2", 2),
        Host("fe80::1%eth0", 8),
        Host("10.0.0.7"),
    )
    assert read_hosts("\n# none\n", "hosts.txt") == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("n0 n1", "'n0 n1' is no host"),
        ("-oProxyCommand=reboot", "is no host"),
        ("n0;reboot", "is no host"),
        ("n0 slots=many", "is no host"),
        ("n0:0", "n0 has no workers"),
        ("n0:" + "9" * 5000, "is no host"),
        ("one", "one is there twice"),
    ],
)
def test_what_is_no_host_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_hosts(f"one\n{line}\n", "hosts.txt")
    assert str(caught.value).startswith("hosts.txt, line 2: ")
    assert said in str(caught.value)


SOURCE = HostSource("hosts.txt", is_program=False)
HOSTS = (Host("n0"), Host("n1"), Host("n2"))


def test_which_list_is_meant(settings_of: SettingsOf) -> None:
    assert source_of(settings_of()) is None
    for arguments, is_program in (("--hosts f", False), ("--discover f", True)):
        source = source_of(settings_of(arguments))
        assert source is not None
        assert (source.path, source.is_program) == ("f", is_program)


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
