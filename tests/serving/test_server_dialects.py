"""Clients of OpenAI, Hugging Face and others, unchanged; and the routes of text-embeddings-inference and Cohere."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient

import bertwright
from serving.servers import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens", "ignore:.*UNK")
GIVEN = [text for text in TEXTS if text]


def load(folder: Path, name: str) -> bertwright.Bert:
    return bertwright.load(folder / name, "cpu")


def hub(client: httpx.Client, model: str) -> InferenceClient:
    return InferenceClient(model=f"{str(client.base_url).rstrip('/')}/models/{model}")


def test_openai_client_gets_the_vectors_in_both_encodings(client: httpx.Client, model_folders: Path) -> None:
    theirs = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
    expected = load(model_folders, "pretrained").embed(GIVEN)
    for encoding in ("float", "base64"):
        reply = theirs.embeddings.create(input=GIVEN, model="pretrained", encoding_format=encoding)
        assert len(reply.data) == len(GIVEN)
        assert reply.usage.total_tokens == 42
        values = [one.embedding for one in reply.data]
        if encoding == "base64":
            values = [np.frombuffer(b64decode(value), "<f4") for value in values]
        assert np.array_equal(np.array(values, np.float32), expected)
    default = theirs.embeddings.create(input=GIVEN[0], model="pretrained", dimensions=4)  # the client decodes base64
    assert np.allclose(default.data[0].embedding, load(model_folders, "pretrained").embed(GIVEN[0], dims=4), atol=1e-6)
    assert "pretrained" in [model.id for model in theirs.models.list()]


def test_openai_client_gets_the_reason_for_rejected_ids(client: httpx.Client) -> None:
    theirs = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
    for ids in ([1, 2], [[1, 2], [3]]):
        with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
            theirs.embeddings.create(input=ids, model="pretrained")
    with pytest.raises(openai.NotFoundError, match="nix"):
        theirs.embeddings.create(input="the cat", model="nix")


def test_hugging_face_client_runs_six_tasks(client: httpx.Client, model_folders: Path) -> None:
    vectors = load(model_folders, "vectors").embed(["a b", "c"])
    text = "the cat sat."
    found = hub(client, "classes").text_classification(text, top_k=2)
    (expected,) = load(model_folders, "classes").classify([text])
    assert [(one.label, one.score) for one in found] == expected.top(2)

    entities = hub(client, "names").token_classification(TEXTS[3])
    assert [(one.entity_group, one.word, one.start, one.end, one.score) for one in entities] == [
        *load(model_folders, "names").tag(TEXTS[3]).entities
    ]
    answer = hub(client, "questions").question_answering("the cat", TEXTS[3])
    ours = load(model_folders, "questions").answer("the cat", TEXTS[3])
    assert (answer.answer, answer.start, answer.end, answer.score) == (
        ours.text,
        ours.start,
        ours.end,
        ours.probability,
    )

    filled = hub(client, "pretrained").fill_mask("the [MASK] sat.", top_k=3)
    prediction = load(model_folders, "pretrained").fill_mask("the [MASK] sat.", top_k=3)
    assert [(one.token_str, one.score) for one in filled] == [
        (token.token.removeprefix("##"), token.probability) for token in prediction.masks[0]
    ]
    assert filled[0].sequence == prediction.text

    cosines = hub(client, "vectors").sentence_similarity("a b", ["c", "a b"])
    assert np.allclose(cosines, [vectors[0] @ vectors[1], 1], atol=1e-6)
    features = hub(client, "vectors").feature_extraction(GIVEN)
    assert np.array_equal(features, load(model_folders, "vectors").embed(GIVEN))
    with pytest.raises(Exception, match="Failed Dependency"):
        hub(client, "gpt").feature_extraction("a b")


@pytest.mark.slow
def test_langchain_client_with_a_url_gets_the_vectors(client: httpx.Client, model_folders: Path) -> None:
    """The class of langchain-community; langchain-huggingface takes no URL from 1.2 on."""
    langchain = pytest.importorskip("langchain_community.embeddings", reason="pip install langchain-community")
    theirs = langchain.HuggingFaceInferenceAPIEmbeddings(api_key="none", api_url=f"{client.base_url}/embed")
    expected = load(model_folders, "pretrained").embed(GIVEN)
    assert np.array_equal(np.array(theirs.embed_documents(GIVEN), np.float32), expected)
    assert np.array_equal(np.array(theirs.embed_query(GIVEN[0]), np.float32), expected[0])


def test_text_embeddings_inference_routes(client: httpx.Client, model_folders: Path) -> None:
    pairs = client.post("/predict", json={"inputs": [["the", "cat"], ["a", "b"]], "model": "pairs"}).json()
    expected = load(model_folders, "pairs").classify([("the", "cat"), ("a", "b")])
    assert [[(one["label"], one["score"]) for one in scores] for scores in pairs] == [one.top() for one in expected]
    single = client.post("/predict", json={"inputs": "the cat", "model": "classes"}).json()
    assert [one["label"] for one in single] == [
        label for label, _ in load(model_folders, "classes").classify("the cat").top()
    ]

    body = {"query": "the cat", "texts": GIVEN, "return_text": True}
    ranks, ours = client.post("/rerank", json=body).json(), load(model_folders, "relevance").rank("the cat", GIVEN)
    assert [(one["index"], one["score"], one["text"]) for one in ranks] == [*ours]
    raw = client.post("/rerank", json=body | {"raw_scores": True}).json()
    assert np.allclose([1 / (1 + np.exp(-one["score"])) for one in raw], [one.score for one in ours])

    tokens = client.post("/tokenize", json={"inputs": "the cat", "model": "pretrained"}).json()[0]
    assert [(one["text"], one["start"], one["stop"]) for one in tokens] == [
        ("[CLS]", None, None), ("the", 0, 3), ("cat", 4, 7), ("[SEP]", None, None),
    ]  # fmt: skip
    ids = [one["id"] for one in tokens]
    assert client.post("/decode", json={"ids": [ids, ids], "model": "pretrained"}).json() == ["the cat"] * 2
    assert client.post("/decode", json={"ids": ids, "model": "pretrained"}).json() == ["the cat"]
    long = client.post("/rerank", json={"query": "the cat", "texts": [TEXTS[3]], "truncate": False})
    assert long.status_code == 413
    assert client.get("/info").json()["max_batch_tokens"] == 4096


def test_cohere_route_orders_documents(client: httpx.Client, model_folders: Path) -> None:
    ours = load(model_folders, "relevance").rank("the cat", GIVEN, top_k=2)
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"query": "the cat", "documents": [GIVEN[0], {"text": GIVEN[1]}, *GIVEN[2:]], "top_n": 2}
        found = client.post(path, json=body | {"return_documents": True}).json()["results"]
        assert [(one["index"], one["relevance_score"], one["document"]["text"]) for one in found] == [*ours]


def test_parameters_of_hugging_face_are_followed_or_refused(client: httpx.Client) -> None:
    for name, text, parameters, status in (
        ("classes", "the cat", {"function_to_apply": "softmax", "top_k": 1}, 200),
        ("classes", "the cat", {"function_to_apply": "none"}, 422),
        ("classes", "the cat", {"aggregation_strategy": "simple"}, 422),
        ("topics", "the cat", {"function_to_apply": "sigmoid"}, 200),
        ("topics", "the cat", {"function_to_apply": "softmax"}, 422),
        ("ratings", "the cat", {"function_to_apply": "none"}, 200),
        ("names", "the cat", {"aggregation_strategy": "simple", "stride": None}, 200),
        ("names", "the cat", {"aggregation_strategy": "none"}, 422),
        ("names", "the cat", {"stride": 2}, 422),
        ("questions", {"question": "a", "context": "b"}, {"top_k": 2}, 200),
        ("questions", {"question": "a", "context": "b"}, {"max_answer_len": 2}, 422),
        ("pretrained", "a [MASK]", {"targets": ["a"]}, 422),
        ("vectors", {"source_sentence": "a", "sentences": ["b"]}, {"truncation_direction": "left"}, 422),
        ("vectors", "a", {"top_k": 2}, 422),
    ):
        reply = client.post(f"/models/{name}", json={"inputs": text, "parameters": parameters})
        assert reply.status_code == status, (name, parameters, reply.text)
        named = [parameter for parameter, value in parameters.items() if value is not None]
        assert status == 200 or any(parameter in reply.json()["error"] for parameter in named), reply.text
    encoded = client.post("/models/vectors", json={"inputs": "a", "encoding_format": "base64"})
    assert (encoded.status_code, "encoding_format" in encoded.json()["error"]) == (422, True)


def test_similarity_follows_truncation(client: httpx.Client) -> None:
    inputs = {"source_sentence": "a", "sentences": ["b"]}
    body = {"inputs": inputs, "parameters": {"truncation_direction": "Left"}, "model": "vectors"}
    assert client.post("/similarity", json=body).status_code == 422


def test_ids_beside_lists_of_ids_are_refused_with_the_reason(client: httpx.Client) -> None:
    for ids in ([[5], 6], [6, [5]]):
        reply = client.post("/decode", json={"ids": ids, "model": "pretrained"})
        assert (reply.status_code, "ids" in reply.json()["error"]) == (422, True)
    assert client.post("/decode", json={"ids": [], "model": "pretrained"}).json() == [""]
