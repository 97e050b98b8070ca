"""Every command on every kind of model, vocabulary, store and vectors: it works, or it ends with one message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from task_models import options_of

from bertwright.cli.main import run
from bertwright.corpus.documents import CorpusSettings
from bertwright.executors.executor import SerialExecutor
from bertwright.inference.bert import Bert
from bertwright.interop.huggingface import save_model
from bertwright.models.encoder import TextEncoder
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.systems.cove.mt_lstm import CoveConfig, MtLstm, MtLstmConfig
from bertwright.systems.cove.mt_lstm_folder import SOURCE_RULES
from bertwright.systems.elmo.allennlp import write_elmo
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig
from bertwright.systems.gpt.gpt import GptConfig, GptEncoder, GptLanguageModel
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import TranslationSystem, write_translation_system
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmEncoder, AwdLstmLanguageModel
from bertwright.systems.window.window import WindowConfig, WindowEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.vector_formats import write_text_vectors, write_word2vec_binary
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

SENTENCES = [f"the {animal} sees the {place} ." for animal in ("bear", "wolf", "crow") for place in ("forest", "river")]
SIZES = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 32}
VOCABULARIES = {"wordpiece": 120, "byte-pair": 270, "words": 60, "lowercase-words": 60}
CLASSES = Classification(labels=("bad", "good"))
TASKS: dict[str, AnyTask] = {
    "classification": CLASSES,
    "tagging": Tagging(labels=("O", "B-PER", "I-PER"), scheme="iob2", max_length=16),
    "questions": QuestionAnswering(max_length=32, max_query_length=8),
    "choice": MultipleChoice(max_length=16),
}
DEVICE = "--device cpu --threads 1"
TUNE = f"--dry-run --run OUT {DEVICE} --train"
COMMANDS = [
    "info X",
    "tokenize X the_bear_Xx",
    "tokenize X the_bear --pair a_wolf",
    f"embed X the_bear_sees a_wolf {DEVICE}",
    f"embed X --inputs text.txt --output OUT.npy {DEVICE}",
    f"fill-mask X the_[MASK]_sees {DEVICE}",
    f"next-sentence X the_bear a_wolf {DEVICE}",
    f"attention X the_bear --output OUT.png {DEVICE}",
    f"generate X the_bear --max-new-tokens 2 {DEVICE}",
    f"score X the_bear_sees {DEVICE}",
    f"predict X the_bear_sees {DEVICE}",
    f"predict X --inputs c.tsv --output OUT.csv {DEVICE}",
    f"evaluate X c.tsv {DEVICE}",
    f"evaluate X t.conll {DEVICE}",
    "convert X OUT",
    "convert X OUT --format google",
    "convert X OUT --format allennlp",
    "nearest-words X bear",
    "nearest-words X bear wolf crow --analogy",
    "score-vectors X similarities.txt",
    f"translate X the_bear {DEVICE}",
    f"glue-submission X --data . --output OUT.zip --fill-missing {DEVICE}",
    "survey X",
    f"pretrain --store X --size tiny --steps 1 --batch-size 2 --max-length 16 --dry-run --run OUT {DEVICE}",
    f"finetune --model X --task classification {TUNE} c.tsv",
    f"finetune --model X --task tagging {TUNE} t.conll",
    f"finetune --architecture bilstm --vectors X --task classification {TUNE} c.tsv",
    f"finetune --architecture elmo --language-model X --task tagging {TUNE} t.conll",
    f"finetune --architecture cove --translation-model X --task tagging {TUNE} t.conll",
    f"train-translation --size tiny --batch-tokens 60 --steps 1 --vocabulary X --dry-run --run OUT {DEVICE} "
    "--train-source text.txt --train-target text.txt",
]  # fmt: skip


def write_files(folder: Path) -> None:
    """Write a text, examples of two tasks and a similarity file."""
    (folder / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "c.tsv").write_text("text\tlabel\n" + "".join(f"{s}\t{('good', 'bad')['w' in s]}\n" for s in SENTENCES))
    rows = ["".join(f"{word} {'B-PER' if word == 'bear' else 'O'}\n" for word in s.split()) for s in SENTENCES]
    (folder / "t.conll").write_text("\n".join(rows))
    (folder / "similarities.txt").write_text("bear wolf 3\ncrow forest 2\nriver bear 1\n")


def write_vectors(folder: Path) -> None:
    words = sorted({*" ".join(SENTENCES).split()})
    vectors = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    write_text_vectors(folder / "glove.txt", words, vectors, header=False)
    write_text_vectors(folder / "word2vec.txt", words, vectors, header=True)
    write_word2vec_binary(folder / "word2vec.bin", words, vectors)
    assert run([*f"word-vectors {folder}/text.txt --model fasttext --size 4 --epochs 1 --threads 1".split(),
                "--output", f"{folder}/fasttext"]) == 0  # fmt: skip


def write_models(folder: Path) -> None:
    """Write random models of every architecture: for pre-training, and with the head of a task."""
    wordpiece, pairs, words, lower = (open_tokenizer(folder / name) for name in VOCABULARIES)
    own = WordTokenizer.learn(SENTENCES, WordRules())
    bert = BertConfig(wordpiece.vocab_size, **SIZES)
    gpt = GptConfig(pairs.vocab_size, **SIZES)
    ulmfit = AwdLstmConfig(lower.vocab_size, embedding_size=8, lstm_size=8, num_layers=2)
    elmo = BidirectionalLM(
        ElmoConfig(words.vocab_size, filters=((1, 4), (2, 4)), num_highway=1, projection_size=4, cell_size=8)
    )
    pretrained = BertForPretraining(bert)
    for layer in (pretrained.pooler.dense, pretrained.next_sentence):
        torch.nn.init.constant_(layer.bias, 1e-3)  # as if it was trained
    save_model(folder / "bert", pretrained, wordpiece)
    save_model(folder / "gpt", GptLanguageModel(gpt), pairs)
    save_model(folder / "ulmfit", AwdLstmLanguageModel(ulmfit), lower)
    save_model(folder / "elmo", elmo, words)
    (folder / "allennlp").mkdir()
    write_elmo(folder / "allennlp", elmo)
    encoders: dict[str, tuple[Callable[[], TextEncoder], TextTokenizer, str]] = {
        f"bert-{task}": (lambda: BertEncoder(bert), wordpiece, task) for task in TASKS
    }
    encoders |= {
        "gpt-classification": (lambda: GptEncoder(gpt), pairs, "classification"),
        "ulmfit-classification": (lambda: AwdLstmEncoder(ulmfit), lower, "classification"),
    }
    sizes = {"vocab_size": own.vocab_size, "num_characters": own.num_characters, "word_size": 8}
    for task in ("classification", "tagging"):
        encoders[f"bilstm-{task}"] = (lambda: BiLSTMEncoder(BiLSTMConfig(**sizes, lstm_size=8)), own, task)
    encoders["window-tagging"] = (lambda: WindowEncoder(WindowConfig(**sizes, hidden_size=8)), own, "tagging")
    for name, (make, tokenizer, task) in encoders.items():
        Bert(TaskModel(EncoderForTask(make(), TASKS[task].head), TASKS[task]), tokenizer).save(folder / name)
    target = learn_joint_vocabulary(SENTENCES, 40)
    source = WordTokenizer.learn(SENTENCES, SOURCE_RULES)
    cove = MtLstm(MtLstmConfig(CoveConfig(source.vocab_size, 4, 8), target.vocab_size))
    transformer = Transformer(TransformerConfig.from_size("tiny", target.vocab_size))
    for name, system in (
        ("mt-lstm", TranslationSystem(cove, source, target)),
        ("transformer", TranslationSystem(transformer, target, target)),
    ):
        (folder / name).mkdir()
        write_translation_system(folder / name, system)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    write_files(folder)
    corpus = CorpusSettings((f"line={folder}/text.txt",))
    for name, size in VOCABULARIES.items():
        learn = f"vocabulary {folder}/text.txt --algorithm {name} --size {size} --min-frequency 1"
        assert run([*learn.split(), "--output", str(folder / name)]) == 0
        settings = BuildSettings(held_out=0.3, workers=1)
        build(folder / f"store-{name}", corpus, open_tokenizer(folder / name), settings, executor=SerialExecutor())
    write_vectors(folder)
    write_models(folder)
    return folder


MODELS = ["bert", "gpt", "ulmfit", "elmo", *(f"bert-{task}" for task in TASKS), "gpt-classification",
          "ulmfit-classification", "bilstm-classification", "bilstm-tagging", "window-tagging"]  # fmt: skip
VECTORS = ["glove.txt", "word2vec.txt", "word2vec.bin", "fasttext"]
KINDS = [
    *VOCABULARIES,
    *(f"store-{name}" for name in VOCABULARIES),
    *VECTORS,
    *MODELS,
    "allennlp",
    "mt-lstm",
    "transformer",
]
# Commands by their first words, and kinds on which they must work.
MUST_WORK = {
    "info X": MODELS,
    "tokenize X": [*VOCABULARIES, *MODELS],
    "embed X": MODELS,
    "fill-mask X": ["bert"],
    "next-sentence X": ["bert"],
    "generate X": ["gpt"],
    "score X": ["gpt"],
    "evaluate X c.tsv": [name for name in MODELS if name.endswith("classification")],
    "evaluate X t.conll": [name for name in MODELS if name.endswith("tagging")],
    "nearest-words X": VECTORS,
    "score-vectors X": VECTORS,
    "translate X": ["mt-lstm", "transformer"],
    "finetune --architecture bilstm --vectors X": VECTORS,
}  # fmt: skip


def options_named(message: str) -> set[str]:
    """Return the options in a message, without those of a command that it quotes."""
    text = re.sub(r"bertwright [a-z].*?(?=[;)]|$)", "", message.replace("\n", " "))
    return set(re.findall(r"--[a-z][a-z-]*", text))


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.filterwarnings("ignore")
def test_command_works_on_every_kind_or_ends_with_one_message(
    command: str,
    share: int,
    kinds: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a share of 4, a command runs on every fourth kind, so that each kind has a quarter of the commands."""
    monkeypatch.chdir(kinds)
    required = next((names for start, names in MUST_WORK.items() if command.startswith(start)), [])
    first = COMMANDS.index(command) % share
    for number, kind in list(enumerate(KINDS))[first::share]:
        out = str(tmp_path / f"out{number}")
        words = [kind if word == "X" else word.replace("OUT", out).replace("_", " ") for word in command.split()]
        capsys.readouterr()
        code = run(words)  # a traceback is an exception here
        printed = capsys.readouterr().err
        assert (code, printed.count("error: ")) in ((0, 0), (2, 1)), (kind, words, printed)
        assert code == 0 or kind not in required, (kind, words, printed)
        assert options_named(printed) <= options_of(words[0]), (kind, words, printed)
