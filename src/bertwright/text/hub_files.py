"""Files of data sets on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertwright.base.messages import first_line

HF_SCHEME = "hf://"


def hub_file_system() -> Any:
    """Return the hub's file system; imported on demand, since the import takes half a second."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def hub_size(path: str) -> int:
    with explain_hub_errors(path):
        return int(hub_file_system().info(path.removeprefix(HF_SCHEME))["size"])


def download_from_hub(path: str) -> Path:
    """Return the path of a file in the hub's cache on this machine."""
    from huggingface_hub import hf_hub_download

    with explain_hub_errors(path):
        file = hub_file_system().resolve_path(path.removeprefix(HF_SCHEME))
        kind, revision = file.repo_type, file.revision
        return Path(hf_hub_download(file.repo_id, file.path_in_repo, repo_type=kind, revision=revision))


@contextmanager
def explain_hub_errors(location: str) -> Iterator[None]:
    """Turn the errors of the hub's client and of its HTTP library into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{location}: not readable from the Hugging Face hub ({first_line(error)}); check the name, or use files "
            "on this machine"
        ) from error
