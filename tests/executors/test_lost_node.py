"""A Ray cluster of two nodes that loses one while it works: the result has the same bytes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertwright.executors.ray_executor import QUIET
from small_runs import grammar

# The verb of a user, with shards small enough for a small text.
COMMAND = (
    "import sys; from bertwright.tokenstore import build; build.SHARD_BYTES = 5_000; "
    "from bertwright.cli.main import run; sys.exit(run(sys.argv[1:]))"
)
DEADLINE_S = 120.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head, and one more node; each has one CPU."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'bertwright[scale]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(**node)
    yield made
    made.shutdown()


def list_workers(raylet: int) -> dict[int, str]:
    """Return process ids and titles of a node's workers; a title has the name of the call that runs."""
    workers = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            title = (stat.parent / "cmdline").read_text().rstrip("\0")
        except OSError:  # it has just ended
            continue
        if parent == raylet and title.startswith("ray::"):
            workers[int(stat.parent.name)] = title
    return workers


def lose_node(cluster: Any, process: subprocess.Popen[str]) -> None:
    """Kill all processes of the second node while a worker there is in a call of a process."""
    [node] = cluster.worker_nodes
    raylet = node.all_processes["raylet"][0].process.pid
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        busy = [worker for worker, title in list_workers(raylet).items() if title.endswith("text.txt")]
        for worker in busy:
            os.kill(worker, signal.SIGSTOP)
            if list_workers(raylet)[worker].endswith("text.txt"):  # the call is not over, and cannot end any more
                for killed in (raylet, *list_workers(raylet)):
                    os.kill(killed, signal.SIGKILL)
                cluster.remove_node(node, allow_graceful=False)
                return
            os.kill(worker, signal.SIGCONT)
        time.sleep(0.005)
    process.kill()
    pytest.fail(f"no call ran on the second node: {process.communicate()}")


@pytest.mark.slow
def test_lost_node_changes_nothing_but_time(cluster: Any, vocabulary_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(grammar(600), encoding="utf-8")
    arguments = ["prepare", str(tmp_path / "text.txt"), "--vocabulary", str(vocabulary_folder), "--store"]
    command = [sys.executable, "-c", COMMAND, *arguments]
    on_ray = ["--executor", "ray", "--ray-address", cluster.address]
    with subprocess.Popen(
        [*command, str(tmp_path / "ray"), *on_ray], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lose_node(cluster, process)
        printed, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, errors) == (0, ""), printed
    subprocess.run([*command, str(tmp_path / "local"), "--workers", "1"], check=True, capture_output=True)
    for name in ("train/tokens-00000.npy", "train/header.json", "held_out/header.json"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
