"""Differences of systems on the seeds that both have, with paired t-tests, from a file of results.

    python bench/paired_differences.py bench/results/ladder_trec.jsonl "+ word vectors" CoVe ELMo TagLM
    python bench/paired_differences.py bench/results/taglm_findings.jsonl TagLM "TagLM, forward direction alone" …

The file has a JSON object per run: `system` or `tagger`, `seed`, and the test score, as `test` in percent or as a share
in `scores`. Each further system is compared with the first one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from scipy.stats import ttest_rel


def read_scores(path: Path) -> dict[str, dict[int, float]]:
    """Return the test scores in percent, by system and seed."""
    scores: dict[str, dict[int, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        score = run["test"] if "test" in run else 100 * run["scores"]["test"]
        scores.setdefault(run.get("system") or run["tagger"], {})[run["seed"]] = score
    return scores


def main() -> None:
    """Print a line per system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("first")
    parser.add_argument("others", nargs="+")
    chosen = parser.parse_args()
    scores = read_scores(chosen.results)
    for name in (chosen.first, *chosen.others):
        if name not in scores:
            parser.error(f"{chosen.results}: no system {name!r}; it has {', '.join(scores)}")
    for name in chosen.others:
        seeds = sorted(scores[chosen.first].keys() & scores[name].keys())
        before, after = ([scores[system][seed] for seed in seeds] for system in (chosen.first, name))
        p = ttest_rel(after, before).pvalue
        print(f"{chosen.first} → {name}: {mean(after) - mean(before):+.2f}, p = {p:.3f}, {len(seeds)} seeds")


if __name__ == "__main__":
    main()
