"""Hugging Face's ``Trainer`` teaches a small language model, on any number of workers.

::

    python -m elastic_runtime.examples.hf_text
    elastic-run --min 1 --max 4 -m elastic_runtime.examples.hf_text --dir runs/text

It reads the manual of Python's own language, which is a part of Python, letter by letter. Nothing
in it but the trainer is ours. Kill a worker or a node while it runs, or let another one join: the
others go on within a tenth of a second, and each piece of text still counts once an epoch. It needs
``pip install 'elastic-runtime[transformers]'``.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from elastic_runtime.transformers import ElasticOptions, ElasticTrainer

_LENGTH = 64  # letters in a sample
_LETTERS = 128  # ASCII


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="teach a language model to write like a manual")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="samples a step, over all workers")
    parser.add_argument("--letters", type=int, default=100_000, help="how much to read")
    parser.add_argument("--dir", default="runs/text", help="where checkpoints and the model go")
    parser.add_argument("--every", default="30s", help="how often to save: '10 steps', '30s'")
    parser.add_argument("--step-ms", type=float, default=0.0, help="take at least so long a step")
    return parser.parse_args()


class Text(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # torch has no types
    """Pieces of a text, as numbers of letters."""

    def __init__(self, text: str) -> None:
        """Takes the text, of which only what is ASCII counts."""
        letters = text.encode("ascii", "ignore")
        whole = len(letters) - len(letters) % _LENGTH
        self._pieces = torch.tensor(list(letters[:whole])).view(-1, _LENGTH)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._pieces[index], "labels": self._pieces[index]}


class Pause(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Makes steps longer; it is for demonstrations."""

    def __init__(self, step_ms: float) -> None:
        """Takes the least length of a step, in milliseconds."""
        self._seconds = step_ms / 1000

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Waits."""
        time.sleep(self._seconds)


def main() -> None:
    """Trains to the end, and says how good the model is."""
    args = parse_args()
    manual = "\n".join(pydoc_data.topics.topics.values())[: args.letters]
    test = len(manual) // 20
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_LETTERS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=_LENGTH,
        )
    )
    settings = TrainingArguments(
        args.dir,
        per_device_train_batch_size=args.batch,
        num_train_epochs=args.epochs,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=20,
        report_to="none",
    )
    trainer = ElasticTrainer(
        model,
        settings,
        train_dataset=Text(manual[test:]),
        eval_dataset=Text(manual[:test]),
        callbacks=[Pause(args.step_ms)],
        elastic=ElasticOptions(every=args.every, global_batch=args.batch),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        loss = next(x["eval_loss"] for x in reversed(trainer.state.log_history) if "eval_loss" in x)
        print(f"loss {loss:.2f} a letter after {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
