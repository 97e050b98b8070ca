"""Tiny models of all tasks in folders, and servers of them in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn

from bertwright.inference.bert import Bert
from bertwright.models.task_model import EncoderForTask
from bertwright.serving.http_app import make_app
from bertwright.serving.serve import bind
from bertwright.serving.serve_settings import ServeSettings
from bertwright.serving.served_models import ServedModels
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.gpt.gpt import GptConfig, GptLanguageModel
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from helpers import CPU_CONTEXT

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_tokens(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "the", "cat", "sat"], lowercase=True
)
WORDS = [f"{word}</w>" for word in "abcd"]
GPT_TOKENIZER = BytePairTokenizer(
    {t: n for n, t in enumerate(["<pad>", "<unk>", "_start_", "_delimiter_", "_classify_", *WORDS])}, [], "test"
)
TASKS: dict[str, AnyTask] = {
    "classes": Classification(labels=("bad", "so-so", "good"), max_length=16),
    "pairs": Classification(text_pair="second", labels=("no", "yes"), max_length=24),
    "topics": MultiLabel(labels=("a", "b", "c"), label_columns=("a", "b", "c"), max_length=16),
    "ratings": Regression(max_length=16),
    "choices": MultipleChoice(max_length=16),
    "names": Tagging(labels=("O", "B-X", "I-X", "B-Y", "I-Y"), scheme="iob2", max_length=12),
    "questions": QuestionAnswering(max_length=20, doc_stride=5, max_query_length=8),
    "relevance": Reranking(max_length=24),
}
SIZES = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "intermediate_size": 40, "max_positions": 32}
TEXTS = ["the cat sat.", "", "the the cat", "a b c d e f g h i j k l m n o p q r s t u v w x y z", "sat"]


def save_models(folder: Path, names: Sequence[str] = (*TASKS, "pretrained", "vectors", "gpt")) -> list[str]:
    """Write models with random weights, large enough that answers differ; return their folders."""
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, initializer_range=0.3, **SIZES)  # type: ignore[arg-type]
    for name in names:
        if name in ("pretrained", "vectors"):
            model = BertForPretraining(config, 1)
            for layer in (model.pooler.dense, model.next_sentence):
                torch.nn.init.ones_(layer.bias)  # biases of 0 would say that the head was never trained
            bert = Bert(model, TOKENIZER, () if name == "pretrained" else ("masked_token", "pooler", "next_sentence"))
        elif name == "gpt":
            gpt = GptConfig(GPT_TOKENIZER.vocab_size, 16, 2, 2, 64, 12, initializer_range=0.8)
            bert = Bert(GptLanguageModel(gpt, seed=2), GPT_TOKENIZER)
        else:
            task = TASKS[name]
            bert = Bert(TaskModel(EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1), task), TOKENIZER)
        bert.save(folder / name)
    return [str(folder / name) for name in names]


@contextmanager
def running_server(folders: Sequence[str], **settings: Any) -> Iterator[httpx.Client]:
    """Serve models in a thread of this process; yield a client of the server."""
    chosen = ServeSettings(tuple(folders), **settings)
    models = ServedModels(chosen, CPU_CONTEXT)
    models.load()
    with bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(models), log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        headers = {"Authorization": f"Bearer {chosen.api_key}"} if chosen.api_key else {}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", headers=headers, timeout=30
        ) as client:
            try:
                wait_until_healthy(client)
                yield client
            finally:
                server.should_exit = True
                thread.join()


def wait_until_healthy(client: httpx.Client, seconds: float = 60) -> None:
    """Return when the server answers; raise TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server is not healthy")
