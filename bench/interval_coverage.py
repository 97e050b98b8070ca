"""Coverage of 95 % intervals of a difference between two equal systems, by how the error over seeds is drawn.

    python bench/interval_coverage.py [--seeds 2 3 5 10] [--repetitions 2000] [--draws 2000]

Scores of each seed are normal with deviation 1, and there is no variance of examples. For each way, the table has the
share of intervals that contain 0 (wanted: 95 %), the share with p < 0.01 (wanted: 1 %), and the median length of the
interval. *S of S* and *S - 1 of S* resample the seeds; *Student's t* is what `bertwright experiment` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from bertwright.metrics.example_scores import Floats
from bertwright.trials.bootstrap import Estimate, Sample, difference, estimate


def resample(left_out: int, rng: np.random.Generator) -> Callable[[Floats, str, int], Estimate]:
    """Return a function that estimates a mean by resampling the seeds, without `left_out` of them."""

    def compute(scores: Floats, _: str, draws: int) -> Estimate:
        chosen = rng.integers(len(scores), size=(draws, len(scores) - left_out))
        return Estimate(float(scores.mean()), scores[chosen].mean(axis=1))

    return compute


def student(scores: Floats, row: str, draws: int) -> Estimate:
    """Estimate a mean as `bertwright experiment` does."""
    return estimate("task", {row: Sample(scores.tolist(), ())}, draws)[row]


def measure(
    compute: Callable[[Floats, str, int], Estimate], seeds: int, chosen: argparse.Namespace, rng: np.random.Generator
) -> Sequence[str]:
    """Return the cells of one way: coverage, share of small p-values, and median length."""
    covered, small, lengths = 0, 0, []
    for number in range(chosen.repetitions):
        scores = rng.standard_normal((2, seeds))
        pair = [compute(scores[row], f"{row} {number}", chosen.draws) for row in range(2)]
        found = difference([(pair[0], pair[1])]).interval
        assert found is not None
        covered += found.low <= 0 <= found.high
        small += found.p < 0.01
        lengths.append(found.high - found.low)
    return f"{covered / chosen.repetitions:.1%}", f"{small / chosen.repetitions:.1%}", f"{np.median(lengths):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 5, 10])
    parser.add_argument("--repetitions", type=int, default=2_000)
    parser.add_argument("--draws", type=int, default=2_000)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    ways = {"S of S": resample(0, rng), "S - 1 of S": resample(1, rng), "Student's t": student}
    print(f"| seeds | {' | '.join(ways)} |\n|---:|{'---|' * len(ways)}")
    for seeds in chosen.seeds:
        cells = [", ".join(measure(compute, seeds, chosen, rng)) for compute in ways.values()]
        print(f"| {seeds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
