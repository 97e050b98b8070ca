"""Caps of instruction sets are read back from the libraries, and a cap without effect is named."""

from __future__ import annotations

import platform

import pytest

from machines import KERNELS, ONEDNN, TORCH, InUse, describe, parse_in_use, read_in_use


def test_a_library_that_says_nothing_is_unknown() -> None:
    printed = "kernels: kernels-1.so amx\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\ntorch: AVX512\n"
    assert parse_in_use(printed) == ("kernels-1.so amx", "AVX512", "Intel AVX2")
    assert parse_in_use("torch: AVX2\n") == ("", "AVX2", "")


def test_a_cap_without_effect_is_named() -> None:
    kernels, torch, onednn = describe({TORCH: "avx2", ONEDNN: "AVX2"}, InUse("a", "AVX2", "b"), InUse("a", "AVX2", ""))
    assert "no effect" not in kernels
    assert "capped" not in kernels
    assert "AVX2 (no effect" in torch
    assert "unknown (capped)" in onednn


@pytest.mark.skipif(platform.machine() != "x86_64", reason="caps of x86-64")
def test_caps_are_read_back_from_the_libraries() -> None:
    assert read_in_use({TORCH: "default"}).torch == "DEFAULT"
    with pytest.raises(ValueError, match=KERNELS):
        read_in_use({KERNELS: "of-2031"})
