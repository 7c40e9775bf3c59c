"""What docs/conversion.md says of the pairs in examples/conversion is so; those that need no cluster are run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS = sorted(path for path in (ROOT / "examples" / "conversion").iterdir() if path.is_dir())
PAGE = (ROOT / "docs" / "conversion.md").read_text()
MOST_CHANGES = 9
RUN_SECONDS = 240


def lines(pair: Path, when: str) -> tuple[str, list[str]]:
    """Return the name and the lines of the one file of a pair that is called so."""
    (path,) = pair.glob(f"{when}.*")
    return path.name, path.read_text().splitlines(keepends=True)


def changes(old: list[str], new: list[str]) -> Iterator[int]:
    """Yield the number of lines of each change; a line that is replaced counts once."""
    for kind, *ends in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield max(ends[1] - ends[0], ends[3] - ends[2])


def shown() -> list[str]:
    """Return the commands of the guide."""
    return [line for text in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in text.splitlines()]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_few_lines_change(pair: Path) -> None:
    assert 1 <= sum(changes(lines(pair, "before")[1], lines(pair, "after")[1])) <= MOST_CHANGES


def test_the_guide_shows_all_that_changes_in_each_pair() -> None:
    differences = set()
    for pair in PAIRS:
        (old_name, old), (new_name, new) = lines(pair, "before"), lines(pair, "after")
        differences.add("".join(unified_diff(old, new, old_name, new_name, n=1)))
    assert set(re.findall(r"```diff\n(.*?)```", PAGE, flags=re.DOTALL)) == differences


def test_a_plain_program_learns_the_same_in_one_process_and_on_two_workers(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "examples" / "conversion" / "plain", tmp_path / "plain")
    last = run("before.py", folder).splitlines()[-1]
    assert re.fullmatch(r"loss \d\.\d{3}", last)
    assert run("after.py", folder).splitlines()[-1] == last
    command = "gridflow run after.py --workers 2"
    assert command in shown()
    assert f"worker/0 | {last}\n" in run(f"-m {command}", folder)


def test_the_job_file_asks_htcondor_for_what_the_submit_file_asked() -> None:
    folder = ROOT / "examples" / "conversion" / "htcondor"
    command = "gridflow submit after.toml --on htcondor"
    assert [line for line in shown() if "htcondor" in line] == [command.replace("after.toml", "before.submit"), command]
    made = run(f"-m {command.replace('submit', 'render', 1)}", folder)
    for line in (folder / "before.submit").read_text().splitlines()[:2]:
        assert f"\n{line}\n" in made
    assert '"program": "train.py",\n  "args": [\n    "--steps",\n    "30"\n  ]' in made
    assert "worker/0, worker-0, 1, 2048" in made


def run(words: str, folder: Path) -> str:
    """Run Python with some words, and return what it printed."""
    argv = [sys.executable, *shlex.split(words)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout
