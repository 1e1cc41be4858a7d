#!/usr/bin/env python3
"""How many samples a second come from shards, beside the same reader in a plain ``DataLoader``.

Both read the same shards with the same classes (``data/sharded/shard_readers.py``), shuffle among
as many samples, decode them with the same function and make the same batches, in as many processes.

- ``plain``: an ``IterableDataset`` whose processes share out the shards; it has no position, and
  each process has a buffer of its own for shuffling.
- ``elastic``: ``ShardedStream``, with a commit for each batch.

They take turns, an epoch each, and the processor is theirs alone: nothing is trained. What counts
is the time from the first batch of an epoch to its end, and apart from it the time to the first.

::

    scripts/bench/streams.py --formats tar jsonl parquet --workers 0 1 2 --repeat 5
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
_IMAGE = 96  # pixels of a side


def write_tar(path: Path, samples: int) -> None:
    """Images of some 27 kB, as bytes, with a class each."""
    with tarfile.open(path, "w") as archive:
        for number in range(samples):
            for name, content in (
                (f"{number:06}.img", random.randbytes(3 * _IMAGE * _IMAGE)),
                (f"{number:06}.cls", str(number % 10).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def image_of(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """An image as numbers from 0 to 1, and its class."""
    pixels = torch.frombuffer(bytearray(sample["img"]), dtype=torch.uint8)
    return pixels.view(3, _IMAGE, _IMAGE) / 255, int(sample["cls"])


def write_jsonl(path: Path, samples: int) -> None:
    """Texts of some 1,000 letters."""
    with path.open("w") as file:
        for number in range(samples):
            text = random.randbytes(500).hex()
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def tokens_of(line: bytes) -> torch.Tensor:
    """512 token ids of a text."""
    return torch.tensor(list(json.loads(line)["text"].encode()[:512]))


def write_parquet(path: Path, samples: int) -> None:
    """Rows of 256 token ids."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [[random.randrange(50_000) for _ in range(256)] for _ in range(samples)]
    parquet.write_table(pa.table({"tokens": rows}), path, row_group_size=128)


def row_of(row: dict[str, Any]) -> torch.Tensor:
    """The token ids of a row."""
    return torch.tensor(row["tokens"])


@dataclass(frozen=True)
class Format:
    """A format of shards.

    Attributes:
        write: makes a shard of so many samples.
        decode: makes tensors of a sample.
        samples: in a shard.
    """

    write: Callable[[Path, int], None]
    decode: Callable[[Any], Any]
    samples: int


FORMATS = {
    "tar": Format(write_tar, image_of, 150),
    "jsonl": Format(write_jsonl, tokens_of, 1000),
    "parquet": Format(write_parquet, row_of, 500),
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


class Plain:
    """Epochs of a plain loader."""

    def __init__(self, shards: list[str], name: str, batch: int, buffer: int, workers: int) -> None:
        data = PlainShards(shards, name, FORMATS[name].decode, buffer // max(1, workers))
        self._loader = DataLoader(
            data, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
        )

    def epoch(self) -> Iterator[Any]:
        """Its batches."""
        return iter(self._loader)


class Elastic:
    """Epochs of a stream of ours."""

    def __init__(self, shards: list[str], name: str, batch: int, buffer: int, workers: int) -> None:
        self._stream = elastic.ShardedStream(
            shards,
            batch_size=batch,
            decode=FORMATS[name].decode,
            shuffle_buffer=buffer,
            num_workers=workers,
        )

    def epoch(self) -> Iterator[Any]:
        """Its batches, each committed."""
        for batch in self._stream:
            yield batch
            self._stream.commit()


CONTENDERS = {"plain": Plain, "elastic": Elastic}


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


def measure(
    name: str, shards: list[str], workers: int, args: argparse.Namespace
) -> dict[str, list[Rate]]:
    """The rates of all contenders, one epoch after the other."""
    made = {
        who: CONTENDERS[who](shards, name, args.batch, args.buffer, workers)
        for who in args.contenders
    }
    rates: dict[str, list[Rate]] = {who: [] for who in made}
    for turn in range(args.repeat + 1):
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
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    print("format   processes  contender  samples/s  ratio   with the first batch  ratio  first")
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        for name in args.formats:
            shards = [str(Path(folder) / f"{n:03}.{name}") for n in range(_SHARDS)]
            for shard in shards:
                FORMATS[name].write(Path(shard), FORMATS[name].samples)
            for workers in args.workers:
                rates = measure(name, shards, workers, args)
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
