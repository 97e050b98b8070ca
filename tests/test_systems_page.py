"""docs/systems.md begins with the systems of the registry; `python tests/test_systems_page.py` writes that part."""

from __future__ import annotations

from pathlib import Path

from bertwright.systems.registry import System, ladder_steps, systems

REST = "## One command for all\n"
PAGE = Path(__file__).parents[1] / "docs" / "systems.md"
HEAD = """# Systems

BERT and the systems that it is compared with. All that is known of one is in `src/bertwright/systems/NAME/`; the tables
of this page are written from its record, `defaults.py` (`python tests/test_systems_page.py`). After `pretrain` stand
the objectives (`--objective`), after the other commands the names for `--architecture`; their help says what each is,
and the sizes.

| folder | system | trained by | `model_type` |
|---|---|---|---|
"""


def list_commands(system: System) -> str:
    """Return the commands that train a system, with its objectives or architectures."""
    names = {
        "pretrain": system.objectives,
        "finetune": system.word_models,
        "train-translation": system.translation,
    }
    return "; ".join(f"`{command}`: {', '.join(named)}" for command, named in names.items() if named)


def make_page() -> str:
    """Return the beginning of the page."""
    lines = [
        f"| `{system.name}` | {system.summary} | {list_commands(system)} | {', '.join(system.folders)} |"
        for system in systems()
    ]
    lines += ["", "## Steps of the ladder", "", "| step | compared with | published, on test |", "|---|---|---|"]
    below = ""
    for step in ladder_steps():
        over = below if step.over is None else ", else ".join(step.over)
        figures = ", ".join(f"{name} {figure:g}" for name, figure in step.published.items())
        lines.append(f"| {step.name} | {over} | {figures} |")
        below = step.name
    return HEAD + "\n".join(lines) + "\n"


def test_the_page_of_systems_is_that_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(REST)[0] == make_page() + "\n"


if __name__ == "__main__":
    PAGE.write_text(
        make_page() + "\n" + "".join(PAGE.read_text(encoding="utf-8").partition(REST)[1:]), encoding="utf-8"
    )
