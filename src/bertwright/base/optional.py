"""Packages that only some commands need: each belongs to an extra of this package, which the message names."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


class MissingPackageError(ValueError):
    """Error: a package of an extra is not installed."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Turn a failing import in the block into a message with the command that installs the extra.

    `what`: the thing that needs it, such as "a picture". Raises MissingPackageError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(str(error.name), extra, what) from None


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def check_installed(package: str, extra: str, what: str) -> None:
    """Raise the error of `needs` if a package cannot be imported, without importing it."""
    if not is_installed(package):
        raise missing_package(package, extra, what)


def missing_package(package: str, extra: str, what: str) -> MissingPackageError:
    """Return the error that names a package, the thing that needs it, and the command that installs its extra."""
    return MissingPackageError(
        f"{what}: needs the package {package}, which is not installed; pip install 'bertwright[{extra}]'"
    )
