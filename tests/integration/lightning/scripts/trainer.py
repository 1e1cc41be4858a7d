"""A job under Lightning's ``Trainer``, as users write it; ``--kind`` names what is special."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch import callbacks as ready_made
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from elastic_runtime.lightning import ElasticCallback, ElasticEnvironment, ElasticStrategy

sys.path.insert(0, str(Path(__file__).parents[2] / "in_place" / "scripts"))
sys.path.insert(1, str(Path(__file__).parents[2] / "trainers" / "scripts"))
from noting import Notes, options
from points import BATCH, EPOCHS, FEATURES, Points, now

warnings.filterwarnings("ignore", module="lightning")


class Regression(L.LightningModule):
    """Learns it, and notes each step as soon as it is known to count."""

    def __init__(self, args: Any, notes: Notes) -> None:
        super().__init__()
        self.save_hyperparameters({"kind": args.kind})
        self.args, self.notes = args, notes
        self.made: tuple[Any, int, int, list[int]] | None = None
        self.net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh())
        self.head: nn.Linear | None = None

    def configure_model(self) -> None:
        if self.head is None:
            self.head = nn.Linear(16, 1)
        if self.args.kind == "sharded":
            for part in (self.net, self.head):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.head is not None
        return self.head(self.net(inputs))[:, 0]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.note_step()
        self.before = self.global_step
        if not self.notes.has("enough"):
            time.sleep(self.args.seconds)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets, indices = batch
        loss = nn.functional.mse_loss(self(inputs), targets)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True, prog_bar=True)
        self.indices = indices.tolist()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        world = now()
        if self.args.kind == "usual" and world.size > 1:
            dies = self.notes.has("die-in-hook") and self.trainer.is_last_batch
            if dies and world.rank == 1 and self.notes.once("died"):
                self.notes.say("died", world, step=self.global_step)
                os.kill(os.getpid(), signal.SIGKILL)
            self.trainer.strategy.barrier()
        if self.global_step > self.before:  # else a micro-batch
            self.made = (world, self.global_step, self.current_epoch, self.indices)

    def on_validation_start(self) -> None:
        self.note_step()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets, _ = batch
        if self.notes.has("slow-validation") and not self.trainer.sanity_checking:
            self.notes.say("validating", now(), step=self.global_step)
            time.sleep(0.3)
        self.log("val_loss", nn.functional.mse_loss(self(inputs), targets), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.notes.say("validated", now(), step=self.global_step, training=self.training)

    def on_train_epoch_end(self) -> None:
        self.note_step()
        self.notes.say("epoch", now(), step=self.global_step, epoch=self.current_epoch)

    def note_step(self) -> None:
        """Notes the newest step, if it was not undone."""
        made, self.made = self.made, None
        if made is not None and self.global_step >= made[1]:
            world, step, epoch, indices = made
            self.notes.say("step", world, step=step, epoch=epoch, indices=indices)

    def configure_optimizers(self) -> Any:
        if self.args.kind == "scaled":  # Adam would make much of what rounding does
            return torch.optim.SGD(self.parameters(), lr=0.05)
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        if self.args.kind == "often":
            total = self.trainer.estimated_stepping_batches
            self.notes.say("scheduled", total=int(total))
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=int(total))
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


class Contest(Regression):
    """Two optimizers, each with a backward pass of its own."""

    def __init__(self, args: Any, notes: Notes) -> None:
        super().__init__(args, notes)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets, indices = batch
        self.indices = indices.tolist()
        for optimizer in self.optimizers():
            loss = nn.functional.mse_loss(self(inputs), targets)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def on_train_batch_end(self, *_: Any) -> None:
        self.made = (now(), self.global_step // 2, self.current_epoch, self.indices)

    def configure_optimizers(self) -> Any:
        assert self.head is not None
        return (
            torch.optim.Adam(self.net.parameters(), lr=0.01),
            torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9),
        )


class Accumulated(Contest):
    """One optimizer by hand, which steps after every second batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets, indices = batch
        self.indices = indices.tolist()
        optimizer = self.optimizers()
        self.manual_backward(nn.functional.mse_loss(self(inputs), targets) / 2)
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step > self.before:
            self.made = (now(), self.global_step, self.current_epoch, self.indices)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class PointsOnDisk(L.LightningDataModule):
    """The same data, which one process has to prepare before another one reads them."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._file = Path(folder) / "points.pt"

    def prepare_data(self) -> None:
        if not self._file.exists():
            data = Points()
            torch.save([data.inputs, data.targets], self._file)

    def setup(self, stage: str) -> None:
        self.data = Points()
        self.data.inputs, self.data.targets = torch.load(self._file)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=BATCH, shuffle=True, num_workers=2)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=BATCH)


def trainer(args: Any) -> L.Trainer:
    """The trainer of each kind."""
    saved = str(Path(args.folder) / "saved")
    kind: dict[str, Any] = {"strategy": ElasticStrategy(saved, every="2s")}
    if args.kind == "accumulated":
        kind |= {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}
    elif args.kind == "often":
        kind |= {"val_check_interval": 7, "precision": "bf16-mixed"}
    elif args.kind == "growing":
        kind |= {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 2, 3: 3})]}
    elif args.kind == "averaged":
        kind |= {"callbacks": [ready_made.EMAWeightAveraging(decay=0.9)]}
    elif args.kind == "scaled":
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=70)
        kind |= {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    elif args.kind == "restarted":
        kind = {"strategy": "ddp", "plugins": [ElasticEnvironment()]}
        kind |= {"callbacks": [ElasticCallback(saved, every="10 steps")]}
    elif args.kind == "sharded":
        kind = {"strategy": ModelParallelStrategy(), "plugins": [ElasticEnvironment()]}
        kind |= {"callbacks": [ElasticCallback(saved, every="10 steps", global_batch=2 * BATCH)]}
        kind |= {"num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", 1))}
    folder = Path(args.folder)
    told = folder / "nodes"
    callbacks = kind.pop("callbacks", [])
    if args.kind not in ("manual", "accumulated-by-hand"):
        callbacks.append(EarlyStopping("val_loss", patience=1000))
        callbacks.append(
            ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True, filename="{step}")
        )
    return L.Trainer(
        num_nodes=kind.pop("num_nodes", int(told.read_text()) if told.exists() else 2),
        max_epochs=EPOCHS,
        max_steps=int(os.environ.get("MAX_STEPS") or 0) or -1,
        callbacks=callbacks,
        logger=CSVLogger(str(folder)),
        log_every_n_steps=5,
        enable_model_summary=False,
        **kind,
    )


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    L.seed_everything(7, verbose=False)
    kinds = {"manual": Contest, "accumulated-by-hand": Accumulated}
    module = kinds.get(args.kind, Regression)(args, notes)
    fit = trainer(args)
    if args.kind == "often":
        fit.fit(module, datamodule=PointsOnDisk(args.folder))
    else:
        data = Points()
        loader = DataLoader(data, batch_size=BATCH, shuffle=True)
        fit.fit(module, loader, DataLoader(data, batch_size=BATCH))
    whole = {n: getattr(v, "full_tensor", lambda v=v: v)() for n, v in module.state_dict().items()}
    weights = {name: value.tolist() for name, value in whole.items()}
    facts = {"step": fit.global_step, "digest": 0, "lightning": L.__version__}
    notes.say("ended", now(), weights=weights, **facts)


if __name__ == "__main__":
    main()
