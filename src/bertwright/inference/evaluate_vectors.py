"""Scores of a model's text vectors, beside BM25, fusion, a re-ranker and other models, with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from bertwright.base.files import new_file
from bertwright.base.reporter import Heading, Line, Reporter, Rows
from bertwright.inference.bert import Bert, embedding_warnings, load_in, load_reranker
from bertwright.inference.text_vectors import embed_by_role
from bertwright.interop.model_files import model_folder
from bertwright.interop.sentence_modules import read_sentence_modules
from bertwright.metrics.ranking_scores import DEPTH
from bertwright.metrics.statistics import Difference, compare
from bertwright.search.bm25 import Bm25
from bertwright.search.fusion import fuse_rankings
from bertwright.tables.neighbours import is_retrieval_folder
from bertwright.tables.retrieval_folders import RetrievalSet
from bertwright.tables.text_roles import read_text_table
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_scores import VectorScores, name_documents, rank_by_vectors, score_ranked
from bertwright.tasks.labeled_texts import LabeledTexts, read_labeled_texts, score_vectors
from bertwright.tasks.score_formats import make_score_table
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.training.context import execution_context

if TYPE_CHECKING:
    from bertwright.inference.evaluate import EvaluateSettings

BM25, FUSION = "bm25", "fusion"
THRESHOLD = "_threshold"
Rankings = Mapping[str, Sequence[str]]


def scores_vectors(settings: EvaluateSettings) -> bool:
    """Return whether it is the vectors of a model that are scored, not the predictions of its task."""
    if settings.kind or any(map(is_retrieval_folder, settings.inputs)):
        return True
    return read_sentence_modules(model_folder(settings.model)) is not None


def evaluate_vectors(settings: EvaluateSettings, reporter: Reporter) -> dict[str, float]:
    """Print the scores of a model's vectors beside those that it is compared with; return the model's own by name.

    Raises ValueError for data that has no labels, and for what it cannot be compared with.
    """
    task = settings.overrides.apply_to(Embedding())
    assert isinstance(task, Embedding)
    texts = read_labeled_texts(settings.inputs, task.table_options, settings.split, settings.kind)
    train = [row for path in settings.floor_train for row in read_text_table(path, task.table_options).rows]
    reporter.record(Line(f"{', '.join(settings.inputs)}: {texts.description}"))
    _check_compared(settings, texts)
    counts = InputCounts()
    with (
        new_file(settings.output) if settings.output else nullcontext() as temporary,
        execution_context(settings.device) as context,
    ):
        reranker = load_reranker(context, settings.reranker) if settings.reranker else None
        models = [settings.model, *(name for name in settings.compare if name not in (BM25, FUSION))]
        rankings, systems = dict[str, Rankings](), dict[str, VectorScores]()
        for name in models:
            model = load_in(context, name)
            with reporter.progress(f"embedding with {name}", None) as advance:
                embed = embed_by_role(model, counts if name == settings.model else InputCounts(), advance)
                if texts.kind == "retrieval":
                    rankings[name] = rank_by_vectors(texts.data, embed, max(DEPTH, settings.top))
                else:
                    systems[name] = score_vectors(texts, embed, train)
        if texts.kind == "retrieval":
            rankings |= _rank_otherwise(settings, texts.data, rankings[settings.model], reranker, reporter)
            systems = {name: score_ranked(found, texts.data.judgements) for name, found in rankings.items()}
        best = systems[settings.model]
        differences = {name: compare(best.metric, best.examples, other.examples) for name, other in systems.items()}
        del differences[settings.model]
        if temporary is not None:
            others = {name: one.scores for name, one in systems.items() if name != settings.model}
            report: dict[str, Any] = dict(best.scores) | {"data": texts.description, "compared": others}
            report["differences"] = {name: one.to_record() for name, one in differences.items()}
            temporary.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for warning in embedding_warnings(counts):
        reporter.note(warning)
    reporter.record(Heading(f"{settings.model} on {texts.kind}"))
    _print_scores(systems, differences, best, reporter)
    return best.scores


def _print_scores(
    systems: Mapping[str, VectorScores], differences: Mapping[str, Difference], best: VectorScores, reporter: Reporter
) -> None:
    """Print a table of the systems' scores, the thresholds of `best`, and its differences from the others."""
    shown = {
        name: {score: value for score, value in one.scores.items() if not score.endswith(THRESHOLD)}
        for name, one in systems.items()
    }
    table = make_score_table(shown, best.metric)
    reporter.record(Rows(table.columns, table.rows, texts=(0,)))
    for name in (name for name in best.scores if name.endswith(THRESHOLD)):
        reporter.record(Line(f"{name.replace('_', ' ')}: {best.scores[name]:.4f}"))
    for name, difference in differences.items():
        reporter.record(Line(f"{best.metric}: {_describe_difference(difference)} {name}"))


def _check_compared(settings: EvaluateSettings, texts: LabeledTexts) -> None:
    """Raise ValueError for options of tasks, and if documents are to be ranked where there are none."""
    of_tasks = {
        "ensemble": settings.ensemble,
        "errors": settings.errors,
        "threshold": settings.threshold,
        "show-examples": settings.show_examples,
    }
    if odd := [name for name, value in of_tasks.items() if value not in ((), None, 0)]:
        raise ValueError(f"--{odd[0]}: not an option where text vectors are scored; omit it")
    given = [f"--compare {name}" for name in settings.compare if name in (BM25, FUSION)]
    given += [f"--reranker {settings.reranker}"] if settings.reranker else []
    if given and texts.kind != "retrieval":
        raise ValueError(f"{given[0]}: expected data for retrieval, got {texts.kind}; omit it")


def _rank_otherwise(
    settings: EvaluateSettings, data: RetrievalSet, first: Rankings, reranker: Bert | None, reporter: Reporter
) -> dict[str, Rankings]:
    """Rank by BM25, by its fusion with the vectors' rankings, and by a re-ranker of the vectors' first documents."""
    found: dict[str, Rankings] = {}
    if {BM25, FUSION} & {*settings.compare}:
        words = rank_by_words(data)
        fused = {query: [*fuse_rankings([first[query][:DEPTH], words[query]])] for query in data.queries}
        found = {name: by for name, by in ((BM25, words), (FUSION, fused)) if name in settings.compare}
    return found | _rerank(settings, data, first, reranker, reporter) if reranker else found


def rank_by_words(data: RetrievalSet) -> dict[str, list[str]]:
    """Return the ids of the first 100 documents of each query by BM25; of equal scores, the later id first."""
    ids = sorted(data.documents, reverse=True)
    index = Bm25.build(data.documents[name] for name in ids)
    return name_documents(data, ids, index.find([*data.queries.values()], DEPTH + 1), DEPTH)


def _rerank(
    settings: EvaluateSettings, data: RetrievalSet, first: Rankings, reranker: Bert, reporter: Reporter
) -> dict[str, Rankings]:
    """Return the re-ranker's order of the first documents; a missed answer counts as missed and, beside it, is added.

    The second is what the evaluator of sentence-transformers does; it flatters.
    """
    plain, added = dict[str, Sequence[str]](), dict[str, Sequence[str]]()
    with reporter.progress("re-ranking", len(data.queries)) as advance:
        for query, text in data.queries.items():
            top = [*first[query][: settings.top]]
            missed = [name for name, grade in data.judgements[query].items() if grade > 0 and name not in top]
            names = (*top, *missed)
            ranked = reranker.rank(text, [data.documents[name] for name in names], top_k=len(names))
            plain[query] = [names[one.position] for one in ranked if one.position < len(top)]
            added[query] = [names[one.position] for one in ranked]
            advance(1)
    name = f"top {settings.top} re-ranked"
    return {name: plain, f"{name}, missed answers added": added}


def _describe_difference(difference: Difference) -> str:
    interval = difference.interval
    bounds = f", 95 % interval {100 * interval.low:+.2f} to {100 * interval.high:+.2f}" if interval else ""
    return f"{100 * difference.mean:+.2f}{bounds} against"
