"""Train and score text vectors by the commands of docs/embeddings.md (bench/plans/vector_studies.md).

    python bench/vector_studies.py scifact|german|rerank|int8 [--data DATA] [--output FILE]
    python bench/vector_studies.py simcse|squad --model RUN [--seeds 1]           # an own English encoder
    python bench/vector_studies.py korsts|korquad|duplicates --model RUN          # an own Korean one

The commands run as a user runs them, on one thread, in a folder that is deleted; the encoders are those of
`bench/own_encoder.sh`. A result has the scores that `evaluate` writes, of the model and of what it is compared with,
and the interval of each difference. Runs that the result file has are not repeated.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

import bertwright
from bertwright.metrics.scores import spearman
from bertwright.search.exact_search import find_nearest
from bertwright.tables.retrieval_folders import read_retrieval_folder
from bertwright.tables.text_roles import read_text_table
from bertwright.tasks import embedding_objective
from bertwright.tasks.collation import step_items
from bertwright.training.optimizer_settings import linear_warmup_decay
from environment import DATA, make_parser, minilm, train_step, use_threads
from study import Record, by_seed, compare, finetune_table, run_missing

RESULTS = Path(__file__).parent / "results" / "vector_studies.jsonl"
QUESTIONS, PAIRS, WHOLE_BATCH = 20_000, 64, 2_048
MINI_RATE = 1.8e-4  # the package's default for a hidden size of 256


class Study(NamedTuple):
    """What a study reads: folder of data, folder for its files, the encoder that it starts from, and the seed."""

    data: Path
    work: Path
    model: str
    seed: int

    def train(self, file: Path | str, *more: object, name: str = "run", task: str = "embedding") -> Path:
        """Fine-tune by the command; return the run's folder."""
        run = self.work / name
        start = ["--model", self.model, "--run", run, "--seed", self.seed]
        call("finetune", "--task", task, "--train", file, *start, *more)
        return run

    def evaluate(self, run: Path | str, *more: object) -> Record:
        """Score vectors by the command; return the scores by system, and the differences."""
        report = self.work / f"{len([*self.work.glob('*.json')])}.json"
        call("evaluate", run, *more, "--output", report)
        found: Record = json.loads(report.read_text(encoding="utf-8"))
        scores = {name: value for name, value in found.items() if isinstance(value, float)}
        names = {self.model: "before", str(minilm()): "MiniLM"}
        others = {names.get(name, Path(name).name): one for name, one in found["compared"].items()}
        differences = {names.get(name, Path(name).name): one for name, one in found["differences"].items()}
        return {"data": found["data"], "scores": {"trained": scores, **others}, "differences": differences}


def call(*command: object) -> None:
    """Run a command of the package; end with it if it fails."""
    subprocess.run([sys.executable, "-m", "bertwright", *map(str, command)], check=True)


def write_rows(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def questions_of(articles: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return each question of SQuAD's articles with its paragraph."""
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return [
        {"question": one["question"], "passage": paragraph["context"]}
        for paragraph in paragraphs
        for one in paragraph["qas"]
    ]


def read_articles(path: Path) -> list[dict[str, Any]]:
    articles: list[dict[str, Any]] = json.loads(read_text(path))["data"]
    return articles


def read_text(path: Path) -> str:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return file.read()


def sample_questions(study: Study, number: int) -> Path:
    """Write a sample of SQuAD's training questions, each with its paragraph."""
    questions = questions_of(read_articles(study.data / "squad" / "train-v1.1.json"))
    return write_rows(study.work / "questions.jsonl", random.Random(study.seed).sample(questions, number))


def read_sentences(path: Path) -> list[str]:
    """Return the texts of a table, row by row."""
    return [text for row in read_text_table(str(path)).rows for text in row.texts]


def run_scifact(study: Study) -> Record:
    folder, mined = study.data / "scifact", study.work / "mined.jsonl"
    call("mine-negatives", study.model, "--train", folder / "qrels" / "train.tsv", "--output", mined, "--number", 1)
    run, against = study.train(mined, "--epochs", 5), ("--compare", "bm25", "fusion", study.model)
    unseen = write_unseen(folder, study.work / "unseen")
    return study.evaluate(run, folder, *against) | {"unseen": study.evaluate(run, unseen, *against)}


def write_unseen(folder: Path, target: Path) -> Path:
    """Write the retrieval set with the test claims whose abstracts no train claim has."""
    (target / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl.gz", "queries.jsonl"):
        shutil.copy(folder / name, target)
    judged = {split: read_text(folder / "qrels" / f"{split}.tsv").splitlines() for split in ("train", "test")}
    trained = {row.split("\t")[1] for row in judged["train"][1:]}
    seen = {row.split("\t")[0] for row in judged["test"][1:] if row.split("\t")[1] in trained}
    rows = [row for row in judged["test"] if row.split("\t")[0] not in seen]
    (target / "qrels" / "test.tsv").write_text("\n".join(rows), encoding="utf-8")
    return target


def run_german(study: Study) -> Record:
    run, captions, tatoeba = study.work / "run", study.data / "multi30k", study.data / "tatoeba" / "tatoeba.deu-eng."
    texts = ("--translations", captions / "train.en", captions / "train.de", "--epochs", 2, "--seed", study.seed)
    call("distill", study.model, "--student", study.model, *texts, "--run", run)
    against = ("--compare", study.model)
    test = [captions / f"test_2016_flickr.{language}" for language in ("en", "de")]
    rated = ("--header", False, "--columns", "anchor=1", "positive=2", "score=3")
    return {
        "captions": study.evaluate(run, *test, "--kind", "translations", *against),
        "tatoeba": study.evaluate(run, f"{tatoeba}eng", f"{tatoeba}deu", "--kind", "translations", *against),
        "sts_de": study.evaluate(run, study.data / "sts_de" / "stsb-de-test.csv.gz", *rated, *against),
    }


def run_simcse(study: Study) -> Record:
    splits = {name: study.data / "glue" / "STS-B" / f"{name}.tsv" for name in ("train", "dev", "test")}
    texts = {name: read_sentences(path) for name, path in splits.items()}
    captions = read_text(study.data / "captions" / "train.1.en.gz").splitlines()[:10_000]
    train = [*texts["train"], *map(str.strip, captions)]
    seen = {*texts["dev"], *texts["test"]}
    path = study.work / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in dict.fromkeys(train) if text not in seen), encoding="utf-8")
    return study.evaluate(study.train(path), splits["test"], "--kind", "similarity", "--compare", study.model)


def run_squad(study: Study) -> Record:
    train, test = sample_questions(study, QUESTIONS), study.data / "squad" / "dev-v1.1.json"
    small = study.train(train, "--epochs", 1, "--batch-size", PAIRS)
    rate = MINI_RATE * math.sqrt(WHOLE_BATCH / PAIRS)
    large = ("--epochs", 1, "--batch-size", WHOLE_BATCH, "--learning-rate", rate)
    others = study.train(train, *large, name="large batch"), train_theirs(study, train)
    return study.evaluate(small, test, "--compare", "bm25", study.model, *others)


def train_theirs(study: Study, train: Path) -> Path:
    """Train sentence-transformers on the same rows in a plain loop, because its trainer needs further packages."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(study.seed)
    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    start = study.work / "start"
    bertwright.load(study.model, "cpu").save(start)
    model = SentenceTransformer(str(start), device="cpu")
    loss, steps = MultipleNegativesRankingLoss(model), len(rows) // PAIRS
    optimizer = torch.optim.AdamW(model.parameters(), lr=MINI_RATE, weight_decay=0.0)
    model.train()
    for step in range(steps):
        rate = linear_warmup_decay(step, peak=MINI_RATE, warmup=steps // 10, total=steps)
        optimizer.param_groups[0]["lr"] = rate
        batch = [rows[number] for number in step_items(len(rows), PAIRS, step, study.seed)]
        features = [model.preprocess([row[side] for row in batch]) for side in ("question", "passage")]
        train_step(model, partial(loss, features, None), optimizer, False)
    model.eval()
    folder = study.work / "sentence-transformers"
    model.save(str(folder))
    return folder


def run_korsts(study: Study) -> Record:
    train, test = (study.data / "korsts" / f"sts-{name}.tsv.gz" for name in ("train", "test"))
    found = study.evaluate(study.train(train), test, "--kind", "similarity", "--compare", study.model)
    rows = read_text_table(str(test)).rows
    trigrams = TfidfVectorizer(analyzer="char", ngram_range=(3, 3)).fit(read_sentences(train))
    first, second = (trigrams.transform([row.texts[side] for row in rows]) for side in (0, 1))
    cosines = np.asarray(first.multiply(second).sum(1)).ravel().tolist()
    floor = spearman([row.score or 0.0 for row in rows], cosines)
    found["scores"]["character trigrams"] = {"spearman_cosine": floor}
    return found


def run_korquad(study: Study) -> Record:
    articles = read_articles(study.data / "korquad" / "KorQuAD_v1.0_dev.json.gz")
    random.Random(study.seed).shuffle(articles)
    train = write_rows(study.work / "train.jsonl", questions_of(articles[:112]))
    test = study.work / "test-squad.json"
    test.write_text(json.dumps({"data": articles[112:]}), encoding="utf-8")
    return study.evaluate(study.train(train), test, "--compare", "bm25", "fusion", study.model)


def run_duplicates(study: Study) -> Record:
    """Train with and without masks of known answers; return nDCG@10 on a tenth of the rows."""
    rows = [*csv.DictReader(read_text(study.data / "korean_pairs" / "ChatbotData.csv.gz").splitlines())]
    random.Random(study.seed).shuffle(rows)
    pairs = [{"question": row["Q"], "answer": row["A"]} for row in rows]
    tenth = len(pairs) // 10
    files = {"train": pairs[tenth:], "test": pairs[:tenth]}
    paths = {name: [str(write_rows(study.work / f"{name}.jsonl", chosen))] for name, chosen in files.items()}
    table = {"task": {"task": "embedding"} | paths, "model": study.model, "seed": study.seed, "linear_floor": False}
    scores = {"masked": test_score(table)}
    nothing = np.empty(0, np.int64)
    with patch.object(embedding_objective, "find_masked", lambda *_: (nothing, nothing)):
        scores["unmasked"] = test_score(table)
    return scores | {"rows": len(rows), "answers": len({row["A"] for row in rows})}


def test_score(table: Mapping[str, Any]) -> float:
    score: float = finetune_table(table)["scores"]["test"]["cosine_ndcg@10"]
    return 100 * score


def run_rerank(study: Study) -> Record:
    mined, test = study.work / "mined.jsonl", study.work / "test"
    train = ("--train", sample_questions(study, 2_000), "--number", 3, "--output", mined)
    call("mine-negatives", study.model, *train)
    run = study.train(mined, "--epochs", 1, task="reranking")
    questions = questions_of(read_articles(study.data / "squad" / "dev-v1.1.json"))
    numbers = {text: number for number, text in enumerate(dict.fromkeys(one["passage"] for one in questions))}
    chosen = random.Random(study.seed).sample(questions, 300)
    (test / "qrels").mkdir(parents=True)
    write_rows(test / "corpus.jsonl", ({"_id": str(number), "text": text} for text, number in numbers.items()))
    asked = ({"_id": f"q{place}", "text": one["question"]} for place, one in enumerate(chosen))
    write_rows(test / "queries.jsonl", asked)
    judged = [f"q{place}\t{numbers[one['passage']]}\t1" for place, one in enumerate(chosen)]
    (test / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]), encoding="utf-8")
    return study.evaluate(study.model, test, "--reranker", run)


def run_int8(study: Study) -> Record:
    """Return the share of the ten nearest that an index of both precisions finds, in percent."""
    claims = read_retrieval_folder(study.data / "scifact", "test")
    articles = [one for name in ("train", "dev") for one in read_articles(study.data / "squad" / f"{name}-v1.1.json")]
    dev = questions_of(read_articles(study.data / "squad" / "dev-v1.1.json"))
    asked = [one["question"] for one in random.Random(study.seed).sample(dev, 1_000)]
    paragraphs = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    sets = {"scifact": ([*claims.queries.values()], [*claims.documents.values()]), "squad": (asked, paragraphs)}
    return {name: round(100 * recall_of_int8(study, *texts), 2) for name, texts in sets.items()}


def recall_of_int8(study: Study, queries: Sequence[str], texts: Sequence[str]) -> float:
    model = bertwright.load(study.model, "cpu")
    with TemporaryDirectory() as folder:
        index = bertwright.SearchIndex.build(model, texts, folder=Path(folder, "index"), precision="both")
        exact = find_nearest(model.embed_query(list(queries)), model.embed_document(list(texts)), 10)
        found = index.search(list(queries), top_k=10)
        wanted = [{texts[place] for place in row} for row in exact.positions]
    hits = [len(near & {hit.text for hit in row}) / len(near) for near, row in zip(wanted, found, strict=True)]
    return float(np.mean(hits))


STUDIES: dict[str, Callable[[Study], Record]] = {
    "scifact": run_scifact, "german": run_german, "simcse": run_simcse, "squad": run_squad, "korsts": run_korsts,
    "korquad": run_korquad, "duplicates": run_duplicates, "rerank": run_rerank, "int8": run_int8,
}  # fmt: skip


def main() -> None:
    """Run what the result file lacks."""
    parser = make_parser(__doc__)
    parser.add_argument("study", choices=[*STUDIES])
    parser.add_argument("--model", default=str(minilm()), help="encoder to start from; MiniLM if not given")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    use_threads(1)

    def execute(run: Record) -> Record:
        with TemporaryDirectory() as folder:
            return STUDIES[options.study](Study(options.data, Path(folder), options.model, run["seed"]))

    records = run_missing(
        options.output, [{"study": options.study, "seed": seed} for seed in range(options.seeds)], execute
    )
    if options.study == "duplicates":
        masked, unmasked = (by_seed(records, name) for name in ("masked", "unmasked"))
        print("masked − unmasked, 95 % interval:", *compare(unmasked, masked))


if __name__ == "__main__":
    main()
