"""The names that `import bertwright` offers."""

from __future__ import annotations

import pytest

import bertwright


def test_every_public_name_can_be_imported() -> None:
    assert dir(bertwright) == sorted(set(bertwright.__all__)) == sorted(bertwright.__all__)
    assert {"Bert", "load", "pretrain", "experiment", "TaskSettings"} < set(bertwright.__all__)
    for name in bertwright.__all__:
        assert getattr(bertwright, name).__name__ == name
    with pytest.raises(AttributeError, match="prepair"):
        bertwright.prepair  # noqa: B018
