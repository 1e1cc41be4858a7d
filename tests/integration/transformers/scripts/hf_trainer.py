"""A job under Hugging Face's ``Trainer``, as users write it; ``--kind`` names what is special."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)

from elastic_runtime.transformers import ElasticMixin, ElasticOptions, ElasticTrainer

sys.path.insert(0, str(Path(__file__).parents[2] / "in_place" / "scripts"))
sys.path.insert(1, str(Path(__file__).parents[2] / "trainers" / "scripts"))
from noting import Notes, options
from points import BATCH, EPOCHS, FEATURES, SAMPLES, Points, now

warnings.filterwarnings("ignore", module="transformers|torch|accelerate")
WORDS = 32
# Attention does not depend on it: its gradient is a rounding error, which Adam makes a step of.
_NOISE = "attention.self.key.bias"


class Rows(Points):
    """The points as the Trainer takes them."""

    def __getitem__(self, index: int) -> Any:
        inputs, targets, _ = super().__getitem__(index)
        return {"inputs": inputs, "labels": targets, "index": index}


class Sentences(Dataset[dict[str, Any]]):
    """Numbers that count up, in sentences of unequal lengths."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 3 + index % 7
        return {"input_ids": [(index + at) % WORDS for at in range(length)], "index": index}


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of sentences."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        ids[row, :length] = labels[row, :length] = torch.tensor(sample["input_ids"])
    index = torch.tensor([sample["index"] for sample in samples])
    return {"input_ids": ids, "labels": labels, "index": index}


def classified(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The same, with one of two labels for each sentence."""
    batch = padded(samples)
    batch["attention_mask"] = (batch["labels"] >= 0).long()
    return {**batch, "labels": batch["index"] % 2}


class Regression(nn.Module):
    """Learns the function."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        logits = self.net(inputs)[:, 0]
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def classifier() -> BertForSequenceClassification:
    """A very small one, which takes the number of labels and gives a mean all the same."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def language_model() -> LlamaForCausalLM:
    """A very small one."""
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


class RemembersSamples:
    """Put before a trainer, it remembers the samples of each step."""

    indices: list[int]

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        if "index" in inputs:
            self.indices += inputs.pop("index").tolist()
        else:  # a sentence of ``spelled``
            first, second = inputs["input_ids"][:, 0], inputs["input_ids"][:, 1]
            self.indices += (WORDS * first + second).tolist()
        return super().training_step(model, inputs, *args, **named)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        inputs.pop("index")
        return super().prediction_step(model, inputs, *args, **named)


class Noting(RemembersSamples, ElasticTrainer):
    """A user's own trainer."""


def supervised(settings: dict[str, Any], **options: Any) -> Any:
    """A trainer of TRL's with an adapter of PEFT's."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    from datasets import Dataset as Table
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    class NotingSFT(RemembersSamples, ElasticMixin, SFTTrainer):
        pass

    rules = Tokenizer(models.WordLevel({str(word): word for word in range(WORDS)}))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="30", eos_token="31")
    return NotingSFT(
        language_model(),
        SFTConfig(**{**settings, "bf16": False}),
        train_dataset=Table.from_dict({"text": [spelled(index) for index in range(SAMPLES)]}),
        processing_class=words,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        **options,
    )


def spelled(index: int) -> str:
    """A sentence that begins with the number of the sample."""
    first, second = divmod(index, WORDS)
    return " ".join(map(str, (first, second, *((index + at) % 30 for at in range(index % 6)))))


class Observer(TrainerCallback):
    """Notes each step as soon as it is known to count."""

    def __init__(self, args: Any, notes: Notes) -> None:
        self.args, self.notes = args, notes
        self.made: tuple[Any, int, int, list[int]] | None = None
        self.trainer: Any = None

    def note_step(self, state: Any) -> None:
        """Notes the newest step, if it was not undone."""
        made, self.made = self.made, None
        if made is not None and state.global_step >= made[1]:
            world, step, epoch, indices = made
            self.notes.say("step", world, step=step, epoch=epoch, indices=indices)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note_step(state)
        self.trainer.indices = []
        if not self.notes.has("enough"):
            time.sleep(self.args.seconds)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        world = now()
        if self.args.kind == "usual" and world.size > 1:
            dies = self.notes.has("die-in-hook") and state.epoch % 1 == 0
            if dies and world.rank == 1 and self.notes.once("died"):
                self.notes.say("died", world, step=state.global_step)
                os.kill(os.getpid(), signal.SIGKILL)
            self.trainer.accelerator.wait_for_everyone()
        epoch = self.trainer._elastic_job.data.loader.epoch
        self.made = (world, state.global_step, epoch, self.trainer.indices)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note_step(state)
        if self.notes.has("slow-validation"):
            self.notes.say("validating", now(), step=state.global_step)
            time.sleep(0.3)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.notes.say("validated", now(), step=state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note_step(state)
        self.notes.say("epoch", now(), step=state.global_step, epoch=round(state.epoch) - 1)


def arguments(args: Any) -> tuple[dict[str, Any], ElasticOptions]:
    """Those of each kind."""
    saved: dict[str, Any] = {"every": "2s", "global_batch": 2 * BATCH}
    kind: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 1},
        "logging_steps": 5,
    }
    if args.kind == "accumulated":
        del saved["global_batch"]
        kind |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    elif args.kind in ("causal", "smoothed", "often", "classified"):
        kind |= {"lr_scheduler_type": "cosine", "warmup_steps": 10, "lr_scheduler_kwargs": {}}
        # The loss of an evaluation is a mean of batches, whose lengths follow from the ranks.
        kind |= {"load_best_model_at_end": False}
        if args.kind == "smoothed":
            kind |= {"label_smoothing_factor": 0.1}
        elif args.kind == "often":
            kind |= {"eval_strategy": "steps", "eval_steps": 7, "save_strategy": "steps"}
            kind |= {"save_steps": 7, "save_total_limit": 2, "bf16": True}
    elif args.kind == "restarted":
        saved |= {"in_place": False, "every": "10 steps"}
    elif args.kind == "sft":
        kind = {"logging_steps": 5, "save_strategy": "no"}
    settings = {
        "output_dir": str(Path(args.folder) / "saved"),
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 16,
        "num_train_epochs": EPOCHS,
        "max_steps": int(os.environ.get("MAX_STEPS") or 0) or -1,
        "learning_rate": 0.01,
        "seed": 7,
        "use_cpu": True,
        "report_to": "none",
        "remove_unused_columns": False,
        "dataloader_num_workers": 2,
        **kind,
    }
    return settings, ElasticOptions(**saved)


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    observer = Observer(args, notes)
    settings, elastic = arguments(args)
    spoken = args.kind in ("causal", "smoothed", "often", "classified")
    makers = {"classified": (classifier, classified)}
    make, collate = makers.get(args.kind, (language_model, padded))
    data = Sentences() if spoken else Rows()
    if args.kind == "sft":
        del settings["remove_unused_columns"]
        trainer = supervised(settings, callbacks=[observer], elastic=elastic)
    else:
        trainer = Noting(
            make() if spoken else Regression(),
            TrainingArguments(**settings),
            train_dataset=data,
            eval_dataset=data,
            data_collator=collate if spoken else None,
            callbacks=[observer, EarlyStoppingCallback(early_stopping_patience=1000)],
            elastic=elastic,
        )
    observer.trainer = trainer
    notes.say("scheduled", total=0)
    trainer.train()
    weights = {
        name: value.tolist()
        for name, value in trainer.model.state_dict().items()
        if (args.kind != "sft" or "lora" in name) and not name.endswith(_NOISE)
    }
    facts = {"step": trainer.state.global_step, "digest": 0, "version": transformers.__version__}
    lines = trainer.state.log_history
    facts["logged"] = [[line["step"], line["loss"]] for line in lines if "loss" in line]
    facts["evaluated"] = [line["eval_loss"] for line in lines if "eval_loss" in line]
    notes.say("ended", now(), weights=weights, **facts)
    trainer.save_model()


if __name__ == "__main__":
    main()
