"""`bertwright fill-mask`: what it prints against what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bertwright
from bertwright.cli import main as cli
from bertwright.inference.bert import Bert
from bertwright.inference.text_commands import fill_masks as fill_mask
from bertwright.inference.text_settings import FillMaskSettings
from bertwright.tasks.classification import Classification
from bertwright.tasks.task import AnyTask
from bertwright.text.decoding import TextCodec
from bertwright.text.stdin_texts import expand_stdin
from harness import run_with_output
from helpers import CPU


def test_fill_mask_prints_what_it_returns(one_layer_folder: Path) -> None:
    text = "The [MASK] sees the [MASK] ."
    settings = FillMaskSettings(str(one_layer_folder), (text,), top_k=3, device=CPU)
    (prediction,), printed = run_with_output(fill_mask, settings)
    assert prediction == bertwright.load(one_layer_folder, "cpu").fill_mask(text, 3)
    for candidates in prediction.masks:
        for candidate in candidates:
            assert candidate.token in printed
            assert f"{candidate.probability:.1%}" in printed


def test_fill_mask_reads_standard_input(
    one_layer_folder: Path, pipe_in: Callable[[str | bytes | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fill-mask", str(one_layer_folder), "-", "--top-k", "2", "--device", "cpu", "--threads", "1"]
    pipe_in(b"The [MASK] sees .\n\nThe bear [MASK] .\n")
    assert cli.run(command) == 0
    printed = capsys.readouterr().out
    assert printed.count("[MASK]") >= 2
    assert bertwright.load(one_layer_folder, "cpu").fill_mask("The bear [MASK] .", 2).text in printed
    pipe_in(b"The [MASK] caf\xe9\n")
    assert cli.run(command) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("bertwright: error: standard input, byte 14: e9 is not UTF-8")
    assert "--encoding-errors" not in errors  # which this command does not have


def test_a_model_for_a_task_has_no_masked_lm_head(tmp_path: Path, make_task_model: Callable[[AnyTask], Bert]) -> None:
    make_task_model(Classification(labels=("yes", "no"))).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"classification .* started from"):
        fill_mask(FillMaskSettings(str(tmp_path / "m"), ("The [MASK] .",)))


def test_standard_input_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"^-: standard input is given 2 times"):
        expand_stdin(["-", "a [MASK]", "-"], TextCodec())
