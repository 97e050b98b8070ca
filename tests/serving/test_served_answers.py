"""Answers over HTTP equal the answers of `bertwright.load`, for every task, alone and in lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import bertwright
from bertwright.inference.text_settings import GenerationSettings
from serving.servers import TEXTS, running_server

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens", "ignore:.*UNK")
PAIRS = [(one, other) for one, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def load(folder: Path, name: str) -> bertwright.Bert:
    return bertwright.load(folder / name, "cpu")


def plain(value: Any) -> Any:
    """Turn named tuples and arrays into what JSON has."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_labels_of_texts_equal(client: httpx.Client, model_folders: Path) -> None:
    expected = load(model_folders, "classes").classify(TEXTS)
    reply = post(client, "/classify", texts=TEXTS, model="classes")
    assert [one["probabilities"] for one in reply["predictions"]] == [one.probabilities for one in expected]
    assert [one["label"] for one in reply["predictions"]] == [one.label for one in expected]
    assert reply["predictions"][0]["probability"] == expected[0].probability
    assert reply["truncated"] == [3]  # 28 tokens; the task reads 16
    alone = post(client, "/classify", texts=TEXTS[0], model="classes")["predictions"]
    assert alone[0]["label"] == expected[0].label


def test_labels_of_pairs_numbers_and_several_labels_equal(client: httpx.Client, model_folders: Path) -> None:
    pairs = post(client, "/pair", texts=PAIRS, model="pairs")["predictions"]
    assert [one["probabilities"] for one in pairs] == [
        one.probabilities for one in load(model_folders, "pairs").classify(PAIRS)
    ]
    numbers = post(client, "/classify", texts=TEXTS, model="ratings")["predictions"]
    assert [one["value"] for one in numbers] == load(model_folders, "ratings").classify(TEXTS)
    topics = post(client, "/classify", texts=TEXTS, model="topics")["predictions"]
    assert [(one["labels"], one["probabilities"]) for one in topics] == [
        ([*one.labels], one.probabilities) for one in load(model_folders, "topics").classify(TEXTS)
    ]


def test_choices_equal(client: httpx.Client, model_folders: Path) -> None:
    prompts, endings = ["the cat", "sat"], [["sat.", "a b"], ["the", "cat"]]
    expected = load(model_folders, "choices").choose(prompts, endings)
    found = post(client, "/choose", prompt=prompts, endings=endings)["predictions"]
    assert [(one["choice"], one["probabilities"]) for one in found] == [
        (one.choice, [*one.probabilities]) for one in expected
    ]
    (alone,) = post(client, "/choose", prompt="the cat", endings=["sat.", "a b", "c"])["predictions"]
    assert len(alone["probabilities"]) == 3


def test_tags_and_spans_equal(client: httpx.Client, model_folders: Path) -> None:
    texts: list[Any] = [*TEXTS, ["the", "cat"]]
    expected = load(model_folders, "names").tag(texts)
    found = post(client, "/tag", texts=texts)["predictions"]
    for one, prediction in zip(found, expected, strict=True):
        assert [one["words"], one["tags"], one["probabilities"]] == plain(prediction[:3])
        assert [[*entity.values()] for entity in one["entities"]] == plain(prediction.entities)
    assert any(one["entities"] for one in found)


def test_answers_equal(client: httpx.Client, model_folders: Path) -> None:
    questions, contexts = ["the cat", "sat"], [TEXTS[3], TEXTS[0]]
    expected = load(model_folders, "questions").answer(questions, contexts)
    found = post(client, "/answer", question=questions, context=contexts)["predictions"]
    for one, answer in zip(found, expected, strict=True):
        assert [[*candidate.values()] for candidate in one["candidates"]] == plain(answer.candidates)
        assert one["margin"] == answer.margin
        assert [one[name] for name in answer._fields[:6]] == plain(answer[:6])


def test_masks_and_next_sentences_equal(client: httpx.Client, model_folders: Path) -> None:
    bert, texts = load(model_folders, "pretrained"), ["the [MASK] sat.", "[MASK] cat [MASK]"]
    expected = bert.fill_mask(texts, top_k=3)
    found = post(client, "/fill-mask", texts=texts, top_k=3)["predictions"]
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [[[*token.values()] for token in mask] for mask in found[1]["masks"]] == plain(expected[1].masks)
    follows = post(client, "/next-sentence", first=TEXTS, second=TEXTS[::-1])["probabilities"]
    assert follows == bert.next_sentence(TEXTS, TEXTS[::-1])
    error = client.post("/fill-mask", json={"texts": ["the cat"]})
    assert (error.status_code, "[MASK]" in error.json()["error"]) == (422, True)


def test_continuations_and_scores_equal(client: httpx.Client, model_folders: Path) -> None:
    bert, prompts = load(model_folders, "gpt"), ["a b", "c", "c"]
    found = post(client, "/generate", prompts=prompts, max_new_tokens=5, seed=3)["predictions"]
    expected = bert.generate(prompts, GenerationSettings(5, seed=3))
    assert [[*one.values()] for one in found] == plain(expected)
    (score,) = post(client, "/score", texts="a b c d")["predictions"]
    one = bert.score(["a b c d"])[0]
    assert score == {"log_probability": one.log_probability, "tokens": one.tokens, "perplexity": one.perplexity}


def test_ranks_equal(client: httpx.Client, model_folders: Path) -> None:
    texts = [text for text in TEXTS if text]
    expected = load(model_folders, "relevance").rank("the cat", texts, top_k=3)
    reply = post(client, "/rank", query="the cat", texts=texts, top_k=3)
    assert [[*one.values()] for one in reply["predictions"]] == plain(expected)


def test_vectors_and_attention_equal(client: httpx.Client, model_folders: Path) -> None:
    bert = load(model_folders, "pretrained")
    assert post(client, "/embed", inputs=TEXTS, model="pretrained") == bert.embed(TEXTS).tolist()
    chosen = post(client, "/embed", inputs=TEXTS, model="pretrained", pooling="cls", normalize=False, dimensions=5)
    assert chosen == bert.embed(TEXTS, "cls", False, dims=5).tolist()
    found = post(client, "/attention", text="the cat", text_pair="sat", model="pretrained")
    expected = bert.attention("the cat", "sat")
    assert (found["token_texts"], found["weights"]) == ([*expected.tokens], expected.weights.tolist())


def test_models_say_what_they_answer(client: httpx.Client) -> None:
    found = {one["name"]: one for one in client.get("/models").json()["data"]}
    purposes = {name: one["routes"][0] for name, one in found.items()}
    assert purposes == {
        "classes": "/classify", "pairs": "/classify", "topics": "/classify", "ratings": "/classify",
        "choices": "/choose", "names": "/tag", "questions": "/answer", "relevance": "/rank",
        "pretrained": "/fill-mask", "vectors": "/embed", "gpt": "/generate",
    }  # fmt: skip
    assert found["names"]["labels"] == ["O", "B-X", "I-X", "B-Y", "I-Y"]
    assert found["pairs"]["reads_pairs"]
    assert "/next-sentence" in found["pretrained"]["routes"]


def test_a_model_without_the_method_is_named_in_the_error(client: httpx.Client) -> None:
    response = client.post("/tag", json={"texts": "the cat", "model": "classes"})
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    assert "classify" in response.json()["error"]
    assert client.post("/tag", json={"texts": "the cat", "model": "nix"}).status_code == 404


def test_examples_of_a_file_become_bodies_of_the_route(model_folders: Path, tmp_path: Path) -> None:
    texts, pairs = tmp_path / "texts.tsv", tmp_path / "pairs.tsv"
    texts.write_text("text\tlabel\nthe cat\tgood\nsat\tbad\n")
    pairs.write_text("text\tsecond\tlabel\nthe\tcat\tyes\n")
    with running_server(
        [str(model_folders / name) for name in ("classes", "pairs")], examples=(str(texts), str(pairs))
    ) as client:
        first, second = client.get("/models").json()["data"]
        assert first["examples"] == [{"texts": "the cat"}, {"texts": "sat"}]
        assert second["examples"] == [{"texts": [["the", "cat"]]}]
        for model in (first, second):
            post(client, model["routes"][0], **model["examples"][0], model=model["name"])
        assert "<title>" in client.get("/").text
    with (
        pytest.raises(ValueError, match=r"nix\.tsv"),
        running_server([str(model_folders / "classes")], examples=(str(tmp_path / "nix.tsv"),)),
    ):
        pass
