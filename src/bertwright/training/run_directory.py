"""Runs that can be gone on with: what their folder says of settings and data, and what a resumption may change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from bertwright.console import say
from bertwright.files import lock_folder, read_json, remove_stale_parts, write_json
from bertwright.models.heads import EncoderModel
from bertwright.settings import differences, from_table, read_toml, to_table, write_settings
from bertwright.training.context import DeviceSettings, ExecutionContext, execution_context

FROM_WEIGHTS = "pretrain --init, finetune --model"
DATA = "data.json"  # digests of what a run learns from and is scored on, by name


class Resumable(Protocol):
    """What every settings record of a long run has."""

    @property
    def run(self) -> Path: ...

    @property
    def resume(self) -> bool: ...

    @property
    def device(self) -> DeviceSettings: ...


S = TypeVar("S", bound=Resumable)


def saved_settings(cls: type[S], run: Path) -> S:
    """The settings that a run folder's settings.toml holds, set to resume it."""
    path = run / "settings.toml"
    if not path.is_file():
        raise ValueError(f"{run}: no run to resume there (settings.toml is missing); leave --resume out to start one")
    table: dict[str, Any] = read_toml(path) | {"run": str(run), "resume": True}
    try:
        return from_table(cls, table, str(path))
    except ValueError as error:
        writer = path.read_text(encoding="utf-8").removeprefix("# ").partition(":")[0]
        raise ValueError(f"{error} (the folder was written by `{writer}`)") from None


def check_run_directory(settings: Resumable, free: tuple[str, ...]) -> None:
    """A new run needs a folder without one; a resumed run must be the one that the folder holds.

    `free`: settings that may differ, as they say where and how often, not what is computed.
    """
    path = settings.run / "settings.toml"
    if not settings.resume:
        if path.exists() or (settings.run / "model").exists() or any(settings.run.glob("checkpoints/step-*")):
            raise ValueError(f"{settings.run}: holds a run already; go on with --resume, or name another --run folder")
        return
    kept = to_table(saved_settings(type(settings), settings.run))
    for name, (before, now) in differences(kept, to_table(settings)).items():
        if name.partition(".")[0] not in free:
            raise ValueError(
                f"{path}: {name} was {before!r}, now {now!r}: a resumed run keeps its settings; to "
                f"go on from its weights with others, start a new run from them ({FROM_WEIGHTS})"
            )


@contextmanager
def locked_run(settings: Resumable, free: tuple[str, ...], alone: bool = False) -> Iterator[ExecutionContext]:
    """Where a run computes, `alone` or with all ranks of torchrun.

    Its folder is held for this process, and found fit by `check_run_directory`, all the while.
    """
    with ExitStack() as stack:
        place = stack.enter_context(execution_context(settings.device, joined=not alone))
        fault = None
        if place.is_main_process:
            try:
                stack.enter_context(lock_folder(settings.run))
                check_run_directory(settings, free)
            except (ValueError, OSError) as error:
                fault = error
        place.raise_on_all_ranks(fault, str(settings.run))
        yield place


def finished_model(settings: Resumable, place: ExecutionContext, console: Console) -> Path | None:
    """The model's folder, where a resumed run has one: it is written last of all, so nothing is left to do."""
    folder = settings.run / "model"
    if not (settings.resume and folder.is_dir()):
        return None
    if place.is_main_process:
        say(console, f"{settings.run}: finished already; the model is {folder}")
    return folder


def prepare_model(model: EncoderModel, place: ExecutionContext) -> None:
    """Make a model ready to be trained where this process computes."""
    model.encoder.compute_dtype = place.dtype
    model.encoder.sparse_gradients = place.world_size == 1  # DistributedDataParallel exchanges no sparse gradients
    model.to(place.device).train()


def changed_files(run: Path, now: Mapping[str, str]) -> list[str]:
    """What is not as it was when a run began, by the names of the digests; those of `now` against those kept."""
    before = read_digests(run)
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def read_digests(run: Path) -> dict[str, str]:
    """The digests of what a run read when it began."""
    before = read_json(run / DATA)
    if not isinstance(before, dict):
        raise ValueError(f"{run / DATA}: an object with digests expected; start anew in another folder")
    return before


def resume_command(settings: Resumable, verb: str, place: ExecutionContext) -> str:
    """The command that goes on with a run, as it is typed."""
    # Without the dashes torchrun would take --run for a beginning of its own --run-path.
    launcher = f"torchrun --nproc-per-node {place.world_size} -m -- " if place.world_size > 1 else ""
    return f"{launcher}bertwright {verb} --run {shlex.quote(str(settings.run))} --resume"


def record_run(settings: Resumable, verb: str, data: Mapping[str, str]) -> None:
    """Write what a run is into its folder, and sweep away what a killed process left half-written there.

    `verb`: the command that goes on with it; `data`: the digests of what it reads.
    """
    if not settings.resume:
        (settings.run / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(settings.run / DATA, data)
    begun = replace(settings, resume=False)  # type: ignore[type-var]  # the file says how to do it all again
    write_settings(settings.run / "settings.toml", begun, f"bertwright {verb}: the settings in force")
    for folder in (settings.run, settings.run / "checkpoints", settings.run / "best"):
        remove_stale_parts(folder)
