"""The pooling of a new sequence-level head: the one that the user names, else what the model folder calls for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bertwright.finetuning.settings import TuningSettings
from bertwright.interop.huggingface import ModelSource
from bertwright.interop.sentence_modules import read_sentence_modules
from bertwright.models.pooling import HEAD_POOLINGS, describe_pooling
from bertwright.tasks.task import AnyTask


class PoolingChoice(NamedTuple):
    """Pooling modes of a head, and where they come from."""

    modes: tuple[str, ...]
    """Modes of `pool_states`; none: the pooler's output for [CLS]."""
    reason: str = ""
    """What in the folder decided, for the summary; empty if the user chose them, and for the paper's head."""

    def describe(self) -> str:
        """Describe the pooling and, if a folder decided it, why."""
        why = f" ({self.reason}; --pooling overrides it)" if self.reason else ""
        return f"{describe_pooling(self.modes)}{why}"


def choose_pooling(tuning: TuningSettings, task: AnyTask, folder: Path, source: ModelSource | None) -> PoolingChoice:
    """Return the pooling of the settings or, if unset, the default for a model folder; `source`: its weights, if used.

    The default is the pooling that `modules.json` names (sentence-transformers). Without this file it is the mean if
    the folder has no pooler, or one that was never trained: its output says little of the text. A head that is
    continued keeps its own. Raises ValueError for a pooling that the task or this head does not have.
    """
    own = task.pooling
    if tuning.pooling is not None and (own is None or (tuning.keep_head and HEAD_POOLINGS[tuning.pooling] != own)):
        reason = f"a head for {task.kind}" if own is None else f"the head of {folder}, with {describe_pooling(own)},"
        raise ValueError(f"pooling = {tuning.pooling!r}: {reason} does not have it; omit it")
    if own is None or tuning.keep_head:
        return PoolingChoice(own or ())
    if tuning.pooling is not None:
        return PoolingChoice(HEAD_POOLINGS[tuning.pooling] or (() if task.reads_pooler else ("cls",)))
    if task.both_orders:  # this head reads one state of each order
        return PoolingChoice(())
    if modules := read_sentence_modules(folder):
        return PoolingChoice(modules.modes, "as its modules.json says")
    if not task.reads_pooler:
        return PoolingChoice(HEAD_POOLINGS["mean"])
    reason = "" if source is None else explain_untrained_pooler(source)
    return PoolingChoice(HEAD_POOLINGS["mean"] if reason else (), reason)


def explain_untrained_pooler(source: ModelSource) -> str:
    """Return why a model's pooler says nothing; empty if it was trained, or if the architecture has none.

    A bias is initially 0, and only training changes it (`models.heads.is_untrained`).
    """
    if not source.architecture.encoder.has_pooler:
        return ""
    bias = source.tensors.get(source.architecture.file_names("pooler.dense.bias")[0])
    if bias is None:
        return "the model has no pooler"
    return "" if bias.any() else "its pooler was never trained"
