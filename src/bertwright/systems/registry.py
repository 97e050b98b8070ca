"""The systems by name: for each, one folder beside this file and one line in `SYSTEMS`.

The record of a system (`System`) lies in its folder, in `defaults.py`, which imports no torch. What imports torch is
named in a record as "module:NAME" and imported on use. This module imports no other of the package.

A system that has objectives is a value of `pretrain --architecture`; the first of its objectives is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from bertwright.objectives.objective import AnyObjective
    from bertwright.systems.word_settings import WordModel

# Name of a system's folder: the module and the name of its record.
SYSTEMS: dict[str, str] = {
    "bert": "bertwright.systems.bert.defaults:BERT",
    "distilbert": "bertwright.systems.distilbert.defaults:DISTILBERT",
    "electra": "bertwright.systems.electra.defaults:ELECTRA",
    "albert": "bertwright.systems.albert.defaults:ALBERT",
    "mpnet": "bertwright.systems.mpnet.defaults:MPNET",
    "roberta": "bertwright.systems.roberta.defaults:ROBERTA",
    "modernbert": "bertwright.systems.modernbert.defaults:MODERNBERT",
    "gpt": "bertwright.systems.gpt.defaults:GPT",
    "elmo": "bertwright.systems.elmo.defaults:ELMO",
    "ulmfit": "bertwright.systems.ulmfit.defaults:ULMFIT",
    "window": "bertwright.systems.window.defaults:WINDOW",
    "bilstm": "bertwright.systems.bilstm.defaults:BILSTM",
    "cove": "bertwright.systems.cove.defaults:COVE",
    "bcn": "bertwright.systems.bcn.defaults:BCN",
    "transformer": "bertwright.systems.transformer.defaults:TRANSFORMER",
    "static": "bertwright.systems.static.defaults:STATIC",
}
# Why the models of some well-known `model_type`s are refused.
REFUSED = {
    **dict.fromkeys(("deberta", "deberta-v2"), "its attention adds scores for relative positions (disentangled)"),
    **dict.fromkeys(("longformer", "big_bird", "led"), "its attention reads windows and some global tokens"),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "bart", "mbart", "marian"), "it is an encoder with a decoder"),
    **dict.fromkeys(("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"), "it is a decoder"),
    **dict.fromkeys(("roberta-prelayernorm", "xlm-roberta-xl"), "its norms stand before the layers"),
    **dict.fromkeys(("roformer", "nomic_bert", "new"), "its positions are rotations of queries and keys"),
    **dict.fromkeys(("xlnet", "xlm", "funnel", "reformer"), "it has other layers than BERT"),
}
DEFAULT = "bert"  # of pre-training
DEFAULT_MODEL_TYPE = "bert"  # of a `config.json` that names none
BASE_HIDDEN_SIZE = 768
MAX_DEFAULT_RATE = 3e-4  # the highest of the rates for small BERTs of Turc et al. 2019 (google-research/bert)


class LadderStep(NamedTuple):
    """A run of the ladder, which compares systems on one task."""

    place: int
    """Its place from the lowest step; the numbers may have gaps."""
    name: str
    table: Mapping[str, Any]
    """Settings, as a TOML table of fine-tuning."""
    inputs: Mapping[str, str] = {}
    """Dotted name of a setting → option of `ladder` that has its value; omitted if the option is not given."""
    needs: tuple[str, ...] = ()
    """Options of `ladder` without which the step is left out."""
    published: Mapping[str, float] = {}
    """Data set → published score on its test set, in percent: F1 for conll2003, accuracy for trec6."""
    over: tuple[str, ...] | None = None
    """Names of steps from which it differs in what its name says alone; it is compared with the first of them that the
    ladder has. None: the step below it; empty: none."""
    tasks: Literal["all", "tagging", "texts"] = "all"
    tagging: Mapping[str, Any] = {}
    """Further settings in tagging."""
    is_frozen: bool = False
    """True if all layers of the model keep their weights, so that only the head is trained."""


class FinetuneRequest(NamedTuple):
    """The task and the model of a fine-tuning run, as far as default settings depend on them."""

    task: str
    """Value of --task; empty if none is given."""
    is_tagging: bool = False
    has_context: bool = False
    """Whether the preset of the task reads sentences with the surrounding ones."""
    given_words: tuple[str, ...] = ()
    """Settings of a new model of words that are given."""
    hidden_size: int = BASE_HIDDEN_SIZE


@dataclass(frozen=True)
class TranslationRecord:
    """A value of `train-translation --architecture`."""

    summary: str
    model_type: str
    """Name in `config.json` of its folders."""
    sizes: Mapping[str, Mapping[str, Any]]
    """Value of --size → fields of the configuration."""
    defaults: Callable[[str, int], dict[str, Any]]
    """Function from the size and the steps of warm-up to settings, as a TOML table."""
    new: str
    """Function from the settings, the sentences of the training text and the tokenizer of the targets or, if both sides
    share one, of both, to a `TranslationSystem`, as "module:NAME"."""
    write: str
    """Function that writes a `TranslationSystem` into a folder, as "module:NAME"."""
    load: str
    """Function that reads such a folder, as "module:NAME"."""
    reads_words: bool = False
    """Whether sources are whole words, which may have given vectors; else pieces of a joint vocabulary."""


@dataclass(frozen=True)
class System:
    """What the rest of the package knows of a system."""

    name: str
    """Its folder and, if it has objectives, the value of `pretrain --architecture`."""
    summary: str
    """One line: the model and its paper."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """`model_type` of model folders → an `interop.model_format.Architecture`, as "module:NAME"."""
    tokenizer: str = ""
    """Function that opens the tokenizer of such a folder if no file names its kind, as "module:NAME"; WordPiece if
    empty."""
    objectives: Mapping[str, str] = field(default_factory=dict)
    """Value of `pretrain --objective` → the class of the objective, as "module:NAME"; the default comes first."""
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Value of --size → fields of the configuration."""
    finetune_rate: float | None = None
    """Learning rate with which its paper fine-tunes; None: the rate of BERT's paper for the task."""
    finetune_defaults: Callable[[FinetuneRequest], dict[str, Any]] | None = None
    """Function that returns the settings of fine-tuning as a TOML table; None: BERT's for the task."""
    word_models: Mapping[str, WordModel] = field(default_factory=dict)
    """Value of `finetune --architecture` → a new model of whole words."""
    translation: Mapping[str, TranslationRecord] = field(default_factory=dict)
    """Value of `train-translation --architecture` → a translation model."""
    ladder: tuple[LadderStep, ...] = ()


def systems() -> list[System]:
    """Return the records of all systems."""
    return [resolve_name(name) for name in SYSTEMS.values()]


def find_system(name: str) -> System:
    """Return the record of a system. Raises KeyError for a name that `SYSTEMS` lacks."""
    record: System = resolve_name(SYSTEMS[name])
    return record


def named_size(name: str, size: str | None) -> Mapping[str, Any]:
    """Return the fields of a size of a system, base if None. Raises ValueError for a size that it does not have."""
    sizes = find_system(name).sizes
    if size is not None and size not in sizes:
        raise ValueError(f"size: expected one of {', '.join(sizes)} for --architecture {name}, got {size!r}")
    return sizes[size or "base"]


def system_of_folder(model_type: str) -> System | None:
    """Return the system whose model folders have this `model_type`."""
    return next((system for system in systems() if model_type in system.folders), None)


def folder_formats() -> dict[str, str]:
    """Return the formats of model folders by `model_type`, as "module:NAME"."""
    return {name: found for system in systems() for name, found in system.folders.items()}


def pretrained() -> dict[str, System]:
    """Return the systems by the value of `pretrain --architecture`."""
    return {system.name: system for system in systems() if system.objectives}


@cache
def _make(name: str) -> AnyObjective:
    objective: AnyObjective = resolve_name(name)()
    return objective


def objectives_of(architecture: str) -> list[AnyObjective]:
    """Return the objectives that train an architecture, its default first. Raises ValueError for an unknown one."""
    if architecture not in pretrained():
        raise ValueError(f"architecture is {architecture!r}; expected one of {', '.join(pretrained())}")
    return [_make(name) for name in pretrained()[architecture].objectives.values()]


def find_objective(name: str) -> AnyObjective:
    """Return an objective by the value of --objective. Raises ValueError for an unknown one."""
    known = {name: found for system in systems() for name, found in system.objectives.items()}
    if name not in known:
        raise ValueError(f"objective is {name!r}; expected one of {', '.join(known)}")
    return _make(known[name])


def architecture_of_objective(name: str) -> str:
    """Return the architecture that an objective trains. Raises ValueError for an unknown objective."""
    find_objective(name)
    return next(architecture for architecture, system in pretrained().items() if name in system.objectives)


def word_models() -> dict[str, WordModel]:
    """Return the new models of whole words by the value of `finetune --architecture`."""
    return {name: model for system in systems() for name, model in system.word_models.items()}


def translation_records() -> dict[str, TranslationRecord]:
    """Return the translation models by the value of `train-translation --architecture`."""
    return {name: record for system in systems() for name, record in system.translation.items()}


def ladder_steps() -> list[LadderStep]:
    """Return the steps of the ladder from the lowest to the highest."""
    return sorted((step for system in systems() for step in system.ladder), key=lambda step: step.place)


def default_learning_rate(base: float, hidden_size: int) -> float:
    """Return the default peak rate for an encoder, given that for BASE; larger encoders have BASE's.

    Adam changes each weight by about the rate, whatever its size; in a narrow layer fewer changes add up, so that the
    rate must rise as the width falls (Yang et al. 2021, µP: inversely). On small data sets, narrow models learned more
    with a still higher rate, so that it rises with the square.

    >>> [default_learning_rate(3e-5, size) for size in (1024, 768, 384, 32)]
    [3e-05, 3e-05, 0.00012, 0.0003]
    """
    return max(base, min(base * (BASE_HIDDEN_SIZE / hidden_size) ** 2, MAX_DEFAULT_RATE))
