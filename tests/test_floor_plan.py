"""The floor plan is a promise: a module imports only from rooms above its own. And no assertion checks an input."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bertwright

ROOT = Path(bertwright.__file__).parent

# A room is a folder or a file of the package. Rooms stand in the order in which the data meets them; a module imports
# from its own room and from the rooms before it. A change of this list is a change of the design: make it on purpose.
ROOMS = """
base systems.registry text tables corpus metrics kernels search executors vocabulary surveying tokenstore models
training interop objectives systems tasks pretraining finetuning translation inference exporting serving planning
trials reports cli estimators __main__
""".split()

# Folders of systems name their files alike: `defaults.py` of each has its record.
SHARED_FILE_NAMES = {"run.py", "settings.py", "defaults.py"}


def room_of(module: str) -> str:
    """Return a module's room; a module that the list names is one of its own."""
    return module if module in ROOMS else module.partition(".")[0]


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith("__init__"):
            found[name] = path
    return found


@cache
def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports when it is run; what only a type checker reads does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertwright"):
            inside = (node.module or "").removeprefix("bertwright").removeprefix(".")
            for alias in node.names:
                deeper = f"{inside}.{alias.name}".removeprefix(".")
                named.add(deeper if deeper in modules() else inside)
        if isinstance(node, ast.Import):
            named |= {alias.name.removeprefix("bertwright.") for alias in node.names if "bertwright." in alias.name}
    return named


def test_every_module_is_in_a_room() -> None:
    assert {room_of(name) for name in modules()} <= set(ROOMS)


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_from_its_room_and_rooms_before_it(name: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room_of(name)) + 1])
    assert {imported for imported in imports(modules()[name]) if room_of(imported) not in allowed} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: imports(path) & set(modules()) - {name} for name, path in modules().items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_file_names_are_unique() -> None:
    """An editor's tabs show file names only. A renderer may have the name of the module whose records it renders."""
    files = [path.name for name, path in modules().items() if not name.startswith("cli.render.")]
    assert {name for name, count in Counter(files).items() if count > 1} <= SHARED_FILE_NAMES


def narrows_a_type(test: ast.expr) -> bool:
    """Return whether a condition is `… is not None` or `isinstance(…)`, which a type checker may need."""
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return False


def test_assertions_only_narrow_types() -> None:
    """`python -O` removes assertions: what guards against an input, and all of `kernels`, raises an error instead."""
    found = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert) and (name.startswith("kernels.") or not narrows_a_type(node.test)):
                found.append(f"{path}:{node.lineno}")
    assert found == []
