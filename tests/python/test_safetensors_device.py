# SPDX-License-Identifier: Apache-2.0
"""The drop-in with device="cuda:N": straight to the device. This torch has no CUDA, so its pieces are replaced: memory comes
from the driver's double, and tensors are DeviceTensors over it."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import gpu_double
import pytest
import torch
from conftest import bytes_of, random_bytes, write_file

import infercluster
from infercluster import SafetensorError, _core, _device
from infercluster.safetensors import safe_open
from infercluster.safetensors.torch import load_file

MIB = 1 << 20


class Fake:
    """What torch's allocator was asked for, and how many bytes it has."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []  # ordinal, bytes
        self.room = 1 << 40

    def use(self, options: _core.Options, ordinal: int, framework: str) -> None:
        assert framework == "pt"

        def allocate(size: int) -> tuple[Any, int]:
            if size > self.room:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
            self.asked.append((ordinal, size))
            memory = _core.allocate_on_device(ordinal, size)
            return memory, memory.address

        options.set_device(ordinal, 0, allocate)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    gc.collect()
    control = gpu_double.Control()
    control.reset()
    control.set_plan("delay_us=0..300 seed=3")
    made = Fake()
    monkeypatch.setattr(_device, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(_device, "use", made.use)
    monkeypatch.setattr(_device, "over_memory", lambda framework, *rest: infercluster.DeviceTensor(*rest))
    yield made
    control.set_plan("")
    gc.collect()
    assert control.counter("live") == 0
    assert control.counter("violations") == 0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, bytes]]:
    path = tmp_path_factory.mktemp("device") / "model.safetensors"
    data = {"small": random_bytes(6, 1), "large[0]": random_bytes(17 * MIB, 2), "none": b"", "other": random_bytes(MIB, 3)}
    dtypes = {"small": ("BF16", [3]), "large[0]": ("F32", [17, 512, 512]), "none": ("F16", [0, 4]), "other": ("U8", [MIB])}
    write_file(path, {name: (*dtypes[name], data[name]) for name in data}, padding=3)
    return path, data


def contents(tensor: Any) -> bytes:
    assert isinstance(tensor, infercluster.DeviceTensor), tensor
    return bytes_of(tensor.numpy())


@pytest.mark.parametrize("device", ["cuda:1", 1])
def test_a_file_goes_straight_to_the_device(fake: Fake, file: tuple[pathlib.Path, dict[str, bytes]], device: str | int) -> None:
    path, data = file
    double = gpu_double.Control()
    loaded: dict[str, Any] = load_file(path, device=device)
    # One copy of each byte, from pinned memory.
    assert double.counter("host_to_device_bytes") == sum(map(len, data.values()))
    assert double.counter("pageable_copies") == 0
    assert list(loaded) == list(load_file(path))
    assert {name: contents(tensor) for name, tensor in loaded.items()} == data
    assert {tensor.device for tensor in loaded.values()} == {"cuda:1"}
    assert {ordinal for ordinal, _ in fake.asked} == {1}
    assert double.counter("contexts_created:0") == 0


def test_a_large_tensor_goes_straight_to_the_device_alone(fake: Fake, file: tuple[pathlib.Path, dict[str, bytes]]) -> None:
    path, data = file
    with safe_open(path, framework="pt", device="cuda:0") as opened:
        assert contents(opened.get_tensor("large[0]")) == data["large[0]"]
        assert fake.asked and sum(size for _, size in fake.asked) < 18 * MIB
        with pytest.raises(SafetensorError, match="does not contain tensor x"):
            opened.get_tensor("x")
    with pytest.raises(SafetensorError, match="closed"):
        opened.get_tensor("large[0]")


def test_small_reads_and_other_frameworks_go_by_way_of_the_host(
    fake: Fake, file: tuple[pathlib.Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = file
    moved: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: moved.append(device) or tensor)
    with safe_open(path, framework="pt", device="cuda:0") as opened:
        assert bytes_of(opened.get_tensor("small")) == data["small"]
    assert moved == ["cuda:0"] and fake.asked == []
    with safe_open(path, framework="pt", device="xpu:0") as opened:
        assert bytes_of(opened.get_tensor("large[0]")) == data["large[0]"]
    assert moved == ["cuda:0", "xpu:0"] and fake.asked == []
    with pytest.raises(SafetensorError, match="not supported for framework numpy"):
        safe_open(path, framework="np", device="cuda:0")


def test_what_torch_has_against_a_device_it_says_itself(fake: Fake, file: tuple[pathlib.Path, dict[str, bytes]]) -> None:
    """As under the stock package: no room, no such device."""
    path, _ = file
    fake.room = MIB
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        load_file(path, device="cuda:0")
    fake.room = 1 << 40
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        load_file(path, device="cuda:9")


def test_a_file_that_was_replaced_keeps_its_bytes(
    fake: Fake, file: tuple[pathlib.Path, dict[str, bytes]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = file
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(path.read_bytes())
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    with safe_open(mine, framework="pt", device="cuda:0") as opened:
        os.replace(_other(tmp_path), mine)
        assert bytes_of(opened.get_tensor("large[0]")) == data["large[0]"]


def _other(folder: pathlib.Path) -> pathlib.Path:
    other = folder / "other.safetensors"
    write_file(other, {"large[0]": ("U8", [17 * MIB], bytes(17 * MIB))})
    return other
