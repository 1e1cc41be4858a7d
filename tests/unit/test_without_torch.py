"""What must work, or be there, before torch is: the store's side and the command lines."""

from __future__ import annotations

import pytest

from tests.unit.programs import python

# With all that they import.
MODULES = (
    "elastic_runtime.agent.workers.fork_client",
    "elastic_runtime.cli.ctl.elasticctl",
    "elastic_runtime.cli.run.elastic_run",
    "elastic_runtime.controller.__main__",
    "elastic_runtime.controller.service",
    "elastic_runtime.rendezvous.participant",
    "elastic_runtime.rendezvous.stores.etcd.etcd_adapter",
    "elastic_runtime.rendezvous.stores.memory_store",
    "elastic_runtime.rendezvous.torchrun.handler_entry_points",
)


def _run(program: str) -> str:
    """What the program prints; it has to end well."""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_imported_without_torch() -> None:
    program = f"""
import importlib, sys
sys.modules["torch"] = None  # an import of it is an ImportError
for name in {MODULES!r}:
    importlib.import_module(name)
"""
    _run(program)


@pytest.mark.slow("a process for each of a hundred modules")
@pytest.mark.timeout(300)
def test_each_module_of_a_worker_can_be_the_first() -> None:
    """In jobs of tests, which are forks, other modules are loaded already."""
    program = """
import os, pkgutil, sys, traceback, torch, elastic_runtime
failed = []
for place in ("checkpoint", "data", "diloco", "worker"):
    (folder,) = elastic_runtime.__path__
    for found in pkgutil.walk_packages([f"{folder}/{place}"], f"elastic_runtime.{place}."):
        if (child := os.fork()) == 0:
            try:
                __import__(found.name)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            failed.append(found.name)
sys.exit(" ".join(failed) or 0)
"""
    _run(program)


def test_no_worker_side_module_brings_grpc_along() -> None:
    program = """
import sys
import elastic_runtime.checkpoint.checkpointer, elastic_runtime.worker.context
sys.exit("grpc" in sys.modules)
"""
    _run(program)


def test_commands_for_a_cluster_need_nothing_that_is_compiled() -> None:
    # The plugin for krew has no such package (deploy/krew/requirements.txt).
    program = """
import importlib, sys
for name in ("torch", "grpc", "google", "msgspec", "crc32c", "tenacity", "structlog"):
    sys.modules[name] = None
for name in ("ctl.run_commands", "kube.kube_commands", "kube.submit_command"):
    importlib.import_module(f"elastic_runtime.cli.{name}")
from elastic_runtime.cli.ctl.elasticctl import main
sys.exit(main(["--help"]))
"""
    shown = _run(program)
    # What cannot be done is not offered.
    assert "\n  submit " in shown and "\n  checkpoint " not in shown
