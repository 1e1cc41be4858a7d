"""Short jobs of trainers without an adapter, as people write them; the argument says which."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
DATA = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
kind = sys.argv[1]


def lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Module(), DataLoader(DATA, batch_size=8))


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    net = nn.Linear(4, 1)
    optim = torch.optim.SGD(net.parameters(), lr=0.01)
    net, optim, loader = accelerator.prepare(net, optim, DataLoader(DATA, batch_size=8))
    for inputs, targets in loader:
        optim.zero_grad()
        accelerator.backward((net(inputs) - targets).square().mean())
        optim.step()


def transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, num_attention_heads=2, **shape))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    Trainer(model, TrainingArguments("out", max_steps=6, **quiet), train_dataset=rows).train()


def none() -> None:
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optim = torch.optim.SGD(net.parameters(), lr=0.01)
    for inputs, targets in DataLoader(DATA, batch_size=8):
        optim.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        optim.step()
    # Without destroy_process_group: torch then hangs now and then where DDP is freed after it.


if __name__ == "__main__":
    {f.__name__: f for f in (lightning, accelerate, transformers, none)}[kind]()
