"""Generation by a GPT: without a cache the same tokens, sampling by its distribution, beam search against all texts."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import bertwright
from bertwright.cli.main import run
from bertwright.inference.bert import Bert
from bertwright.inference.generation import sample_tokens
from bertwright.inference.text_settings import GenerationSettings
from bertwright.interop.huggingface import save_model
from bertwright.models.packing import pack
from bertwright.systems.gpt.gpt import GptConfig, GptLanguageModel
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer

WORDS = [f"{word}</w>" for word in "abcd"]
TOKENIZER = BytePairTokenizer(
    {t: n for n, t in enumerate(["<pad>", "<unk>", "_start_", "_delimiter_", "_classify_", *WORDS])}, [], "test"
)
PROMPTS = ["a b", "c", "d d a b c", "b"]


def make_model() -> Bert:
    config = GptConfig(TOKENIZER.vocab_size, 16, 2, 2, 64, 12, initializer_range=0.8)
    return Bert(GptLanguageModel(config, seed=2), TOKENIZER)


@pytest.fixture(scope="module")
def bert() -> Bert:
    return make_model()


@torch.inference_mode()
def log_probabilities(bert: Bert, ids: list[int]) -> np.ndarray:
    """Compute the logarithms of the next token's probabilities, without a cache and without special tokens."""
    assert isinstance(bert.model, GptLanguageModel)
    logits = bert.model(pack([np.array(ids)]))[-1].double()
    logits[list(TOKENIZER.special_ids)] = -torch.inf
    return logits.log_softmax(0).numpy()


def test_greedy_decoding_equals_recomputation_without_a_cache(bert: Bert) -> None:
    generated = bert.generate(PROMPTS, GenerationSettings(8, sample=False))
    for prompt, generation in zip(PROMPTS, generated, strict=True):
        ids, score = TOKENIZER.encode_raw([prompt]).ids.tolist(), 0.0
        start = len(ids)
        for _ in range(min(8, 12 - start)):
            logarithms = log_probabilities(bert, ids)
            ids.append(int(logarithms.argmax()))
            score += logarithms.max()
        assert generation.text == TOKENIZER.decode(ids[start:])
        assert generation.log_probability == pytest.approx(score, abs=1e-4)
    alone = bert.generate("c", GenerationSettings(8, sample=False))
    assert alone.text == generated[1].text
    assert alone.log_probability == pytest.approx(generated[1].log_probability, abs=1e-5)


def test_beam_search_with_a_wide_beam_finds_the_most_probable_of_all_continuations(bert: Bert) -> None:
    for prompt, found in zip(PROMPTS[:2], bert.generate(PROMPTS[:2], GenerationSettings(3, num_beams=16)), strict=True):
        ids, scores = TOKENIZER.encode_raw([prompt]).ids.tolist(), {}
        for tokens in product(range(5, 9), repeat=3):
            steps = [log_probabilities(bert, [*ids, *tokens[:n]])[tokens[n]] for n in range(3)]
            scores[tokens] = sum(steps)
        best = max(scores, key=scores.__getitem__)
        assert found.text == TOKENIZER.decode(best)
        assert found.log_probability == pytest.approx(scores[best], abs=1e-4)
        greedy = bert.generate(prompt, GenerationSettings(3, sample=False))
        assert found.log_probability >= greedy.log_probability - 1e-6


def test_samples_follow_the_distribution_and_the_seed(bert: Bert) -> None:
    settings = GenerationSettings(1, sample=True, seed=3)
    texts = [generation.text for generation in bert.generate(["a b"] * 1_000, settings)]
    shares = np.exp(log_probabilities(bert, TOKENIZER.encode_raw(["a b"]).ids.tolist()))[5:]
    for word, share in zip("abcd", shares, strict=True):
        assert texts.count(word) / 1_000 == pytest.approx(share, abs=4 * (share * (1 - share) / 1_000) ** 0.5)
    assert texts == [generation.text for generation in bert.generate(["a b"] * 1_000, settings)]
    assert texts != [g.text for g in bert.generate(["a b"] * 1_000, GenerationSettings(1, sample=True, seed=4))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]),
        ({"top_k": 2}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),  # 4/7 and 3/7
        ({"top_p": 0.65}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),  # the first two sum to 0.7
        ({"top_p": 0.7}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ({"top_p": 0.01}, [0] * 10),
        ({"temperature": 0.5}, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]),  # 16, 9, 4 and 1 of 30
    ],
)
def test_temperature_top_k_and_top_p_equal_those_worked_by_hand(options: dict[str, float], expected: list[int]) -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log().repeat(10, 1)  # tokens 1, 2, 3, 0 from the most probable on
    drawn = sample_tokens(logits, GenerationSettings(sample=True, **options), torch.arange(10) / 10 + 0.05)  # type: ignore[arg-type]
    assert drawn.tolist() == [[1, 2, 3, 0][rank] for rank in expected]


def test_command_prints_continuations_and_names_misuse(
    bert: Bert, tmp_path: Path, one_layer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "gpt", bert.model, TOKENIZER)
    command = ["generate", str(tmp_path / "gpt")]
    assert run([*command, "a b", "c", "--max-new-tokens", "3"]) == 0
    expected = bertwright.load(tmp_path / "gpt", "cpu").generate(["a b", "c"], GenerationSettings(3))
    printed = capsys.readouterr().out
    assert all(generation.text in printed for generation in expected)
    assert "tokens: drawn by probability (temperature 1, seed 0)" in printed
    misuse = (
        ([*command, "a", "--no-sample", "--top-k", "3"], "top_k: .* sample = False"),
        ([*command, "a", "--top-p", "0.5", "--num-beams", "2"], "top_p: .* num_beams = 2"),
        ([*command, " "], "prompt 0"),
        ([*command, "a " * 12], "prompt 0"),
        (command, "no text given"),
        (["generate", str(one_layer_folder), "a"], "generate"),
    )
    for arguments, word in misuse:
        assert run(arguments) == 2
        assert re.search(word, capsys.readouterr().err)
