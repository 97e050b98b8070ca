"""Evaluation of vectors, search, mining and explanation with a tiny model, through the commands and in Python."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import RobertaConfig, RobertaModel

import bertwright
from bertwright.cli.main import run
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.bert import Bert
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.explain import ExplainSettings, explain
from bertwright.inference.info import InfoSettings, info
from bertwright.inference.mine_negatives import mine_negatives
from bertwright.inference.search_commands import build, query
from bertwright.inference.search_index import describe_index, write_index
from bertwright.inference.search_settings import MineSettings, SearchBuildSettings, SearchQuerySettings
from bertwright.interop.sentence_modules import Dense, SentenceModules
from bertwright.search.bm25 import Bm25
from bertwright.search.mining import MiningRules
from bertwright.search.vector_index import Document
from bertwright.tables.retrieval_folders import read_documents
from bertwright.tasks.presets import TaskSettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from helpers import CPU, read_output
from trained_tokenizers import write_tokenizer

NOUNS = "deer fish wolf crow hare duck seal lynx mole bear".split()
TEXTS = [f"The {noun} sees the {other} ." for noun, other in zip(NOUNS, NOUNS[1:] + NOUNS[:1], strict=True)]
pytestmark = pytest.mark.filterwarnings("ignore:.*UNK")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a retrieval set whose queries are words of their documents."""
    root = tmp_path / "beir"
    (root / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(TEXTS)]
    queries = [{"_id": f"q{number}", "text": noun} for number, noun in enumerate(NOUNS)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"q{number}\td{number}\t1\n" for number in range(len(NOUNS))]
    (root / "qrels" / "test.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *rows]))
    return root


def test_retrieval_is_scored_beside_bm25_and_fusion(
    tmp_path: Path, folder: Path, one_layer_folder: Path, reporter: TerminalReporter
) -> None:
    output = tmp_path / "scores.json"
    settings = EvaluateSettings(
        str(one_layer_folder), (str(folder),), output=output, compare=("bm25", "fusion"), device=CPU
    )
    scores = evaluate(settings, reporter)
    report = json.loads(output.read_text())
    assert report["cosine_ndcg@10"] == scores["cosine_ndcg@10"]
    assert report["compared"]["bm25"]["cosine_recall@10"] == 1.0  # two documents have the word of each query
    assert {"mean", "low", "high"} == report["differences"]["bm25"].keys()
    printed = read_output(reporter)
    assert "10 queries, 10 documents, 10 judgements (split test)" in printed
    assert "against bm25" in printed


def test_what_cannot_be_compared_is_refused(tmp_path: Path, one_layer_folder: Path, folder: Path) -> None:
    table = tmp_path / "sts.tsv"
    table.write_text("sentence1\tsentence2\tscore\nThe bear .\tThe deer .\t2.5\nA .\tThe fish .\t1.0\n")
    settings = EvaluateSettings(str(one_layer_folder), (str(table),), kind="similarity", device=CPU)
    assert evaluate(settings).keys() == {"spearman_cosine", "pearson_cosine"}
    with pytest.raises(ValueError, match="--compare bm25: expected data for retrieval, got similarity"):
        evaluate(replace(settings, compare=("bm25",)))
    with pytest.raises(ValueError, match=r"--kind triplets: .*line 2 has columns for similarity"):
        evaluate(replace(settings, kind="triplets"))
    with pytest.raises(ValueError, match="--ensemble: not an option"):
        evaluate(replace(settings, ensemble=(str(one_layer_folder),)))
    with pytest.raises(ValueError, match="--kind sts: "):
        evaluate(replace(settings, kind="sts"))
    with pytest.raises(ValueError, match="no judgements of a split 'dev'"):
        evaluate(EvaluateSettings(str(one_layer_folder), (str(folder),), split="dev", device=CPU))


def test_index_is_built_and_queried_by_commands(
    tmp_path: Path, folder: Path, one_layer_folder: Path, reporter: TerminalReporter
) -> None:
    index = tmp_path / "index"
    build(SearchBuildSettings(str(one_layer_folder), (str(folder),), index, device=CPU), reporter)
    assert "10 documents" in read_output(reporter)
    for by in ("vectors", "fusion"):
        (found,) = query(SearchQuerySettings(index, (TEXTS[3],), number=3, by=by, device=CPU), reporter)
        assert (found[0].id, found[0].text, len(found)) == ("d3", TEXTS[3], 3)
    info(InfoSettings(index), reporter)
    assert re.search(r"documents +10\n +vectors +[0-9]+ numbers each, float32\n +BM25 +yes", read_output(reporter))
    with pytest.raises(ValueError, match="already an index of 10 documents; --append"):
        build(SearchBuildSettings(str(one_layer_folder), (str(folder),), index, device=CPU))
    with pytest.raises(ValueError, match="no such index; make one"):
        query(SearchQuerySettings(tmp_path / "none", ("a",), device=CPU))


def test_search_in_python_equals_the_vectors_products(tmp_path: Path, one_layer_folder: Path) -> None:
    model = bertwright.load(one_layer_folder, "cpu")
    index = bertwright.SearchIndex.build(model, TEXTS, tmp_path / "index", ids=NOUNS)
    hits = index.search("The wolf .", top_k=4)
    cosines = model.embed(TEXTS) @ model.embed("The wolf .")
    order = np.argsort(-cosines, kind="stable")[:4]
    assert [hit.id for hit in hits] == [NOUNS[place] for place in order]
    np.testing.assert_allclose([hit.score for hit in hits], cosines[order], atol=1e-6)
    assert index.search(["wolf"], by="bm25")[0][0].id in ("fish", "wolf")
    assert index.search([]) == []
    with pytest.raises(ValueError, match="by: expected"):
        index.search("a", by="words")  # type: ignore[call-overload]


def test_another_model_does_not_open_an_index(tmp_path: Path, one_layer_folder: Path) -> None:
    model = bertwright.load(one_layer_folder, "cpu")
    bertwright.SearchIndex.build(model, TEXTS, tmp_path / "index")
    prompted = Bert(model.model, model.tokenizer, modules=SentenceModules(("mean",), prompts={"query": "The "}))
    with pytest.raises(ValueError, match=r"another model's \(prompts: "):
        bertwright.SearchIndex.open(tmp_path / "index", prompted)
    next(model.model.parameters()).data[0] += 1
    with pytest.raises(ValueError, match=r"another model's \(weights: "):
        bertwright.SearchIndex.open(tmp_path / "index", model)


def test_a_resumed_build_reports_all_documents(
    tmp_path: Path, one_layer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    model, documents = bertwright.load(one_layer_folder, "cpu"), [*map(Document, NOUNS, TEXTS)]
    index = tmp_path / "index", model, describe_index(model, None, "float32")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Bm25, "build", kill)
        write_index(documents, *index)
    assert write_index(documents, *index) == len(TEXTS)


def test_texts_and_ids_of_different_numbers_are_refused(tmp_path: Path, one_layer_folder: Path) -> None:
    with pytest.raises(ValueError, match="expected one for each text, got 1 ids"):
        bertwright.SearchIndex.build(bertwright.load(one_layer_folder, "cpu"), TEXTS, tmp_path / "index", ids=["a"])


@pytest.mark.parametrize("by", ["bm25", "vectors"])
def test_mined_file_has_no_known_positive_and_the_same_bytes(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter, by: str
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"question": noun, "answer": text} for noun, text in zip(NOUNS, TEXTS, strict=True)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "deer", "answer": TEXTS[-1]}]))
    settings = MineSettings(
        str(one_layer_folder), (str(pairs),), tmp_path / "a.jsonl", by=by,
        rules=MiningRules(2, margin=0), scores=True, device=CPU,
    )  # fmt: skip
    counts = mine_negatives(settings, reporter)
    mine_negatives(replace(settings, output=tmp_path / "b.jsonl"))
    content = (tmp_path / "a.jsonl").read_bytes()
    assert content == (tmp_path / "b.jsonl").read_bytes()
    mined = [json.loads(line) for line in content.splitlines()]
    assert len(mined) + counts.none == 11
    for row in mined:
        negatives = [text for name, text in row.items() if name.startswith("negative_")]
        assert row["positive"] not in negatives
        assert row["anchor"] != "deer" or not {TEXTS[0], TEXTS[-1]} & {*negatives}
        assert max(row["neg_scores"]) <= row["pos_scores"][0]
    assert "known positives or equal texts" in read_output(reporter)


def test_graded_positives_never_become_negatives(tmp_path: Path, one_layer_folder: Path) -> None:
    rows = [("deer", TEXTS[0], 2), ("deer", TEXTS[9], 1), ("deer", TEXTS[5], 0), ("wolf", TEXTS[2], 1)]
    table = tmp_path / "graded.tsv"
    table.write_text("query\tpassage\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    settings = MineSettings(
        str(one_layer_folder), (str(table),), tmp_path / "mined.jsonl", by="bm25", corpus=(str(tmp_path / "docs.txt"),),
        rules=MiningRules(2, margin=0), device=CPU,
    )  # fmt: skip
    (tmp_path / "docs.txt").write_text("\n".join(TEXTS) + "\n")
    assert len(mine_negatives(settings).positive_scores) == 3
    mined = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    found = {text for row in mined if row["anchor"] == "deer" for name, text in row.items() if "negative" in name}
    assert not {TEXTS[0], TEXTS[9]} & found


@pytest.mark.parametrize("part", ["", "qrels/train.tsv"])
def test_documents_of_a_retrieval_set_become_negatives(
    tmp_path: Path, folder: Path, one_layer_folder: Path, part: str
) -> None:
    for split, number in (("train", 0), ("test", 1)):
        row = f"q{number}\td{number}\t1\n"
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{row}")
    rules = MiningRules(number=1, margin=0, to_rank=5)
    output = tmp_path / "mined.jsonl"
    mine_negatives(MineSettings(str(one_layer_folder), (str(folder / part),), output, by="bm25", rules=rules))
    (row,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert (row["anchor"], row["positive"]) == (NOUNS[0], TEXTS[0])
    assert row["negative_1"] in TEXTS[1:]


def test_explanation_sums_to_the_cosine(tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter) -> None:
    model = bertwright.load(one_layer_folder, "cpu")
    explanation = model.explain("The bear sees .", "A wolf ?")
    cosine = float(model.embed("The bear sees .") @ model.embed("A wolf ?"))
    assert explanation.matrix.sum() == pytest.approx(cosine, abs=1e-6)
    assert explanation.query_words[0] == "[CLS]"
    assert explanation.matrix.shape == (len(explanation.query_words), len(explanation.text_words))
    picture = tmp_path / "matrix.png"
    explain(ExplainSettings(str(one_layer_folder), "The bear .", "A wolf ?", picture, CPU), reporter)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_words_of_an_explanation_are_whole_words_of_any_vocabulary(kind: str, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", kind)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=open_tokenizer(tokenizer).vocab_size, max_position_embeddings=60, **sizes)
    RobertaModel(config).save_pretrained(tmp_path / "model")
    for path in tokenizer.iterdir():
        shutil.copy(path, tmp_path / "model")
    found = bertwright.load(tmp_path / "model", "cpu").explain("The quick élevé jumps", "Le renard brun")
    assert found.query_words == ("<s>", "The", "quick", "élevé", "jumps", "</s>")
    assert found.text_words == ("<s>", "Le", "renard", "brun", "</s>")
    assert found.matrix.sum() == pytest.approx(found.cosine)


def dense(size: int, activation: str) -> Dense:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "linear.weight": torch.randn(5, size, generator=generator),
        "linear.bias": torch.randn(5, generator=generator),
    }
    return Dense({"activation_function": f"torch.nn.modules.{activation}"}, tensors)


def test_explanation_goes_through_prompts_and_linear_layers(one_layer_folder: Path) -> None:
    plain = bertwright.load(one_layer_folder, "cpu")
    linear = dense(plain.config.hidden_size, "linear.Identity")
    for include_prompt in (True, False):
        modules = SentenceModules(
            ("mean",), include_prompt, (linear, nn.functional.normalize), 4, prompts={"query": "The bear : "}
        )
        model = Bert(plain.model, plain.tokenizer, modules=modules)
        first, second = model.embed("wolf sees", prompt_name="query"), model.embed("The fish")
        cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
        assert model.explain("wolf sees", "The fish").cosine == pytest.approx(cosine, abs=1e-6)


def test_explanations_that_would_be_wrong_are_refused(one_layer_folder: Path) -> None:
    plain = bertwright.load(one_layer_folder, "cpu")
    layer = dense(plain.config.hidden_size, "activation.Tanh")
    for modules, place in (
        (SentenceModules(("cls",)), "expected mean pooling.*got cls"),
        (SentenceModules(("mean",), layers=(layer,)), "Dense with Tanh"),
        (SentenceModules(("mean",), max_length=5), "at most the 5 tokens"),
    ):
        with pytest.raises(ValueError, match=place):
            Bert(plain.model, plain.tokenizer, modules=modules).explain("The bear sees the wolf .", "A")


def test_commands_of_two_words_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "build", "--help"]) == 0
    assert "--append" in capsys.readouterr().out
    assert run(["search", "bild"]) == 2
    assert run(["search", "query", "nowhere", "a question"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_texts_at_the_margin_are_shown_once_for_copies_of_a_pair(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter
) -> None:
    rows = [{"anchor": noun, "positive": text} for noun, text in zip(NOUNS, TEXTS, strict=True)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    rules = MiningRules(1, margin=0.9)
    output = tmp_path / "mined.jsonl"
    with pytest.raises(ValueError, match="no row has a negative"):
        mine_negatives(MineSettings(str(one_layer_folder), (str(pairs),), output, by="bm25", rules=rules), reporter)
    assert not output.exists()
    anchors = re.findall(r"^ +anchor +(\w+)$", read_output(reporter), re.MULTILINE)
    assert sorted(anchors) == sorted({*anchors} & {*NOUNS})
    assert anchors


def test_lists_and_files_of_a_folder_are_documents(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    rows = [{"answer": ["One .", "Two ."]}, {"answer": "Three ."}]
    (tmp_path / "docs" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "docs" / "b.txt").write_text("Four .\n")
    article = {"paragraphs": [{"context": "Five .", "qas": []}]}
    (tmp_path / "docs" / "c.json").write_text(json.dumps({"data": [article]}))
    read = {Path(name).name: text for name, text in read_documents(str(tmp_path / "docs"), "answer")}
    assert read == {
        "a.jsonl:1.1": "One .",
        "a.jsonl:1.2": "Two .",
        "a.jsonl:2": "Three .",
        "b.txt:1": "Four .",
        "c.json:1": "Five .",
    }


def test_a_reranker_has_no_vectors_to_search_and_another_model_does_not_rerank(
    tmp_path: Path, one_layer_folder: Path
) -> None:
    rows = [{"query": "a", "text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    given = {"model": str(one_layer_folder), "run": run, "epochs": 1, "linear_floor": False, "device": CPU}
    finetune(FinetuneSettings(task=TaskSettings("reranking", train=(str(train),)), **given))
    with pytest.raises(ValueError, match="re-ranker has no vectors"):
        build(SearchBuildSettings(str(run), (str(train),), tmp_path / "index", device=CPU))
    build(SearchBuildSettings(str(one_layer_folder), (str(train),), tmp_path / "index", device=CPU))
    settings = SearchQuerySettings(tmp_path / "index", ("deer",), reranker=str(one_layer_folder), device=CPU)
    with pytest.raises(ValueError, match="no re-ranker; train one"):
        query(settings)
    assert query(replace(settings, reranker=str(run)))[0]
    one_layer_folder.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="its model is not at"):
        query(replace(settings, reranker=None))
    assert query(replace(settings, reranker=None, model=str(tmp_path / "moved")))[0]


def test_ids_that_occur_twice_are_refused(tmp_path: Path, one_layer_folder: Path) -> None:
    with pytest.raises(ValueError, match="'1' occurs twice"):
        bertwright.SearchIndex.build(bertwright.load(one_layer_folder), TEXTS[:2], tmp_path / "index", ids=["1", 1])
    assert not (tmp_path / "index").exists()


def test_a_query_that_finds_nothing_and_an_option_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an empty query"):
        SearchQuerySettings(tmp_path, ("deer", " "))
    with pytest.raises(ValueError, match="top = 5: there is no --reranker"):
        SearchQuerySettings(tmp_path, ("deer",), top=5)


def test_a_column_of_the_corpus_becomes_negatives(tmp_path: Path, one_layer_folder: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(f"query\tanswer\ndeer\t{TEXTS[0]}\n")
    (tmp_path / "faq.csv").write_text("".join(f"{line}\n" for line in ("answer", *TEXTS[1:])))
    files = (str(tmp_path / "pairs.tsv"),), tmp_path / "mined.jsonl", (str(tmp_path / "faq.csv"),)
    mine_negatives(MineSettings(str(one_layer_folder), *files, column="answer", rules=MiningRules(1, margin=0)))
    assert json.loads(files[1].read_text())["negative_1"] in TEXTS[1:]


def test_lines_of_two_languages_are_pairs(tmp_path: Path, one_layer_folder: Path) -> None:
    files = [str(tmp_path / f"test.{language}") for language in ("en", "de")]
    for path in files:
        Path(path).write_text("Text\nA\ttab\n")
    scores = evaluate(EvaluateSettings(str(one_layer_folder), tuple(files), kind="translations", device=CPU))
    assert scores["mean_accuracy"] == 1
    Path(files[1]).write_text("Text\n\n")
    with pytest.raises(ValueError, match="line 2: an empty line"):
        evaluate(EvaluateSettings(str(one_layer_folder), tuple(files), kind="translations", device=CPU))
