"""Contenders of a benchmark as processes of their own, which wait for each other and answer by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any


class Child:
    """The process of one contender: for each number that it reads, it works, and answers with one line of JSON."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        """Start the process."""
        self.command, pipe = " ".join(command), subprocess.PIPE
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | environment)
        self.first_step = 0.0  # seconds from the start of the process to the end of its first step
        self.seconds: list[float] = []
        self.results: list[float] = []
        self.peak = 0

    def step(self, counted: bool, seconds: float = 0.0) -> float:
        """Run one step and return its seconds."""
        self.ask(seconds)
        return self.answer(counted)

    def ask(self, seconds: float = 0.0) -> None:
        """Let the process work."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        """Wait for the end of the work and return the answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a contender ended before its step; its own message is above: {self.command}")
        self.first_step = self.first_step or time.perf_counter() - self.started
        return json.loads(line)

    def answer(self, counted: bool) -> float:
        """Wait for the end of a step, whose answer has `seconds`, `result` and `peak`; return its seconds."""
        answer = self.read()
        if counted:
            self.seconds.append(answer["seconds"])
            self.results.append(answer["result"])
        self.peak = answer["peak"]
        return float(answer["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def step_in_turns(children: Iterable[Child], rounds: int) -> None:
    """Let the contenders run a step each in turns, first one that does not count; then end them."""
    listed = [*children]
    for number in range(1 + rounds):
        for child in listed:
            child.step(counted=number > 0)
    for child in listed:
        child.close()
