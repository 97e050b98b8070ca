"""Model cards: metadata that the hub reads, measured scores alone, code that runs, bytes that repeat."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import bertwright
from bertwright.base.files import digest_file, read_json
from bertwright.finetuning.run import finetune
from bertwright.interop.model_card import MARK, write_card
from bertwright.pretraining.run import pretrain
from small_runs import save_random_bert

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, make_tuning: Make) -> Path:
    """The model of a short fine-tuning."""
    return finetune(make_tuning(tmp_path_factory.mktemp("card") / "run", epochs=1.0, linear_floor=True))


def test_card_of_a_fine_tuning_has_the_measured_scores_and_the_floors(model: Path, review_files: Path) -> None:
    card, report = ModelCard.load(model / "README.md"), read_json(model.parent / "report.json")
    assert (card.data.pipeline_tag, card.data.library_name) == ("text-classification", "transformers")
    assert (card.data.base_model, card.data.license, card.data.language) == (None, None, None)
    results = {(r.dataset_split, r.metric_name): r for r in card.data.eval_results}
    floor = next(iter(report["linear_floor"]))
    for split in ("dev", "test"):
        assert results[split, "accuracy"].dataset_name == f"{split}.tsv"
        assert results[split, "accuracy"].metric_value == round(report["scores"][split]["accuracy"], 6)
        own = report["linear_floor"][floor][split]["accuracy"]
        assert results[split, f"accuracy {floor}"].metric_value == round(own, 6)
    assert "| optimizer.learning_rate | 0.003 |" in card.text
    assert f"| train.tsv | {digest_file(review_files / 'train.tsv')} |" in card.text


def test_card_names_no_folder_of_the_user(model: Path, review_files: Path, tiny_bert: Path) -> None:
    text = (model / "README.md").read_text()
    assert not [folder for folder in (model.parent, review_files, tiny_bert) if str(folder) in text]


def test_code_in_a_card_loads_the_model_in_each_library_it_names(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    snippets = re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(), re.DOTALL)
    assert len(snippets) == 2
    loaded = []
    for code in snippets:
        names: dict[str, Any] = {}
        exec(code.replace("FOLDER", "model"), names)
        loaded.append(type(names["model"]).__name__)
    assert loaded == ["Bert", "BertForSequenceClassification"]


def test_equal_runs_write_equal_cards_whatever_their_folders(model: Path, tmp_path: Path, make_tuning: Make) -> None:
    again = finetune(make_tuning(tmp_path / "other name", epochs=1.0, linear_floor=True))
    assert (again / "README.md").read_bytes() == (model / "README.md").read_bytes()


def test_card_of_another_author_is_left_alone_and_ours_is_renewed(model: Path, tmp_path: Path) -> None:
    bertwright.load(model).save(tmp_path / "copy")
    path = tmp_path / "copy" / "README.md"
    assert "None was measured" in path.read_text()
    bertwright.load(tmp_path / "copy")  # an edited card does not count as damage
    path.write_text(f"{MARK}\noutdated")
    write_card(path.parent)
    assert "outdated" not in path.read_text()
    path.write_text("# mine\n")
    write_card(path.parent)
    assert path.read_text() == "# mine\n"
    bertwright.load(path.parent)


def test_card_of_a_pretraining_has_its_held_out_loss(tmp_path: Path, make_settings: Make) -> None:
    run = make_settings(tmp_path / "run")
    card = ModelCard.load(pretrain(replace(run, steps=4, eval_every=4)) / "README.md")
    report = read_json(tmp_path / "run" / "report.json")
    assert card.data.pipeline_tag == "fill-mask"
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values["loss"] == round(report["held_out_after"]["loss"], 6)


def test_card_of_a_left_to_right_model_fills_no_mask(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    save_random_bert(tmp_path / "model", ["the", "bear"], is_causal=True, **sizes)
    text = (tmp_path / "model" / "README.md").read_text()
    assert "fill_mask" not in text
    assert len(bertwright.load(tmp_path / "model").embed(["the bear"])) == 1  # what the card names instead
    assert 'model.embed(["a text"])' in text
