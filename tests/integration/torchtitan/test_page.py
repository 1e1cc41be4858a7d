"""What docs/torchtitan.md shows is run as it stands there, with torchtitan's own parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from tests import processes
from tests.integration.examples.test_docs import examples
from tests.integration.in_place.job import ENVIRONMENT
from tests.integration.torchtitan.titan_job import environment

ON_CPU = Path(__file__).with_name("scripts") / "on_cpu.py"
# So small that a CPU is through in seconds.
SMALL = (
    *("--training.steps", "4", "--training.seq_len", "32", "--training.local_batch_size", "2"),
    *("--hf_assets_path", "tokenizer", "--dataloader.dataset_path", "texts"),
)


def assets(folder: Path) -> None:
    """A tokenizer and texts, as torchtitan looks for them."""
    words = {word: number for number, word in enumerate("<s> </s> one two three four".split())}
    (folder / "tokenizer").mkdir()
    made = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "texts").mkdir()
    lines = [json.dumps({"text": "one two three four " * 20}) for _ in range(200)]
    (folder / "texts" / "all.json").write_text("\n".join(lines))


def test_the_first_job_in_both_spellings(tmp_path: Path) -> None:
    [(name, script)] = examples("torchtitan.md").items()
    (tmp_path / name).write_text(script)
    assets(tmp_path)
    for steps, words in (  # the second goes on where the first has ended
        ("4", ("--module", "titan_configs", "--config", "debug")),
        ("6", ("--module", "elastic_runtime.torchtitan", "--config", "titan_configs.debug")),
    ):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "elastic_runtime", "--nproc-per-node", "3", str(ON_CPU)),
                *(*words, *SMALL, "--training.steps", steps),
            ],
            cwd=tmp_path,
            env={**environment(), **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=processes.PROGRAM_TIMEOUT,
        )
        assert done.returncode == 0, done.stdout
        assert "elastic: 16 sequences a step on 3 data-parallel ranks: 6 to 5 each" in done.stdout
        [kept] = {int(found) for found in re.findall(r"Training starts at step (\d+)", done.stdout)}
        assert kept == {"4": 1, "6": 5}[steps]
