"""The Transformer against `torch.nn.Transformer` with the same weights, and its properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.seeding import make_rng
from bertwright.models.initialization import sinusoidal_positions
from bertwright.models.packing import PairBatch, pack
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import smoothed_loss
from harness import randomize

CONFIG = TransformerConfig(50, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, dropout=0.0)
SOURCES, TARGETS = (5, 1, 9), (4, 7, 2)  # tokens


def make_model(seed: int = 0, **changes: float) -> Transformer:
    return randomize(Transformer(TransformerConfig(**{**vars(CONFIG), **changes}), seed=seed)).train()


def make_pairs(seed: int = 0) -> PairBatch:
    rng = make_rng(seed, 5)
    source, target = ([rng.integers(0, 50, n) for n in lengths] for lengths in (SOURCES, TARGETS))
    return PairBatch(pack(source), pack(target))


def copy_to_torch(model: Transformer) -> nn.Transformer:
    """Return PyTorch's Transformer with our weights, without its LayerNorm after the last layers (not in the paper)."""
    theirs = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, activation="relu", batch_first=True, norm_first=False)
    theirs.encoder.norm = theirs.decoder.norm = None
    ours, names = dict(model.named_parameters()), {}
    for side in ("encoder", "decoder"):
        for layer in range(2):
            self_attention = f"{side}_layers.{layer}.self_attention"
            names |= {f"{side}.layers.{layer}.self_attn.in_proj_": f"{self_attention}.qkv."}
            names |= {f"{side}.layers.{layer}.self_attn.out_proj.": f"{self_attention}.output."}
            names |= {f"{side}.layers.{layer}.norm1.": f"{self_attention}.norm."}
            names |= {f"{side}.layers.{layer}.linear1.": f"{side}_layers.{layer}.feed_forward.inner."}
            names |= {f"{side}.layers.{layer}.linear2.": f"{side}_layers.{layer}.feed_forward.output."}
            last = "norm3" if side == "decoder" else "norm2"
            names |= {f"{side}.layers.{layer}.{last}.": f"{side}_layers.{layer}.feed_forward.norm."}
    for layer in range(2):
        cross = f"decoder_layers.{layer}.cross_attention"
        names |= {f"decoder.layers.{layer}.multihead_attn.out_proj.": f"{cross}.output."}
        names |= {f"decoder.layers.{layer}.norm2.": f"{cross}.norm."}
    state = {f"{to}{leaf}": ours[f"{name}{leaf}"] for to, name in names.items() for leaf in ("weight", "bias")}
    for layer in range(2):
        for leaf in ("weight", "bias"):
            parts = [ours[f"decoder_layers.{layer}.cross_attention.{part}.{leaf}"] for part in ("q", "kv")]
            state[f"decoder.layers.{layer}.multihead_attn.in_proj_{leaf}"] = torch.cat(parts)
    theirs.load_state_dict({name: tensor.detach() for name, tensor in state.items()})
    return theirs


def pad(batch_lengths: tuple[int, ...], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Pad packed rows to B × longest; also return which positions are padding."""
    padded = nn.utils.rnn.pad_sequence([*rows.split(list(batch_lengths))], batch_first=True)
    lengths = torch.tensor(batch_lengths)
    return padded, torch.arange(padded.shape[1]) >= lengths[:, None]


def run_torch(theirs: nn.Transformer, words: Tensor, pairs: PairBatch) -> Tensor:
    """Compute the decoder's states with padding, T × H in the packed order."""
    embedded = []
    for side, lengths in ((pairs.source, SOURCES), (pairs.target, TARGETS)):
        positions = sinusoidal_positions(16, 32)[side.packing.position_ids]
        embedded.append(pad(lengths, F.embedding(side.input_ids, words) * 32**0.5 + positions))
    (source, source_padding), (target, target_padding) = embedded
    causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
    states = theirs(
        source, target, tgt_mask=causal, src_key_padding_mask=source_padding, tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=source_padding,
    )  # fmt: skip
    return states[~target_padding]


def test_outputs_and_gradients_equal_torchs_transformer() -> None:
    model, pairs = make_model().train(), make_pairs()
    theirs, words = copy_to_torch(model), model.words.weight.detach().clone().requires_grad_()
    expected = run_torch(theirs.train(), words, pairs)
    states = model(pairs)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    upstream = torch.randn(states.shape, generator=torch.Generator().manual_seed(2)) / len(states)
    (states * upstream).sum().backward()
    (expected * upstream).sum().backward()
    torch.testing.assert_close(model.words.weight.grad, words.grad, atol=1e-5, rtol=1e-5)
    ours, cross = model.encoder_layers[0].self_attention.qkv, model.decoder_layers[0].cross_attention.kv
    gradient = theirs.encoder.layers[0].self_attn.in_proj_weight.grad
    torch.testing.assert_close(ours.weight.grad, gradient, atol=1e-5, rtol=1e-5)
    gradient = theirs.decoder.layers[0].multihead_attn.in_proj_weight.grad[32:]
    torch.testing.assert_close(cross.weight.grad, gradient, atol=1e-5, rtol=1e-5)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_state_does_not_depend_on_later_target_tokens_nor_on_other_pairs() -> None:
    model, pairs = make_model().eval(), make_pairs()
    ids = pairs.target.input_ids.clone()
    ids[2] = (ids[2] + 1) % 50  # the third of four tokens of the first target
    changed = model(PairBatch(pairs.source, type(pairs.target)(pairs.target.packing, ids)))
    before = model(pairs)
    equal = (changed == before).all(1)
    assert equal.tolist() == [True, True, False, False] + [True] * 9
    sources = pairs.source.input_ids.split(list(SOURCES))
    alone = PairBatch(pack([sources[1].numpy()]), pack([pairs.target.input_ids[4:11].numpy()]))
    torch.testing.assert_close(model(alone), before[4:11], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_smoothed_loss_is_torchs_with_the_same_gradients(smoothing: float) -> None:
    model, pairs = make_model(), make_pairs()
    labels = torch.from_numpy(make_rng(3, 1).integers(0, 50, pairs.target.packing.num_tokens))
    loss = smoothed_loss(model, pairs, labels, smoothing, scale=1 / len(labels))
    loss.smoothed.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    logits = model.logits(model(pairs))
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    expected.backward()
    torch.testing.assert_close(loss.smoothed, expected)
    torch.testing.assert_close(loss.cross_entropy, F.cross_entropy(logits, labels))
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=2e-6, rtol=1e-4)


def test_dropout_acts_on_embeddings_and_outputs_with_a_mask_for_each_site() -> None:
    model, pairs = make_model(dropout=0.5).train(), make_pairs()
    first, again, others = (model(pairs.with_dropout(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, others)
    sites = [module.site for module in model.modules() if hasattr(module, "site")]
    assert sorted(sites) == list(range(2, 12))  # two for each encoder layer, three for each decoder layer
    embedded = model.embed(pairs.source.with_dropout(1), site=0)
    assert 0.3 < (embedded == 0).float().mean() < 0.7


def test_initial_weights_have_glorots_bound_and_follow_the_seed() -> None:
    model, same, other = (Transformer(CONFIG, seed=seed) for seed in (3, 3, 4))
    qkv = model.encoder_layers[0].self_attention.qkv.weight
    bound = (6 / 64) ** 0.5  # of each of the three 32 × 32 parts
    assert 0.9 * bound < qkv.abs().max() <= bound
    assert abs(model.words.weight.std() * 32**0.5 - 1) < 0.1
    assert torch.equal(qkv, same.encoder_layers[0].self_attention.qkv.weight)
    assert not torch.equal(qkv, other.encoder_layers[0].self_attention.qkv.weight)


def test_positions_are_the_papers_and_have_no_last_one() -> None:
    model = make_model()
    long = pack([np.zeros(1200, np.int64)])
    embedded = model.embed(long, site=0)
    angle = 1100 / 10_000 ** (2 / 32)
    word = model.words.weight[0, 3] * 32**0.5
    torch.testing.assert_close(embedded[1100, 3] - word, torch.tensor(np.cos(angle)).float(), atol=1e-4, rtol=0)


def test_sizes_are_the_papers() -> None:
    base = Transformer(TransformerConfig.from_size("base", 37_000, num_layers=1))
    layer_pair = base.num_parameters - 37_000 * 512
    assert round((6 * layer_pair + 37_000 * 512) / 1e6) == 63  # table 3: 65 million
    with pytest.raises(ValueError, match="hidden_size = 32: expected a multiple of num_heads = 5"):
        TransformerConfig(10, hidden_size=32, num_heads=5)
