"""DistilBERT, ELECTRA and ALBERT: parity with `transformers` from random weights, and their folders both ways."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import (
    FAMILIES,
    HEADS,
    SEQUENCES,
    TYPES,
    Family,
    check_equal_states,
    check_head,
    check_states,
    save,
    task_batch,
    their_logits,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

import bertwright
from bertwright.base.files import read_json, write_json
from bertwright.interop.huggingface import load_model, load_task_model, read_config, save_model, start_task_model
from bertwright.interop.model_files import CONFIG, WEIGHTS
from bertwright.models.head_spec import HeadSpec
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
from bertwright.systems.electra.electra import ElectraDiscriminator
from bertwright.training.layer_rates import layerwise_lr_scales
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

WORDS = [
    *SPECIAL_TOKENS,
    *"the a bear deer sees hears in forest river . , was old new small tall red blue and or".split(),
]
TOKENIZER = Tokenizer.from_tokens([*WORDS, *(f"##{n}" for n in range(30 - len(WORDS)))], lowercase=True)
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
each_system = pytest.mark.parametrize("name", ["distilbert", "electra", "albert", "mpnet", "modernbert"])


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the tensors of a folder."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


# ---- Parity


@each_family
def test_states_and_predictions_equal_transformers(family: Family, tmp_path: Path) -> None:
    check_states(family, tmp_path / "theirs")


@pytest.mark.parametrize("suffix", HEADS)
@each_family
def test_logits_and_gradients_of_a_task_equal_transformers(family: Family, suffix: str, tmp_path: Path) -> None:
    check_head(family, suffix, tmp_path / "theirs")


def test_discriminator_equals_transformers(tmp_path: Path) -> None:
    family = FAMILIES["electra"]
    theirs: Any = family.build("ForPreTraining")
    ours = load_model(save(theirs, tmp_path / "theirs")).model
    assert isinstance(ours, ElectraDiscriminator)
    expected = torch.cat([theirs(**family.inputs(n)).logits[0] for n in range(len(SEQUENCES))])
    found = ours.replaced_token(ours.encoder(pack(SEQUENCES, TYPES)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        Family("DistilBert", {}, reads_segments=False),
        Family("Electra", {}),  # ELECTRA-Small
        Family("MPNet", {}, reads_segments=False),
        Family("Albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    ],
    ids=["distilbert", "electra", "mpnet", "albert"],
)
def test_real_shape_equals_transformers(family: Family, tmp_path: Path) -> None:
    check_states(family, tmp_path / "theirs")
    check_head(family, "SequenceClassification", tmp_path / "classifier")


# ---- Fine-tuning


def train(model: torch.nn.Module, compute_logits: Callable[[], Tensor], steps: int) -> list[float]:
    """Return the losses of steps of AdamW on one batch with three labels."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-4), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(compute_logits(), torch.tensor([0, 1, 2]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("steps", [30, pytest.param(200, marks=pytest.mark.slow)])
@each_system
def test_losses_of_a_fine_tuning_equal_transformers(name: str, steps: int, tmp_path: Path) -> None:
    family = FAMILIES[name]
    theirs = family.build("ForSequenceClassification", num_labels=3)
    ours = load_task_model(save(theirs, tmp_path / "theirs"))
    batch = task_batch(ours)
    found = train(ours, lambda: ours(batch), steps)
    expected = train(theirs, lambda: their_logits(family, theirs, "SequenceClassification"), steps)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[-1] < found[0]


# ---- Folders


@each_family
def test_our_folder_opens_in_transformers_with_the_same_outputs(family: Family, tmp_path: Path) -> None:
    theirs: Any = family.build(family.masked_lm)
    ours = load_model(save(theirs, tmp_path / "theirs"), heads="optional")
    save_model(tmp_path / "ours", ours.model, TOKENIZER, ours.missing_heads)
    again: Any = getattr(transformers, family.prefix + family.masked_lm).from_pretrained(tmp_path / "ours").eval()
    assert isinstance(ours.model, MaskedLanguageModel)
    check_equal_states(family, ours.model, again)
    assert again.state_dict().keys() == theirs.state_dict().keys()
    ours_written, given = again.config.to_dict(), theirs.config.to_dict()
    ignored = {
        "hidden_act",
        "hidden_activation",
        "_name_or_path",
        "architectures",
    }  # one formula has three names; a class with all heads
    assert {name: ours_written[name] for name in given.keys() - ignored if ours_written[name] != given[name]} == {}


@pytest.mark.parametrize("suffix", HEADS)
@each_system
def test_our_task_folder_opens_in_transformers(name: str, suffix: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    labels = {} if suffix in ("QuestionAnswering", "MultipleChoice") else {"num_labels": 3}
    theirs = family.build(f"For{suffix}", **labels)
    TOKENIZER.save(save(theirs, tmp_path / "theirs"), max_length=24)
    bertwright.load(tmp_path / "theirs").save(tmp_path / "ours")
    again = getattr(transformers, f"{family.prefix}For{suffix}").from_pretrained(tmp_path / "ours")
    found, expected = again.state_dict(), theirs.state_dict()
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@each_family
def test_names_of_a_bare_encoder_and_of_old_versions_are_read(family: Family, tmp_path: Path) -> None:
    whole: Any = family.build(family.masked_lm)
    bare = getattr(whole, whole.base_model_prefix)
    expected = load_model(save(whole, tmp_path / "whole"), heads="optional").model

    def age(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors as the first versions of transformers named them, with a buffer of positions."""

        def rename(name: str) -> str:
            is_norm = "norm" in name.lower()
            return name.replace("weight", "gamma").replace("bias", "beta") if is_norm else name

        return {"embeddings.position_ids": torch.arange(24)[None]} | {rename(n): t for n, t in tensors.items()}

    rewrite(save(bare, tmp_path / "bare"), age)
    found = load_model(tmp_path / "bare", heads="optional").model
    for ours, theirs in zip(found.encoder.parameters(), expected.encoder.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@each_family
def test_a_decoder_in_the_file_must_equal_the_words(family: Family, tmp_path: Path) -> None:
    theirs: Any = family.build(family.masked_lm)
    folder = save(theirs, tmp_path / "theirs")
    decoder = read_config(folder).architecture.NAMES.decoder  # type: ignore[attr-defined]
    words = theirs.get_input_embeddings().weight.detach()
    rewrite(folder, lambda tensors: tensors | {f"{decoder}.weight": words.clone()})
    load_model(folder, heads="optional")
    rewrite(folder, lambda tensors: tensors | {f"{decoder}.weight": words + 1})
    with pytest.raises(ValueError, match=rf"{decoder}\.weight differs"):
        load_model(folder, heads="optional")


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("electra", "summary_type", "mean", "summary_type: expected 'first', got 'mean'"),
        ("electra", "embedding_size", 17, "embedding_size: expected 17 as in config.json, got 16"),
        ("albert", "inner_group_num", 2, "inner_group_num: expected 1, got 2"),
        ("albert", "num_hidden_groups", 9, "num_groups = 9: expected at most num_layers = 4"),
        ("albert", "num_hidden_groups", 3, "num_hidden_groups: expected 3 as in config.json, got 2"),
        ("distilbert", "dim", 33, "hidden_size = 33: expected a multiple of num_heads"),
        ("distilbert", "n_layers", 3, "n_layers: expected 3 as in config.json, got 2"),
    ],
)
def test_configuration_that_does_not_fit_is_rejected(
    name: str, field: str, value: Any, message: str, tmp_path: Path
) -> None:
    folder = save(FAMILIES[name].build("Model"), tmp_path / "theirs")
    write_json(folder / CONFIG, read_json(folder / CONFIG) | {field: value})
    with pytest.raises(ValueError, match=message):
        load_model(folder, heads="optional")


@each_system
def test_a_folder_of_sentence_transformers_gives_its_vectors(name: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    TOKENIZER.save(save(FAMILIES[name].build("Model"), tmp_path / "encoder"), max_length=24)
    transformer = Transformer(str(tmp_path / "encoder"), max_seq_length=16)
    theirs = SentenceTransformer(modules=[transformer, Pooling(32, "mean"), Normalize()], device="cpu")
    theirs.save(str(tmp_path / "sentences"))
    texts = ["the old bear sees the river .", "a deer", "the bear , the deer and the small forest hears a tall river"]
    found = bertwright.load(tmp_path / "sentences").embed(texts)
    np.testing.assert_allclose(found, theirs.encode(texts), atol=1e-5)


def test_mpnet_opens_as_it_was_released(tmp_path: Path) -> None:
    """The vocabulary of all-mpnet-base-v2 is BERT's with five more tokens, which alone are its special ones."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    others = ["<s>", "<pad>", "</s>", "<unk>"]
    ids = {word: number for number, word in enumerate([*others, *TOKENIZER.tokens, "<mask>"])}
    family = FAMILIES["mpnet"]
    save(family.build("Model", vocab_size=len(ids)), tmp_path / "encoder")
    transformers.MPNetTokenizer(ids, unk_token="[UNK]").save_pretrained(tmp_path / "encoder")
    (tmp_path / "encoder" / "vocab.txt").write_text("\n".join(ids) + "\n")
    transformer = Transformer(str(tmp_path / "encoder"), max_seq_length=16)
    theirs = SentenceTransformer(modules=[transformer, Pooling(32, "mean"), Normalize()], device="cpu")
    theirs.save(str(tmp_path / "sentences"))
    texts = ["The old bear sees the river.", "a <mask> hears", "nothing known [CLS]", ""]
    ours = bertwright.load(tmp_path / "sentences")
    np.testing.assert_allclose(ours.embed(texts), theirs.encode(texts), atol=1e-5)
    ours.save(tmp_path / "again")
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, theirs.encode(texts), atol=1e-5)


# ---- Shared layers


def test_a_shared_layer_counts_once_and_gets_the_sum_of_its_gradients(tmp_path: Path) -> None:
    folder = save(FAMILIES["albert"].build("Model"), tmp_path / "theirs")
    model = load_model(folder, heads="optional").model
    assert model.num_parameters == model.config.num_parameters
    names = [name for name, _ in model.named_parameters()]
    assert len([name for name in names if name.endswith("qkv.weight")]) == 2  # groups, of four layers

    # The sum over the gradients of four separate layers with the same weights.
    encoder: Any = model.encoder
    apart = load_model(folder, heads="optional", num_groups=2).model
    layers = apart.encoder.stack()
    for layer in layers:  # type: ignore[attr-defined]
        layer._modules = {name: deepcopy(module) for name, module in layer._modules.items()}
    apart.encoder.stack = lambda: layers  # type: ignore[method-assign,assignment]
    batch = pack(SEQUENCES, TYPES)
    for each in (encoder, apart.encoder):
        each(batch).square().sum().backward()
    for group in range(2):
        expected = sum(layer.qkv.weight.grad for layer in layers[2 * group : 2 * group + 2])
        torch.testing.assert_close(encoder.layers[group].qkv.weight.grad, expected)


def test_layers_of_a_group_have_dropout_masks_of_their_own(tmp_path: Path) -> None:
    folder = save(FAMILIES["albert"].build("Model"), tmp_path / "theirs")
    encoder: Any = load_model(folder, heads="optional").model.encoder
    assert [layer.first_site for layer in encoder.stack()] == [1, 4, 7, 10]


def test_shared_layers_have_the_rate_of_their_last_use(tmp_path: Path) -> None:
    folder = save(FAMILIES["albert"].build("Model"), tmp_path / "theirs")
    model = load_model(folder, heads="optional").model
    scales = layerwise_lr_scales(model, None, 0.5)
    by_name = {name: scales[name] for name in scales if name.endswith("qkv.weight")}
    assert list(by_name.values()) == [0.5**3, 0.5]  # groups end at layers 2 and 4 of 4; the head is above them


# ---- Dropout and size


@each_system
def test_all_dropouts_are_turned_off_together(name: str, tmp_path: Path) -> None:
    folder = save(FAMILIES[name].build("Model"), tmp_path / "theirs")
    for spec in (HeadSpec("sequence", 2), HeadSpec("choice", 1), HeadSpec("token", 3), HeadSpec("span", 2)):
        model = start_task_model(folder, spec, seed=1, dropout=0.0).model.train()
        batch = task_batch(model)
        assert torch.equal(model(batch), model.eval()(batch))
        trained = start_task_model(folder, spec, seed=1, dropout=0.3).model.train()
        assert spec.kind == "span" or not torch.equal(trained(batch), trained.eval()(batch))


@each_family
def test_parameters_are_counted(family: Family, tmp_path: Path) -> None:
    theirs = family.build(family.masked_lm)
    model = load_model(save(theirs, tmp_path / "theirs"), heads="optional").model
    assert model.config.num_parameters == model.num_parameters


@each_system
def test_a_task_model_loads_as_its_own_kind(name: str, tmp_path: Path) -> None:
    folder = save(FAMILIES[name].build("ForTokenClassification", num_labels=3), tmp_path / "theirs")
    assert load_task_model(folder).head.spec == HeadSpec("token", 3)
