"""docs/systems.md begins with the systems of the registry; `python tests/test_systems_page.py` writes that part."""

from __future__ import annotations

from pathlib import Path

from bertwright.systems.registry import System, ladder_steps, systems

REST = "## One command for all\n"
PAGE = Path(__file__).parents[1] / "docs" / "systems.md"
HEAD = """# Systems

BERT and the systems that it is presented beside. Each has a folder `src/bertwright/systems/NAME/` with all that is
known of it; its record in `defaults.py` is what the tables of this page, the help of the commands and the ladder read.
`python tests/test_systems_page.py` writes the tables from the records.
"""


def ways(system: System) -> list[tuple[str, str]]:
    """Return the commands that train a system, each with what it trains."""
    found = [
        (f"`pretrain --architecture {system.name} --objective {name}`", "the language model")
        for name in system.objectives
    ]
    found += [(f"`finetune --architecture {name}`", model.summary) for name, model in system.word_models.items()]
    found += [(f"`train-translation --architecture {name}`", one.summary) for name, one in system.translation.items()]
    return found


def make_page() -> str:
    """Return the beginning of the page."""
    lines = [HEAD, "| folder | system | sizes | `model_type` of its model folders |", "|---|---|---|---|"]
    lines += [
        f"| `{system.name}` | {system.summary} | {', '.join(system.sizes)} | {', '.join(system.folders)} |"
        for system in systems()
    ]
    lines += ["", "## Commands that train them", "", "| command | what it trains |", "|---|---|"]
    lines += [f"| {command} | {what} |" for system in systems() for command, what in ways(system)]
    lines += [
        "",
        "## Steps of the ladder",
        "",
        "| step | compared with | published, on test | tasks |",
        "|---|---|---|---|",
    ]
    below = ""
    for step in ladder_steps():
        over = below if step.over is None else ", else ".join(step.over)
        figures = ", ".join(f"{name} {figure:g}" for name, figure in step.published.items())
        lines.append(f"| {step.name} | {over} | {figures} | {step.tasks} |")
        below = step.name
    return "\n".join(lines) + "\n"


def test_the_page_of_systems_is_that_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(REST)[0] == make_page() + "\n"


if __name__ == "__main__":
    PAGE.write_text(
        make_page() + "\n" + "".join(PAGE.read_text(encoding="utf-8").partition(REST)[1:]), encoding="utf-8"
    )
