# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of state in the memory of devices, by the driver's double: it proves ordering, lifetime and errors, and no
speed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import gpu_double
import numpy
import pytest
import torch
from conftest import random_bytes, write_file

import infercluster
from infercluster import Checkpointer, _dtypes
from infercluster._checkpoint import tensors


def on_device(folder: pathlib.Path, seed: int, device: str = "cuda:0") -> dict[str, Any]:
    path = folder / f"state-{seed}.safetensors"
    sizes = {"weight": [300, 1000], "bias": [7], "empty": [0, 4], "scalar": []}
    write_file(path, {name: ("U8", shape, random_bytes(int(numpy.prod(shape)), seed + i)) for i, (name, shape) in enumerate(sizes.items())})
    return dict(infercluster.load(path, device=device, framework="dlpack"))


def contents(state: dict[str, Any]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def test_state_of_a_device_comes_back_to_it_without_a_detour(tmp_path: pathlib.Path, double: gpu_double.Control) -> None:
    root, saved, other = tmp_path / "root", on_device(tmp_path, 1, "cuda:1"), on_device(tmp_path, 50, "cuda:1")
    on_host = torch.arange(100)
    assert contents(saved) != contents(other)
    before, pageable = double.counter("device_to_host_bytes"), double.counter("pageable_copies")
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"model": saved, "host": on_host, "lr": 0.5}, wait=True)
        to_host = double.counter("device_to_host_bytes") - before
        assert to_host == sum(tensor.nbytes for tensor in saved.values())
        into: dict[str, Any] = {"model": other, "host": torch.zeros_like(on_host), "lr": 0.0}
        assert checkpointer.load(into) == 1
    assert double.counter("pageable_copies") == pageable
    assert contents(other) == contents(saved)
    assert torch.equal(into["host"], on_host) and into["lr"] == 0.5
    assert double.counter("contexts_created:0") == 0 and double.counter("violations") == 0


def test_a_save_returns_when_its_copies_are_queued(tmp_path: pathlib.Path, double: gpu_double.Control) -> None:
    root, saved, other = tmp_path / "root", on_device(tmp_path, 1), on_device(tmp_path, 50)
    expected, on_host = contents(saved), torch.arange(100)
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"model": saved, "host": on_host}, wait=True)  # the arena is there
        double.hold()
        save = checkpointer.save(2, {"model": saved, "host": on_host}, wait="queued")
        assert save.status == "scheduled"
        on_host.zero_()  # is copied
        double.release()
        assert save.wait_until_staged().status in ("staged", "durable")
        assert save.wait().status == "durable"
        into: dict[str, Any] = {"model": other, "host": torch.zeros_like(on_host)}
        assert checkpointer.load(into) == 2
        with pytest.raises(ValueError, match="wait is 'staged'"):
            checkpointer.save(3, {"host": on_host}, wait="staged")  # type: ignore[arg-type]
    assert contents(other) == expected and torch.equal(into["host"], torch.arange(100))
    assert double.counter("violations") == 0


def test_a_device_tensor_is_not_converted(tmp_path: pathlib.Path, double: gpu_double.Control) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"weight": torch.zeros(300, 1000), "bias": torch.zeros(7)}, wait=True)
        given = on_device(tmp_path, 3)
        before = contents(given)
        with pytest.raises(ValueError, match=r"weight.*DeviceTensor"):
            checkpointer.load({"weight": given["weight"]}, only="weight", cast=True)
        with pytest.raises(ValueError, match=r"bias.*saved as F32, wanted as U8"):
            checkpointer.load({"bias": given["bias"]}, only="bias")
        assert contents(given) == before


class OnDevice(torch.Tensor):
    """What the package looks at in a tensor of torch on a CUDA device, which no torch without CUDA can make: bytes of a
    DeviceTensor, as its `strides` say."""

    memory: infercluster.DeviceTensor

    @staticmethod
    def over(memory: infercluster.DeviceTensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> OnDevice:
        made = torch.empty_strided(shape, strides, dtype=torch.uint8).as_subclass(OnDevice)
        made.memory = memory
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(self.memory.device)

    def data_ptr(self) -> int:
        return self.memory.data_ptr()

    def detach(self) -> OnDevice:
        return self


class Stream:
    """One of the double's device 0, in the place of torch's current stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cuda = ctypes.CDLL(os.environ["INFERCLUSTER_LIBCUDA"])
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert self._cuda.cuInit(0) == 0
        assert self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self._cuda.cuCtxPushCurrent_v2(context) == 0
        assert self._cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0  # it does not wait for the default stream
        self.cuda_stream: int = stream.value or 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: {0: self}[device])

    def copy(self, to: int, source: int, size: int) -> None:
        at = [ctypes.c_uint64(address) for address in (to, source)]
        assert self._cuda.cuMemcpyDtoDAsync_v2(*at, ctypes.c_size_t(size), ctypes.c_void_p(self.cuda_stream)) == 0

    def close(self) -> None:
        assert self._cuda.cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)) == 0
        assert self._cuda.cuStreamDestroy_v2(ctypes.c_void_p(self.cuda_stream)) == 0
        assert self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
        assert self._cuda.cuDevicePrimaryCtxRelease_v2(0) == 0


@pytest.fixture
def stream(double: gpu_double.Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    made = Stream(monkeypatch)
    yield made
    made.close()


def test_a_save_comes_after_what_torchs_stream_has_queued(
    tmp_path: pathlib.Path, double: gpu_double.Control, stream: Stream
) -> None:
    old, new, back = on_device(tmp_path, 1)["weight"], on_device(tmp_path, 2)["weight"], on_device(tmp_path, 3)["weight"]
    expected = contents({"weight": new})
    double.set_plan("delay_us=20000 seed=1")
    with Checkpointer(tmp_path / "root") as checkpointer:
        for piece in range(20):  # each has the delay that the save's one copy has
            at = piece * 15000
            stream.copy(old.data_ptr() + at, new.data_ptr() + at, 15000)
        checkpointer.save(1, {"weight": OnDevice.over(old, (300, 1000), (1000, 1))}).wait()
        double.set_plan("")
        checkpointer.load({"weight": OnDevice.over(back, (300, 1000), (1000, 1))})
    assert contents({"weight": back}) == expected


def test_work_that_is_queued_after_a_queued_save_is_done_behind_its_copies(
    tmp_path: pathlib.Path, double: gpu_double.Control, stream: Stream
) -> None:
    old, new, back = on_device(tmp_path, 1)["weight"], on_device(tmp_path, 2)["weight"], on_device(tmp_path, 3)["weight"]
    expected, after = contents({"weight": old}), contents({"weight": new})
    with Checkpointer(tmp_path / "root") as checkpointer:
        double.hold()
        save = checkpointer.save(1, {"weight": OnDevice.over(old, (300, 1000), (1000, 1))}, wait="queued")
        stream.copy(old.data_ptr(), new.data_ptr(), old.nbytes)  # as an optimizer's step
        assert save.status == "scheduled"
        double.release()
        save.wait()
        checkpointer.load({"weight": OnDevice.over(back, (300, 1000), (1000, 1))})
    assert contents({"weight": back}) == expected and contents({"weight": old}) == after
    assert double.counter("violations") == 0


def test_a_slice_of_columns_is_one_copy_there(tmp_path: pathlib.Path, double: gpu_double.Control, stream: Stream) -> None:
    weight, back = on_device(tmp_path, 1)["weight"], on_device(tmp_path, 2)["weight"]
    before, to_host = back.numpy().reshape(300, 1000), double.counter("device_to_host_bytes")
    with Checkpointer(tmp_path / "root") as checkpointer:
        checkpointer.save(1, {"weight": OnDevice.over(weight, (300, 400), (1000, 1))}, wait=True)
        assert double.counter("device_to_host_bytes") - to_host == 300 * 400
        checkpointer.load({"weight": OnDevice.over(back, (300, 400), (1000, 1))})
    after = back.numpy().reshape(300, 1000)
    assert (after[:, :400] == weight.numpy().reshape(300, 1000)[:, :400]).all()
    assert (after[:, 400:] == before[:, 400:]).all()


@pytest.mark.parametrize(
    ("shape", "strides", "is_direct"),
    [
        ((4, 5), (5, 1), True),
        ((4, 5), (8, 1), True),
        ((4, 1, 5), (8, 99, 1), True),
        ((2, 4, 5), (32, 8, 1), True),
        ((5,), (3,), True),
        ((), (), True),
        ((0, 5), (7, 3), True),
        ((2, 4, 5), (40, 8, 1), False),
        ((5, 4), (1, 5), False),
        ((4, 5), (0, 1), False),
    ],
)
def test_what_the_hardware_copies_at_once(
    tmp_path: pathlib.Path, stream: Stream, shape: tuple[int, ...], strides: tuple[int, ...], is_direct: bool
) -> None:
    """The core agrees: it refuses what is not."""
    memory = on_device(tmp_path, 1)["weight"]
    view = OnDevice.over(memory, shape, strides)
    assert _dtypes.is_torch(view)
    assert (tensors.device_of(view, "U8") == 0) == is_direct
    listed = infercluster._core.Tensors()
    part = tensors.HeldBox((0,) * len(shape), shape, view)
    listed.add("view", "U8", shape, part.offsets, shape, view.data_ptr(), tensors.strides_of(view), 0)
    with Checkpointer(tmp_path / "root") as checkpointer:
        with contextlib.nullcontext() if is_direct else pytest.raises(ValueError, match=r"view.*contiguous"):
            checkpointer._core.save(1, listed, [], False, "durable")
