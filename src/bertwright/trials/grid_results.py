"""Results of trials that differ in setting and seed: their file, the pending trials, and the order of the settings.

The file has one line of JSON per trial. It is rewritten after each trial and read on resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bertwright.base.files import write_text
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds

S = TypeVar("S", bound=Hashable)
R = TypeVar("R")

RESULTS_FILE = "results.jsonl"


class SettingSummary(NamedTuple, Generic[S, R]):
    """Scores of a setting's trials on dev."""

    setting: S
    trials: list[R]
    scores: SeedSummary | None
    """Scores over the seeds; None if all trials failed."""
    failures: int
    best: R
    """Result with the best score; of equal scores the first."""


def rank_settings(
    results: Iterable[R], setting_of: Callable[[R], S], score_of: Callable[[R], float | None]
) -> list[SettingSummary[S, R]]:
    """Return settings from best to worst by their mean score; of equal means, the first comes first.

    `score_of` returns None for a trial that failed. Settings with fewer scores than trials of another setting come
    last: if trials failed, the mean of the remaining ones is biased upward, and a mean of few scores is uncertain.
    """
    by_setting: dict[S, list[R]] = {}
    for result in results:
        by_setting.setdefault(setting_of(result), []).append(result)
    summaries = []
    for setting, trials in by_setting.items():
        scored = [(score, result) for result in trials if (score := score_of(result)) is not None]
        _, best = max(scored, key=lambda pair: pair[0], default=(0.0, trials[0]))
        scores = summarize_seeds([score for score, _ in scored]) if scored else None
        summaries.append(SettingSummary(setting, trials, scores, len(trials) - len(scored), best))
    most = max((len(trials) for trials in by_setting.values()), default=0)

    def rank(summary: SettingSummary[S, R]) -> tuple[bool, float]:
        mean = summary.scores.mean if summary.scores else -float("inf")
        return len(summary.trials) - summary.failures < most, -mean

    return sorted(summaries, key=rank)


def pending_trials(trials: Sequence[S], finished: Iterable[S]) -> list[S]:
    """Return the trials that are not finished, in their order."""
    done = set(finished)
    return [trial for trial in trials if trial not in done]


def write_results(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one line of JSON per trial, atomically."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read_results(path: Path, parse: Callable[[Any], R]) -> list[R]:
    """Read the results of earlier trials in order; none if the file does not exist.

    `parse` turns a record into a result. It raises ValueError, KeyError, TypeError or AttributeError for a record of
    other content, which `read_results` reports as a ValueError with file and line.
    """
    if not path.is_file():
        return []
    results = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            results.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: not a result of these trials ({type(error).__name__}: {error}); delete the "
                "line to run its trial again"
            ) from None
    return results
