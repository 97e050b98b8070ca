"""Work that a small request could multiply: each is counted before it is computed, and computed in parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import bertwright
from bertwright.inference.text_settings import GenerationSettings
from bertwright.interop.sentence_modules import SentenceModules
from bertwright.models.task_model import EncoderForTask
from bertwright.serving.http_app import Server
from bertwright.serving.serve_settings import LimitSettings, ServeSettings
from bertwright.serving.served_models import ServedModels
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_folder import TaskModel
from helpers import CPU_CONTEXT
from serving.servers import SIZES, TEXTS, TOKENIZER, running_server

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens", "ignore:.*UNK")


@pytest.fixture(scope="module")
def context_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tagger that was trained with its document."""
    task = Tagging(labels=("O", "B-X", "I-X"), scheme="iob2", max_length=16, context=True)
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, initializer_range=0.3, **SIZES)  # type: ignore[arg-type]
    folder = tmp_path_factory.mktemp("context") / "documents"
    model = TaskModel(EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1), task)
    bertwright.Bert(model, TOKENIZER).save(folder)
    return folder


@pytest.fixture(scope="module")
def small(model_folders: Path, context_folder: Path) -> Iterator[httpx.Client]:
    """Serve with narrow limits."""
    folders = [str(model_folders / "gpt"), str(model_folders / "pretrained"), str(context_folder)]
    with running_server(folders, limits=LimitSettings(max_texts=3, max_tokens=400)) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompts": ["a"] * 4}),
        ("/tag", {"texts": ["a"] * 4, "document": True}),
        ("/tokenize", {"inputs": [""] * 4}),
        ("/decode", {"ids": [[5]] * 4}),
        ("/fill-mask", {"texts": ["[MASK]"] * 4}),
    ],
)
def test_every_text_of_a_request_counts(small: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = small.post(path, json=body)
    assert (reply.status_code, "3 texts" in reply.json()["error"]) == (413, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompts": ["a"], "max_new_tokens": 10, "num_beams": 40}),
        ("/fill-mask", {"texts": ["[MASK] " * 200]}),
    ],
)
def test_tokens_that_a_request_lets_compute_count(small: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = small.post(path, json=body)
    assert (reply.status_code, "400 tokens" in reply.json()["error"]) == (413, True)


def test_results_of_a_request_are_limited(client: httpx.Client) -> None:
    for path, body in (
        ("/fill-mask", {"texts": ["[MASK] [MASK]"] * 6, "top_k": 10_000, "model": "pretrained"}),
        ("/tokenize", {"inputs": ["a" * 1_100_000], "model": "pretrained"}),
        ("/decode", {"ids": [5] * 1_100_000, "model": "pretrained"}),
    ):
        reply = client.post(path, json=body)
        assert (reply.status_code, "100,000 results" in reply.json()["error"]) == (413, True), path


def test_results_and_rerankings_of_a_search_are_limited(model_folders: Path, tmp_path: Path) -> None:
    bert = bertwright.load(model_folders / "pretrained", "cpu")
    bertwright.SearchIndex.build(bert, ["the cat"] * 60, tmp_path / "index")
    folders = [str(model_folders / name) for name in ("relevance", "pretrained")]
    with running_server(folders, index=tmp_path / "index") as client:
        found = client.post("/search", json={"query": ["a"] * 2_000, "top_k": 10_000})
        assert (found.status_code, "results" in found.json()["error"]) == (413, True)
        reranked = client.post("/search", json={"query": ["a"] * 1_000, "top_k": 1, "rerank": True})
        assert (reranked.status_code, "tokens" in reranked.json()["error"]) == (413, True)


def load(folder: Path) -> Server:
    """Load a model that has answered."""
    models = ServedModels(ServeSettings((str(folder),)), CPU_CONTEXT)
    models.load()
    server = Server(models)
    while not models.is_ready:
        time.sleep(0.02)
    return server


def test_costs_follow_the_options_of_a_call(model_folders: Path, context_folder: Path) -> None:
    (choices,) = load(model_folders / "choices").models.by_name.values()
    one, ten = (choices.cost("choose", ("a" * 40, ("b",) * number), {}) for number in (2, 20))
    assert ten == 10 * one
    (ranks,) = load(model_folders / "relevance").models.by_name.values()
    assert ranks.cost("rank", ("a" * 1_000_000, "b"), {}) > 1_000  # what is cut off is split before
    (vectors,) = load(model_folders / "vectors").models.by_name.values()
    (names,) = load(context_folder).models.by_name.values()
    assert vectors.cost("embed", "a" * 1_000, {}) > 64
    assert names.cost("tag", "a", {}) < 16


def test_vectors_of_a_pooling_cost_all_windows(model_folders: Path) -> None:
    (model,) = load(model_folders / "vectors").models.by_name.values()
    model.bert.sentence_modules = SentenceModules(("cls",), max_length=16)
    costs = [model.cost("embed", "a " * 500, options) for options in ({}, {"pooling": "mean"})]
    assert costs[0] < 32 < 200 < costs[1]


def test_the_speed_of_generation_promises_nothing_of_other_methods(model_folders: Path) -> None:
    (model,) = load(model_folders / "gpt").models.by_name.values()
    before = model.rate("score")
    model.learn_rate("generate", 100, 0.25, 60.0)
    assert model.rate("score") == before
    assert model.rate("generate") < 10


def test_documents_in_parts_equal_those_at_once(context_folder: Path) -> None:
    texts = [text for text in TEXTS if text] * 3
    expected = bertwright.load(context_folder, "cpu").tag(texts, document=True)
    with running_server([str(context_folder)], limits=LimitSettings(batch_tokens=40)) as client:
        reply = client.post("/tag", json={"texts": texts, "document": True}).json()
        assert [one["tags"] for one in reply["predictions"]] == [[*one.tags] for one in expected]
        assert "te_batch_next_size_count 1.0" not in client.get("/metrics").text
        assert client.post("/tag", json={"texts": [], "document": True}).json()["predictions"] == []


def test_tokenizing_leaves_the_event_loop_free(model_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server([str(model_folders / "pretrained")]) as client:
        threads = list[str]()
        own = type(TOKENIZER).encode_batch

        def encode_batch(self: Any, texts: Any) -> Any:
            threads.append(threading.current_thread().name)
            return own(self, texts)

        monkeypatch.setattr(type(TOKENIZER), "encode_batch", encode_batch)
        assert client.post("/tokenize", json={"inputs": [""] * 1_000}).status_code == 200
        assert {*threads} == {"models"}
        assert client.post("/decode", json={"ids": [[99_999]]}).status_code == 422


def test_generation_of_several_requests_takes_turns_with_others(model_folders: Path) -> None:
    settings = GenerationSettings(8, seed=2)
    with running_server([str(model_folders / "gpt")], limits=LimitSettings(batch_tokens=20)) as client:
        body = {"prompts": ["a b"] * 40, "max_new_tokens": 8, "seed": 2}
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(client.post, "/generate", json=body)
            time.sleep(0.05)
            assert client.post("/score", json={"texts": ["a b"]}).status_code == 200
            reply = long.result().json()["predictions"]
    expected = bertwright.load(model_folders / "gpt", "cpu").generate(["a b"] * 40, settings)
    assert [one["text"] for one in reply] == [one.text for one in expected]
