"""What a reply says of tokens, truncation and lengths, and the indices in messages about one of several texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import bertwright
from bertwright.serving.serve_settings import LimitSettings
from serving.servers import TEXTS, TOKENIZER, running_server

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens", "ignore:.*UNK")
LONG = TEXTS[3]  # 26 tokens without special ones


@pytest.fixture(scope="module")
def modules_client(model_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Serve a folder of sentence-transformers that reads 20 tokens and has a prompt."""
    folder = tmp_path_factory.mktemp("modules") / "sentences"
    bertwright.load(model_folders / "vectors", "cpu").save(folder)
    kinds = ("Transformer", "Pooling")
    rows = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    for name, content in (
        ("modules.json", rows),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
        ("sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False}),
        ("config_sentence_transformers.json", {"prompts": {"query": "a b c "}, "default_prompt_name": None}),
    ):
        (folder / name).write_text(json.dumps(content))
    (folder / "checksums.json").unlink(missing_ok=True)
    with running_server([str(folder)]) as client:
        yield client


def embed(client: httpx.Client, **body: Any) -> tuple[int, int, str | None]:
    """Return the status, and what the headers say of tokens and truncated texts."""
    reply = client.post("/embed", json=body)
    return reply.status_code, int(reply.headers.get("x-compute-tokens", 0)), reply.headers.get("x-truncated-texts")


def test_vectors_count_what_their_options_read(modules_client: httpx.Client) -> None:
    whole = TOKENIZER.encode_ids([LONG]).offsets[-1]
    assert embed(modules_client, inputs=["a", LONG]) == (200, 3 + 20, "1")
    assert embed(modules_client, inputs=[LONG], pooling="mean", truncate=False) == (200, whole, None)
    assert embed(modules_client, inputs=["a " * 16], max_length=16) == (200, 16, "0")
    assert embed(modules_client, inputs=["a " * 16], max_length=16, truncate=False)[0] == 413
    assert embed(modules_client, inputs=["a"], prompt_name="query") == (200, 6, None)
    assert embed(modules_client, inputs=["a"], prompt_name="nix")[0] == 422


def test_lengths_and_pooling_are_the_folders_own(modules_client: httpx.Client, client: httpx.Client) -> None:
    assert modules_client.get("/models").json()["data"][0]["max_length"] == 20
    info = modules_client.get("/info").json()
    assert (info["max_input_length"], info["model_type"]) == (20, {"embedding": {"pooling": "cls"}})
    assert {one["name"]: one["max_length"] for one in client.get("/models").json()["data"]}["vectors"] == 32


def test_choices_count_each_ending_with_its_prompt(client: httpx.Client) -> None:
    body = {"prompt": ["the cat", "a " * 9], "endings": [["a b", "a", "a"], ["a", "b", "a b c d e f"]]}
    reply = client.post("/choose", json=body).json()
    assert reply["tokens"] == (2 + 3) * 3 + 4 + (9 + 3) * 3 + 1 + 1 + 4  # the last ending's sequence is cut to 16
    assert reply["truncated"] == [1]
    one = client.post("/choose", json={"prompt": "the cat sat", "endings": [LONG[:20], "a"] + ["b"] * 8}).json()
    assert one["truncated"] == []  # no sequence is long, all together are
    odd = client.post("/choose", json={"prompt": "a", "endings": [["a", "b"], ["c", "d"]]})
    assert (odd.status_code, "endings" in odd.json()["error"]) == (422, True)


def test_a_question_that_is_cut_is_reported(client: httpx.Client) -> None:
    body = {"question": ["a " * 8, "a " * 9], "context": LONG}  # the task reads 8 tokens of a question
    reply = client.post("/answer", json=body).json()
    assert (reply["truncated"], reply["tokens"]) == ([1], 8 + 9 + 2 * 26 + 2 * 3)


def test_words_count_as_their_text(client: httpx.Client) -> None:
    for text in ("the cat sat", ["the", "cat", "sat"]):
        assert client.post("/tag", json={"texts": [text]}).json()["tokens"] == 5


def test_prompts_of_a_language_model_have_no_special_tokens(client: httpx.Client) -> None:
    for path, name in (("/generate", "prompts"), ("/score", "texts")):
        reply = client.post(path, json={name: ["a b", "c d a"], "model": "gpt"}).json()
        assert reply["tokens"] == 5, path


def test_messages_have_the_index_in_the_request(model_folders: Path) -> None:
    """Also in a request that is computed in parts."""
    names = ["relevance", "names", "gpt", "classes"]
    with running_server([str(model_folders / name) for name in names], limits=LimitSettings(batch_tokens=4)) as client:
        for path, body, index in (
            ("/rank", {"query": "a", "texts": ["a", "b", ""]}, "text 2"),
            ("/rerank", {"query": "a", "texts": ["a", "b", ""]}, "text 2"),
            ("/v2/rerank", {"query": "a", "documents": ["a", "b", ""]}, "text 2"),
            ("/tag", {"texts": [["a"], ["b"], ["c", ""]]}, "text 2"),
            ("/score", {"texts": ["a b", "a b", "a b", "a"]}, "text 3"),
            ("/generate", {"prompts": ["a b", "a b", "a " * 20]}, "prompt 2"),
            ("/classify", {"texts": ["a", "b", ["a", "b"]], "model": "classes"}, "text 2"),
        ):
            reply = client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"].partition(":")[0]) == (422, index), path


def test_continuations_in_parts_equal_those_at_once(client: httpx.Client, model_folders: Path) -> None:
    body = {"prompts": ["a b", "c", "c"], "max_new_tokens": 5, "seed": 3}
    with running_server([str(model_folders / "gpt")], limits=LimitSettings(batch_tokens=4)) as parts:
        found = [each.post("/generate", json=body).json()["predictions"] for each in (client, parts)]
    assert [one["text"] for one in found[0]] == [one["text"] for one in found[1]]
