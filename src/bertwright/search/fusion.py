"""Fusion of rankings by reciprocal ranks (Cormack, Clarke and Büttcher 2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
K = 60  # the paper's constant: how little the first ranks stand out


def fuse_rankings(rankings: Sequence[Sequence[T]]) -> dict[T, float]:
    """Return the sum of 1 / (60 + rank) of each item over all rankings, best first; of equal sums, the first found.

    >>> [*fuse_rankings([["a", "b"], ["b", "c"]])]
    ['b', 'a', 'c']
    """
    sums: defaultdict[T, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            sums[item] += 1 / (K + rank)
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))
