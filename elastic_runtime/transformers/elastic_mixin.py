"""``ElasticTrainer``, and ``ElasticMixin`` for trainers that are made from ``Trainer``."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from elastic_runtime.checkpoint.storage.catalog import list_checkpoints
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.errors import UsageError
from elastic_runtime.transformers.connection.late_connection import connect, were_made_late
from elastic_runtime.transformers.elastic_options import ElasticOptions
from elastic_runtime.transformers.steps.counted_labels import CountedLabels
from elastic_runtime.transformers.steps.step_callbacks import CommitsLast, CountsFirst, place_of
from elastic_runtime.transformers.training_job import TrainingJob, leave_our_loaders_alone

_has_trained = False


class ElasticMixin(Trainer):  # type: ignore[misc]  # transformers is not typed here
    """Put before a class that is made from ``Trainer``, it makes an elastic trainer of it.

    Example::

        class ElasticSFTTrainer(ElasticMixin, SFTTrainer):
            pass

        trainer = ElasticSFTTrainer(model, args, train_dataset=data)
        trainer.train()

    ``train()`` resumes by itself. A step has the same samples however many ranks there are; see
    ``ElasticOptions.global_batch``.
    """

    _elastic_connects_itself = True
    _elastic_job: TrainingJob | None = None
    _elastic_batch = 0  # once it is known

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuses another order of the classes.

        Raises:
            UsageError: the mixin does not come first.
        """
        super().__init_subclass__(**named)
        before = cls.__mro__[: cls.__mro__.index(ElasticMixin)]
        for other in before:
            if issubclass(other, Trainer) and not issubclass(other, ElasticMixin):
                raise UsageError(
                    f"class {cls.__name__} names {other.__name__} before ElasticMixin, which then "
                    f"has no effect: class {cls.__name__}(ElasticMixin, {other.__name__})"
                )

    def __init__(self, *args: Any, elastic: ElasticOptions | None = None, **named: Any) -> None:
        """Makes the trainer.

        Args:
            *args: of the class that it is mixed with.
            elastic: how the job is saved and goes on.
            **named: of that class.

        Raises:
            UsageError: the arguments ask for what an elastic job cannot do.
        """
        if elastic is not None and not isinstance(elastic, ElasticOptions):
            raise UsageError(
                f"elastic= is a {type(elastic).__qualname__}; give ElasticOptions(every='30s', …)"
            )
        self._elastic_options = elastic or ElasticOptions()
        super().__init__(*args, **named)
        self.add_callback(CountsFirst(self))
        self.add_callback(CommitsLast(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the accelerator; ranks are connected here only if they start again after faults."""
        args, in_place = self.args, self._elastic_options.in_place
        _refuse(args, in_place=in_place)
        if not in_place:
            connect(args)
        elif dist.is_initialized() or not were_made_late(args):
            raise UsageError(
                "the ranks are connected before the Trainer is made, and elastic.run connects them "
                "itself, again after each change: import elastic_runtime.transformers before "
                "TrainingArguments are made, and call no init_process_group() and no Accelerator()"
            )
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        backward = accelerator.backward

        def weighted(loss: Any, **options: Any) -> None:
            job = self._elastic_job
            weight = job.losses.decide() if job is not None else 1.0
            backward(loss if weight == 1.0 else loss * weight, **options)

        accelerator.backward = weighted

    def add_callback(self, callback: Any) -> None:
        """Adds a callback; the one that commits remains the last."""
        super().add_callback(callback)
        self.callback_handler.callbacks.sort(key=place_of)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **named: Any,
    ) -> Any:
        """Trains from wherever the job is.

        Args:
            resume_from_checkpoint: a checkpoint of the ``Trainer``'s own to begin with, if the job
                has none of ours yet.
            trial: not possible.
            ignore_keys_for_eval: see ``Trainer.train``.
            **named: see ``Trainer.train``.

        Returns:
            See ``Trainer.train``.

        Raises:
            UsageError: it is called for the second time, or for a search of hyperparameters.
        """
        global _has_trained
        if trial is not None:
            raise UsageError("hyperparameter_search is not possible with an elastic Trainer")
        if _has_trained:
            raise UsageError(
                "an elastic job is one call of train() in a process, and this is the second one: "
                "give num_train_epochs or max_steps for all of the training, or run a further "
                "script for the next stage"
            )
        _has_trained = True
        begin = self._elastic_beginning(resume_from_checkpoint)
        return super().train(begin, None, ignore_keys_for_eval, **named)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Samples in a step, over all ranks."""
        total: int = self._elastic_batch or super().get_total_train_batch_size(args)
        return total

    # What Trainer calls while it trains

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        job = TrainingJob(self, self._elastic_options, resume_from_checkpoint, ignore_keys_for_eval)
        self._elastic_job = job
        try:
            return job.run()
        finally:
            self._elastic_job = None

    def get_batch_samples(self, *args: Any, **named: Any) -> Any:
        """The micro-batches of a step, and how many labels they have."""
        if self._elastic_job is None:
            return super().get_batch_samples(*args, **named)
        with self._elastic_job.losses.next_step():
            return super().get_batch_samples(*args, **named)

    def _get_num_items_in_batch(self, batches: list[Any], *args: Any, **named: Any) -> Any:
        if self._elastic_job is not None:
            batches = self._elastic_job.losses.countable(batches)
        return super()._get_num_items_in_batch(batches, *args, **named)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None, **named: Any
    ) -> Any:
        """The forward and backward pass of a micro-batch."""
        if self._elastic_job is None:
            return super().training_step(model, inputs, num_items_in_batch, **named)
        losses = self._elastic_job.losses
        with losses.micro_batch(inputs, num_items_in_batch) as labels:
            loss = super().training_step(model, inputs, labels, **named)
            return loss * losses.weight  # what is logged is the loss of the step, too

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **named: Any,
    ) -> Any:
        """The loss of a micro-batch, in training and in evaluations."""
        job, labels = self._elastic_job, num_items_in_batch
        if labels is not None:  # by its name, and only if there is one: others may not know it
            watched = job is not None and not self.args.torch_compile
            labels = CountedLabels.of(labels) if watched else labels
            named["num_items_in_batch"] = labels
        found = super().compute_loss(model, inputs, return_outputs=return_outputs, **named)
        if job is None:
            return found
        if not return_outputs:
            return job.losses.unmultiplied(found, labels)
        loss, outputs = found
        return job.losses.unmultiplied(loss, labels), outputs

    def _get_grad_norm(self, *args: Any, **named: Any) -> Any:
        norm = super()._get_grad_norm(*args, **named)
        if self._elastic_job is not None:
            self._elastic_job.notes.grad_norm = norm
        return norm

    def _get_learning_rate(self) -> Any:
        rate = super()._get_learning_rate()
        if self._elastic_job is not None:
            self._elastic_job.notes.learning_rate = rate
        return rate

    def _maybe_log_save_evaluate(self, *args: Any, **named: Any) -> None:
        if self._elastic_job is None:
            super()._maybe_log_save_evaluate(*args, **named)
            return
        with self._elastic_job.following():
            super()._maybe_log_save_evaluate(*args, **named)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self._elastic_job is None:  # else they are those of the commit
            super()._load_rng_state(checkpoint)

    def _elastic_beginning(self, given: str | bool | None) -> str | None:
        """The checkpoint of the ``Trainer``'s own to begin with; None: ours, or anew."""
        if not given:
            return None
        output = self.args.output_dir
        found = get_last_checkpoint(output) if given is True and os.path.isdir(output) else given
        if found is True:
            return None
        return None if _has_checkpoints(self._elastic_options.where(output)) else found


class ElasticTrainer(ElasticMixin):
    """Hugging Face's ``Trainer``, whose ranks may come and go.

    Example::

        trainer = ElasticTrainer(model, args, train_dataset=data)
        trainer.train()
    """


def _has_checkpoints(directory: str) -> bool:
    try:
        return any(
            entry.manifest is not None for entry in list_checkpoints(open_storage(directory))
        )
    except Exception:  # of whatever storage it is; the first save says it once more
        return False


def _refuse(args: Any, *, in_place: bool) -> None:
    """Refuses what an elastic job cannot do.

    Raises:
        UsageError: which, and what to do instead.
    """
    if args.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        raise UsageError(
            "DeepSpeed keeps the optimizer to itself, so that an elastic Trainer can neither save "
            "nor pass it on; for sharded models take fsdp= with ElasticOptions(in_place=False)"
        )
    if args.auto_find_batch_size:
        raise UsageError(
            "auto_find_batch_size= would change the batch on one rank alone; give "
            "per_device_train_batch_size=: a rank never takes more at once, however few there are"
        )
    sharded = args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if sharded and in_place:
        raise UsageError(
            "fsdp= spreads the model over the ranks, and such models do not go on in place yet; "
            "train with elastic=ElasticOptions(in_place=False), which restarts from checkpoints "
            "that any number of ranks can load"
        )
    if getattr(args, "parallelism_config", None) is not None:
        raise UsageError(
            "parallelism_config= lays out the ranks of one world, and those of an elastic Trainer "
            "come and go: leave it out"
        )
    if in_place and getattr(args, "precompute_ref_log_probs", False):
        raise UsageError(
            "precompute_ref_log_probs= has rank 0 compute for all others before they are "
            "connected; leave it out, or train with elastic=ElasticOptions(in_place=False)"
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise UsageError(
            "enable_jit_checkpoint= saves at a step of each rank's own when a node is asked to "
            "leave; an elastic job does it at one that all ranks agree on: leave it out"
        )


leave_our_loaders_alone()
