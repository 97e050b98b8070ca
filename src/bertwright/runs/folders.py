"""What a name on the command line stands for: a folder here, what a run left, or a name on the hub."""

from __future__ import annotations

from pathlib import Path

# What imports torch is imported on use: it takes seconds, and the stages before pre-training do without.


def is_run(folder: Path) -> bool:
    """Whether a folder holds a pre-training run."""
    return (folder / "settings.toml").is_file() and (folder / "checkpoints").is_dir()


def model_folder(name: str) -> Path:
    """A model's folder; a run stands for its finished model, or for its newest checkpoint.

    Raises ValueError for a run without either, and where neither folder nor hub has the name.
    """
    from bertwright.interop.huggingface import find_folder
    from bertwright.training import checkpoint

    run = Path(name)
    if not is_run(run):
        return find_folder(name)
    if (run / "model").is_dir():
        return run / "model"
    latest = checkpoint.newest(run / "checkpoints")
    if latest is None:
        raise ValueError(f"{run}: a run without a checkpoint yet")
    return latest


def vocabulary_folder(name: str) -> Path:
    """A vocabulary's folder or file as it is; a run, or a name on the hub, stands for its model's."""
    return Path(name) if Path(name).exists() and not is_run(Path(name)) else model_folder(name)


def refuse_existing(path: Path) -> None:
    """Raise ValueError where a result would take the place of something; before the work, not after it."""
    if path.exists():
        raise ValueError(f"{path}: is there already; name another, or delete it")
