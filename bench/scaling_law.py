"""Fit the scaling law of `bertwright plan` to runs of different lengths, and to table 6 of the paper.

    python bench/scaling_law.py [--run DATA WORK]

Prints the constants with their standard deviations, and each loss beside that of the law. The constants but E and B are
common to all texts; from the result follows `PRIOR` in src/bertwright/planning/scaling_law.py. `--run` first makes
the runs that bench/results/scaling_law.jsonl lacks: DATA is a folder with the corpora, stores and runs go to WORK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.corpus.documents import CorpusSettings
from bertwright.planning.recipe_choice import MIN_STEP_TOKENS, choose_settings
from bertwright.planning.scaling_law import PLATEAU, compute_loss, count_effective_tokens
from bertwright.pretraining.prepare import PrepareSettings, prepare
from bertwright.pretraining.run import pretrain
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.tokenstore.build import BuildSettings
from bertwright.training.device_settings import DeviceSettings
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from environment import append_result, make_parser
from study import read_records

RESULTS = Path(__file__).parent / "results" / "scaling_law.jsonl"
VOCABULARY = 8_000
DEVICE = DeviceSettings("cpu", "float32", threads=1)
TOKENS_PER_STEP = 1_010  # of 16 × 64: some sequences are shorter
NOISE, PAPER_NOISE = 0.03, 0.05  # nats; the paper's runs differ in more than their size


class Text(NamedTuple):
    """A text below DATA/corpora, and how it is prepared."""

    inputs: tuple[str, ...]
    held_out: float = 0.01
    column: str = "text"
    lowercase: bool = True


TEXTS = {
    "english": Text(("file=english_books", "english_wikipedia/train.txt")),
    "korean": Text(("korean_petitions",), held_out=0.03, column="content", lowercase=False),
}
TRAIN_TOKENS = {"english": 18.7e6, "korean": 2.5e6}
ENTROPY = {"english": 6.652, "korean": 7.473}  # of the token frequencies

# Layers, hidden size and held-out perplexity (Devlin et al. 2018, table 6) of the shapes with heads of 64 dimensions.
PAPER = ((3, 768, 5.84), (6, 768, 4.68), (12, 768, 3.99), (12, 1024, 3.54), (24, 1024, 3.23))
PAPER_TOKENS = count_effective_tokens(42.6e9, epochs=10)  # 90 % of a million steps at length 128, the others at 512


class Result(NamedTuple):
    """A finished run and its held-out loss."""

    text: str
    size: str
    steps: int
    loss: float


class Point(NamedTuple):
    """A loss to which the law is fitted."""

    text: str
    parameters: float
    tokens: float
    loss: float


def prepare_store(text: Text, data: Path, folder: Path) -> Path:
    """Build the token store of a text, unless it exists."""
    if not (folder / "store").exists():
        names = [name.rpartition("=") for name in text.inputs]
        corpus = CorpusSettings(
            tuple(f"{unit}{mark}{data / 'corpora' / path}" for unit, mark, path in names), column=text.column
        )
        vocabulary = VocabularySettings(VOCABULARY, lowercase=text.lowercase)
        learn_vocabulary(LearnSettings(corpus, folder / "vocabulary", vocabulary), SILENT)
        build = BuildSettings(held_out=text.held_out, workers=1)
        prepare(PrepareSettings(corpus, str(folder / "vocabulary"), folder / "store", build), SILENT)
    return folder / "store"


def run_missing(results: Sequence[Result], data: Path, work: Path) -> None:
    """Repeat the runs whose losses are missing in the results; append each loss to the file."""
    wanted = [("english", "tiny", 1_000 * 2**power) for power in range(5)]
    wanted += [("korean", "tiny", 1_000 * 2**power) for power in range(4)]
    wanted += [("english", "mini", 2_000), ("english", "mini", 4_000), ("korean", "mini", 2_000)]
    done = [result[:3] for result in results]
    for text, size, steps in (one for one in wanted if one not in done):
        store = prepare_store(TEXTS[text], data, work / text)
        chosen = choose_settings(size, steps * MIN_STEP_TOKENS, epochs=1)
        run = replace(chosen, store=store, run=work / f"{text}-{size}-{steps}", device=DEVICE)
        pretrain(run, SILENT)
        loss = read_json(run.run / "report.json")["held_out_after"]["loss"]
        append_result(RESULTS, Result(text, size, steps, loss)._asdict(), 1)


def read_results() -> list[Result]:
    """Read the results of the finished runs."""
    return [Result(*(record[name] for name in Result._fields)) for record in read_records(RESULTS)]


def select_points(results: Sequence[Result]) -> list[Point]:
    """Return the losses beyond the plateau, and the paper's."""
    points = []
    for text, size, steps, loss in results:
        if loss < PLATEAU * ENTROPY[text]:
            tokens = TOKENS_PER_STEP * steps
            parameters = BertConfig.from_size(size, VOCABULARY).num_layer_parameters
            points.append(Point(text, parameters, count_effective_tokens(tokens, tokens / TRAIN_TOKENS[text]), loss))
    for layers, hidden, perplexity in PAPER:
        points.append(Point("paper", 12 * layers * hidden**2, PAPER_TOKENS, math.log(perplexity)))
    return points


def fit(points: Sequence[Point]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the most probable constants and their standard deviations; E and B by text.

    Weak priors keep the constants that few points decide in the range of other scaling laws.
    """
    texts = sorted({point.text for point in points})
    priors = {"A": (1.75, 1.0), "alpha": (0.2, 0.2), "beta": (0.22, 0.08), "gamma": (0.0, 0.2)}
    for text in texts:
        priors |= {f"E, {text}": (0.3, 0.3), f"B, {text}": (3.1, 0.6)}
    names, (means, deviations) = list(priors), np.array(list(priors.values())).T

    def residuals(constants: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        misfits = [
            (predict(dict(zip(names, constants, strict=True)), point) - point.loss)
            / (PAPER_NOISE if point.text == "paper" else NOISE)
            for point in points
        ]
        return np.array([*misfits, *((constants - means) / deviations)])

    found = least_squares(residuals, means)
    errors = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return dict(zip(names, found.x, strict=True)), dict(zip(names, errors, strict=True))


def predict(constants: dict[str, float], point: Point) -> float:
    """Return the loss of a point by the law."""
    e, b = (constants[f"{name}, {point.text}"] for name in ("E", "B"))
    a, alpha, beta, gamma = (constants[name] for name in ("A", "alpha", "beta", "gamma"))
    return compute_loss([e, a, alpha, b, beta, gamma], point.parameters, point.tokens)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--run", nargs=2, type=Path, metavar=("DATA", "WORK"))
    chosen = parser.parse_args()
    if chosen.run:
        run_missing(read_results(), *chosen.run)
    points = select_points(read_results())
    constants, errors = fit(points)
    print("| constant | value | standard deviation |\n|---|---:|---:|")
    for name, value in constants.items():
        print(f"| {name} | {value:.3f} | {errors[name]:.3f} |")
    print("\n| text | parameters of the layers | effective tokens | loss | law |\n|---|---:|---:|---:|---:|")
    for point in points:
        law = predict(constants, point)
        print(f"| {point.text} | {point.parameters:,} | {point.tokens:.2e} | {point.loss:.3f} | {law:.3f} |")


if __name__ == "__main__":
    main()
