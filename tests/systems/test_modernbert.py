"""ModernBERT beyond what all families share: long texts, the forms of its configuration, pre-training, attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import Family, make_settings, save

import bertwright
from bertwright.base.files import read_json, write_json
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from bertwright.interop.huggingface import load_model, load_task_model, start_task_model
from bertwright.interop.model_files import CONFIG
from bertwright.models.head_spec import HeadSpec
from bertwright.models.packing import pack
from bertwright.systems.modernbert.modernbert import ModernBertConfig
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

TINY = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
FAMILY = Family("ModernBert", TINY | {"pad_token_id": 0}, reads_segments=False)
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *(f"w{n}" for n in range(55))], lowercase=True)


def change_config(folder: Path, *without: str, **values: Any) -> Path:
    found = {name: value for name, value in read_json(folder / CONFIG).items() if name not in without}
    write_json(folder / CONFIG, found | values)
    return folder


# ---- Long texts


@pytest.mark.parametrize("suffix", ["Model", pytest.param("Base", marks=pytest.mark.slow)])
def test_long_texts_have_the_states_of_transformers(suffix: str, tmp_path: Path) -> None:
    """Windows of 128 tokens in two of three layers; `Base` is the shape of ModernBERT-base."""
    is_base = suffix == "Base"
    family = FAMILY._replace(values={"vocab_size": 60, "pad_token_id": 0}) if is_base else FAMILY
    theirs: Any = family.build("Model")
    encoder = load_model(save(theirs, tmp_path / "theirs"), heads="optional").model.encoder
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 60, length) for length in ((1500, 90) if is_base else (700, 66, 300, 1))]
    with torch.inference_mode():
        found = encoder(pack(texts)).split([len(text) for text in texts])
        expected = [theirs(torch.from_numpy(text)[None])[0][0] for text in texts]
        theirs.double()
        for text, states, rounded in zip(texts, found, expected, strict=True):
            exact = theirs(torch.from_numpy(text)[None])[0][0]
            rounding = (rounded - exact).abs().max()  # 22 layers and 1,500 tokens: above 1e-5
            assert (states - exact).abs().max() <= max(1e-5, 2 * rounding)


def test_memory_of_windows_grows_with_the_text_alone() -> None:
    """Without layers that see all tokens, 8,192 tokens need no matrix of all pairs: it would have 268 MB per head."""
    config = ModernBertConfig(60, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=8, local_attention=16)
    assert [config.window(layer) for layer in range(4)] == [None, 8, 8, None]
    dense = config.count_forward_flops([8192], 0, pooled=False)
    windows = ModernBertConfig(60, 16, 2, 2, 8, global_every=1).count_forward_flops([8192], 0, pooled=False) - dense
    assert windows == (8192**2 - (8192 * 17 - 8 * 9)) * 4 * 16


# ---- Folders


def test_the_released_form_of_the_configuration_is_read(tmp_path: Path) -> None:
    """Folders of transformers 4 state the pattern of layers and two bases, not lists."""
    changes = {"global_attn_every_n_layers": 2, "global_rope_theta": 800.0, "local_rope_theta": 90.0}
    theirs: Any = FAMILY.build("Model", local_attention=6, **changes)
    assert theirs.config.rope_parameters["full_attention"]["rope_theta"] == 800.0
    folder = save(theirs, tmp_path / "theirs")
    new = load_model(folder, heads="optional").model
    change_config(folder, "layer_types", "rope_parameters", position_embedding_type="absolute", **changes)
    old = load_model(folder, heads="optional").model
    assert new.config == old.config
    assert (old.config.global_every, old.config.global_base, old.config.local_base) == (2, 800.0, 90.0)  # type: ignore[attr-defined]
    text = np.arange(40)
    expected = theirs(torch.from_numpy(text)[None])[0][0]
    torch.testing.assert_close(old.encoder(pack([text])), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm_bias": True}, "norm_bias: expected False, got True"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, ""),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types: expected full_attention in every n-th layer"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types: expected full_attention in every n-th layer"),
        ({"layer_types": "full_attention"}, "layer_types: expected a list"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "expected rope_type default"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "expected a number above 0 as rope_theta"),
        ({"rope_parameters": [1]}, "rope_parameters: expected"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
        ({"intermediate_size": 40}, "intermediate_size: expected 40 as in config.json, got 48"),
    ],
)
def test_configuration_that_does_not_fit_is_rejected(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = change_config(save(FAMILY.build("Model"), tmp_path / "theirs"), **values)
    if not message:
        assert load_model(folder, heads="optional").model.config.global_every == 2  # type: ignore[attr-defined]
        return
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}|{message}"):
        load_model(folder, heads="optional")


def test_fine_tuning_starts_with_the_head_of_the_masked_lm(tmp_path: Path) -> None:
    """transformers does so, too: both heads have one name in files."""
    theirs: Any = FAMILY.build("ForMaskedLM")
    started = start_task_model(save(theirs, tmp_path / "theirs"), HeadSpec("token", 3), seed=1)
    assert torch.equal(started.model.head.pooler.dense.weight, theirs.head.dense.weight)  # type: ignore[union-attr]
    assert started.missing_heads == ("classifier",)
    task = FAMILY.build("ForSequenceClassification", num_labels=3)
    ours = load_task_model(save(task, tmp_path / "task"))
    assert started.model.config.num_parameters == theirs.num_parameters()
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in task.parameters())


def test_attention_weights_equal_transformers(tmp_path: Path) -> None:
    theirs: Any = FAMILY.build("Model", local_attention=4)
    TOKENIZER.save(save(theirs, tmp_path / "theirs"), max_length=64)
    text = " ".join(f"w{n}" for n in range(9))
    found = bertwright.load(tmp_path / "theirs").attention(text)
    theirs.set_attn_implementation("eager")
    ids = torch.tensor([[TOKENIZER.id(token) for token in found.tokens]])
    for ours, layer in zip(found.weights, theirs(ids, output_attentions=True).attentions, strict=True):
        np.testing.assert_allclose(ours, layer[0].detach(), atol=1e-5)


# ---- Training


def test_its_settings_are_the_paper_s_and_options_that_it_lacks_are_rejected(tmp_path: Path) -> None:
    run, store, model = tmp_path / "r", tmp_path / "store", {"architecture": "modernbert"}
    assert make_settings(run, store, model).data.mlm_probability == 0.3
    with pytest.raises(ValueError, match="sinusoidal_positions: --architecture modernbert"):
        make_settings(run, store, model | {"sinusoidal_positions": True})


@pytest.mark.slow
def test_an_exported_classifier_gives_the_same_answers(tmp_path: Path) -> None:
    """Texts of more tokens than a window, in a graph that pools the states as ModernBERT-base does."""
    family = FAMILY._replace(values=FAMILY.values | {"local_attention": 8, "classifier_pooling": "mean"})
    folder = save(family.build("ForSequenceClassification", num_labels=3, max_position_embeddings=64), tmp_path / "m")
    TOKENIZER.save(folder, max_length=64)
    bertwright.load(folder).save(tmp_path / "model")
    export(ExportSettings(str(tmp_path / "model"), tmp_path / "exported", to="onnx"), MUTE)
    texts = [" ".join(f"w{n}" for n in range(count)) for count in (50, 1, 20)]
    ours, graph = (bertwright.load(tmp_path / name).classify(texts) for name in ("model", "exported"))
    for one, other in zip(ours, graph, strict=True):
        np.testing.assert_allclose(list(one.probabilities.values()), list(other.probabilities.values()), atol=1e-5)
