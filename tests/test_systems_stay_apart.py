"""One system, one folder: nothing outside `systems/` compares with a system's name or imports a system's module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertwright
from bertwright.systems import registry

ROOT = Path(bertwright.__file__).parent
OUTSIDE = [path for path in sorted(ROOT.rglob("*.py")) if "systems" not in path.relative_to(ROOT).parts]

# What only one system can do, or what reads and writes its own format, names it.
ALLOWED_IMPORTS: dict[str, set[str]] = {
    "inference.static_vectors": {"static.static_encoder"},
    "inference.bert": {"bert.bert_encoder", "bert.bert_for_pretraining"},  # which methods a model has
    "inference.next_sentence": {"bert.bert_for_pretraining"},
    "inference.attention_weights": {"bert.bert_encoder"},
    "inference.generation": {"gpt.gpt"},
    "inference.convert": {"bert.google", "elmo.allennlp"},
    "exporting.export_graph": {"bert.padded_bert", "bert.bert_for_pretraining"},  # the graph of a BERT
    "tasks.task_folder": {"bert.bert_config"},  # the direction of a BERT
    "tasks.denoising": {"bert.denoising_head"},  # TSDAE's decoder has a BERT's layers
    "finetuning.run": {"bert.bert_config"},  # the dropout of attention weights
    "pretraining.settings": {"bert.bert_config"},  # the sizes of a new BERT are settings of their own
    "trials.composed_model": {"bert.bert_config", "bert.bert_encoder"},  # the composed models of table 5
}


def system_names() -> set[str]:
    """Return the names by which users and files know a system."""
    tables = [{name: system} for name, system in zip(registry.SYSTEMS, registry.systems(), strict=True)]
    names = set[str]()
    for table in tables:
        for name, system in table.items():
            names |= {name, *system.folders, *system.objectives, *system.word_models, *system.translation}
    return names


def constants(node: ast.AST) -> Iterator[str]:
    """Yield the strings that an operand of a comparison is, or contains as a literal collection."""
    for part in node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def dispatched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is compared, matched, or a key of a literal dictionary."""
    for node in ast.walk(tree):
        operands: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Dict):
            operands = [key for key in node.keys if key is not None]
        for operand in operands:
            for text in constants(operand):
                yield operand.lineno, text  # type: ignore[attr-defined]


def imported_systems(tree: ast.AST) -> set[str]:
    """Return the modules of single systems that are imported when the code is run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set[str]()
    for node in ast.walk(tree):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        for module in modules:
            parts = module.removeprefix("bertwright.").split(".")
            if len(parts) > 2 and parts[0] == "systems" and (ROOT / "systems" / parts[1]).is_dir():
                path = ROOT.joinpath(*parts).with_suffix(".py")
                found |= {".".join(parts[1:])} if path.is_file() else set()
    return found


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_outside_compares_with_the_name_of_a_system(path: Path) -> None:
    tree, names = ast.parse(path.read_text(encoding="utf-8")), system_names()
    assert [(line, text) for line, text in dispatched(tree) if text in names] == []


def test_nothing_outside_imports_a_system_except_what_is_listed() -> None:
    found = {}
    for path in OUTSIDE:
        if imported := imported_systems(ast.parse(path.read_text(encoding="utf-8"))):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = imported
    assert found == ALLOWED_IMPORTS


def test_a_comparison_and_an_import_are_found() -> None:
    code = "if name in ('gpt', x): pass\nTABLE = {'bcn': 1}\nmatch a:\n    case 'elmo': pass\n"
    code += "from bertwright.systems.bert.bert_encoder import BertEncoder\nfrom bertwright.systems.bert import google\n"
    tree = ast.parse(code)
    assert {text for _, text in dispatched(tree)} >= {"gpt", "bcn", "elmo"}
    assert imported_systems(tree) == {"bert.bert_encoder", "bert.google"}
