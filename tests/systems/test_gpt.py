"""GPT: parity with `transformers`, causality, the cache of keys and values, folders both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    OpenAIGPTConfig,
    OpenAIGPTDoubleHeadsModel,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
)

import bertwright
from bertwright.base.files import read_json, write_json
from bertwright.interop.huggingface import load_model, load_task_model, save_model, start_task_model
from bertwright.interop.model_files import CONFIG
from bertwright.models.head_spec import HeadSpec
from bertwright.models.packing import pack
from bertwright.systems.gpt.gpt import CachedGpt, GptConfig, GptEncoder, GptLanguageModel
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from harness import randomize

TOKENS = ["<pad>", "<unk>", "_start_", "_delimiter_", "_classify_", *"abcdefgh", *(f"{c}</w>" for c in "abcdefgh")]
TOKENIZER = BytePairTokenizer({token: number for number, token in enumerate(TOKENS)}, [], "test")
CONFIG_VALUES = GptConfig(len(TOKENS), 32, 2, 4, 128, 24)
SEQUENCES = [np.array([5, 7, 9, 11, 6]), np.array([8, 8, 12]), np.array([20, 6, 5, 9, 13, 14, 15])]


def their_config(**changes: object) -> OpenAIGPTConfig:
    return OpenAIGPTConfig(
        vocab_size=len(TOKENS), n_positions=24, n_embd=32, n_layer=2, n_head=4, pad_token_id=0, **changes
    )


def random_model() -> GptLanguageModel:
    """Return a model whose biases and norms are random, too."""
    return randomize(GptLanguageModel(CONFIG_VALUES, seed=3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt") / "model"
    save_model(path, random_model(), TOKENIZER)
    return path


def test_logits_and_gradients_equal_transformers(folder: Path) -> None:
    ours, theirs = load_model(folder).model, OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    assert isinstance(ours, GptLanguageModel)
    batch = pack(SEQUENCES)
    logits = ours(batch)
    expected = torch.cat([theirs(torch.from_numpy(ids)[None]).logits[0] for ids in SEQUENCES])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)

    follows = (batch.packing.position_ids[1:] > 0).nonzero()[:, 0]
    labels = batch.input_ids[1:][follows]
    loss, correct = ours.encoder.next_token_loss(ours.encoder(batch, follows), labels, 1 / len(labels))
    their_loss = F.cross_entropy(expected[follows], labels)
    assert loss.item() == pytest.approx(their_loss.item(), rel=1e-5)
    assert correct == (expected[follows].argmax(1) == labels).sum()
    loss.backward()
    their_loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.transformer.named_parameters()}
    for number, layer in enumerate(ours.encoder.layers):
        for ours_name, theirs_name in (("qkv", "attn.c_attn"), ("output", "mlp.c_proj"), ("attention_norm", "ln_1")):
            for kind in ("weight", "bias"):
                expected_gradient = gradients[f"h.{number}.{theirs_name}.{kind}"]
                found = layer.get_parameter(f"{ours_name}.{kind}").grad
                torch.testing.assert_close(found, expected_gradient.T if found.ndim == 2 else expected_gradient)
    for ours_name, theirs_name in (("word", "tokens_embed"), ("position", "positions_embed")):
        found = ours.encoder.get_parameter(f"embeddings.{ours_name}.weight").grad
        torch.testing.assert_close(found, gradients[f"{theirs_name}.weight"], atol=1e-6, rtol=1e-5)


def test_folders_of_transformers_are_read_with_or_without_a_language_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    theirs = OpenAIGPTLMHeadModel(their_config()).eval()
    batch = pack(SEQUENCES[:1])
    expected = theirs(torch.from_numpy(SEQUENCES[0])[None]).logits[0]
    for name, model in (("whole", theirs), ("bare", theirs.transformer)):
        model.save_pretrained(tmp_path / name)
        ours = load_model(tmp_path / name).model
        assert isinstance(ours, GptLanguageModel)
        torch.testing.assert_close(ours(batch), expected, atol=1e-5, rtol=1e-5)


def test_classifier_equals_transformers(tmp_path: Path) -> None:
    torch.manual_seed(2)
    theirs = OpenAIGPTForSequenceClassification(their_config(num_labels=3)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_task_model(tmp_path / "theirs")
    assert ours.head.spec == HeadSpec("sequence", 3)
    states = ours.encoder(pack(SEQUENCES), ours.encoder.pooled_positions(pack(SEQUENCES).packing))
    expected = torch.cat([theirs(torch.from_numpy(ids)[None]).logits for ids in SEQUENCES])
    torch.testing.assert_close(ours.head.classifier(states), expected, atol=1e-5, rtol=1e-5)


def test_choice_of_double_heads_equals_a_linear_layer_on_the_last_state(folder: Path) -> None:
    theirs = OpenAIGPTDoubleHeadsModel.from_pretrained(folder).eval()
    ours = start_task_model(folder, HeadSpec("choice", 1), seed=0).model.eval()
    head = theirs.multiple_choice_head.summary
    ours.head.classifier.load_state_dict(head.state_dict())
    ids = torch.tensor([[5, 7, 9], [8, 8, 12]])
    expected = theirs(ids[None], mc_token_ids=torch.tensor([[2, 2]])).mc_logits[0]
    states = ours.encoder(pack(list(ids.numpy())), torch.tensor([2, 5]))
    torch.testing.assert_close(ours.head.classifier(states)[:, 0], expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.data())
def test_changing_a_token_never_changes_an_earlier_state(length: int, data: st.DataObject) -> None:
    encoder = GptEncoder(CONFIG_VALUES, seed=1).eval()
    ids = np.array(data.draw(st.lists(st.integers(0, 20), min_size=length, max_size=length)))
    changed, at = ids.copy(), data.draw(st.integers(1, length - 1))
    changed[at] = (ids[at] + 1) % 21
    before, after = encoder(pack([ids])), encoder(pack([changed]))
    assert torch.equal(before[:at], after[:at])
    assert not torch.equal(before[at:], after[at:])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_reading_in_parts_gives_the_states_of_reading_at_once(data: st.DataObject) -> None:
    model = random_model()
    cached, texts = CachedGpt(model.encoder), []
    for step in range(3):
        parents = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4)) if step else None
        rows = 3 if parents is None else len(parents)
        new = [data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=5)) for _ in range(rows)]
        texts = [(texts[parents[n]] if parents else []) + row for n, row in enumerate(new)]
        states = cached.extend(new, parents)
        batch = pack([np.array(text) for text in texts])
        expected = model.encoder(batch, batch.packing.last_positions)
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_parameters_and_operations_are_counted() -> None:
    assert random_model().num_parameters == CONFIG_VALUES.num_parameters
    assert GptConfig(40_478).num_parameters == sum(
        p.numel() for p in OpenAIGPTLMHeadModel(OpenAIGPTConfig()).parameters()
    )
    bert_like = 2 * 32 * 32 + 2 * 32 * len(TOKENS)  # of BERT's masked-LM head, for each prediction
    flops = CONFIG_VALUES.count_forward_flops([5], 1) - CONFIG_VALUES.count_forward_flops([5], 0)
    assert flops == bert_like - 2 * 32 * 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"afn": "relu"}, ("afn", "'gelu'", "'relu'")),
        ({"embd_pdrop": 0.5}, ("embd_pdrop", "0.5")),
        ({"n_head": 5}, ("num_heads", "5")),
        ({"n_embd": "32"}, ("n_embd", "'32'")),
        ({"n_layer": 3}, ("n_layer", "3", "2")),
        ({"vocab_size": 99}, ("vocab_size", "99")),
    ],
)
def test_unsupported_configurations_are_named(
    folder: Path, tmp_path: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    save_model(tmp_path / "model", random_model(), TOKENIZER)
    (tmp_path / "model" / "checksums.json").unlink()
    write_json(tmp_path / "model" / CONFIG, read_json(folder / CONFIG) | changes)
    with pytest.raises(ValueError, match="expected") as error:
        load_model(tmp_path / "model")
    assert all(word in str(error.value) for word in words)


def test_openais_vocabulary_gets_vectors_for_start_delimiter_and_extract(tmp_path: Path) -> None:
    torch.manual_seed(3)
    theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=8, n_positions=24, n_embd=32, n_layer=1, n_head=4)).eval()
    theirs.save_pretrained(tmp_path)
    write_json(
        tmp_path / "vocab.json",
        {token: n for n, token in enumerate(["<unk>", *"abc", *(f"{c}</w>" for c in "abc"), "ab</w>"])},
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    write_json(tmp_path / CONFIG, read_json(tmp_path / CONFIG) | {"initializer_range": None})  # its default holds
    bert = bertwright.load(tmp_path, "cpu")
    assert bert.tokenizer.layout[:3] == (8, 9, 10)
    assert bert.config.vocab_size == 11
    assert isinstance(bert.model, GptLanguageModel)
    expected = theirs(torch.tensor([[7, 3]])).logits[0]
    torch.testing.assert_close(bert.model(pack([np.array([7, 3])]))[:, :8], expected, atol=1e-5, rtol=1e-5)
    assert bert.embed("ab c").shape == (32,)
    bert.save(tmp_path / "saved")
    assert torch.equal(
        bertwright.load(tmp_path / "saved", "cpu").model(pack([np.array([8])])), bert.model(pack([np.array([8])]))
    )
