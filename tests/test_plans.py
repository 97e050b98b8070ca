"""bench/plans: each plan names its script and its result file, and was committed before the first result."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANS = [path for path in sorted((ROOT / "bench" / "plans").glob("*.md")) if path.name != "README.md"]
WITH_GIT = (ROOT / ".git").exists()


def named(plan: Path, field: str) -> list[str]:
    """Return the paths that a plan names in a line "Script:" or "Result:"."""
    line = re.search(rf"^{field}: (.*)$", plan.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None, f"{plan.name}: no line {field}:"
    return re.findall(r"`(\S+)`", line[1])


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)


def first_commit(path: Path) -> str | None:
    """Return the commit that added a file; None if none has."""
    listed = git("log", "--diff-filter=A", "--format=%H", "--", str(path)).stdout.split()
    return listed[-1] if listed else None


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_a_plan_has_its_parts_and_names_a_script(plan: Path) -> None:
    text = plan.read_text(encoding="utf-8")
    for part in ("Question", "Settings", "Seeds", "Statistic", "What would contradict the claim"):
        assert f"**{part}.**" in text, part
    missing = [script for script in named(plan, "Script") if "/" in script and not (ROOT / script).is_file()]
    assert missing == []
    assert len(named(plan, "Result")) == 1


@pytest.mark.skipif(not WITH_GIT, reason="no git history here")
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_a_plan_was_committed_before_its_first_result(plan: Path) -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a shallow clone does not have the commits of plans and results")
    (result,) = (ROOT / name for name in named(plan, "Result"))
    planned, measured = first_commit(plan), first_commit(result)
    if measured is None:
        pytest.skip(f"{result.name}: no result yet")
    assert planned is not None, f"{plan.name} is not committed, and its result is"
    assert planned != measured, f"{plan.name} was committed together with its result"
    assert git("merge-base", "--is-ancestor", planned, measured).returncode == 0
