"""Other systems than Linux: what they lack is hidden, and everything that is not a native kernel works all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import os, subprocess, sys, types
for name in ("sched_getaffinity", "sched_setaffinity", "ST_NOEXEC"):
    delattr(os, name)
windows = sys.argv[2] == "windows"
if windows:
    sys.modules["fcntl"] = sys.modules["psutil"] = None  # the latter has another form there
    locked = types.ModuleType("msvcrt")
    locked.LK_NBLCK, locked.locking = os.F_TLOCK, os.lockf
    sys.modules["msvcrt"] = locked
    for name in ("sysconf", "geteuid", "statvfs"):
        delattr(os, name)
"""
WORK = """
from pathlib import Path
import huggingface_hub.repocard_data, matplotlib.figure, polars, rich.progress, sklearn.model_selection, torch
import bertwright
from bertwright import BertClassifier, CorpusSettings, EvaluateSettings, FinetuneSettings, LearnSettings, ModelSettings
from bertwright import PredictSettings, PrepareSettings, PretrainSettings, TaskSettings, VocabularySettings
from bertwright.kernels import native_library
if windows:
    sys.platform = "win32"  # not before: torch would look for Windows's libraries
work = Path(sys.argv[1])
texts = ["the cat sat " + "so " * n + "on the mat .\\nthe dog sat on the log .\\n\\n" for n in range(40)]
(work / "text.txt").write_text("".join(texts))
text = CorpusSettings(inputs=(str(work / "text.txt"),), sentence_splitter="line", document_unit="blank-line")
bertwright.learn_vocabulary(LearnSettings(text, work / "vocabulary", VocabularySettings(size=120)))
bertwright.prepare(PrepareSettings(text, vocabulary=str(work / "vocabulary"), store=work / "store"))
small = ModelSettings(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)
bertwright.pretrain(PretrainSettings(run=work / "run", store=work / "store", model=small, steps=2))
assert bertwright.load(work / "run").fill_mask("the [MASK] sat .")
rows = [("the cat sat so so .", "cat"), ("the dog sat on the log .", "dog")] * 8
(work / "rows.tsv").write_text("text\\tlabel\\n" + "".join("\\t".join(row) + "\\n" for row in rows))
data = (str(work / "rows.tsv"),)
task = TaskSettings("classification", train=data, dev=data)
start = str(work / "run")
bertwright.finetune(FinetuneSettings(run=work / "tuned", task=task, model=start, epochs=1, batch_size=8))
tuned = str(work / "tuned")
assert bertwright.evaluate(EvaluateSettings(tuned, data, work / "scores.json"))["accuracy"] >= 0
bertwright.predict(PredictSettings(tuned, inputs=data, output=work / "labels.jsonl"))
assert len((work / "labels.jsonl").read_text().splitlines()) == 16
texts, labels = zip(*rows)
classifier = BertClassifier(start, epochs=1, batch_size=8).fit(list(texts), list(labels))
classifier.save(work / "classifier")
assert set(BertClassifier.from_folder(work / "classifier").predict(list(texts))) <= {"cat", "dog"}
print(native_library.load_library("kernels") is not None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_the_whole_way_works_without_what_linux_alone_has(system: str, tmp_path: Path) -> None:
    """FINDINGS H2, H3."""
    result = subprocess.run(
        [sys.executable, "-c", HIDE + WORK, str(tmp_path), system],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    kernels = result.stdout.splitlines()[-1]
    if system == "windows":
        assert kernels == "False"
        assert "Linux and macOS" in result.stderr


def test_a_folder_is_locked_by_windows_means(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from bertwright.base.files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])):\n"
        "    if sys.argv[3] == 'first':\n"
        "        sys.exit(subprocess.call([sys.executable, '-c', sys.orig_argv[2], *sys.argv[1:3], 'second']))\n"
    )
    command = [sys.executable, "-c", HIDE + program, str(tmp_path), "windows", "first"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert f"{tmp_path}: another process is writing there" in result.stderr
