"""Where the time of a run goes: seconds by part, from marks at the seams of the loop."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Wall-clock seconds by part: a mark ends a part, and the next one begins, so that the parts add up to the whole.

    On a GPU, "forward" and "backward" are the time to start its work, and "wait" is the time until it has done it.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def mark(self, part: str) -> None:
        """Count the time since the last mark as this part's."""
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now
