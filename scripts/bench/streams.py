#!/usr/bin/env python3
"""How many samples a second come from shards, beside the same reader in a plain ``DataLoader``.

Both read the same shards with the same classes (``data/sharded/shard_readers.py``), shuffle among
as many samples, decode them with the same function and make the same batches, in as many processes.

- ``plain``: an ``IterableDataset`` whose processes share out the shards; it has no position, and
  each process has a buffer of its own for shuffling.
- ``elastic``: the steps of a ``ShardedStream``, each committed.

``--light`` does next to nothing to a sample: what is left is what reading itself costs. Without it
a sample costs about what a picture or a page of text usually does, a millisecond or two.

They take turns, an epoch each, and the processor is theirs alone: nothing is trained. What counts
is the time from the first batch of an epoch to its end, and apart from it the time to the first.

::

    scripts/bench/streams.py --formats tar jsonl parquet --workers 0 1 2 --repeat 5
    scripts/bench/streams.py --light
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import sys
import tarfile
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import elastic_runtime as elastic
from elastic_runtime.data.sharded.shard_readers import reader_for
from scripts.bench.measure.figures import quantile
from scripts.bench.measure.report import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHARDS = 48
_IMAGE = 160  # pixels of a side
_CROP = 128


def write_tar(path: Path, samples: int) -> None:
    """Images that are packed to some 60 kB, with a class each."""
    smooth = torch.arange(3 * _IMAGE * _IMAGE) // 64
    with tarfile.open(path, "w") as archive:
        for number in range(samples):
            pixels = (smooth + torch.randint(0, 64, smooth.shape)).to(torch.uint8)
            for name, content in (
                (f"{number:06}.img", zlib.compress(pixels.numpy().tobytes(), 1)),
                (f"{number:06}.cls", str(number % 10).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def image_of(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """A piece of an image, as numbers around 0, and its class."""
    content = bytearray(zlib.decompress(sample["img"]))
    image = torch.frombuffer(content, dtype=torch.uint8).view(3, _IMAGE, _IMAGE)
    at = random.randrange(_IMAGE - _CROP)
    piece = image[:, at : at + _CROP, at : at + _CROP].float()
    return (piece - 128) / 64, int(sample["cls"])


def bytes_of(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """The packed image as it is, or the beginning of it."""
    return torch.frombuffer(bytearray(sample["img"][:4096]), dtype=torch.uint8), int(sample["cls"])


def write_jsonl(path: Path, samples: int) -> None:
    """Texts of some 3,000 letters."""
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 9))) for _ in range(2000)]
    with path.open("w") as file:
        for number in range(samples):
            text = " ".join(random.choices(words, k=450))
            file.write(json.dumps({"id": number, "text": text}) + "\n")


class Tokens:
    """Makes token ids of texts, as models want them."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def __call__(self, line: bytes) -> torch.Tensor:
        """512 token ids of a text."""
        if self._tokenizer is None:  # in each process anew
            self._tokenizer = self._trained()
        return torch.tensor(self._tokenizer.encode(json.loads(line)["text"]).ids[:512])

    def _trained(self) -> Any:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        rng = random.Random(1)
        texts = [" ".join("".join(rng.choices("etaoinshrdlu", k=5)) for _ in range(200))] * 20
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300))
        return tokenizer


def letters_of(line: bytes) -> torch.Tensor:
    """512 letters of a text."""
    return torch.frombuffer(bytearray(json.loads(line)["text"].encode()[:512]), dtype=torch.uint8)


def write_parquet(path: Path, samples: int) -> None:
    """Rows with a text of some 3,000 letters."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    lines = path.with_suffix(".lines")
    write_jsonl(lines, samples)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    lines.unlink()
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)


class RowTokens(Tokens):
    """The same of rows."""

    def __call__(self, row: Any) -> torch.Tensor:
        """512 token ids of the text of a row."""
        return super().__call__(json.dumps(row).encode())


def row_of(row: dict[str, Any]) -> torch.Tensor:
    """512 letters of the text of a row."""
    return torch.frombuffer(bytearray(row["text"].encode()[:512]), dtype=torch.uint8)


@dataclass(frozen=True)
class Format:
    """A format of shards.

    Attributes:
        write: makes a shard of so many samples.
        decode: makes tensors of a sample, as training needs them.
        light: does as little as it can.
        samples: in a shard.
    """

    write: Callable[[Path, int], None]
    decode: Callable[[Any], Any]
    light: Callable[[Any], Any]
    samples: int


FORMATS = {
    "tar": Format(write_tar, image_of, bytes_of, 200),
    "jsonl": Format(write_jsonl, Tokens(), letters_of, 300),
    "parquet": Format(write_parquet, RowTokens(), row_of, 300),
}


class PlainShards(IterableDataset[Any]):  # type: ignore[misc]
    """The shards of a process one after the other, shuffled in a buffer."""

    def __init__(
        self, shards: list[str], read: str, decode: Callable[[Any], Any], buffer: int
    ) -> None:
        self._shards, self._read, self._decode, self._buffer = shards, read, decode, buffer

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        rng = random.Random(first)
        shards = self._shards[first::apart]
        rng.shuffle(shards)
        raw = itertools.chain.from_iterable(reader_for(self._read, one, None) for one in shards)
        return map(self._decode, self._shuffled(raw, rng) if self._buffer else raw)

    def _shuffled(self, samples: Iterator[Any], rng: random.Random) -> Iterator[Any]:
        held = list(itertools.islice(samples, self._buffer))
        for sample in samples:
            at = rng.randrange(len(held))
            yield held[at]
            held[at] = sample
        rng.shuffle(held)
        yield from held


@dataclass(frozen=True)
class Task:
    """What a contender is to do."""

    shards: list[str]
    name: str
    decode: Callable[[Any], Any]
    batch: int
    buffer: int
    workers: int


class Plain:
    """Epochs of a plain loader."""

    def __init__(self, task: Task) -> None:
        buffer = task.buffer // max(1, task.workers)
        self._loader = DataLoader(
            PlainShards(task.shards, task.name, task.decode, buffer),
            batch_size=task.batch,
            num_workers=task.workers,
            persistent_workers=task.workers > 0,
        )

    def epoch(self) -> Iterator[Any]:
        """Its batches."""
        return iter(self._loader)


class Elastic:
    """Epochs of a stream of ours."""

    def __init__(self, task: Task) -> None:
        self._stream = elastic.ShardedStream(
            task.shards,
            global_batch_size=task.batch,
            decode=task.decode,
            shuffle_buffer=task.buffer,
            num_workers=task.workers,
        )

    def epoch(self) -> Iterator[Any]:
        """Its batches, each committed."""
        for step in self._stream.steps(epochs=self._stream.epoch + 1):
            yield from step


CONTENDERS: dict[str, Callable[[Task], Plain | Elastic]] = {"plain": Plain, "elastic": Elastic}


@dataclass(frozen=True)
class Rate:
    """How fast an epoch was.

    Attributes:
        first_s: seconds to the first batch.
        per_s: samples a second after it.
        whole_per_s: samples a second with it.
    """

    first_s: float
    per_s: float
    whole_per_s: float


def timed(batches: Iterator[Any]) -> Rate:
    """Goes through an epoch."""
    began = time.perf_counter()
    size = _size(next(batches))
    first = time.perf_counter()
    rest = sum(map(_size, batches))
    ended = time.perf_counter()
    return Rate(first - began, rest / (ended - first), (size + rest) / (ended - began))


def _size(batch: Any) -> int:
    return len(batch if isinstance(batch, torch.Tensor) else batch[0])


def measure(task: Task, contenders: list[str], repeat: int) -> dict[str, list[Rate]]:
    """The rates of all contenders, one epoch after the other."""
    made = {who: CONTENDERS[who](task) for who in contenders}
    rates: dict[str, list[Rate]] = {who: [] for who in made}
    for turn in range(repeat + 1):
        for who, contender in made.items():
            rate = timed(contender.epoch())
            if turn:  # before, processes start and files are read for the first time
                rates[who].append(rate)
    return rates


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=64, help="samples in a batch")
    parser.add_argument("--buffer", type=int, default=1000, help="samples that are shuffled")
    parser.add_argument("--repeat", type=int, default=5, help="epochs of each")
    parser.add_argument("--light", action="store_true", help="next to no decoding")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as in the processes of a loader
    report: dict[str, Any] = {"machine": machine()}
    print("format   processes  contender  samples/s  ratio   with the first batch  ratio  first")
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        for name in args.formats:
            shards = [str(Path(folder) / f"{n:03}.{name}") for n in range(_SHARDS)]
            for shard in shards:
                FORMATS[name].write(Path(shard), FORMATS[name].samples)
            for workers in args.workers:
                decode = FORMATS[name].light if args.light else FORMATS[name].decode
                task = Task(shards, name, decode, args.batch, args.buffer, workers)
                rates = measure(task, args.contenders, args.repeat)
                report[f"{name}/{workers}"] = {
                    w: [asdict(r) for r in all_] for w, all_ in rates.items()
                }
                _print(name, workers, rates)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def _print(name: str, workers: int, rates: dict[str, list[Rate]]) -> None:
    base: tuple[float, float] | None = None
    for who, found in rates.items():
        rate = quantile([one.per_s for one in found], 0.5)
        whole = quantile([one.whole_per_s for one in found], 0.5)
        first = quantile([one.first_s for one in found], 0.5)
        base = base or (rate, whole)
        print(
            f"{name:8} {workers:9}  {who:9}  {rate:9,.0f}  {rate / base[0]:5.2f}  "
            f"{whole:20,.0f}  {whole / base[1]:5.2f}  {first:5.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
