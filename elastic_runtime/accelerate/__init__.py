"""Hugging Face's Accelerate on elastic-run: loops of one's own, in place or by restarts.

=============================================  ==================================================
``fresh_accelerator(…)``                       an ``Accelerator`` that goes on in another world
``fresh_accelerator(in_place=False, …)``       the same for ``elastic.run(…, in_place=False)``
=============================================  ==================================================

docs/accelerate.md is for those who use it; how it works is in docs/architecture.md.
"""

from __future__ import annotations

from elastic_runtime.accelerate.supported import check_accelerate

check_accelerate()

from elastic_runtime.accelerate.elastic_accelerator import (  # noqa: E402
    ElasticAccelerator,
    fresh_accelerator,
)

__all__ = ["ElasticAccelerator", "fresh_accelerator"]
