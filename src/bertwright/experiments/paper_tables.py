"""The paper's tables 1 to 8 and figure 5 as plans: rows, columns, jobs, claims."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from bertwright.experiments import paper
from bertwright.experiments.composed_models import ComposeJob, ComposeSettings
from bertwright.experiments.experiment_settings import ExperimentName
from bertwright.experiments.job_maker import CURVE_CHECKPOINTS, PAPER_MIX, ExperimentInputs, JobMaker, Mix, Objective
from bertwright.experiments.jobs import Job, PretrainJob
from bertwright.experiments.levels import ExperimentLevel
from bertwright.experiments.paper import Figures
from bertwright.experiments.table_plan import FEATURES, PERPLEXITY, Claim, TablePlan, Trial
from bertwright.experiments.task_files import FoundTask, add_test_files
from bertwright.interop.huggingface import load_config
from bertwright.interop.model_files import model_folder
from bertwright.models.config import format_shape
from bertwright.models.representations import PAPER_F1, REPRESENTATIONS, RepresentationName
from bertwright.tasks.presets import PRESETS


def make_plan(name: ExperimentName, inputs: ExperimentInputs) -> TablePlan:
    """Return the plan of an experiment. Raises ValueError if none of its tasks has files."""
    plans: dict[ExperimentName, Callable[[JobMaker], TablePlan]] = {
        "table1": table1,
        "table5": table5,
        "table6": table6,
        "table7": table7,
        "table8": table8,
        "figure5": figure5,
    }
    return plans[name](JobMaker(inputs))


def _titles(tasks: Mapping[str, FoundTask]) -> dict[str, str]:
    """Return the title of each task's column: its name and metric."""
    short = {"accuracy": "acc.", "f1": "F1", "spearman": "ρ", "matthews": "MCC"}
    metrics = {name: task.settings.build_task().metric for name, task in tasks.items()}
    return {name: f"{name} {short.get(metric, metric)}" for name, metric in metrics.items()}


SENTENCE_TASKS = ("mnli", "qnli", "mrpc", "rte", "sst2", "stsb")
SPAN_TASKS = ("conll2003", "squad")
ACCURACY = {"mrpc": "accuracy"}  # tables 5 and 6; table 1 has F1
UNTRAINED_POOLER = (
    "Only next-sentence prediction trains the pooler; after the other objectives, sentence tasks start from its "
    "initial weights."
)


def _compose(maker: JobMaker, name: str, parents: tuple[PretrainJob, ...], lstm_layers: int, seed: int) -> ComposeJob:
    """Return the job of a composed model."""
    described = f"compose {name}, seed {seed}" if lstm_layers else f"compose {name}"
    settings = ComposeSettings(lstm_layers, maker.level.lstm_learning_rate, seed, maker.inputs.device)
    return ComposeJob(described, (), parents, settings)


def table5(maker: JobMaker) -> TablePlan:
    """Return the plan of table 5: pre-training objectives."""
    tasks = maker.find_tasks((*SENTENCE_TASKS, *SPAN_TASKS), ACCURACY)
    ltr, rtl = maker.pretrain("ltr", "ltr"), maker.pretrain("rtl", "rtl")
    seeds = range(maker.level.seeds)
    parents: dict[str, Job | dict[int, Job]] = {
        "MLM + NSP": maker.pretrain("mlm+nsp", "mlm+nsp"),
        "MLM": maker.pretrain("mlm", "mlm"),
        "LTR": ltr,
        "LTR + BiLSTM": {
            seed: _compose(maker, "LTR + BiLSTM", (ltr,), maker.level.lstm_layers, seed) for seed in seeds
        },
        "LTR + RTL": _compose(maker, "LTR + RTL", (ltr, rtl), 0, 0),
    }
    trials = [
        trial
        for row, parent in parents.items()
        for name, task in tasks.items()
        for trial in maker.finetune(row, name, task, parent)
    ]
    every, sentences = tuple(tasks), tuple(name for name in tasks if name in SENTENCE_TASKS)
    claims = [
        Claim("Next-sentence prediction helps on QNLI, MNLI and SQuAD", "MLM + NSP", "MLM", ("qnli", "mnli", "squad")),
        Claim("The bidirectional model is better than the left-to-right one over all tasks", "MLM", "LTR", every),
        Claim("The bidirectional model is better than the left-to-right one on SQuAD", "MLM", "LTR", ("squad",)),
        Claim("The bidirectional model is better than the left-to-right one on NER", "MLM", "LTR", ("conll2003",)),
        Claim("A BiLSTM improves the left-to-right model on SQuAD", "LTR + BiLSTM", "LTR", ("squad",)),
        Claim("A BiLSTM improves the left-to-right model on NER", "LTR + BiLSTM", "LTR", ("conll2003",)),
        Claim("The bidirectional model is better than LTR + BiLSTM on SQuAD", "MLM", "LTR + BiLSTM", ("squad",)),
        Claim("A BiLSTM hurts the left-to-right model on sentence tasks", "LTR", "LTR + BiLSTM", sentences),
        Claim("The bidirectional model is better than LTR and RTL concatenated", "MLM", "LTR + RTL", every),
    ]
    level = maker.level
    maker.notes += [
        "Sentence tasks read [CLS] of bidirectional models, the token that is read last of LTR and RTL, and of the "
        "BiLSTM the last output of each direction. LTR + RTL has twice the parameters and states of twice the size.",
        UNTRAINED_POOLER,
        f"LTR + BiLSTM: a {level.lstm_layers}-layer BiLSTM of {level.shape[1]} outputs, half of them for each "
        f"direction (the paper gives no size), with a peak rate of its own, {level.lstm_learning_rate:g}, since its "
        "weights are new.",
    ]
    title = "Table 5: pre-training objectives"
    return TablePlan("table5", title, _titles(tasks), tuple(parents), trials, claims, paper.TABLE5, maker.notes)


MIXES: dict[str, Mix] = {
    "80/10/10": PAPER_MIX,
    "100/0/0": (1.0, 0.0, 0.0),
    "80/0/20": (0.8, 0.0, 0.2),
    "80/20/0": (0.8, 0.2, 0.0),
    "0/20/80": (0.0, 0.2, 0.8),
    "0/0/100": (0.0, 0.0, 1.0),
}


def table8(maker: JobMaker) -> TablePlan:
    """Return the plan of table 8: masking strategies."""
    tasks = maker.find_tasks(("mnli" if maker.has_mnli else "sst2", "conll2003"))
    trials: list[Trial] = []
    representation: RepresentationName = "concat-last-four" if maker.level.shape[0] >= 4 else "sum-all"
    for row, mix in MIXES.items():
        parent = maker.pretrain(f"mlm+nsp, masks {row}", "mlm+nsp", mask_mix=mix)
        trials += [trial for name, task in tasks.items() for trial in maker.finetune(row, name, task, parent)]
        if "conll2003" in tasks:
            cell = (row, FEATURES)
            trials += maker.probe({representation: cell}, tasks["conll2003"], parent, f"model, masks {row}")
    titles = _titles(tasks)
    claims = [
        Claim("[MASK] alone is worse than the mix, if NER reads features", "80/10/10", "100/0/0", (FEATURES,)),
        Claim("[MASK] alone is worse than the mix, if NER is fine-tuned", "80/10/10", "100/0/0", ("conll2003",)),
        Claim("Random tokens alone are worse than the mix", "80/10/10", "0/0/100", tuple(tasks)),
    ]
    if "conll2003" in tasks:
        titles[FEATURES] = "conll2003 features F1"
        maker.notes.append(f"Features are {representation}. {describe_heads(maker.level)}")
    title = "Table 8: masking strategies (MASK/SAME/RND, percent)"
    return TablePlan("table8", title, titles, tuple(MIXES), trials, claims, paper.TABLE8, maker.notes)


def table6(maker: JobMaker) -> TablePlan:
    """Return the plan of table 6: model sizes, with held-out perplexity."""
    tasks = maker.find_tasks(("mnli", "mrpc", "sst2"), ACCURACY)
    trials, figures = list[Trial](), Figures()
    for shape, (published, scores) in zip(maker.level.shapes, paper.TABLE6.items(), strict=True):
        row = format_shape(*shape)
        parent = maker.pretrain(f"mlm+nsp, {row}", "mlm+nsp", shape)
        row = row if row == published else f"{row} (paper: {published})"
        figures[row] = scores
        trials.append(Trial(row, PERPLEXITY, 0, 0.0, parent, PERPLEXITY, PERPLEXITY))
        trials += [trial for name, task in tasks.items() for trial in maker.finetune(row, name, task, parent)]
    rows = tuple(figures)
    claims = [Claim("The largest model is better than the smallest one", rows[-1], rows[0], tuple(tasks))]
    claims += [
        Claim(f"{larger} has a lower perplexity than {smaller}", larger, smaller, (PERPLEXITY,))
        for smaller, larger in pairwise(rows)
    ]
    maker.notes.append(
        f"Perplexity is on held-out sequences of up to {maker.level.max_length} tokens. Its intervals are over these "
        "sequences, not over pre-trainings: each shape is pre-trained once."
    )
    if wide := maker.level.wide_learning_rates:
        rates = " and ".join(f"{rate:g} at hidden size {size}" for size, rate in wide.items())
        maker.notes.append(f"The peak rate of pre-training is {rates}; the paper has one rate for all shapes.")
    titles = {PERPLEXITY: "held-out perplexity"} | _titles(tasks)
    return TablePlan("table6", "Table 6: model size", titles, rows, trials, claims, figures, maker.notes)


FINE_TUNED = "fine-tuned"


def table7(maker: JobMaker) -> TablePlan:
    """Return the plan of table 7: fine-tuning and six kinds of features, on CoNLL-2003."""
    task = maker.find_tasks(("conll2003",))["conll2003"]
    parent, model = maker.start(), maker.inputs.model
    layers = maker.level.shape[0] if model is None else load_config(model_folder(model)).num_layers
    names = [name for name, features in REPRESENTATIONS.items() if layers >= -(features.layers.start or 0)]
    if skipped := [name for name in REPRESENTATIONS if name not in names]:
        maker.notes.append(f"The model has {layers} layers, too few for {', '.join(skipped)}.")
    maker.notes.append(describe_heads(maker.level))
    cells = {name: (f"features: {name}", "conll2003") for name in names}
    trials = maker.finetune(FINE_TUNED, "conll2003", task, parent)
    trials += maker.probe(cells, task, parent, model or "model")
    figures = {row: {"conll2003": 100 * PAPER_F1[name]} for name, (row, _) in cells.items()}
    figures[FINE_TUNED] = {"conll2003": paper.TABLE7_FINE_TUNED}

    def claim(text: str, better: str, worse: str) -> list[Claim]:
        rows = [better, worse]
        return [Claim(text, better, worse, ("conll2003",))] if all(row in figures for row in rows) else []

    last, four, every = ("features: last", "features: concat-last-four", "features: sum-all")
    claims = [
        *claim("Fine-tuning is better than the last four layers as features", FINE_TUNED, four),
        *claim("The last four layers are better features than the last one", four, last),
        *claim("All layers are better features than the last one", every, last),
        *claim("The last layer is better than the embeddings", last, "features: embeddings"),
    ]
    rows = (FINE_TUNED, *(row for row, _ in cells.values()))
    titles = {"conll2003": "conll2003 F1"}
    return TablePlan("table7", "Table 7: features and fine-tuning", titles, rows, trials, claims, figures, maker.notes)


OURS, AVERAGE, TEST = "ours", "GLUE average", "test"
TABLE1_TASKS = (
    "mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "squad", "squad_v2", "swag",
    "conll2003", "codah", "conll2000", "ud_pos", "nsmc", "korquad",
)  # fmt: skip


def table1(maker: JobMaker) -> TablePlan:
    """Return the plan of tables 1 to 4: one model on all tasks whose files are found, next to the paper's systems."""
    tasks, parent = maker.find_tasks(TABLE1_TASKS), maker.start()
    trials, titles = list[Trial](), dict[str, str]()
    for name, found in tasks.items():
        task, note = add_test_files(found)
        maker.notes += [note] if note else []
        scores = {name: "dev"}
        titles |= _titles({name: task})
        if PRESETS[name].task.kind == "question-answering":
            scores[f"{name} EM"] = "exact_match"
            titles[f"{name} EM"] = f"{name} EM"
        if task.settings.test:
            scores[f"{name} {TEST}"] = f"test_{task.settings.build_task().metric}"
            titles[f"{name} {TEST}"] = f"{titles[name]}, test"
        tuned = maker.finetune(OURS, name, task, parent)
        trials += [trial._replace(column=column, score=score) for column, score in scores.items() for trial in tuned]
    averages = {}
    if len(glue := tuple(name for name in tasks if name in paper.GLUE)) > 1:
        averages[AVERAGE], titles[AVERAGE] = glue, f"GLUE average of {len(glue)}"
    figures, splits = published_figures(list(titles), glue)
    rows = (OURS, *(row for row in paper.SYSTEMS if figures[row]))
    return TablePlan(
        "table1", "Tables 1 to 4: all tasks", titles, rows, trials, [], figures, maker.notes,
        averages=averages, figure_splits=splits, is_transposed=True,
    )  # fmt: skip


def published_figures(columns: Sequence[str], glue: Sequence[str]) -> tuple[Figures, dict[tuple[str, str], str]]:
    """Return the figures of tables 1 to 4 in our columns, and the split of each figure that is on another split.

    Column TASK is on dev, TASK test on test. Without a test column, the paper's test score is in the dev column.
    `glue`: the tasks of the average.
    """
    figures: Figures = {row: {} for row in paper.SYSTEMS}
    splits: dict[tuple[str, str], str] = {}
    for row in figures:
        dev, test = paper.DEV.get(row, {}), paper.TEST.get(row, {})
        test_columns = {f"{task} {TEST}": figure for task, figure in test.items()}
        same_split = {column: figure for column, figure in (dev | test_columns).items() if column in columns}
        on_test = {
            task: figure
            for task, figure in test.items()
            if task in columns and task not in dev and f"{task} {TEST}" not in columns
        }
        if AVERAGE in columns and all(task in test for task in glue):
            on_test[AVERAGE] = statistics.fmean(test[task] for task in glue)
        figures[row] = same_split | on_test
        splits |= {(row, column): TEST for column in on_test}
    return figures, splits


def describe_heads(level: ExperimentLevel) -> str:
    """Return a sentence on the heads on frozen features."""
    return (
        f"Heads on frozen features: a {level.lstm_layers}-layer BiLSTM of {level.lstm_size} outputs, half of them for "
        'each direction (the paper: two layers, "768-dimensional", which may also mean 768 for each direction), and a '
        f"linear layer; {level.probe_epochs} epochs, of which the best on dev counts."
    )


def figure5(maker: JobMaker) -> TablePlan:
    """Return the plan of figure 5: scores against the steps of pre-training."""
    candidates = ("mnli",) if maker.has_mnli else ("sst2", "conll2003")
    tasks = maker.find_tasks(candidates, max_length=maker.level.max_length)
    steps, trials = dict[str, tuple[str, int]](), []
    saved = list_checkpoint_steps(maker.level.steps)
    objectives: dict[str, Objective] = {"MLM": "mlm", "LTR": "ltr"}
    for series, objective in objectives.items():
        parent = maker.pretrain(objective, objective)
        for step in saved:
            row = f"{series}, {step:,} steps"
            steps[row] = (series, step)
            checkpoint = None if step == saved[-1] else step
            trials += [t for name, task in tasks.items() for t in maker.finetune(row, name, task, parent, checkpoint)]
    first, half, last = saved[0], saved[len(saved) // 2 - 1], saved[-1]
    every = tuple(tasks)
    claims = [
        Claim("The second half of pre-training helps", f"MLM, {last:,} steps", f"MLM, {half:,} steps", every),
        Claim("MLM is better than LTR almost at once", f"MLM, {first:,} steps", f"LTR, {first:,} steps", every),
        Claim("MLM is better than LTR in the end", f"MLM, {last:,} steps", f"LTR, {last:,} steps", every),
    ]
    maker.notes.append(UNTRAINED_POOLER)
    title = "Figure 5: scores against the steps of pre-training"
    return TablePlan("figure5", title, _titles(tasks), tuple(steps), trials, claims, {}, maker.notes, steps)


def list_checkpoint_steps(steps: int) -> list[int]:
    """Return the steps of figure 5: every tenth of a pre-training.

    >>> list_checkpoint_steps(4_005)[-3:]
    [3200, 3600, 4005]
    """
    every = max(1, steps // CURVE_CHECKPOINTS)
    return [*range(every, CURVE_CHECKPOINTS * every, every), steps]
