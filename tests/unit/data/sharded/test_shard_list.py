"""What users say about their shards: understood or refused, and known again."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.data.sharded.shard_list import ShardList, check_options
from elastic_runtime.errors import UsageError


def listed(shards: Any) -> list[Any]:
    return list(ShardList.of(shards, None, None).shards)


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def test_a_pattern_gives_its_files_in_order(tmp_path: Path) -> None:
    files(tmp_path, "b.tar", "a.tar", "c.txt", "d/e.tar", "a.tar.part", "ab.tar")
    at = str(tmp_path)
    assert listed(f"{at}/*.tar") == [f"{at}/a.tar", f"{at}/ab.tar", f"{at}/b.tar"]
    assert listed(f"{at}/?.tar") == [f"{at}/a.tar", f"{at}/b.tar"]
    assert listed(f"{at}/[bc].tar") == [f"{at}/b.tar"]
    assert listed(f"{at}/**/[be].tar") == [f"{at}/b.tar", f"{at}/d/e.tar"]


def test_one_path_or_url_is_taken_as_it_is() -> None:
    for one in ("not/there.tar", "s3://bucket/a.tar", "https://h/[a].tar?b"):
        assert listed(one) == [one]


def test_a_pattern_of_urls_is_looked_up(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    assert listed(f"file://{tmp_path}/*.tar") == [f"file://{tmp_path}/{n}.tar" for n in "ab"]
    with pytest.raises(UsageError, match="no file fits the pattern 'file://"):
        listed(f"file://{tmp_path}/*.parquet")
    with pytest.raises(UsageError, match="cannot be looked up: ValueError: Protocol not known"):
        listed("nosuch://a/*.tar")


def test_one_path_may_be_no_text() -> None:
    assert listed(Path("a.tar")) == [Path("a.tar")]


def test_braces_are_not_expanded_and_said_to_be_not() -> None:
    with pytest.raises(UsageError, match="braces are not expanded"):
        listed("data-{000..009}.tar")


def test_a_data_set_that_is_split_over_ranks_is_refused() -> None:
    from datasets.distributed import split_dataset_by_node

    data = hugging_face(4)
    with pytest.raises(UsageError, match="is split over ranks"):
        ShardList.of(split_dataset_by_node(data, 0, 2), None, None)


def test_an_unknown_option_is_named_with_what_may_have_been_meant() -> None:
    with pytest.raises(UsageError, match=r"no option buffer_size; its own are .* shuffle_buffer"):
        check_options({"buffer_size": 4})
    with pytest.raises(UsageError, match="shuffle itself; remove the option; shuffle_buffer="):
        check_options({"shuffle": True})
    check_options({"num_workers": 1, "pin_memory": True, "timeout": 3})


def test_a_list_keeps_its_order() -> None:
    names = ["b.tar", Path("a.tar"), "s3://c/*.tgz", "b.tar"]
    for given in (names, tuple(names), iter(names)):
        assert listed(given) == names


def test_a_pattern_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file fits the pattern '.*/\*\.tar'"):
        listed(f"{tmp_path}/*.tar")


@pytest.mark.parametrize("shards", [3, None, b"a.tar", {"a.tar": 1}, {"a.tar", "b.tar"}])
def test_what_is_no_list_of_shards_is_refused(shards: Any) -> None:
    for read in (None, "tar", list):
        with pytest.raises(UsageError, match="shards is a list of paths or URLs"):
            ShardList.of(shards, read, None)


@pytest.mark.parametrize("shards", [[], (), iter(()), range(0)])
def test_no_shards_are_refused(shards: Any) -> None:
    with pytest.raises(UsageError, match="there is no shard in the list"):
        ShardList.of(shards, "tar", None)


def test_the_names_tell_the_format_unless_it_is_said() -> None:
    assert ShardList.of(["a.tar", "b.tgz", "c.tar.gz"], None, None).read == "tar"
    assert ShardList.of(["a.pq", "b.parquet"], None, None).read == "parquet"
    assert ShardList.of(["a.tar", "b.txt"], "jsonl", None).read == "jsonl"
    assert ShardList.of(["a.tar"], list, None).read is list


def test_names_of_several_formats_or_of_none_are_refused() -> None:
    with pytest.raises(UsageError, match=r"several formats \(jsonl, tar\)"):
        listed(["a.tar", "a.jsonl"])
    with pytest.raises(UsageError, match=r"shard 'b\.txt' does not tell"):
        listed(["a.tar", "b.txt"])
    with pytest.raises(UsageError, match="shard '7' does not tell"):
        listed([7])


@pytest.mark.parametrize("read", ["csv", "", 3])
def test_a_format_that_is_not_known_is_refused(read: Any) -> None:
    with pytest.raises(UsageError, match=f"read={read!r} is not known"):
        ShardList.of(["a.tar"], read, None)


def test_a_function_may_understand_any_shards() -> None:
    shards = [1, ("host", 2), {"a": 3}, None]
    made = ShardList.of(shards, iter, None)
    assert (made.shards, made.read, made.decode) == (shards, iter, None)


def test_only_lines_are_parsed_unless_it_is_said_how() -> None:
    assert ShardList.of(["a.jsonl"], None, None).decode is json.loads
    assert ShardList.of(["a.txt"], "jsonl", None).decode is json.loads
    assert ShardList.of(["a.jsonl"], None, bytes).decode is bytes
    assert ShardList.of(["a.tar"], None, None).decode is None
    assert ShardList.of(["a.parquet"], None, None).decode is None
    assert ShardList.of(["a.jsonl"], list, None).decode is None


def hugging_face(number: int) -> Any:
    """0, 1, …, 9 in so many shards."""
    import datasets  # type: ignore[import-untyped]

    table = datasets.Dataset.from_dict({"n": list(range(10))})
    return table.to_iterable_dataset(num_shards=number)


def test_a_data_set_of_hugging_face_has_its_shards_by_number() -> None:
    made = pickle.loads(pickle.dumps(ShardList.of(hugging_face(3), None, str)))
    assert (list(made.shards), made.decode) == ([0, 1, 2], str)
    parts = [[row["n"] for row in made.read(shard)] for shard in made.shards]
    assert parts == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_data_set_of_hugging_face_is_read_in_no_other_way() -> None:
    for read in ("tar", list):
        with pytest.raises(UsageError, match="leave out read="):
            ShardList.of(hugging_face(1), read, None)


def identity(*shards: Any) -> str:
    return ShardList.of(shards, list, None).identity


def test_the_same_shards_have_the_same_identity() -> None:
    assert identity("a.tar", "b.tar") == identity(Path("a.tar"), "b.tar")
    assert identity(1, 2) == identity(1, 2)
    made = ShardList.of(["a.tar", "b.tar"], None, str)
    assert made.identity == identity("a.tar", "b.tar")
    # It is in checkpoints: it must not change with the version of anything.
    assert made.identity == "2-8c6748ff2fbfe54b"


def test_other_shards_have_another_identity() -> None:
    others = [
        identity("a", "b"),
        identity("b", "a"),
        identity("a"),
        identity("a", "c"),
        identity("ab"),
        identity("a", "b", "b"),
        identity(1, 2),
        identity(2, 1),
        identity("\udcff"),
        identity("\udcfe"),
    ]
    assert len({*others}) == len(others)


def test_of_shards_without_a_name_only_the_number_counts() -> None:
    assert identity(("a",), {}) == identity(None, object())
    assert identity(None) != identity(None, None)
    three, four = (ShardList.of(hugging_face(n), None, None).identity for n in (3, 4))
    assert three == ShardList.of(hugging_face(3), None, None).identity
    assert three != four


@pytest.mark.parametrize(
    "name", ["batch_sampler", "drop_last", "persistent_workers", "sampler", "shuffle"]
)
def test_options_that_a_stream_decides_on_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"decides on {name} itself"):
        check_options({name: None, "num_workers": 2})


def test_all_such_options_are_named_at_once() -> None:
    with pytest.raises(UsageError, match="decides on drop_last, shuffle itself"):
        check_options({"shuffle": True, "drop_last": False})


def test_batches_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match="in_order=False"):
        check_options({"in_order": False})


def test_other_options_are_fine() -> None:
    check_options({})
    check_options({"num_workers": 2, "pin_memory": True, "in_order": True})
