"""Lightning's ``Trainer`` on elastic-run: in place with a strategy, or from checkpoints.

============================================  ===================================================
``Trainer(strategy=ElasticStrategy("dir"))``  survivors of a fault go on where they are
``Trainer(strategy="elastic")``               the same, with all settings as they are by default
``Trainer(callbacks=[ElasticCallback("dir")])``  any strategy; all workers start again from a
                                              checkpoint, which any number of them can load
``Trainer(plugins=[ElasticEnvironment()])``   nothing of it, only no complaint about ``num_nodes``
============================================  ===================================================

Both give each sample once an epoch, whatever the number of workers. docs/lightning.md is for those
who use it; how it works is in docs/architecture.md.
"""

from __future__ import annotations

from elastic_runtime.lightning.supported import check_lightning

check_lightning()

from elastic_runtime.lightning.elastic_callback import ElasticCallback  # noqa: E402
from elastic_runtime.lightning.elastic_environment import ElasticEnvironment  # noqa: E402
from elastic_runtime.lightning.elastic_strategy import ElasticStrategy  # noqa: E402

__all__ = ["ElasticCallback", "ElasticEnvironment", "ElasticStrategy"]
