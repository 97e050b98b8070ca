"""Executors: order and bounds of results, errors, dead workers; and commands on Ray, which give the local results."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from worker_tasks import Count, die, die_once, square

from bertwright.base.reporter import Reporter
from bertwright.cli.main import run
from bertwright.corpus.documents import CorpusSettings
from bertwright.executors.executor import LEAD, Executor, ExecutorSettings, SerialExecutor, run_in_order
from bertwright.executors.open_executor import open_executor
from bertwright.executors.processes import ProcessExecutor
from bertwright.executors.ray_executor import _connect
from bertwright.surveying import corpus_statistics
from bertwright.surveying.corpus_statistics import measure_corpus
from bertwright.tokenstore import build as build_module
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.runner import Runner
from bertwright.trials.trial import Trial
from bertwright.vocabulary.learn import shard_counts, word_counts
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import WatchedReporter, text_reporter

ON_RAY = ExecutorSettings(executor="ray")
WORDS = "the a cat dog sat ran on under mat tree red big old and then it was there again far Élan mañana zebra".split()


@pytest.fixture(params=["serial", "processes", "ray"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    match request.param:
        case "serial":
            yield SerialExecutor()
        case "processes":
            yield ProcessExecutor(2)
        case _:
            request.getfixturevalue("ray_cluster")
            with open_executor(ON_RAY) as opened:
                yield opened


def test_results_come_in_the_order_of_tasks_and_of_all_workers(executor: Executor) -> None:
    pulled: list[int] = []

    def tasks() -> Iterator[Count]:
        for number in range(14, 44):
            pulled.append(number)
            yield Count(number)

    results = []
    for task, (result, _) in run_in_order(executor, square, 5, tasks()):
        results.append((task.number, result))
        assert len(pulled) - len(results) <= LEAD * executor.workers
    assert results == [(number, number**2 + 5) for number in range(14, 44)]


def test_number_of_a_result_is_that_of_its_task_and_an_error_of_a_task_is_raised(executor: Executor) -> None:
    squares = dict(executor.run(square, 0, map(Count, range(5))))
    assert {number: result for number, (result, _) in squares.items()} == {0: 0, 1: 1, 2: 4, 3: 9, 4: 16}
    with pytest.raises(ValueError, match=r"^13: expected a lucky number$"):
        list(executor.run(square, 0, map(Count, range(10, 20))))


def test_calls_run_in_several_processes(ray_cluster: Any) -> None:
    for settings in (ExecutorSettings(workers=2), ON_RAY):
        processes: set[int] = set()
        last = time.monotonic() + 120  # on a busy machine one process may start long after the other

        def tasks(processes: set[int] = processes, last: float = last) -> Iterator[Count]:
            for number in count(14):
                if len(processes) >= 2 or time.monotonic() > last:
                    return
                yield Count(number)

        with open_executor(settings) as executor:
            assert executor.workers == 2
            for _, (_, process) in executor.run(square, 0, tasks()):
                processes.add(process)
        assert os.getpid() not in processes
        assert len(processes) >= 2


def test_task_after_none_waits_until_a_call_has_finished(executor: Executor) -> None:
    finished: list[int] = []

    def tasks() -> Iterator[Count | None]:
        yield Count(0)
        while not finished:
            yield None
        yield Count(1)

    for number, _ in executor.run(square, 0, tasks()):
        finished.append(number)
    assert finished == [0, 1]


def test_killed_ray_worker_is_replaced_and_its_call_repeated(ray_cluster: Any, tmp_path: Path) -> None:
    tasks = [Count(number, str(tmp_path / "died")) for number in range(8)]
    with open_executor(ON_RAY) as executor:
        assert [result for _, result in run_in_order(executor, die_once, 1, tasks)] == list(range(1, 9))
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_call_that_always_kills_its_worker_is_reported(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.executors.ray_executor.MAX_RETRIES", 1)
    with open_executor(ON_RAY) as executor, pytest.raises(ChildProcessError, match=r"^count 7: its Ray worker died 2 "):
        list(executor.run(die, 0, [Count(7)]))
    with pytest.raises(ChildProcessError, match=r"^count 7: a worker process died \(exit code -9: killed, .* memory"):
        list(ProcessExecutor(1).run(die, 0, [Count(7)]))


# --- commands


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusSettings:
    """Text files of about 100 kB, one of them compressed, a broken one, and lines that repeat."""
    rng = random.Random(1)
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a", "b", "c"):
        documents = []
        for _ in range(40):
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) + "." for _ in range(rng.randint(1, 12))]
            lines += ["Subscribe now!"] * rng.randint(0, 2) + [f"word{rng.randrange(999)} new{rng.randrange(999)}"]
            documents.append("\n".join(lines))
        (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    return CorpusSettings((str(folder),))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (build_module, corpus_statistics, shard_counts):
        monkeypatch.setattr(module, "SHARD_BYTES", 8_000)
    monkeypatch.setattr(shard_counts, "TABLE_BYTES", 3_000)


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of the files below a folder, without the settings, which name the executor."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "settings.toml")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if not path.name.startswith(".")}


def learn(corpus: CorpusSettings, folder: Path, execution: ExecutorSettings, **options: Any) -> dict[str, bytes]:
    """Learn a vocabulary; return its files, and what was printed without the folder's name."""
    reporter = text_reporter()
    vocabulary = VocabularySettings(**{"size": 400, "min_frequency": 1, **options})
    learn_vocabulary(LearnSettings(corpus, folder, vocabulary, execution), reporter)
    printed = reporter.console.file.getvalue().replace(folder.name, "")  # type: ignore[attr-defined]
    return content(folder) | {"printed": printed.encode()}


@pytest.mark.parametrize("options", [{}, {"max_words": 300}, {"algorithm": "words"}])
def test_vocabulary_of_workers_has_the_bytes_of_one_process(
    ray_cluster: Any,
    corpus: CorpusSettings,
    tmp_path: Path,
    small_shards: None,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """Also where rare words are dropped to bound memory, which depends on the moment."""
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 40_000)
    expected = learn(corpus, tmp_path / "alone", ExecutorSettings(), **options)
    assert learn(corpus, tmp_path / "local", ExecutorSettings(workers=2), **options) == expected
    assert learn(corpus, tmp_path / "ray", ON_RAY, **options) == expected


def test_survey_of_workers_equals_that_of_one_process(
    ray_cluster: Any, corpus: CorpusSettings, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.surveying.sketches.MAX_CANDIDATES", 300)  # the order of documents then matters
    (tmp_path / "bad.jsonl").write_text('{"text": "One."}\n' * 999 + "{broken\n" + '{"text": "Two."}\n' * 999)
    (tmp_path / "empty.csv").write_text("other\n1\n")
    corpus = replace(corpus, inputs=(*corpus.inputs, str(tmp_path / "bad.jsonl"), str(tmp_path / "empty.csv")))
    progress: list[int] = []
    expected = measure_corpus(corpus, progress.append)
    assert sum(progress) == sum(Path(path).stat().st_size for path in map(str, tmp_path.iterdir())) + sum(
        path.stat().st_size for path in Path(corpus.inputs[0]).iterdir()
    )
    assert [item.path for item in expected.unreadable] == [str(tmp_path / "bad.jsonl"), str(tmp_path / "empty.csv")]
    assert expected.unreadable[0].documents == 999
    for settings in (ExecutorSettings(workers=2), ON_RAY):
        with open_executor(settings) as executor:
            assert measure_corpus(corpus, executor=executor) == expected


def ray_workers(ray: Any) -> list[int]:
    """Return the process ids of the workers of this process's cluster."""
    raylets, workers = [], []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        if parent == os.getpid() and "raylet" in command.split("\0")[0]:
            raylets.append(int(stat.parent.name))
        if command.startswith("ray::") and "Agent" not in command:  # without an agent, the node dies
            workers.append((parent, int(stat.parent.name)))
    return [worker for parent, worker in workers if parent in raylets]


@pytest.mark.slow
def test_store_of_ray_has_the_bytes_of_local_workers_though_workers_are_killed(
    ray_cluster: Any, corpus: CorpusSettings, tmp_path: Path, small_shards: None
) -> None:
    tokenizer = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS[:-3]], lowercase=True)
    build(tmp_path / "local", corpus, tokenizer, BuildSettings(0.2, workers=1))
    killed: list[int] = []

    def kill_a_worker(done: int) -> None:
        if done and len(killed) < 2:
            worker = next((worker for worker in ray_workers(ray_cluster) if worker not in killed), None)
            if worker is not None:  # else the next one has not started yet
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    build(tmp_path / "ray", corpus, tokenizer, BuildSettings(0.2, executor="ray"), WatchedReporter(kill_a_worker))
    assert len({*killed}) == 2
    assert content(tmp_path / "ray") == content(tmp_path / "local")


@pytest.mark.slow
def test_command_connects_to_a_cluster_by_its_address(ray_cluster: Any, corpus: CorpusSettings, tmp_path: Path) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    command = ["survey", *corpus.inputs, "--executor", "ray", "--ray-address", address, "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bertwright", *command, "--json", str(tmp_path / "f.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert '"documents": 120' in (tmp_path / "f.json").read_text()


# --- jobs of experiments


@dataclass(frozen=True)
class ToySettings:
    """Settings of a job of the tests."""

    number: int
    device: DeviceSettings = DeviceSettings(device="cpu", dtype="float32", threads=1)  # noqa: RUF009


@dataclass(frozen=True)
class ToyTrial(Trial):
    """A job that adds its number to the scores of its parents, and whose worker dies at the first attempt."""

    settings: ToySettings

    kind: ClassVar[str] = "toy"

    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        return ()

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> dict[str, float]:
        marker = folder.parent / "died"
        if self.settings.number == 2 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        scores = [json.loads((parent.parent / "result.json").read_text())["scores"]["dev"] for parent in parents]
        return {"dev": sum(scores) + self.settings.number}


@pytest.mark.slow
def test_jobs_run_on_ray_when_their_parents_are_finished(ray_cluster: Any, tmp_path: Path) -> None:
    first = [ToyTrial(f"job {number}", (), (), ToySettings(number)) for number in (1, 2)]
    second = [ToyTrial(f"job {number}", (), tuple(first), ToySettings(number)) for number in (10, 20, 30)]
    last = ToyTrial("last", (), tuple(second), ToySettings(100))
    runner, reporter = Runner(tmp_path), text_reporter()
    with open_executor(ON_RAY) as executor:
        runner.run_on(executor, [last], reporter)
        printed = reporter.console.file.getvalue()  # type: ignore[attr-defined]
        runner.run_on(executor, [last], reporter)
    result = runner.result(last)
    assert result is not None
    assert result.scores == {"dev": 3 * 3 + 10 + 20 + 30 + 100}
    assert (runner.folder(first[1]) / "died").exists()
    assert printed.count("of 6") == 6
    assert reporter.console.file.getvalue() == printed  # type: ignore[attr-defined]


# --- misuse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--executor", "rey"], "--executor: expected one of 'local', 'ray', got 'rey'"),
        (["--ray-address", "auto"], "ray_address = 'auto': expected --executor ray"),
    ],
)
def test_misuse_of_workers_is_one_message(
    corpus: CorpusSettings, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["survey", *corpus.inputs, *options]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_address_without_a_cluster_is_named() -> None:
    with pytest.raises(ValueError, match=r"^--ray-address 127.0.0.1:9: expected a Ray cluster.*`ray start --head"):
        _connect(None, "127.0.0.1:9", None)


def test_ray_that_does_not_start_is_one_message() -> None:
    """A busy machine takes longer to start Ray than Ray waits."""

    class Ray:
        def init(self, **_: Any) -> None:
            raise Exception("The current node timed out during startup.\nThis could happen")

    message = r"^--executor ray: expected Ray to start .*, got: The current node timed out during startup\.; try again"
    with pytest.raises(ChildProcessError, match=message):
        _connect(Ray(), None, 2)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"^--executor ray: .* package ray.*pip install 'bertwright\[scale\]'"
    with pytest.raises(ValueError, match=message), open_executor(ON_RAY):
        pass
