"""Where a run computes."""

from __future__ import annotations

import pytest
import torch

from bertwright.training.device import DeviceSettings, gemm_ceiling, multiplies_bfloat16, placed


def test_settings_become_a_place() -> None:
    before = torch.get_num_threads()
    try:
        with placed(DeviceSettings(device="cpu", dtype="bfloat16", threads=1)) as place:
            assert (place.device.type, place.dtype, place.threads, place.ranks) == ("cpu", torch.bfloat16, 1, 1)
            assert place.leads
            assert torch.get_num_threads() == 1
        with placed(DeviceSettings(device="cpu")) as place:
            fast = multiplies_bfloat16(torch.device("cpu"))
            assert place.dtype == (torch.bfloat16 if fast else torch.float32)
            assert gemm_ceiling(place, hidden_size=128, seconds=0.01) > 1e8
    finally:
        torch.set_num_threads(before)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="sees no GPU"), placed(DeviceSettings(device="cuda")):
        pass


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1"):
        DeviceSettings(threads=0)
