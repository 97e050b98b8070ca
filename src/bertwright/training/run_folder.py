"""Run folders: saved settings, data digests, the lock, and the settings that may change on resume.

torch is imported on use, so that a run's folder can be checked without it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bertwright.base.files import lock_folder, read_json, read_utf8, remove_folder, remove_stale_parts, write_json
from bertwright.base.foreign import check_no_link
from bertwright.base.settings import ORIGINS, flatten, from_table, read_toml, to_table, write_settings
from bertwright.text.sources import split_suffixes
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from bertwright.models.encoder import EncoderModel
    from bertwright.training.context import ExecutionContext

FROM_WEIGHTS = "pretrain --init, finetune --model"
FOLDERS = ("checkpoints", "best", "tensorboard")
DATA = "data.json"  # digests of the data that a run reads, by name
ORIGINS_FILE = "origins.json"  # the settings that flags and files stated: dotted name → "flag", or the --config
INITIAL_WEIGHTS = "the initial weights"  # name of their digest in data.json
# Settings of inputs that may have moved when a run is resumed: their content is compared with its digest.
MOVABLE = (
    "model", "task.train", "task.dev", "task.test", "task.data", "words.vectors",
    "train_source", "train_target", "dev_source", "dev_target", "vectors",
)  # fmt: skip


class Resumable(Protocol):
    """Settings of a run that can be resumed."""

    @property
    def run(self) -> Path: ...

    @property
    def resume(self) -> bool: ...

    @property
    def device(self) -> DeviceSettings: ...


S = TypeVar("S", bound=Resumable)


def read_run_settings(cls: type[S], run: Path) -> S:
    """Read the settings of a run from its settings.toml, with `resume` set. Raises ValueError if it is missing."""
    path = run / "settings.toml"
    if not path.is_file():
        raise ValueError(f"{run}: no run to resume (settings.toml is missing); omit --resume to start one")
    table: dict[str, Any] = read_toml(path) | {"run": str(run), "resume": True}
    try:
        return from_table(cls, table, str(path))
    except ValueError as error:
        writer = read_utf8(path).removeprefix("# ").partition(":")[0]
        raise ValueError(f"{error} (the folder was written by `{writer}`)") from None


def check_run_directory(settings: Resumable, resume_overrides: tuple[str, ...]) -> None:
    """Raise ValueError if a new run would use the folder of another one, or a resumed run has other settings.

    `resume_overrides`: names of the settings that may differ on resume. Inputs may have moved: see `recorded_names`.
    """
    path = settings.run / "settings.toml"
    if not settings.resume:
        if path.exists() or (settings.run / "model").exists() or any(settings.run.glob("checkpoints/step-*")):
            raise ValueError(f"{settings.run}: already holds a run; resume it with --resume, or name another --run")
        return
    for name, (before, now) in find_changed_settings(settings, resume_overrides).items():
        files, moved = ([value] if isinstance(value, str) else value for value in (before, now))
        if name in MOVABLE and (settings.run / DATA).is_file() and files and moved and len(files) == len(moved):
            continue
        raise ValueError(
            f"{path}: {name} was {before!r}, now {now!r}: a resumed run keeps its settings; to continue from its "
            f"weights with others, start a new run from them ({FROM_WEIGHTS})"
        )


def find_changed_settings(settings: Resumable, resume_overrides: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that may not differ from the folder's run, but do: dotted name → (before, now)."""
    saved = read_run_settings(type(settings), settings.run)
    before, now = (dict(flatten(to_table(one))) for one in (saved, settings))
    return {
        name: (before.get(name), now.get(name))
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name) and name.partition(".")[0] not in resume_overrides
    }


def resume_restarted(settings: S) -> S:
    """Return the settings with `resume` set if `torchrun --max-restarts` started this process and the run has begun.

    A job whose ranks have been restarted, after a failure or because machines left or joined, gets the same arguments
    again. It continues after its newest checkpoint, if it has the settings of the folder's run.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    if restarts and not settings.resume and (settings.run / "settings.toml").is_file():
        return replace(settings, resume=True)  # type: ignore[type-var]
    return settings


@contextmanager
def locked_run(
    settings: Resumable, resume_overrides: tuple[str, ...], distributed: bool = True
) -> Iterator[ExecutionContext]:
    """Lock a run's folder, check it, and yield the execution context; the lock lasts until the block ends.

    `distributed`: under torchrun, compute together with the other ranks. Raises ValueError on all ranks if another
    process has locked the folder or `check_run_directory` fails.
    """
    from bertwright.training.context import execution_context
    from bertwright.training.distributed import run_on_rank_0

    with ExitStack() as stack:
        context = stack.enter_context(execution_context(settings.device, distributed))

        def lock_and_check() -> None:
            stack.enter_context(lock_folder(settings.run))
            for name in FOLDERS:  # where old checkpoints and temporaries are deleted
                check_no_link(settings.run / name)
            check_run_directory(settings, resume_overrides)

        run_on_rank_0(lock_and_check, settings.run, context.device)
        yield context


def prepare_model(model: EncoderModel, context: ExecutionContext) -> None:
    """Move a model to the device and configure it for training."""
    model.encoder.compute_dtype = context.dtype
    model.encoder.sparse_gradients = context.world_size == 1  # DistributedDataParallel cannot sum sparse gradients
    model.to(context.device).train()


def find_changed_data(run: Path, now: Mapping[str, str]) -> list[str]:
    """Return the names of the data whose digests have changed since the run started.

    The initial weights are compared only if `now` has their digest: a resumed run reads them from its checkpoint.
    """
    before = read_json(run / DATA)
    if not isinstance(before, dict):
        raise ValueError(f"{run / DATA}: expected an object with digests; start again in another folder")
    names = (before.keys() | now.keys()) - ({INITIAL_WEIGHTS} - now.keys())
    return sorted(name for name in names if before.get(name) != now.get(name))


def recorded_names(settings: Resumable, paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each file in the digests of a run: its path when the run started.

    Raises ValueError for a file that has moved to a name with another suffix, as which it would be read.
    """
    names = paths = list(dict.fromkeys(paths))
    if settings.resume:
        recorded = [name for name in read_json(settings.run / DATA) if name != INITIAL_WEIGHTS]
        names = recorded if len(recorded) == len(paths) else paths
    for path, name in zip(paths, names, strict=True):
        if path != name and Path(path).is_file() and split_suffixes(path) != split_suffixes(name):
            started = f"as which {settings.run / DATA} has recorded it"
            raise ValueError(f"{path}: expected the suffix of {name}, {started}; rename the file")
    return dict(zip(paths, names, strict=True))


def check_data_unchanged(run: Path, data: Mapping[str, str], names: Mapping[str, str] | None = None) -> None:
    """Raise ValueError if the digest of a file has changed since the run started; `names`: of `recorded_names`."""
    places = {name: path for path, name in (names or {}).items()}
    for name in find_changed_data(run, data):
        before = f" ({name} when it started)" if places.get(name, name) != name else ""
        raise ValueError(
            f"{places.get(name, name)}: changed since the run started{before}; restore its content, name a file "
            "that has it, or start again"
        )


@contextmanager
def explain_move(flag: str) -> Iterator[None]:
    """Add the way to name its new place to the error for an input that a resumed run does not find."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; if it has moved, {flag} NEW names it anew, with the same content") from None


def delete_weights(run: Path, with_model: bool) -> None:
    """Delete a finished run's checkpoints and temporaries; `with_model`: its model as well."""
    from bertwright.training import checkpoint

    unused = [*checkpoint.list_checkpoints(run / "checkpoints"), run / "best"]
    for path in [*unused, run / "model"] if with_model else unused:
        if path.is_dir():
            remove_folder(path)
    for parent in (run, run / "checkpoints"):
        remove_stale_parts(parent)


def format_resume_command(settings: Resumable, command: str, context: ExecutionContext) -> str:
    launcher = ""
    if context.world_size > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", context.world_size))
        nodes = context.world_size // local  # the user adds how they find each other
        # Without the dashes torchrun would read --run as an abbreviation of its own --run-path.
        launcher = f"torchrun {f'--nnodes {nodes} ' if nodes > 1 else ''}--nproc-per-node {local} -m -- "
    return f"{launcher}bertwright {command} --run {shlex.quote(str(settings.run))} --resume"


def record_run(settings: Resumable, command: str, data: Mapping[str, str]) -> None:
    """Write the settings and data digests of a run into its folder, and delete temporaries of a killed process.

    `data`: digests by name, written only when the run starts. `command`: its name, such as `pretrain`.
    """
    if not settings.resume:
        (settings.run / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(settings.run / DATA, data)
    write_run_settings(settings, command)
    for folder in (settings.run, settings.run / "checkpoints", settings.run / "best"):
        remove_stale_parts(folder)


def write_run_settings(settings: Resumable, command: str) -> None:
    """Write settings.toml, without `resume`, so that --config with this file starts the same run; and their origins.

    ORIGINS_FILE has the settings that flags and files stated: dotted name → "flag", or the --config.
    """
    before = read_origins(settings.run) if settings.resume else {}
    if origins := before | dict(ORIGINS.get()):
        content = {name: origin for name, origin in origins.items() if name != "resume"}
        write_json(settings.run / ORIGINS_FILE, content)
    # Last, because it makes the folder a run: one that resumes no longer knows which options it was started with.
    started = replace(settings, resume=False)  # type: ignore[type-var]
    write_settings(settings.run / "settings.toml", started, f"bertwright {command}: all settings, defaults included")


def read_origins(run: Path) -> dict[str, Any]:
    """Return the origins that a run has recorded; empty if it has none. Raises ValueError for a damaged file."""
    path = run / ORIGINS_FILE
    origins = read_json(path) if path.is_file() else {}
    if not isinstance(origins, dict):
        raise ValueError(f"{path}: expected an object, got a {type(origins).__name__}; delete the file")
    return origins
