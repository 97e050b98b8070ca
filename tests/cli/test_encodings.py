"""Every command that reads files of texts reads them in another encoding, and its message names its own option."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from task_models import CLASSES, options_of, save_random_model

from bertwright.cli.main import run
from bertwright.interop.huggingface import save_model
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.vocabulary.vector_formats import write_text_vectors
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

WORDS = "ärger über flüsse schön wölfe größe".split()
SENTENCES = [f"{first} und {second}" for first, second in zip(WORDS, WORDS[1:] + WORDS[:1], strict=True)]
CPU = "--device cpu --threads 1"
COMMANDS = {
    "survey --pairs": "survey --pairs pairs.tsv --model MODEL",
    "vocabulary": "vocabulary text.txt --output OUT --size 200 --min-frequency 1",
    "prepare": "prepare text.txt --vocabulary MODEL --store OUT --held-out 0 --workers 1",
    "word-vectors": "word-vectors text.txt --min-count 1 --size 4 --epochs 1 --output OUT --threads 1",
    "finetune": f"finetune --task classification --train classes.tsv --model MODEL --run OUT --dry-run {CPU}",
    "distill": f"distill CLASSIFIER --layers 0 --texts classes.tsv --dev classes.tsv --run OUT {CPU}",
    "evaluate": f"evaluate CLASSIFIER classes.tsv {CPU}",
    "predict": f"predict CLASSIFIER --inputs classes.tsv --output OUT.csv {CPU}",
    "quantize": "quantize CLASSIFIER OUT --dev classes.tsv --max-drop 100 --threads 1",
    "check-labels": "check-labels classes.tsv --output OUT.tsv",
    "embed": f"embed MODEL --inputs text.txt --output OUT.npy {CPU}",
    "search build": f"search build MODEL pairs.tsv --column answer --index OUT {CPU}",
    "mine-negatives": f"mine-negatives MODEL --train pairs.tsv --corpus text.txt --output OUT.jsonl {CPU}",
    "score-vectors": "score-vectors vectors.txt ratings.txt",
    "train-translation": "train-translation --train-source text.txt --train-target text.txt --size tiny --run OUT "
    f"--vocab-size 80 --steps 1 --dry-run {CPU}",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts in Latin-1, and models with a vocabulary of them."""
    folder = tmp_path_factory.mktemp("encodings")

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="latin-1")

    write("text.txt", SENTENCES)
    rows = [*zip(SENTENCES, reversed(SENTENCES), strict=True)]
    write("pairs.tsv", ["question\tanswer", *(f"{question}\t{answer}!" for question, answer in rows)])
    write(
        "classes.tsv", ["text\tlabel", *(f"{text}\t{('good', 'bad')[n % 2]}" for n, text in enumerate(SENTENCES * 6))]
    )
    write(
        "ratings.txt",
        [f"{first}\t{second}\t{n}" for n, (first, second) in enumerate(pairwise(WORDS))],
    )
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype(np.float32)
    write_text_vectors(folder / "vectors.txt", WORDS, vectors, header=False)
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS, "und", "!"], lowercase=False)
    tokenizer.save(folder / "vocabulary")
    save_random_model(folder / "vocabulary", CLASSES, folder / "CLASSIFIER")
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    save_model(folder / "MODEL", BertForPretraining(config), tokenizer)
    return folder


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.filterwarnings("ignore")
def test_a_command_reads_another_encoding_and_its_message_names_the_option(
    verb: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    words = COMMANDS[verb].replace("OUT", str(tmp_path / "out")).split()
    assert run(words) == 2
    message = capsys.readouterr().err
    assert set(re.findall(r"--[a-z][a-z-]*", message)) <= options_of(verb)
    assert re.search(r"\.t(xt|sv), byte \d+: ", message)
    assert run([*words, "--encoding", "latin-1"]) == 0, capsys.readouterr().err
