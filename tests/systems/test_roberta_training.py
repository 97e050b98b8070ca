"""RoBERTa as a user has it, through all commands like ModernBERT, and folders of its relatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bertwright
from bertwright.cli.main import run
from bertwright.corpus.documents import CorpusSettings
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import start_task_model, write_task_model
from bertwright.tasks.classification import Classification
from bertwright.tasks.collation import collate
from bertwright.tasks.text_task import TextExample
from bertwright.training.loop import LossOutput, train_steps
from bertwright.training.optimizer import OptimizerSettings, make_optimizer
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from reference.converted import randomize_reference
from small_runs import grammar
from trained_tokenizers import SENTENCES, write_tokenizer

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}


@pytest.mark.parametrize("algorithm", ["bpe-bytes", "unigram"])
def test_a_learned_vocabulary_is_that_of_roberta(algorithm: str, tmp_path: Path) -> None:
    """The text has words that the tokenizers' trainers treat as their own."""
    (tmp_path / "text.txt").write_text(grammar(60) + "\n\nA text of <UNK> and <mask>. Also </s>.\n")
    command = ["vocabulary", str(tmp_path / "text.txt"), "--algorithm", algorithm, "--size", "330"]
    assert run([*command, "--min-frequency", "2", "--output", str(tmp_path / "tokenizer")]) == 0
    tokenizer = open_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.tokens[:5] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    assert not tokenizer.lowercase
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")("<mask> x", "y")["input_ids"][:2] == [
        0,
        4,
    ]
    raw = tokenizer.encode_raw(["A <mask> </s>"]).ids
    assert not {0, 2, 4} & set(raw.tolist())


def save_modernbert(folder: Path) -> None:
    tokenizer = open_tokenizer(write_tokenizer(folder, "bytes"))
    config = transformers.ModernBertConfig(vocab_size=tokenizer.vocab_size, **TINY, pad_token_id=1)
    transformers.ModernBertForMaskedLM(config).save_pretrained(folder)


@pytest.mark.parametrize("name", ["RoBERTa", "ModernBERT"])
def test_every_command_takes_it(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    {"RoBERTa": save_roberta, "ModernBERT": save_modernbert}[name](Path("m"))
    rows = [f"the {animal} sees it\t{label}\n" for animal, label in (("fox", "good"), ("dog", "bad"))] * 6
    Path("rows.tsv").write_text("text\tlabel\n" + "".join(rows))
    Path("pairs.tsv").write_text("a\tb\tlabel\n" + "".join(f"the fox\t{row}" for row in rows))
    Path("tags.txt").write_text("the O\nfox B-X\njumps O\n\ndog B-X\n\n" * 8)
    Path("choices.jsonl").write_text(
        "".join(json.dumps({"prompt": "the", "endings": ["fox", "dog"], "label": n % 2}) + "\n" for n in range(12))
    )
    paragraphs = [{"context": "the quick brown fox jumps", "qas": [{"id": str(n), "question": "who", "answers": [
        {"text": "brown fox", "answer_start": 10}]}]} for n in range(6)]  # fmt: skip
    Path("squad.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    tasks = {
        "classification": "rows.tsv",
        "classification ": "pairs.tsv --text a --text-pair b",
        "tagging": "tags.txt",
        "multiple-choice": "choices.jsonl --prompt prompt --endings endings",
        "question-answering": "squad.json --max-query-length 8",
    }
    device = "--device cpu --threads 1"
    for number, (task, data) in enumerate(tasks.items()):
        file, _, options = data.partition(" ")
        command = f"finetune --task {task} --train {file} --dev {file} --model m --run r{number} --epochs 1 {options}"
        assert run([*command.split(), "--batch-size", "4", "--max-length", "40", *device.split()]) == 0, task
        assert run(["evaluate", f"r{number}", file, *device.split()]) == 0, task
        assert transformers.AutoConfig.from_pretrained(f"r{number}/model").model_type == name.lower(), task
    assert run(["embed", "m", "the fox", "--output", "v.npy", *device.split()]) == 0
    assert run(["fill-mask", "m", "the <mask> sees", *device.split()]) == 0
    assert run(["info", "m"]) == 0
    out = capsys.readouterr().out
    assert f"{name} L2 H32 A2" in out
    assert "pooler" not in out
    probe = "probe --task tagging --train tags.txt --dev tags.txt --model m --run p --epochs 1 --representations last"
    assert run([*probe.split(), *device.split()]) == 0


def save_roberta(folder: Path, kind: str = "bytes") -> Any:
    """Write a RoBERTa with random weights and a trained tokenizer; return it."""
    tokenizer = open_tokenizer(write_tokenizer(folder, kind))
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.vocab_size, **TINY, max_position_embeddings=66, type_vocab_size=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5,
    )  # fmt: skip
    model = randomize_reference(transformers.RobertaForMaskedLM(config))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("steps", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_a_fine_tuning_has_the_losses_of_transformers(tmp_path, steps):
    """The same steps by torch's AdamW, with decay of matrices alone and clipping; no dropout."""
    save_roberta(tmp_path / "m")
    head = Classification(labels=("a", "b"), max_length=40)
    ours = start_task_model(tmp_path / "m", head.head, seed=1).model.train()
    start = OptimizerSettings(learning_rate=1e-3, bias_correction=True, eps=1e-8)
    record = HeadRecord(head.head, ("a", "b"), regression=False)
    (tmp_path / "start").mkdir()
    tokenizer = open_tokenizer(tmp_path / "m")
    write_task_model(tmp_path / "start", ours, tokenizer, record)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "start").train()
    texts = [text[:first] for text in SENTENCES[:1] + SENTENCES[10:] for first in range(4, 20)]
    examples = [TextExample(text, None, "ab"[len(text) % 2], "x") for text in texts]
    encoded = head.encode(examples, tokenizer)
    rng = np.random.default_rng(0)
    chosen = [rng.choice(encoded.num_items, 8, replace=False) for _ in range(steps)]
    optimizer = make_optimizer(ours, start)
    batches = ([collate(encoded, items)] for items in chosen)

    def loss(batch: Any) -> LossOutput:
        mean = head.loss(ours(batch), batch) / batch.num_labels
        return LossOutput.of(mean, {"loss": mean.detach()}, {})

    found = [step.sums["loss"] for step in train_steps(loss, batches, optimizer, lambda _: 1e-3)]
    groups = [
        {"params": [p for p in theirs.parameters() if (p.ndim > 1) == decays], "weight_decay": 0.01 * decays}
        for decays in (True, False)
    ]
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    adamw, expected = torch.optim.AdamW(groups, lr=1e-3, eps=1e-8), []
    for items in chosen:
        batch = encode([texts[n] for n in items], padding=True, return_tensors="pt")
        output = theirs(**batch, labels=torch.tensor([len(texts[n]) % 2 for n in items]))
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        expected.append(output.loss.item())
    assert found == pytest.approx(expected, abs=1e-5)
    assert np.mean(found[-5:]) < np.mean(found[:5])


def test_a_bert_with_the_tokenizer_of_xlm_roberta_embeds_as_in_transformers(tmp_path):
    """Multilingual MiniLM: BERT's network, whose sequences have no segment types and two tokens between texts."""
    tokenizer = open_tokenizer(write_tokenizer(tmp_path, "unigram"))
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, **TINY, max_position_embeddings=64)
    reference = randomize_reference(transformers.BertModel(config)).eval()
    reference.save_pretrained(tmp_path)
    bert, theirs = bertwright.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The quick fox", SENTENCES[1][:20]):
        with torch.no_grad():
            states = reference(**theirs(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(bert.embed(text, normalize=False), states.mean(0), atol=1e-5)
    assert bert.attention("The fox", "jumps").tokens.count("</s>") == 3


def test_a_folder_of_sentence_transformers_on_xlm_roberta_gives_its_vectors(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    tokenizer = open_tokenizer(write_tokenizer(tmp_path / "base", "unigram"))
    config = transformers.XLMRobertaConfig(
        vocab_size=tokenizer.vocab_size, **TINY, max_position_embeddings=66, type_vocab_size=1
    )
    randomize_reference(transformers.XLMRobertaModel(config)).save_pretrained(tmp_path / "base")
    parts = [modules.Transformer(str(tmp_path / "base")), modules.Pooling(32, "mean"), modules.Normalize()]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "e5"))
    texts = ["query: The quick fox", "passage: " + SENTENCES[1][:20]]
    expected = library.SentenceTransformer(str(tmp_path / "e5"), device="cpu").encode(texts)
    bert = bertwright.load(tmp_path / "e5")
    np.testing.assert_allclose(bert.embed(texts), expected, atol=1e-5)
    bert.save(tmp_path / "saved")
    again = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("deberta-v2", "disentangled"), ("longformer", "windows"), ("t5", "decoder"), ("llama", "decoder"), ("mamba", "")],
)
def test_other_models_are_refused_by_name(tmp_path, model_type, reason):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match=rf"config\.json: model_type: expected .*, got '{model_type}'.*{reason}"):
        bertwright.load(tmp_path)


def test_misuse_of_the_trainers_is_explained(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Some words, and a few more words.\n" * 9)
    settings = LearnSettings(
        CorpusSettings((str(text),)), tmp_path / "v", VocabularySettings(100, algorithm="bpe-bytes")
    )
    with pytest.raises(ValueError, match=r"size is 100: expected at least 261"):
        learn_vocabulary(settings)
    assert not (tmp_path / "v").exists()


def test_the_learned_tokenizer_is_that_of_its_folder(tmp_path):
    """Its digest is compared with that of stores; `tokenizers` writes the scores of pieces rounded."""
    text = tmp_path / "text.txt"
    text.write_text(grammar(60))
    rules = VocabularySettings(330, algorithm="unigram", min_frequency=2)
    learned = learn_vocabulary(LearnSettings(CorpusSettings((str(text),)), tmp_path / "v", rules))
    assert learned.digest == open_tokenizer(tmp_path / "v").digest
