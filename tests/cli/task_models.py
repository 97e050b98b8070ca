"""Random models of tasks, files of examples and the options of commands, for tests of commands."""

from __future__ import annotations

import json
from pathlib import Path

from bertwright.cli.options import list_options
from bertwright.cli.verbs import VERBS
from bertwright.inference.bert import Bert
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

CLASSES = Classification(labels=("bad", "good"))
TAGGING = Tagging(labels=("O", "B-PER", "I-PER"), scheme="iob2", max_length=16)
QUESTIONS = QuestionAnswering(max_length=32, max_query_length=8)


def options_of(verb: str) -> set[str]:
    """Return the names of a command's options on the command line."""
    return {option.name for option in list_options({one.name: one for one in VERBS}[verb].load_settings(), {})}


def save_random_model(vocabulary_folder: Path, task: AnyTask, folder: Path, seed: int = 1) -> tuple[Bert, str]:
    """Save a model of a task with random weights; return it and the name of its folder."""
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    bert = Bert(TaskModel(EncoderForTask(BertEncoder(config, seed=seed), task.head, seed=seed), task), tokenizer)
    bert.save(folder)
    return bert, str(folder)


def write_questions(path: Path, *rows: tuple[str, str, list[dict[str, object]]]) -> str:
    """Write questions, contexts and answers as JSON lines; return the name of the file."""
    records = [dict(zip(("question", "context", "answers"), row, strict=True)) for row in rows]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)
