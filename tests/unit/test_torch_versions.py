"""The scripts: the table of versions of torch, the timeline, the demonstration, pages of docs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import torch_versions
from scripts.demo import went_back
from scripts.timeline import Step, Story, draw
from scripts.torch_versions import BEGINS, ENDS, Failed, Job, Kind
from tests.processes import PROGRAM_TIMEOUT
from tests.unit.programs import python

# ---------------------------------------------------------------- versions of torch

ROOT = Path(__file__).parents[2]
ROW = "| {} | 3.11 | yes | yes | yes | yes | 2026-01-01 |"


def test_rows_of_versions_that_were_not_run_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    rows = f"{ROW.format('2.9.1+cpu')}\n{ROW.format('2.10.0')}\n"
    page.write_text(f"# Title\n\n{BEGINS}\n| torch |\n|---|\n{rows}{ENDS}\n\n| 2.8 | text |\n")
    monkeypatch.setattr(torch_versions, "ROOT", tmp_path)
    monkeypatch.setattr(torch_versions, "PAGE", page)
    arguments = ["torch_versions.py", "--absent", "2.10=no build | for this", "--write"]
    monkeypatch.setattr("sys.argv", arguments)
    assert torch_versions.main() == 1
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{BEGINS}\n| torch | Python |")
    assert text.endswith(f"{ENDS}\n\n| 2.8 | text |\n")
    found = torch_versions.rows_of(text)
    assert list(found) == ["2.10", "2.9"]
    assert found["2.9"] == ROW.format("2.9.1+cpu")
    assert "not run: no build / for this" in found["2.10"]


ENDED = '"what": "ends", "rank": %d, "pid": %d, "step": 100, "counted": [100], "finite": true, '
BEGUN = '"what": "begins", "rank": 0, "pid": %d, "step": %d'


def judged(folder: Path, kind: Kind, *lines: str) -> str:
    (folder / "worker-0-1").write_text("".join(f"{{{line}}}\n" for line in lines))
    return Job("python", kind, folder)._judge(victim=2)


def ended(digest: str = "a") -> list[str]:
    return [(ENDED + '"digest": "%s"') % (r, 3 + r, d) for r, d in ((0, "a"), (1, digest))]


PLAIN, _, IN_PLACE, _ = torch_versions.KINDS


def test_a_restart_has_to_go_on_from_a_save(tmp_path: Path) -> None:
    restarted = [BEGUN % (3, 20), BEGUN % (4, 20)]
    assert judged(tmp_path, PLAIN, *restarted, *ended()) == "yes, from step 20"
    with pytest.raises(Failed, match="began again from step 0"):
        judged(tmp_path, PLAIN, BEGUN % (3, 0), BEGUN % (4, 0), *ended())
    with pytest.raises(Failed, match="other weights"):
        judged(tmp_path, PLAIN, *restarted, *ended("b"))
    with pytest.raises(Failed, match="not both ranks ended"):
        judged(tmp_path, PLAIN, *restarted, ended()[0])


def test_in_place_the_survivor_has_to_keep_its_process_and_its_steps(tmp_path: Path) -> None:
    step = '"what": "step", "rank": 0, "pid": 3, "step": %d'
    came = BEGUN % (4, 26)
    kept = [BEGUN % (3, 0), step % 25, BEGUN % (3, 26), step % 27, came]
    assert "kept" in judged(tmp_path, IN_PLACE, *kept, *ended())
    with pytest.raises(Failed, match="did not keep its process"):
        judged(tmp_path, IN_PLACE, BEGUN % (3, 26), came, *ended())
    with pytest.raises(Failed, match="from step 25 to 20"):
        judged(tmp_path, IN_PLACE, BEGUN % (3, 0), step % 25, BEGUN % (3, 20), came, *ended())
    later = [BEGUN % (3, 26), came]
    with pytest.raises(Failed, match="from step 26 to 26"):
        judged(tmp_path, IN_PLACE, BEGUN % (3, 0), step % 26, step % 26, *later, *ended())


@pytest.mark.parametrize(
    "arguments",
    [["--torch"], ["--torch", "2"], ["--torch=2.15"], ["--torch", "2.15.0"], ["-v", "--torch"]],
)
def test_other_forms_of_the_option_are_refused_in_one_line(arguments: list[str]) -> None:
    command = [ROOT / "scripts" / "test", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "test: --torch comes first, with a version of two numbers: scripts/test --torch 2.15\n"
    )


# ---------------------------------------------------------------- the timeline

SVG = "{http://www.w3.org/2000/svg}"


def steps(round: int, workers: tuple[int, ...], numbers: range, began: float) -> list[Step]:
    """Steps of 25 ms, one after the other."""
    return [
        Step(worker, round, n, began + i * 0.025, began + (i + 1) * 0.025)
        for i, n in enumerate(numbers)
        for worker in workers
    ]


STORY = Story(
    (
        *steps(1, (0, 1, 2), range(1, 6), -0.135),
        *steps(2, (0, 2), range(6, 16), 0.05),
        *steps(3, (0, 1, 2), range(16, 22), 0.35),
    ),
    back=0.04,
)


def test_each_step_is_in_the_picture() -> None:
    picture = ElementTree.fromstring(draw(STORY))
    numbers = [int(e.text or 0) for e in picture.iter(f"{SVG}text") if e.get("class") == "number"]
    assert sorted(set(numbers)) == list(range(1, 22))
    assert [numbers.count(n) for n in (1, 6, 16)] == [3, 2, 3]


def test_the_picture_says_what_the_fault_cost() -> None:
    picture = ElementTree.fromstring(draw(STORY))
    said = picture.findtext(f"{SVG}desc") or ""
    assert "85 ms after the last step" in said  # from -10 ms to 75 ms
    assert "75 ms pass from one step to the next" in said
    words = [element.text for element in picture.iter(f"{SVG}text")]
    assert "85 ms without a step" in words


# ---------------------------------------------------------------- the demonstration

EPOCH = "[default0]:epoch 3: step 92, 3 workers, accuracy 0.931"


def test_going_on_from_an_older_step_is_noticed() -> None:
    onward = "[default1]:from step {} on: 2 workers, epoch 3"
    assert went_back([EPOCH, onward.format(92), onward.format(101)]) == []
    assert went_back([onward.format(40), EPOCH]) == []
    assert went_back([EPOCH, onward.format(90), onward.format(95)]) == [onward.format(90)]


# ---------------------------------------------------------------- pages of docs


@pytest.mark.parametrize("script", ["api_reference.py", "event_reference.py", "module_map.py"])
def test_a_page_is_up_to_date(script: str) -> None:
    checked = python(ROOT / "scripts" / script, "--check")
    assert checked.returncode == 0, checked.stderr
