"""Each module of the package has a file of tests with its name, in the same folder below here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "elastic_runtime"

# Modules whose tests have another place, by this place.
ELSEWHERE = {
    # They need real processes, sockets or servers.
    "tests/integration/test_launch.py": ("agent/agent.py",),
    "tests/integration/workers": (
        "agent/workers/spawn_request.py",
        "agent/workers/worker_group.py",
        "agent/workers/worker_processes.py",
    ),
    "tests/integration/workers/test_keepalive.py": ("worker/torch_patches.py",),
    "tests/integration/cli/test_kube.py": (
        "cli/kube/command_options.py",
        "cli/kube/kube_commands.py",
        "cli/kube/submit_command.py",
    ),
    "tests/integration/test_local_nodes.py": ("cli/run/local_node.py",),
    "tests/integration/controller": ("controller/service.py",),
    "tests/integration/kubernetes/test_api_client.py": ("kubernetes/api_client.py",),
    "tests/integration/etcd": (
        "rendezvous/stores/etcd/etcd_adapter.py",
        "rendezvous/stores/etcd/etcd_client.py",
        "rendezvous/stores/etcd/shared_connection.py",
        "rendezvous/stores/etcd/watch_view.py",
    ),
    "tests/integration/examples/test_digits.py": ("examples/digits.py",),
    "tests/integration/examples/test_lightning_digits.py": ("examples/lightning_digits.py",),
    "tests/integration/lightning/test_in_place.py": (
        "lightning/elastic_strategy.py",
        "lightning/in_place.py",
        "lightning/trainer_parts.py",
        "lightning/loops/elastic_epoch_loop.py",
        "lightning/loops/elastic_fit_loop.py",
        "lightning/loops/validation_guard.py",
    ),
    "tests/integration/lightning/test_from_checkpoints.py": ("lightning/elastic_callback.py",),
    "tests/integration/transformers/test_hf_in_place.py": ("transformers/recoveries.py",),
    # torchtitan changes the process that imports it.
    "tests/integration/torchtitan/test_configs.py": (
        "torchtitan/config_registry.py",
        "torchtitan/elastic_config.py",
        "torchtitan/sharing_loader.py",
    ),
    "tests/integration/torchtitan/test_torchtitan.py": (
        "torchtitan/checkpoint_manager.py",
        "torchtitan/elastic_trainer.py",
    ),
    "tests/integration/examples/test_hf_text.py": ("examples/hf_text.py",),
    # One test looks at all events.
    "tests/unit/events/test_event.py": (
        "events/checkpoint_events.py",
        "events/job_events.py",
        "events/round_events.py",
        "events/state_events.py",
        "events/store_events.py",
        "events/worker_events.py",
    ),
    # They are parts of one decision, and are tested by what it comes to.
    "tests/unit/controller/decide/test_decision_trouble.py": ("controller/decide/conditions.py",),
    "tests/unit/controller/decide/test_decision.py": ("controller/decide/pod_planning.py",),
    "tests/unit/rendezvous/core/test_leader.py": ("rendezvous/core/formation/round_formation.py",),
}
EXCUSED = {module for modules in ELSEWHERE.values() for module in modules}


def does_something(module: Path) -> bool:
    """Whether any function of a module has more than a docstring.

    Types, constants and the interfaces of others do nothing that could be tested.
    """
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(node, functions) and not all(isinstance(line, ast.Expr) for line in node.body)
        for node in ast.walk(ast.parse(module.read_text()))
    )


def place_of_tests(module: Path) -> Path:
    """Where the tests of a module are to be."""
    inside = module.relative_to(PACKAGE)
    return ROOT / "tests" / "unit" / inside.parent / f"test_{module.name}"


def without_tests() -> set[str]:
    """The modules that have no file of tests with their name."""
    return {
        str(module.relative_to(PACKAGE))
        for module in PACKAGE.rglob("*.py")
        if module.name not in ("__init__.py", "__main__.py")  # these only begin
        and not module.name.endswith("_pb2.py")  # generated
        and not place_of_tests(module).exists()
        and does_something(module)
    }


def test_each_module_has_tests_with_its_name() -> None:
    lacking = sorted(without_tests() - EXCUSED)
    places = [str(place_of_tests(PACKAGE / module).relative_to(ROOT)) for module in lacking]
    assert not lacking, f"add {places}"


def test_no_module_is_excused_that_has_tests_or_is_gone() -> None:
    assert without_tests() >= EXCUSED, "take these out of ELSEWHERE"


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_tests_that_an_excuse_names_are_there(place: str) -> None:
    assert (ROOT / place).exists()
