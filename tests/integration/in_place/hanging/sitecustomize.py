"""Read by Python as it starts: no directory of a worker's logs is made until somebody allows it.

``ELASTIC_TEST_HANG`` names a FIFO in the log directory. Whoever makes a directory beside it waits
in the kernel until the FIFO is opened for writing.
"""

import os
from pathlib import Path


def _install(fifo: Path) -> None:
    mkdir = os.mkdir

    def hanging_mkdir(path, *args, **kwargs):
        if fifo.parent in Path(path).parents:
            with fifo.open("rb") as released:
                released.read()
        mkdir(path, *args, **kwargs)

    os.mkdir = hanging_mkdir


if "ELASTIC_TEST_HANG" in os.environ:
    _install(Path(os.environ["ELASTIC_TEST_HANG"]))
