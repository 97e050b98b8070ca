"""The floor plan is a promise: a module imports only from rooms above its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bertwright

ROOT = Path(bertwright.__file__).parent

# In the order in which the data meets them. A change of this list is a change of the design: make it on purpose.
PLAN = """
files seeding native settings
corpus.inputs corpus.decoding corpus.tables corpus.readers corpus.documents corpus.sentences corpus.counting
corpus.survey
vocabulary.tokenizer_files vocabulary.counting vocabulary.learning vocabulary.tokenizer vocabulary.wordpiece
tokenstore.store tokenstore.parts tokenstore.build
batching.batch batching.order
pretraining.segments pretraining.masking pretraining.batches
models.config models.dropout models.twins models.binding models.products models.kernels models.attention
models.layers models.encoder models.heads models.neighbours models.probe
pretraining.objective pretraining.evaluation
training.optimizer training.schedule training.device training.loop training.interrupt training.checkpoint
training.journal
interop.checksum interop.bundle interop.folders interop.names interop.weights interop.heads interop.huggingface
interop.google
metrics.scores metrics.tags metrics.answers metrics.spread
tasks.task tasks.batches tasks.prediction tasks.classification tasks.multiple_choice tasks.conll tasks.tagging
tasks.squad tasks.question_answering tasks.kinds tasks.presets
inference.masks inference.vectors inference.features inference.model
runs.recipe runs.screen runs.folders runs.resuming runs.corpus runs.opening runs.pretrain runs.use
runs.tuning runs.finetune runs.evaluate runs.predict runs.trials runs.grid runs.submission runs.probing runs.probe
estimators
cli __main__
""".split()


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith("__init__"):
            found[name] = path
    return found


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


def test_every_module_has_its_place_in_the_plan() -> None:
    assert set(modules()) == set(PLAN)


@pytest.mark.parametrize("name", PLAN)
def test_a_module_imports_only_from_rooms_above(name: str) -> None:
    above = set(PLAN[: PLAN.index(name)])
    assert imports(modules()[name]) <= above
