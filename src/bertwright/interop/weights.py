"""Weights in files and out of them: safetensors, whole or in shards. No pickle is ever opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.files import atomic_file, read_json
from bertwright.interop.model_files import SHARDS, WEIGHTS


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors of a folder by their foreign names, and the file to name in messages."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, read_safetensors(folder / WEIGHTS)
    if (folder / SHARDS).is_file():
        index = read_json(folder / SHARDS)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise ValueError(f"{folder / SHARDS}: no weight_map, which names the file of each parameter")
        tensors: dict[str, Tensor] = {}
        for name in sorted({Path(str(file)).name for file in index["weight_map"].values()}):
            tensors |= read_safetensors(folder / name)
        return folder / SHARDS, tensors
    if (pickle := folder / "pytorch_model.bin").is_file():
        raise ValueError(
            f"{folder}: only pytorch_model.bin, a pickle, which can run any code and is never opened here; where you "
            f'trust it, convert it once: python -c "import torch, safetensors.torch as s; s.save_file({{n: t.clone() '
            f"for n, t in torch.load('{pickle}', weights_only=True).items()}}, '{folder / WEIGHTS}')\""
        )
    raise ValueError(f"{folder}: no {WEIGHTS} and no {SHARDS}")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing, though {SHARDS} names it") from None
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}); copy or download it again") from None


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as one safetensors file, whole or absent."""
    with atomic_file(path) as part:
        try:
            save_file(tensors, part, metadata={"format": "pt"})
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(f"{path}: not written ({error})") from None


def check_shapes(pieces: Mapping[str, tuple[Tensor, Tensor, int]], path: Path) -> None:
    """`shard_corpus`: for each foreign name its tensor, our parameter, and how many pieces that one is made of."""
    misshapen = []
    for name, (tensor, parameter, parts) in pieces.items():
        shape = (parameter.shape[0] // parts, *parameter.shape[1:])
        if tuple(tensor.shape) != shape:
            misshapen.append(f"{name} {tuple(tensor.shape)} instead of {shape}")
    raise_if_any(path, "not of the shape that the configuration asks for", misshapen)
    quantized = [f"{name} {tensor.dtype}" for name, (tensor, _, _) in pieces.items() if not tensor.is_floating_point()]
    raise_if_any(path, "not floating-point numbers", quantized)


def raise_if_any(path: Path, what: str, names: list[str]) -> None:
    """Raise ValueError for parameters that are wrong in one way, if there are any."""
    if names:
        count = "1 parameter is" if len(names) == 1 else f"{len(names)} parameters are"
        raise ValueError(f"{path}: {count} {what}: {summarize(names)}")


def summarize(names: Iterable[str]) -> str:
    """The first names of a list that may be long.

    >>> summarize("abcde")
    'a, b, c and 2 more'
    """
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
