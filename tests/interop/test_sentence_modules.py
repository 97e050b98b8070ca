"""Folders of sentence-transformers: the vectors of that library, before and after a save or a conversion."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.estimators import BertEmbedder
from bertwright.inference.convert import ConvertSettings, convert
from bertwright.inference.embed import EmbedSettings, embed
from bertwright.inference.info import InfoSettings, info
from bertwright.interop.sentence_modules import read_sentence_modules
from bertwright.tasks.presets import TaskSettings
from bertwright.trials.probe import probe
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from helpers import CPU, read_output

pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

pytestmark = pytest.mark.filterwarnings("ignore:.*UNK", "ignore:.*lose tokens", "ignore::FutureWarning")
TEXTS = ["abc a", "", "b c ? " * 30, "Äbc"]
MODELS = "sentence_transformers.models"
ALL_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPTS = {"prompts": {"query": "c b: ", "document": ""}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=30,
    )  # fmt: skip
    model = BertModel(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *"abcde?:", "##b", "##c"]) + "\n")
    values = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 30}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def build(base: Path, folder: Path, *layers: Any, max_seq_length: int | None = None, **options: Any) -> Path:
    transformer = st.Transformer(str(base), max_seq_length=max_seq_length)
    SentenceTransformer(modules=[transformer, *layers], device="cpu", **options).save(str(folder))
    return folder


def expect(folder: Path, **options: Any) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS, **options)


def edit(path: Path, change: Any) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


DENSE = (st.Pooling(24, "mean"), st.Dense(12, 7, activation_function=torch.nn.GELU(), use_residual=True))
VARIANTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "all modes": ((st.Pooling(12, ALL_MODES), st.Normalize()), {}),
    "without the prompt": ((st.Pooling(12, ALL_MODES, include_prompt=False),), PROMPTS),
    "layers": ((*DENSE, st.LayerNorm(7), st.Dropout(0.5), st.Dense(7, 7, bias=False, use_residual=True)), {}),
    "shorter": ((st.Pooling(12, "cls"), st.Normalize()), {"max_seq_length": 8, "truncate_dim": 5}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_equal_those_of_sentence_transformers_also_after_a_save(base: Path, tmp_path: Path, name: str) -> None:
    layers, options = VARIANTS[name]
    folder = build(base, tmp_path / "released", *layers, **options)
    expected = expect(folder)
    model = bertwright.load(folder, device="cpu")
    model.save(tmp_path / "saved")
    convert(ConvertSettings(str(folder), tmp_path / "converted"), SILENT)
    embed(EmbedSettings(str(folder), tuple(TEXTS[:1] + TEXTS[2:]), output=tmp_path / "x.npy"), SILENT)
    assert model.vector_size() == expected.shape[1]
    np.testing.assert_allclose(model.embed(TEXTS), expected, atol=1e-5)
    for copy in ("saved", "converted"):
        np.testing.assert_allclose(bertwright.load(tmp_path / copy, device="cpu").embed(TEXTS), expected, atol=1e-5)
        np.testing.assert_allclose(expect(tmp_path / copy), expected, atol=1e-5)
    assert np.load(tmp_path / "x.npy").shape == (3, expected.shape[1])


@pytest.mark.parametrize("value", ["1e30", "1000000000000000000000000000000", "1e999"])
def test_a_tokenizer_without_a_limit_leaves_the_limit_to_the_model(base: Path, tmp_path: Path, value: str) -> None:
    folder = build(base, tmp_path / "released", st.Pooling(12, "mean"))
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"model_max_length": 30', f'"model_max_length": {value}'))
    edit(folder / "sentence_bert_config.json", lambda values: values | {"max_seq_length": None})
    read = read_sentence_modules(folder)
    assert read is not None
    assert (read.max_length, read.description) == (None, "mean pooling")
    bertwright.load(folder, device="cpu").save(tmp_path / "saved")
    assert SentenceTransformer(str(tmp_path / "saved"), device="cpu").max_seq_length == 30


def test_a_pickled_embedder_gives_the_same_vectors(base: Path, tmp_path: Path) -> None:
    folder = build(base, tmp_path / "released", *DENSE, st.Normalize())
    embedder = BertEmbedder(str(folder), device="cpu").fit(TEXTS)
    dumped = io.BytesIO()
    joblib.dump(embedder, dumped)
    dumped.seek(0)
    for copy in (pickle.loads(pickle.dumps(embedder)), joblib.load(dumped)):
        assert np.array_equal(copy.transform(TEXTS), embedder.transform(TEXTS))


def test_a_chosen_pooling_and_normalization_replace_those_of_the_folder(base: Path, tmp_path: Path) -> None:
    folder = build(base, tmp_path / "x", st.Pooling(12, "cls"), st.Normalize(), **PROMPTS)
    model, bare = bertwright.load(folder, device="cpu"), bertwright.load(base, device="cpu")
    assert np.array_equal(model.embed(TEXTS, "mean"), bare.embed(TEXTS))
    np.testing.assert_allclose(model.embed("c b: abc a", prompt_name="document"), model.embed("abc a"), atol=1e-6)
    assert np.linalg.norm(model.embed("abc", normalize=False)) != pytest.approx(1, abs=0.01)
    with pytest.raises(ValueError, match="prompt_name: expected one of document, query, got 'passage'"):
        model.embed("a", prompt_name="passage")


def write_old_layout(folder: Path) -> None:
    (folder / "0_BERT").mkdir()
    for path in [*folder.glob("*.*")]:
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_BERT" / path.name)
    modules = {"0_BERT": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    listed = [
        {"idx": index, "name": str(index), "path": name, "type": f"{MODELS}.{kind}"}
        for index, (name, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    old = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 12} | old))
    (folder / "0_BERT/sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": false}')


def test_old_layouts_are_read_and_saved_in_the_new_one(base: Path, tmp_path: Path, reporter: TerminalReporter) -> None:
    folder = build(base, tmp_path / "old", st.Pooling(12, ("max", "mean")), st.Dense(24, 5))
    write_old_layout(folder)
    expected = expect(folder)
    model = bertwright.load(folder, device="cpu")
    model.save(tmp_path / "saved")
    for vectors in (model.embed(TEXTS), bertwright.load(tmp_path / "saved").embed(TEXTS), expect(tmp_path / "saved")):
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    info(InfoSettings(folder), reporter)
    assert "max and mean pooling, Dense to 5, at most 9 tokens" in " ".join(read_output(reporter).split())


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("modules.json", lambda old: [*old[:2], old[2] | {"type": f"{MODELS}.LSTM"}], "module 2 is .*LSTM"),
        ("modules.json", lambda old: [old[0], old[1] | {"type": "custom_st.Pooling"}], "module 1 is custom_st.Pooling"),
        ("modules.json", lambda old: old[:1], "expected a Pooling module"),
        ("1_Pooling/config.json", lambda old: {"pooling_mode": "attention"}, "got attention"),
        ("2_Dense/config.json", lambda old: old | {"activation_function": "my.Act"}, "activation_function: Act"),
        ("2_Dense/config.json", lambda old: old | {"module_input_name": "token_embeddings"}, "module 2 is .*Dense"),
        ("config_sentence_transformers.json", lambda old: old | {"model_type": "SparseEncoder"}, "got a SparseEncoder"),
    ],
)
def test_what_is_not_supported_is_named_and_a_chosen_pooling_still_works(
    base: Path, tmp_path: Path, reporter: TerminalReporter, file: str, change: Any, message: str
) -> None:
    folder = build(base, tmp_path / "x", st.Pooling(12, "cls"), st.Dense(12, 5))
    edit(folder / file, change)
    model = bertwright.load(folder, device="cpu")
    with pytest.raises(ValueError, match=message):
        model.embed(TEXTS)
    assert model.embed(TEXTS, "mean").shape == (4, 12)
    info(InfoSettings(folder), reporter)
    assert "not supported" in read_output(reporter)


def test_damaged_modules_name_their_file(base: Path, tmp_path: Path) -> None:
    folder = build(base, tmp_path / "x", st.Pooling(12, "cls"), st.Dense(12, 5))
    for content in ("{}", "[]", "7", '[{"path": "../x", "type": "a"}]', '[{"path": 7, "type": "a"}]'):
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        (tmp_path / "copy/modules.json").write_text(content)
        with pytest.raises(ValueError, match=r"modules\.json: expected a list"):
            bertwright.load(tmp_path / "copy", device="cpu")
    torch.save(load_file(folder / "2_Dense/model.safetensors"), folder / "2_Dense/pytorch_model.bin")
    (folder / "2_Dense/model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"2_Dense/pytorch_model\.bin: a pickle"):
        bertwright.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "20"}, "max_seq_length: expected int, got '20'"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            "prompts: expected a text as 'query', got '3'",
        ),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts: expected dict"),
        ("config_sentence_transformers.json", {"truncate_dim": 1e18}, "truncate_dim: expected int"),
        ("1_Pooling/config.json", {"pooling_mode": 7}, "pooling_mode: expected str, got '7'"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "max"]}, "modules.json: the modules do not fit one another"),
        ("2_Dense/config.json", {"module_input_name": []}, "module_input_name: expected str"),
        ("2_Dense/config.json", {"use_residual": True}, "modules.json: the modules do not fit one another"),
    ],
)
def test_values_of_another_type_or_size_name_their_file(
    base: Path, tmp_path: Path, file: str, change: Any, message: str
) -> None:
    folder = build(base, tmp_path / "x", st.Pooling(12, "cls"), st.Dense(12, 5))
    edit(folder / file, lambda old: old | change)
    with pytest.raises(ValueError, match=f"{folder}/.*{message}"):
        bertwright.load(folder, device="cpu")


def test_probe_reads_the_folder_s_own_pooling_of_each_layer(
    base: Path, tmp_path: Path, reporter: TerminalReporter
) -> None:
    folder = build(base, tmp_path / "x", st.Pooling(12, ("max", "mean")))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "a b c\tx\nc c\ty\nb a b\tx\nc a\ty\n")
    task = TaskSettings("classification", train=(f"{tmp_path}/train.tsv",), dev=(f"{tmp_path}/dev.tsv",))
    settings = ProbeSettings(
        tmp_path / "run", task, str(folder), representations=("last",), seeds=(0,), epochs=1,
        device=CPU,
    )  # fmt: skip
    probe(settings, reporter)
    stored = np.load(tmp_path / "run/features/train/layer-02.npy").astype(np.float32)
    tokens = SentenceTransformer(str(folder), device="cpu").encode(["a b c", "c c", "b a b", "c a"])
    np.testing.assert_allclose(stored, tokens, atol=2e-3)
    printed = " ".join(read_output(reporter).split())
    assert "max, mean pooling (as its modules.json says; --pooling overrides it)" in printed
