"""Read by Python as it starts: a process of ours that is slow to start.

``ELASTIC_TEST_LATE=NODE``: that local node does nothing before the file ``go`` is there.
``ELASTIC_TEST_IMPORT=DIRECTORY``: the import of torch never ends, and says there that it has begun.
As a library that is being loaded does, it does not end for an exception.
"""

import ctypes
import os
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path


class _Endless:
    """Finds torch, which is then loaded for ever."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is not None:
            spec.loader.exec_module = self.load
        return spec

    def load(self, module):
        (self.folder / f"importing-{os.getpid()}").touch()
        while True:
            try:
                ctypes.CDLL(None).pause()
            except BaseException:
                continue


words = Path("/proc/self/cmdline").read_text().split("\0")
if "elastic_runtime.cli.run.local_node" in words and os.environ.get("ELASTIC_TEST_LATE") in words:
    while not Path("go").exists():
        time.sleep(0.02)
if "ELASTIC_TEST_IMPORT" in os.environ:
    sys.meta_path.insert(0, _Endless(Path(os.environ["ELASTIC_TEST_IMPORT"])))
