"""Model folders written for and read from `transformers`, and folders that are damaged or not supported."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertwright
from bertwright.interop.huggingface import load_config, load_model, save_model, to_hf_weights
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_folder import NAMES
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from harness import edit_config, randomize, same_parameters

TOKENS = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghij"), "the", "cat"]
CONFIG = BertConfig(
    vocab_size=len(TOKENS), hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_positions=32
)
BATCH = pack([np.arange(2, 13), np.arange(20, 27)])
PADDED = {
    "input_ids": torch.tensor([[*range(2, 13)], [*range(20, 27), 0, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1] * 11, [1] * 7 + [0] * 4]),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_tokens(TOKENS, lowercase=True)


def random_model(**changes: object) -> BertForPretraining:
    """Return a model without a parameter that is 0 or 1: a lost or swapped one would not show."""
    return randomize(BertForPretraining(BertConfig(**(vars(CONFIG) | changes))))


@pytest.fixture
def folder(tmp_path, tokenizer) -> Path:
    """Return a folder without checksums, so that tests can change its files."""
    save_model(tmp_path / "model", random_model(), tokenizer)
    (tmp_path / "model/checksums.json").unlink()
    return tmp_path / "model"


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


# ---- Write and read


def test_saved_model_loads_bit_equal(tmp_path, tokenizer):
    save_model(tmp_path / "m", random_model(), tokenizer)
    loaded = load_model(tmp_path / "m")
    assert loaded.missing_heads == loaded.unexpected_keys == ()
    assert same_parameters(loaded.model, random_model())
    assert loaded.model.config == CONFIG
    assert not loaded.model.training


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("causal", [False, True])
def test_transformers_loads_our_folder_completely_and_computes_the_same(tmp_path, tokenizer, activation, causal):
    model = random_model(activation=activation, is_causal=causal)
    save_model(tmp_path / "m", model, tokenizer)
    theirs, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        expected = theirs.eval()(**PADDED)
        ours = model(BATCH, torch.arange(18))
    real = PADDED["attention_mask"].bool()
    torch.testing.assert_close(ours.tokens, expected.prediction_logits[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.next_sentence, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "AutoModel", "AutoModelForMaskedLM"])
def test_other_classes_of_transformers_miss_no_parameter(folder, name):
    _, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]


def test_tokenizer_of_transformers_loads_our_folder(folder, tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs("The cat aCb").input_ids == tokenizer.encode("The cat aCb").ids.tolist()


ARCHITECTURES = {
    "BertForPreTraining": (),
    "BertForMaskedLM": ("pooler", "next_sentence"),
    "BertForNextSentencePrediction": ("masked_token",),
    "BertModel": ("masked_token", "next_sentence"),
    "BertForSequenceClassification": ("masked_token", "next_sentence"),
    "BertForTokenClassification": ("pooler", "masked_token", "next_sentence"),
    "BertForQuestionAnswering": ("pooler", "masked_token", "next_sentence"),
}


@pytest.mark.parametrize(("name", "missing"), ARCHITECTURES.items())
def test_every_class_of_transformers_loads(tmp_path, folder, name, missing):
    theirs = getattr(transformers, name).from_pretrained(folder).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs", heads="optional")
    assert loaded.missing_heads == missing
    save_model(tmp_path / "again", loaded.model, Tokenizer.load(folder), loaded.missing_heads)
    assert load_model(tmp_path / "again", heads="optional").missing_heads == missing
    bare = getattr(theirs, "bert", theirs)
    with torch.no_grad():
        states = bare(**PADDED).last_hidden_state[PADDED["attention_mask"].bool()]
        torch.testing.assert_close(loaded.model.encoder(BATCH), states, rtol=1e-5, atol=1e-5)
    assert all(torch.isfinite(parameter).all() for parameter in loaded.model.parameters())
    if missing:
        with pytest.raises(ValueError, match=f"expected a model of pre-training.* lacks {', '.join(missing)}"):
            load_model(tmp_path / "theirs")


def test_heads_of_another_task_are_reported(tmp_path, folder):
    transformers.BertForTokenClassification.from_pretrained(folder).save_pretrained(tmp_path / "tagger")
    assert load_model(tmp_path / "tagger", "optional").unexpected_keys == ("classifier.bias", "classifier.weight")


def test_older_names_buffers_and_copies_of_the_decoder_load(folder):
    def age(tensors):
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        return tensors | {"bert.embeddings.position_ids": torch.arange(32)[None]}

    rewrite(folder, age)
    assert same_parameters(load_model(folder).model, random_model())


def test_shards_load(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, names_in_file in shards.items():
        save_file({name: tensors[name] for name in names_in_file}, folder / file)
    weight_map = {name: file for file, names_in_file in shards.items() for name in names_in_file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert same_parameters(load_model(folder).model, random_model())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors: missing"):
        load_model(folder)


def test_half_precision_loads_as_float32(folder):
    rewrite(folder, lambda tensors: {name: tensor.half() for name, tensor in tensors.items()})
    model = load_model(folder).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weight_names_are_reversible():
    names = [name for ours, _ in random_model().named_parameters() for name in NAMES.of(ours)]
    assert len(set(names)) == len(names)
    assert set(names) == set(to_hf_weights(random_model()))


def test_parameter_names_of_bert_base_are_those_of_transformers():
    with torch.device("meta"):
        theirs = transformers.BertForPreTraining(transformers.BertConfig())
        ours = BertForPretraining(BertConfig.from_size("base", vocab_size=30_522))
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    known = {name for mine, _ in ours.named_parameters() for name in NAMES.of(mine)}
    assert known == {name for name, _ in theirs.named_parameters(remove_duplicate=False)} - tied


# ---- Misuse


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", "t5", "model_type.*bert.*'t5'"),
        ("position_embedding_type", "relative_key", "position_embedding_type.*'absolute'.*'relative_key'"),
        ("add_cross_attention", True, "add_cross_attention.*False.*True"),
        ("hidden_act", "silu", "activation: expected one of gelu, gelu_tanh, relu, got 'silu'"),
        ("hidden_size", "big", "hidden_size.*int.*'big'"),
        ("num_attention_heads", 7, "hidden_size = 24.*num_heads = 7"),
        ("num_hidden_layers", True, "num_hidden_layers.*int.*True"),
    ],
)
def test_unsupported_configuration_is_rejected(folder, field, value, message):
    edit_config(folder, **{field: value})
    with pytest.raises(ValueError, match=f"config.json: {message}"):
        load_config(folder)


def test_missing_unexpected_and_misshapen_parameters_are_named(folder):
    original = load_file(folder / "model.safetensors")
    key = "bert.encoder.layer.1.attention.self.key.weight"
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != key})
    with pytest.raises(ValueError, match=f"model.safetensors: 1 parameter is missing: {key}"):
        load_model(folder, "optional")
    save_file(original | {"bert.extra": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 parameter is unexpected: bert\.extra"):
        load_model(folder, "optional")
    save_file(original | {"bert.pooler.dense.bias": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"shape: bert\.pooler\.dense\.bias \(3,\) instead of \(24,\)"):
        load_model(folder, "optional")
    save_file(original, folder / "model.safetensors")
    key = "bert.encoder.layer.1.intermediate.dense.weight"
    save_file(original | {key: torch.zeros(41, 24), f"{key}s": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 parameter is unexpected: bert\.encoder\.layer\.1.*\.weights"):
        load_model(folder)
    save_file(original | {key: torch.zeros(41, 24)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"shape: bert\.encoder.*weight \(41, 24\) instead of \(40, 24\)"):
        load_model(folder)


@pytest.mark.parametrize("value", [1, 48, 10**9, 10**30])
@pytest.mark.parametrize(
    ("field", "size"),
    [
        ("vocab_size", 43),
        ("hidden_size", 24),
        ("num_hidden_layers", 2),
        ("intermediate_size", 40),
        ("max_position_embeddings", 32),
        ("type_vocab_size", 2),
    ],
)
def test_sizes_that_differ_from_the_weights_are_rejected_before_a_model_is_built(folder, field, size, value):
    edit_config(folder, **{field: value} | ({"num_attention_heads": 1} if field == "hidden_size" else {}))
    message = rf"model\.safetensors: {field}: expected {value}.*got {size}"
    with pytest.raises(ValueError, match=message):
        load_model(folder, "optional")


def test_weights_of_another_model_are_rejected(folder):
    edit_config(folder, num_hidden_layers=10**9)
    save_file({"layers.0.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: 4 parameters are missing: bert\.embeddings"):
        load_model(folder, "optional")


def test_incomplete_head_is_rejected(folder):
    rewrite(folder, lambda tensors: {n: t for n, t in tensors.items() if n != "cls.predictions.bias"})
    with pytest.raises(ValueError, match=r"missing: cls\.predictions\.bias"):
        load_model(folder, "optional")


def test_quantized_weights_are_rejected(folder):
    rewrite(folder, lambda tensors: tensors | {"bert.pooler.dense.bias": torch.zeros(24, dtype=torch.int8)})
    with pytest.raises(ValueError, match=r"bert\.pooler\.dense\.bias torch\.int8"):
        load_model(folder)


def test_query_key_and_value_shapes_are_checked_one_by_one(folder):
    """Concatenated they would have the right shape."""
    name = "bert.encoder.layer.0.attention.self.{}.bias"
    rewrite(folder, lambda t: t | {name.format("query"): torch.zeros(23), name.format("key"): torch.zeros(25)})
    with pytest.raises(ValueError, match=r"self\.query\.bias \(23,\) instead of \(24,\)"):
        load_model(folder)


def test_untied_decoder_is_rejected(folder):
    rewrite(folder, lambda tensors: tensors | {"cls.predictions.decoder.weight": torch.zeros(len(TOKENS), 24)})
    with pytest.raises(ValueError, match=r"decoder\.weight differs"):
        load_model(folder)


def test_missing_decoder_of_an_untied_folder_is_rejected(folder):
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"cls\.predictions\.decoder\.weight is missing.*config\.json"):
        load_model(folder)
    words = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    rewrite(folder, lambda tensors: tensors | {"cls.predictions.decoder.weight": words.clone()})
    assert not load_model(folder).missing_heads  # its values are tied, although config.json denies it
    rewrite(folder, lambda tensors: {name: t for name, t in tensors.items() if not name.startswith("cls.")})
    assert load_model(folder, "optional").missing_heads == ("masked_token", "next_sentence")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights_are_rejected(folder, share):
    path = folder / "model.safetensors"
    original = path.read_bytes()
    path.write_bytes(original[: int(len(original) * share)])
    with pytest.raises(ValueError, match=r"model\.safetensors: truncated, or not a safetensors file"):
        load_model(folder)


@pytest.mark.parametrize("name", ["plain", "it's", 'a "model"; $(echo x)', "'); import os; os.abort() #"])
def test_pickle_is_never_read_and_the_message_has_a_command_that_converts_it(folder, tmp_path, name):
    folder = folder.rename(tmp_path / name)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: .*pickle.*convert it once: python -c") as caught:
        load_model(folder)
    command = str(caught.value).partition("convert it once: ")[2]
    python, flag, code = shlex.split(command)  # as a shell reads it: one argument, whatever the folder's name is
    assert (python, flag) == ("python", "-c")
    exec(code, {})
    assert same_parameters(load_model(folder).model, random_model())


def test_a_hub_model_without_safetensors_has_a_command_that_downloads_and_converts(folder, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--acme--bert-ko/snapshots/abc123"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    tensors = load_file(snapshot / "model.safetensors")
    torch.save(tensors, tmp_path / "pickle")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"acme/bert-ko on the hub .*pytorch_model\.bin.*convert it once") as caught:
        load_model(snapshot)
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda *name, **at: asked.append((name, at)) or tmp_path / "pickle"
    )
    exec(shlex.split(str(caught.value).partition("convert it once: ")[2])[2], {})
    assert asked == [(("acme/bert-ko", "pytorch_model.bin"), {"revision": "abc123"})]
    assert same_parameters(load_model(snapshot).model, random_model())


@pytest.mark.parametrize(
    "wrap",
    [
        "module.{}".format,
        "_orig_mod.module.model.{}".format,
        "0.auto_model.{}".format,
        lambda name: "_fsdp_wrapped_module." + name.replace("layer.0.", "layer.0._fsdp_wrapped_module."),
    ],
)
def test_names_in_wrappers_are_read_as_the_unwrapped_ones(folder, wrap):
    rewrite(folder, lambda tensors: {wrap(name): tensor for name, tensor in tensors.items()})
    assert same_parameters(load_model(folder).model, random_model())


def test_a_prefix_before_some_names_only_is_not_removed(folder):
    rewrite(folder, lambda given: {f"module.{n}" if n.startswith("bert.") else n: t for n, t in given.items()})
    with pytest.raises(ValueError, match="missing: bert"):
        load_model(folder)


def test_a_trainers_checkpoint_has_a_command_that_converts_it(folder):
    tensors = load_file(folder / "model.safetensors")
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, folder / "epoch=3.ckpt")
    torch.save({"lr": 1.0}, folder / "optimizer.pt")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"epoch=3\.ckpt: .*convert it once: python -c") as caught:
        load_model(folder)
    exec(shlex.split(str(caught.value).partition("convert it once: ")[2])[2], {})
    assert same_parameters(load_model(folder).model, random_model())


@pytest.mark.parametrize(
    ("lacking", "added", "message"),
    [
        ("model.safetensors", "adapter_config.json", "a LoRA adapter of base, not a whole model.*merge_and_unload"),
        ("config.json", "adapter_config.json", "a LoRA adapter of base, not a whole model.*merge_and_unload"),
        ("model.safetensors", "onnx/model.onnx", r"no model\.safetensors, and onnx/model\.onnx is not read"),
        ("config.json", "bert.gguf", r"bert\.gguf is not read"),
        ("config.json", "checkpoint-5/config.json", "trainer's checkpoints .checkpoint-5.; name one"),
        ("model.safetensors", "trainer_state.json", "a trainer's checkpoint without its model"),
        ("config.json", "1_Pooling/config.json", "sentence-transformers without its BERT"),
        ("vocab.txt", "trainer_state.json", "a model without its tokenizer.*AutoTokenizer"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_named_with_a_way_out(folder, lacking, added, message):
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / lacking).unlink()
    (folder / added).parent.mkdir(exist_ok=True)
    (folder / added).write_text('{"peft_type": "LORA", "base_model_name_or_path": "base"}')
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        bertwright.load(folder)


def test_layers_that_are_not_computed_are_named(folder):
    rewrite(folder, lambda tensors: tensors | {"linear.weight": torch.ones(2, 24)})
    with pytest.warns(UserWarning, match=r"not computed: linear\.weight"):
        bertwright.load(folder)
    rewrite(folder, lambda tensors: tensors | {"bert.encoder.layer.0.lora_A.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"merge it .*: bert\.encoder\.layer\.0\.lora_A"):
        bertwright.load(folder)


def test_folder_without_a_model_is_rejected(tmp_path, folder):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        load_model(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json: .*got list"):
        load_config(folder)
    (folder / "config.json").write_text('{"vocab_size": 3,\n}')
    with pytest.raises(ValueError, match=r"config\.json, line 2: not valid JSON"):
        load_config(folder)


def test_save_model_never_overwrites_and_leaves_no_incomplete_folder(folder, tokenizer, monkeypatch):
    with pytest.raises(ValueError, match="already exists"):
        save_model(folder, random_model(), tokenizer)
    with pytest.raises(ValueError, match=r"other.*: .*42 tokens.*43"):
        save_model(folder.with_name("other"), random_model(vocab_size=42), tokenizer)
    monkeypatch.setattr("bertwright.interop.weights.save_file", full_disk)
    with pytest.raises(OSError, match=r"model\.safetensors: could not be written \(No space left on device"):
        save_model(folder.with_name("other"), random_model(), tokenizer)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert same_parameters(load_model(folder).model, random_model())


def full_disk(_tensors, path, metadata):
    from safetensors import SafetensorError

    Path(path).write_bytes(b"half")
    raise SafetensorError("No space left on device (os error 28)")
