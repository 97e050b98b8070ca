"""Parity of RoBERTa, XLM-R and CamemBERT with `transformers`: states, logits of every head, gradients, folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from converted import distance, randomize_reference
from safetensors.torch import load_file, save_file
from test_task_heads import CASES, IGNORED, Case, Given, add_targets, check_equal, their_logits
from torch import Tensor

import bertwright
from bertwright.interop.head_config import HEAD_CLASSES, MULTI_LABEL, HeadRecord
from bertwright.interop.huggingface import file_names, load_task_model, start_task_model, write_task_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.roberta.roberta_objective import RobertaMaskedLM
from bertwright.tasks.encoded import Encoded
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from trained_tokenizers import SENTENCES, write_tokenizer

SIZES = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50,
    "max_position_embeddings": 50, "type_vocab_size": 1, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5,
}  # fmt: skip
FAMILIES = {"Roberta": "bytes", "XLMRoberta": "unigram", "Camembert": "unigram"}  # class prefix → kind of tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a class prefix, and a folder with a tokenizer."""
    kind = FAMILIES[request.param]
    return request.param, write_tokenizer(tmp_path_factory.mktemp("tokenizer"), kind)


def make_reference(prefix: str, suffix: str, tokenizer: Path, **changes: Any) -> Any:
    config_class = getattr(transformers, f"{prefix}Config")
    config = config_class(
        vocab_size=open_tokenizer(tokenizer).vocab_size, **(SIZES | changes), attn_implementation="eager"
    )
    return randomize_reference(getattr(transformers, prefix + suffix)(config))


def save(reference: Any, tokenizer: Path, folder: Path) -> Path:
    """Write a model of `transformers` with a tokenizer."""
    reference.save_pretrained(folder)
    for path in tokenizer.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def pad(encoded: Encoded, case: Case) -> Given:
    """Return their inputs for the same sequences and targets, and a mask of real tokens (S × longest)."""
    lengths = encoded.lengths
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.ones(real.shape, int)
    ids[real] = encoded.input_ids
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(int))}
    return add_targets(inputs, encoded, case), torch.from_numpy(real)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_loss_gradients_and_saved_folders_equal_transformers(family, case, tmp_path):
    prefix, tokenizer_folder = family
    kind = case.task.head.kind
    labels = {} if kind == "choice" else {"num_labels": case.task.head.outputs}
    labels |= {"problem_type": MULTI_LABEL} if case.task.is_multi_label else {}
    reference = make_reference(prefix, HEAD_CLASSES[kind].suffix, tokenizer_folder, **labels)
    model = load_task_model(save(reference, tokenizer_folder, tmp_path / "theirs")).train()
    tokenizer = open_tokenizer(tokenizer_folder)
    encoded = case.task.encode(case.examples, tokenizer)
    inputs, real = pad(encoded, case)
    check_equal(model, reference, encoded, case, (inputs, real), of_norm=1e-4)

    (tmp_path / "ours").mkdir()
    named = tuple("nmp"[: case.task.head.outputs]) if kind == "sequence" and case.task.head.outputs > 1 else ()
    named = case.task.labels if kind == "token" else named
    record = HeadRecord(case.task.head, named, not named and kind == "sequence", case.task.is_multi_label)
    write_task_model(tmp_path / "ours", model, tokenizer, record)
    opened = getattr(transformers, f"AutoModel{HEAD_CLASSES[kind].suffix}").from_pretrained(tmp_path / "ours")
    assert type(opened) is type(reference)
    with torch.no_grad():
        expected, found = (their_logits(one(**inputs), encoded, case, real) for one in (reference, opened))
    assert distance(found, expected) < 1e-5


def masked_batch(vocabulary: int) -> tuple[LanguageModelBatch, dict[str, Tensor], Tensor]:
    rng = np.random.default_rng(3)
    lengths = [17, 2, 40, 9, 33]
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    masked = real & (rng.random(real.shape) < 0.25)
    masked[0, 0] = True
    ids, targets = rng.integers(5, vocabulary, (2, *real.shape))
    ours = LanguageModelBatch(
        input=pack([row[keep] for row, keep in zip(ids, real, strict=True)]),
        mlm_positions=torch.from_numpy(masked[real].nonzero()[0]),
        mlm_labels=torch.from_numpy(targets[masked]),
        nsp_labels=torch.zeros(0, dtype=torch.int64),
        lm_count=int(masked.sum()),
        nsp_count=0,
    )
    theirs = {"input_ids": np.where(real, ids, 1), "attention_mask": real.astype(int)}
    theirs |= {"labels": np.where(masked, targets, IGNORED)}
    return ours, {name: torch.from_numpy(array) for name, array in theirs.items()}, torch.from_numpy(real)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_states_masked_logits_and_gradients_equal_transformers(family, activation, tmp_path):
    prefix, tokenizer_folder = family
    reference = make_reference(prefix, "ForMaskedLM", tokenizer_folder, hidden_act=activation)
    bert = bertwright.load(save(reference, tokenizer_folder, tmp_path / "theirs"))
    ours, theirs, real = masked_batch(bert.config.vocab_size)
    output = reference(**theirs, output_hidden_states=True)
    output.loss.backward()
    with torch.no_grad():
        states = bert.model.encoder.hidden_states(ours.input)
        logits = bert.model.token_logits(ours.input, ours.mlm_positions)
    for state, expected in zip(states, output.hidden_states, strict=True):
        assert distance(state, expected[real]) < 1e-5
    assert distance(logits, output.logits[theirs["labels"] != IGNORED]) < 1e-5
    found = RobertaMaskedLM().loss(bert.model.train(), ours)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(output.loss.item(), rel=1e-5)
    parameters, names = dict(reference.named_parameters(remove_duplicate=False)), file_names(bert.model)
    for name, parameter in bert.model.named_parameters():
        gradient = torch.cat([parameters[one].grad for one in names[name]])
        assert distance(parameter.grad, gradient) < 1e-4, name
    assert bert.config.num_parameters == bert.model.num_parameters == reference.num_parameters()

    bert.save(tmp_path / "ours")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(again) is type(reference)
    inputs = tokenizer(SENTENCES[0][:14], SENTENCES[10][:9], return_tensors="pt")
    with torch.no_grad():
        assert distance(again(**inputs).logits, reference.eval()(**inputs).logits) < 1e-5


def test_filled_masks_equal_transformers(family, tmp_path):
    prefix, tokenizer_folder = family
    folder = save(make_reference(prefix, "ForMaskedLM", tokenizer_folder).eval(), tokenizer_folder, tmp_path / "m")
    text = "The quick <mask> fox jumps over<mask> dog"
    found = bertwright.load(folder).fill_mask(text, top_k=4)
    pipeline = transformers.pipeline("fill-mask", str(folder), top_k=4)
    expected = [[one["score"] for one in of_mask] for of_mask in pipeline(text)]
    assert [[one.probability for one in of_mask] for of_mask in found.masks] == [
        pytest.approx(row, rel=1e-4) for row in expected
    ]
    assert not any(mark in found.text for mark in ("▁", "Ġ", "<mask>"))


ODDITIES = ["no prefix", "position_ids", "decoder", "decoder alone", "gamma and beta", "pooler"]


@pytest.mark.parametrize("oddity", ODDITIES)
def test_released_folders_with_oddities_give_the_same_logits(tmp_path, oddity):
    tokenizer = write_tokenizer(tmp_path / "tokenizer", "bytes")
    folder = save(make_reference("Roberta", "ForMaskedLM", tokenizer), tokenizer, tmp_path / "m")
    expected = bertwright.load(folder).fill_mask("The <mask> fox")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    words = "roberta.embeddings.word_embeddings.weight"
    if oddity == "no prefix":
        tensors = {name.removeprefix("roberta."): tensor for name, tensor in tensors.items()}
    elif oddity == "position_ids":
        tensors["roberta.embeddings.position_ids"] = torch.arange(50)[None]
    elif oddity.startswith("decoder"):
        tensors |= {
            "lm_head.decoder.weight": tensors[words].clone(),
            "lm_head.decoder.bias": tensors.pop("lm_head.bias"),
        }
        if oddity == "decoder alone":
            del tensors[words]
    elif oddity == "gamma and beta":
        renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in renamed.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    else:
        tensors |= {"roberta.pooler.dense.weight": torch.ones(36, 36), "roberta.pooler.dense.bias": torch.ones(36)}
    save_file(tensors, path, metadata={"format": "pt"})
    assert bertwright.load(folder).fill_mask("The <mask> fox") == expected


def test_an_untied_decoder_and_too_few_positions_are_refused(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer", "bytes")
    folder = save(make_reference("Roberta", "ForMaskedLM", tokenizer), tokenizer, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    shape = tensors["roberta.embeddings.word_embeddings.weight"].shape
    save_file(tensors | {"lm_head.decoder.weight": torch.ones(shape)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: lm_head\.decoder\.weight differs"):
        bertwright.load(folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"max_position_embeddings": 2}))
    with pytest.raises(ValueError, match=r"config\.json: max_position_embeddings: expected more than .* 2"):
        bertwright.load(folder)


def test_roberta_with_word_pieces_reads_pairs(tmp_path):
    """klue/roberta: RoBERTa's network with BERT's tokenizer, whose layout has types that the model does not read."""
    words = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "여우", "##가", "개", "##를"]
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    reference = make_reference("Roberta", "ForSequenceClassification", tokenizer, num_labels=3).eval()
    folder = save(reference, tokenizer, tmp_path / "m")
    bert = bertwright.load(folder)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)("여우가", "개를", return_tensors="pt")
    with torch.no_grad():
        expected = reference(inputs["input_ids"]).logits.softmax(-1)[0].tolist()
    found = bert.classify(("여우가", "개를"))
    assert [found.probabilities[f"LABEL_{n}"] for n in range(3)] == pytest.approx(expected, rel=1e-5)


def test_a_new_head_starts_from_masked_lm_weights(family, tmp_path):
    prefix, tokenizer_folder = family
    reference = make_reference(prefix, "ForMaskedLM", tokenizer_folder)
    folder = save(reference, tokenizer_folder, tmp_path / "m")
    started = start_task_model(folder, HeadSpec("sequence", 3), seed=1)
    assert set(started.missing_heads) == {"pooler", "classifier"}  # pooler: the dense layer of the head
    assert set(started.unexpected_keys) == {name for name in reference.state_dict() if name.startswith("lm_head")} - {
        "lm_head.decoder.weight", "lm_head.decoder.bias"
    }  # fmt: skip
    assert start_task_model(folder, HeadSpec("choice", 1), seed=1).missing_heads == ("pooler", "classifier")
