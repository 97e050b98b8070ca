"""Reading and writing weights: safetensors, one file or several. Pickles are never read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.base.files import atomic_file, read_json
from bertwright.base.foreign import check_file_name
from bertwright.interop.model_files import CONFIG, SHARDS, WEIGHTS, explain_folder

OF_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state")  # files of a trainer's checkpoint without weights
NESTED = ("state_dict", "model_state_dict", "model")  # where a trainer's pickle has the weights


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Read all tensors of a folder by their names in the files; also return the file to name in messages.

    Raises ValueError for missing or damaged files, and for a folder with pickled weights only.
    """
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, read_safetensors(folder / WEIGHTS)
    if (folder / SHARDS).is_file():
        index = read_json(folder / SHARDS)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise ValueError(f"{folder / SHARDS}: expected a weight_map with the file of each parameter")
        tensors: dict[str, Tensor] = {}
        for name in sorted({check_file_name(file, folder / SHARDS) for file in index["weight_map"].values()}):
            tensors |= read_safetensors(folder / name)
        return folder / SHARDS, tensors
    raise ValueError(_explain_missing_weights(folder))


def _explain_missing_weights(folder: Path) -> str:
    """Return what a folder without safetensors has instead, and how to convert it."""
    on_hub = re.search(r"/models--([^/]+?)--([^/]+)/snapshots/([^/]+)(.*)", folder.as_posix())
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if not pickles:
        others = (path for path in folder.glob("*.*") if path.suffix in (".pt", ".pth", ".ckpt"))
        pickles = sorted(path for path in others if not path.name.startswith(OF_TRAINING))
    if pickles:
        place, files, imports = str(pickles[0]), repr([*map(str, pickles)]), ""
    elif explained := explain_folder(folder):
        return f"{folder}: {explained}"
    elif on_hub:  # whose pickles are not downloaded
        owner, name, revision, inside = on_hub.groups()
        place, imports = f"{owner}/{name} on the hub has no {WEIGHTS}", "import huggingface_hub as h; "
        pickle = f"{inside.strip('/')}/pytorch_model.bin".strip("/")
        files = f"[h.hf_hub_download({f'{owner}/{name}'!r}, {pickle!r}, revision={revision!r})]"
        place += f"; older models have {pickle}"
    else:
        return f"{folder}: no {WEIGHTS} and no {SHARDS}; copy or download the whole folder of the model"
    conversion = (
        f"{imports}import torch, safetensors.torch as s; s.save_file({{n: t.clone() for f in {files} for d in "
        f"[torch.load(f, weights_only=True)] for n, t in next((d[k] for k in {NESTED} if k in d), d).items()}}, "
        f"{str(folder / WEIGHTS)!r})"
    )
    return (
        f"{place}: a pickle can run any code when it is read, so bertwright does not read it; if you trust this "
        f"file, convert it once: python -c {shlex.quote(conversion)}"
    )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file. Raises ValueError for a missing or damaged one."""
    if not path.is_file():  # opening a named pipe would wait forever
        raise ValueError(f"{path}: missing or not a regular file, but {SHARDS} names it")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a safetensors file ({error}); copy or download it again") from None


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as one safetensors file, whole or absent."""
    with atomic_file(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # also raised if the disk is full
            raise OSError(f"{path}: could not be written ({error})") from None


def check_shapes(tensors: Mapping[str, tuple[Tensor, Tensor, int]], path: Path) -> None:
    """Raise ValueError for tensors of a wrong shape or type.

    `tensors`: for each name in the file its tensor, our parameter, and the number of tensors that make up this one.
    """
    misshapen = []
    for name, (tensor, parameter, count) in tensors.items():
        shape = (parameter.shape[0] // count, *parameter.shape[1:])
        if tuple(tensor.shape) != shape:
            misshapen.append(f"{name} {tuple(tensor.shape)} instead of {shape}")
    raise_if_any(path, "not of the configuration's shape", misshapen)
    quantized = [f"{name} {tensor.dtype}" for name, (tensor, _, _) in tensors.items() if not tensor.is_floating_point()]
    raise_if_any(path, "not of a floating-point type", quantized)


def check_sizes(sizes: Mapping[str, tuple[int, int]], path: Path) -> None:
    """Raise ValueError for a size in `config.json` that is not the weights'.

    `sizes`: by the field, its value and the size of the weights.
    """
    for field, (expected, size) in sizes.items():
        if expected != size:
            raise ValueError(f"{path}: {field}: expected {expected} as in {CONFIG}, got {size}")


def raise_if_any(path: Path, problem: str, names: list[str]) -> None:
    """Raise ValueError if there are parameters with this problem."""
    if names:
        count = "1 parameter is" if len(names) == 1 else f"{len(names)} parameters are"
        raise ValueError(f"{path}: {count} {problem}: {summarize(names)}")


def summarize(names: Iterable[str]) -> str:
    """Join the first names of a list that may be long.

    >>> summarize("abcde")
    'a, b, c and 2 more'
    """
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def concatenate(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors of a file in float32, in new memory.

    Tensors in a safetensors file may be unaligned, and matrix products round differently on unaligned memory: a loaded
    model would not be equal to the saved one to the bit.
    """
    return torch.cat([tensor.float() for tensor in tensors])
