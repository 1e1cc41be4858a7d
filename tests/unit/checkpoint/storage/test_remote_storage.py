"""What an object store may do to a save or a load: fail for a while, lose answers, tell secrets."""

from __future__ import annotations

import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import fsspec
import pytest
import tenacity
from fsspec.implementations.memory import MemoryFileSystem

from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId, Manifest
from elastic_runtime.checkpoint.storage import first_contact, remote_storage
from elastic_runtime.checkpoint.storage.credentials import (
    secrets_around,
    secrets_of,
    without_credentials,
)
from elastic_runtime.checkpoint.storage.first_contact import Patience, of_a_job
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.remote_storage import RemoteReader, RemoteStorage
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
)
from elastic_runtime.events import Event
from elastic_runtime.events.checkpoint_events import CheckpointUnreachable
from elastic_runtime.protocol.messages import EXIT_WORKER_LEFT
from tests.small_checkpoints import FILE, HOLDER, put, write

if TYPE_CHECKING:
    from collections.abc import Callable

    Hooked = Callable[[Callable[[str, str], object]], None]


class Flaky(MemoryFileSystem):
    """Runs a hook before each request; the hook may raise, and may put things."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    hook: Callable[[str, str], None] = staticmethod(lambda request, path: None)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        Flaky.hook("ls", path)
        return super().ls(path, detail, **kwargs)

    def info(self, path: str, **kwargs: Any) -> Any:
        Flaky.hook("info", path)
        return super().info(path, **kwargs)

    def cat_file(self, path: str, **kwargs: Any) -> Any:
        Flaky.hook("cat", path)
        return super().cat_file(path, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        Flaky.hook("pipe", path)
        super().pipe_file(path, value, mode, **kwargs)
        Flaky.hook("piped", path)

    def rm_file(self, path: str) -> None:
        Flaky.hook("rm", path)
        super()._rm(path)


class Failing:
    """Fails each request a few times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.failed: dict[tuple[str, str], int] = {}

    def __call__(self, request: str, path: str) -> None:
        count = self.failed.get((request, path), 0)
        if request != "piped" and count < self.times:
            self.failed[request, path] = count + 1
            raise self.error


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> RemoteStorage:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(remote_storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(Flaky, "hook", staticmethod(lambda request, path: None))
    storage = open_storage(f"flaky://{uuid.uuid4().hex}/run")
    assert isinstance(storage, RemoteStorage)
    storage.prepare()
    return storage


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hooked:
    """Has something done before each request from now on."""
    return lambda do: monkeypatch.setattr(Flaky, "hook", staticmethod(do))


def test_what_fails_for_a_while_is_tried_again(flaky: RemoteStorage, hook: Hooked) -> None:
    failing = Failing(2, OSError("Please reduce your request rate"))
    hook(failing)
    term = flaky.take_term(HOLDER)
    manifest = put(flaky, 10, term)
    assert flaky.read_manifest(manifest.id) == manifest
    with flaky.reader(manifest.id, FILE) as reader:
        reader.readinto(0, [memoryview(bytearray(8))])
    flaky.remove(manifest)
    for _ in range(2):
        flaky.finish_removals()
    assert flaky.names() == ["term-1"]
    assert {request for request, _ in failing.failed} == {"ls", "info", "cat", "pipe", "rm"}


class Silent:
    """Answers nothing until it is told to."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, request: str, path: str) -> None:
        assert self.over.wait(60)


def test_a_store_that_has_never_answered_is_given_up_soon(
    flaky: RemoteStorage, hook: Hooked
) -> None:
    # What cannot be tried again and again by us: the library of the store does so by itself.
    silent = Silent()
    unreachable = Failing(10**9, OSError("nobody is there"))
    for what, why in ((silent, "it does not answer"), (unreachable, "nobody is there")):
        hook(what)
        storage = open_storage("flaky://me:pa55word@bucket/run", Patience(0.1))
        with pytest.raises(CheckpointUsageError, match=f"cannot reach flaky://.*{why}") as told:
            storage.names()
        assert "pa55word" not in str(told.value)
    silent.over.set()


def test_a_job_goes_on_asking_a_store_that_has_never_answered_and_says_so(
    flaky: RemoteStorage, hook: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "FIRST_STORAGE_REPORT", 0.0)
    monkeypatch.setattr(first_contact, "NEXT_STORAGE_REPORT", 0.0)
    silent, said = Silent(), list[Event]()

    def note(event: Event) -> None:
        said.append(event)
        silent.over.set()  # it is back

    hook(silent)
    assert open_storage("flaky://bucket/run", of_a_job(note, lambda: None)).names() == []
    first = said[0]
    assert isinstance(first, CheckpointUnreachable)
    assert (first.path, first.why) == ("flaky://bucket/run", "it does not answer")
    hook(failing := Failing(2, OSError("down")))  # a person waits for a while as well
    assert open_storage("flaky://bucket/run", Patience(60.0)).names() == []
    assert set(failing.failed.values()) == {2}


def test_a_job_whose_store_stays_away_has_failed_for_now(
    flaky: RemoteStorage, hook: Hooked
) -> None:
    """Which is no wrong setting: another try may do better."""
    hook(Failing(10**9, OSError("nobody is there")))
    patience = Patience(0.1, lambda name, **fields: None)
    with pytest.raises(CheckpointFailed, match=r"cannot reach .*nobody is there"):
        open_storage("flaky://bucket/run", patience).names()


def test_what_will_not_change_is_told_a_job_at_once(flaky: RemoteStorage, hook: Hooked) -> None:
    class NoCredentials(Exception):
        pass

    for error in (NoCredentials("none"), PermissionError("not you")):
        hook(failing := Failing(10**9, error))
        with pytest.raises(CheckpointFailed, match="give the job credentials") as told:
            first = of_a_job(lambda name, **fields: None, lambda: None)
            open_storage("flaky://bucket/run", first).prepare()
        assert told.value.refused
    assert set(failing.failed.values()) == {1}, "who is refused does not ask again"


def test_what_goes_on_failing_is_an_error_and_no_damage(flaky: RemoteStorage, hook: Hooked) -> None:
    manifest = put(flaky, 10)
    hook(Failing(99, OSError("the network is gone\nwith details")))
    # An older checkpoint must not be taken because the newest cannot be reached at present.
    calls: list[Callable[[], object]] = [
        flaky.names,
        lambda: flaky.has_manifest(manifest.id),
        lambda: flaky.read_manifest(manifest.id),
        lambda: flaky.read_bytes(manifest.id, FILE),
        lambda: flaky.sizes(manifest.id),
    ]
    for call in calls:
        with pytest.raises(CheckpointError, match="the network is gone; check the URL") as caught:
            call()
        assert not isinstance(caught.value, DamagedCheckpoint)
        assert flaky.where in str(caught.value)


def test_a_refusal_is_not_tried_again(flaky: RemoteStorage, hook: Hooked) -> None:
    failing = Failing(99, PermissionError("Access Denied"))
    hook(failing)
    with pytest.raises(CheckpointError, match="Access Denied; give the job credentials"):
        flaky.prepare()
    assert set(failing.failed.values()) == {1}


def test_a_term_whose_answer_was_lost_is_held(flaky: RemoteStorage, hook: Hooked) -> None:
    lost = iter([True])

    def lose(request: str, path: str) -> None:
        if request == "piped" and next(lost, False):
            raise OSError("no answer")

    hook(lose)
    assert flaky.take_term(HOLDER) == 1
    flaky.check_term(1)


THEIRS = b'{"run": "r9", "round": 1, "host": "there"}'


def test_a_term_that_another_takes_first_is_not_held(flaky: RemoteStorage, hook: Hooked) -> None:
    first = iter([True])

    def overtake(request: str, path: str) -> None:
        if request == "pipe" and next(first, False):
            flaky._fs.pipe_file(path, THEIRS)

    hook(overtake)
    assert flaky.take_term(HOLDER) == 2


def test_of_two_that_took_a_term_at_the_same_moment_one_stops(flaky: RemoteStorage) -> None:
    # As in a store that cannot create exclusively: the other's put comes after ours was read back.
    term = flaky.take_term(HOLDER)
    flaky._fs.pipe_file(f"{flaky._root}/term-{term}", THEIRS)
    with pytest.raises(CheckpointError, match=r"run r9.*same moment"):
        flaky.check_term(term)
    with pytest.raises(CheckpointError, match="same moment"):
        flaky.commit(Manifest(step=1, term=term, world=1))


def test_the_manifest_is_the_last_to_come_and_the_first_to_go(
    flaky: RemoteStorage, hook: Hooked
) -> None:
    changes: list[tuple[str, str]] = []
    hook(lambda request, path: request in ("pipe", "rm") and changes.append((request, path)))
    manifest = put(flaky, 10)
    at = f"{flaky._root}/{manifest.id.name}"
    moved = f"{flaky._root}/{manifest.id.pruned_name}/{MANIFEST}"
    assert changes == [("pipe", f"{at}/{MANIFEST}")]
    changes.clear()
    flaky.remove(manifest)
    gone = [f"{at}/{MANIFEST}", f"{at}/{FILE}", moved]
    assert changes == [("pipe", moved), *(("rm", path) for path in gone)]


@pytest.mark.parametrize("last", range(4))
def test_a_deletion_that_stops_anywhere_is_finished_later(
    flaky: RemoteStorage, hook: Hooked, last: int
) -> None:
    manifest, other = put(flaky, 10), put(flaky, 20)
    done = 0

    def stop(request: str, path: str) -> None:
        nonlocal done
        if request in ("pipe", "rm"):
            if done == last:
                raise PermissionError("no more")
            done += 1

    hook(stop)
    with pytest.raises(CheckpointError, match="no more"):
        flaky.remove(manifest)
    hook(lambda request, path: None)
    assert flaky.read_manifest(manifest.id) in (manifest, None)
    flaky.finish_removals()
    whole = [other.id.name] if last else [manifest.id.name, other.id.name]
    assert sorted(flaky.names()) == whole


def test_files_beside_those_of_a_manifest_survive_its_deletion(flaky: RemoteStorage) -> None:
    manifest = put(flaky, 10)
    flaky._fs.pipe_file(f"{flaky._root}/{manifest.id.name}/mine.txt", b"a person's")
    flaky.remove(manifest)
    assert flaky.sizes(manifest.id) == {"mine.txt": 10}


# Large files


def test_a_large_file_is_never_held_twice(
    flaky: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of a store copies what it is given; so it is given little at a time."""
    monkeypatch.setattr(remote_storage, "_PART", 1000)
    written: list[int] = []
    file = Mock(write=lambda data: written.append(data.nbytes), close=lambda: written.append(-1))
    opened = Mock(return_value=file)
    monkeypatch.setattr(Flaky, "open", opened)
    with flaky.writer(CheckpointId(1, 1), FILE, 50 << 30) as out:
        out.write([memoryview(bytes(2500)), memoryview(bytes(10))])
    assert written == [1000, 1000, 500, 10, -1]
    assert opened.call_args.kwargs["block_size"] * 10_000 > 50 << 30, "S3 takes 10,000 parts"


def test_a_file_that_could_not_be_written_is_abandoned(
    flaky: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Mock(closed=False)
    file.write.side_effect = OSError("the connection was reset")
    monkeypatch.setattr(Flaky, "open", Mock(return_value=file))
    with (
        pytest.raises(CheckpointError, match=r"cannot save to flaky://.*connection was reset"),
        flaky.writer(CheckpointId(1, 1), FILE, 10) as out,
    ):
        out.write([memoryview(b"0123456789")])
    file.discard.assert_called_once()
    file.close.assert_not_called()


def test_ranges_are_read_side_by_side(
    flaky: RemoteStorage, hook: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_storage, "_RANGE", 10)
    which = CheckpointId(1, 1)
    content = bytes(range(95))
    write(flaky, which, FILE, content)
    # Three have to be under way at the same time, or this breaks.
    meeting = threading.Barrier(3, timeout=20)

    def meet(request: str, path: str) -> None:
        if request == "cat":
            meeting.wait()

    hook(meet)
    buffers = [memoryview(bytearray(size)) for size in (0, 3, 40, 0, 47)]
    with flaky.reader(which, FILE) as reader:
        reader.readinto(5, buffers)
    assert b"".join(buffers) == content[5:]


def test_a_read_that_fails_writes_nothing_afterwards(
    flaky: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_storage, "_RANGE", 10)
    running, returned = threading.Event(), threading.Event()
    late: list[bool] = []

    def fetch(start: int, end: int) -> bytes:
        if start == 0:
            assert running.wait(20)
            raise CheckpointFailed("the network is gone")
        running.set()
        late.append(returned.wait(0.3))  # who waits for this one does not return before
        return bytes(end - start)

    with remote_storage.ThreadPoolExecutor(2) as pool:
        reader = RemoteReader("there", 100, fetch, pool)
        with pytest.raises(CheckpointError, match="network"):
            reader.readinto(0, [memoryview(bytearray(20))])
        returned.set()
    assert late == [False]


# Words


def test_what_a_library_says_is_shown_without_credentials(
    flaky: RemoteStorage, hook: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    text = "refused: key wJalrXUtnFEMI, password pa55word, token t0ken"
    hook(Failing(99, PermissionError(text)))
    storage = open_storage("flaky://me:pa55word@bucket/run?token=t0ken")
    with pytest.raises(CheckpointError) as caught:
        storage.names()
    assert "refused: key ***, password ***, token ***" in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for package in ("s3fs", "fsspec.core"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(CheckpointError, match=r"pip install 'elastic-runtime\[storage\]'"):
            open_storage("s3://bucket/run")


def test_a_job_that_is_asked_to_leave_does_not_wait_for_a_store(
    flaky: RemoteStorage, hook: Hooked
) -> None:
    silent = Silent()
    hook(silent)

    def leave() -> None:
        raise SystemExit(EXIT_WORKER_LEFT)

    with pytest.raises(SystemExit):
        open_storage("flaky://bucket/run", of_a_job(lambda name, **fields: None, leave)).names()
    silent.over.set()


# What no message may show: passwords and keys in URLs and in the environment


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3://key:hidden@bucket/run/", "s3://bucket/run"),
        ("http://host/run?token=hidden&a=b", "http://host/run"),
        ("sftp://me@host:22/a/b", "sftp://host:22/a/b"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_the_secrets_of_a_url_are_its_password_and_its_query() -> None:
    found = secrets_of("https://me:hidden@host/run?token=abc&x=def")
    assert found == {"hidden", "token=abc&x=def", "abc", "def"}
    assert secrets_of("s3://bucket/run") == frozenset()


def test_the_secrets_around_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE_SECRET", "long-enough")
    monkeypatch.setenv("MY_OTHER_TOKEN", "short")
    monkeypatch.setenv("MY_HOME_TOWN", "nothing-secret")
    found = secrets_around()
    assert "long-enough" in found
    assert not {"short", "nothing-secret"} & found
