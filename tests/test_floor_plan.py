"""The floor plan is a promise: a module imports only from rooms above its own. And no assertion checks an input."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bertwright

ROOT = Path(bertwright.__file__).parent

# In the order in which the data meets them. A change of this list is a change of the design: make it on purpose.
PLAN = """
files seeding renamed settings
console
io.sources io.decoding io.lines io.conll io.npy io.schema io.delimited io.json_rows io.parquet io.tables
metrics.scores metrics.tag_schemes metrics.span_f1 metrics.exact_match metrics.seed_summary
metrics.example_scores
batching.batch batching.permutation
kernels.cpu kernels.compile kernels.native kernels.dropout kernels.ffi kernels.reference kernels.linear_bf16
kernels.fused_ops kernels.attention
kernels.fused_encoder
corpus.wikipedia corpus.documents corpus.sentences corpus.sketches corpus.survey corpus.limits corpus.diagnosis
vocabulary.tokenizer_io vocabulary.word_counts vocabulary.merges vocabulary.tokenizer vocabulary.trainer
tokenstore.store tokenstore.shard tokenstore.worker tokenstore.executor tokenstore.build
models.config models.initialization models.text_encoder models.encoder models.head_spec models.heads
models.mimetic_init models.rnn models.composite models.representations models.feature_head
pretraining.settings pretraining.segments pretraining.masking pretraining.data pretraining.objective
pretraining.padding pretraining.evaluation
training.schedules training.settings training.distributed training.context training.throughput training.muon
training.optimizer
training.loop training.prefetch training.interrupt training.checkpoint training.metrics_log training.trial_log
training.run_directory training.definition training.recorder training.fit training.cost training.run
training.gpus training.scaling_law
interop.tf_checkpoint interop.model_files interop.checksums interop.weight_names interop.weights interop.head_config
interop.architectures interop.huggingface interop.google
tasks.task tasks.splits tasks.collation tasks.prediction tasks.truncation tasks.classification tasks.regression
tasks.multiple_choice tasks.conll tasks.tagging tasks.squad tasks.question_answering tasks.task_types tasks.presentation
tasks.task_io tasks.presets tasks.data tasks.ensemble tasks.example_scores
inference.examples inference.fill_mask inference.next_sentence inference.attention_weights
inference.pooling inference.feature_cache inference.model
commands.output_paths commands.stdin_texts commands.survey commands.vocabulary commands.prepare
commands.fill_mask commands.next_sentence commands.attention
commands.embed commands.convert commands.info.settings commands.info.run
commands.pretrain.settings commands.pretrain.setup commands.pretrain.cost commands.pretrain.run
commands.plan.settings commands.plan.recipe commands.plan.candidates commands.plan.run
commands.finetune.settings commands.finetune.setup commands.finetune.cost commands.finetune.run commands.evaluate
commands.predict.settings commands.predict.inputs commands.predict.outputs commands.predict.run
commands.grid.settings commands.grid.results commands.grid.cost commands.grid.run commands.glue_submission
commands.probe.settings commands.probe.head_training commands.probe.run
experiments.paper experiments.bootstrap experiments.levels experiments.task_files
experiments.composition experiments.jobs experiments.plans experiments.planner experiments.tables
experiments.cost experiments.report experiments.report_formats
commands.experiment.settings commands.experiment.setup commands.experiment.run
estimators
cli.options cli.main __main__
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


def test_every_module_is_in_the_plan() -> None:
    assert set(modules()) == set(PLAN)


@pytest.mark.parametrize("name", PLAN)
def test_a_module_imports_only_from_rooms_above(name: str) -> None:
    above = set(PLAN[: PLAN.index(name)])
    assert imports(modules()[name]) <= above


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
