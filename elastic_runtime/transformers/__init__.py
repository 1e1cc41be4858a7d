"""Hugging Face's ``Trainer`` on elastic-run: in place, or from checkpoints.

=============================================  ==================================================
``ElasticTrainer(model, args, …)``             ``Trainer``, whose survivors of a fault go on
``class T(ElasticMixin, SFTTrainer)``          the same for a trainer that is made from ``Trainer``
``elastic=ElasticOptions(in_place=False)``     all workers start again from a checkpoint, which any
                                               number of them can load
=============================================  ==================================================

It is to be imported before ``TrainingArguments`` are made: those would connect the ranks, and from
now on leave it to the trainer. docs/transformers.md is for those who use it; how it works is in
docs/architecture.md.
"""

from __future__ import annotations

from elastic_runtime.transformers.supported import check_transformers

check_transformers()

from elastic_runtime.transformers.connection.late_connection import connect_late  # noqa: E402
from elastic_runtime.transformers.elastic_mixin import ElasticMixin, ElasticTrainer  # noqa: E402
from elastic_runtime.transformers.elastic_options import ElasticOptions  # noqa: E402

__all__ = ["ElasticMixin", "ElasticOptions", "ElasticTrainer"]

connect_late()
