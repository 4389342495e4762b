# SPDX-License-Identifier: Apache-2.0
"""Loads to a CUDA device, by the driver's double: it proves ordering, lifetime and errors, and no speed."""

from __future__ import annotations

import gc
import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import gpu_double
import numpy
import pytest
from conftest import bytes_of, random_bytes, write_file

import infercluster
from infercluster import _core, _device

BLOCK = 1 << 20


def contents(tensor: infercluster.DeviceTensor) -> bytes:
    array: numpy.ndarray[Any, Any] = tensor.numpy()
    return array.tobytes()


@pytest.fixture
def many(tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, bytes]]:
    path = tmp_path / "many"
    data = {f"t{i:02}": random_bytes(BLOCK - 7 * (i % 3), i) for i in range(24)}
    write_file(path, {name: ("U8", [len(value)], value) for name, value in data.items()})
    return path, data


def test_a_load_brings_every_tensor_to_the_device(repository: pathlib.Path, backend: str, double: gpu_double.Control) -> None:
    expected = infercluster.load(repository)
    loaded = infercluster.load(repository, device="cuda:1", framework="dlpack")
    assert list(loaded) == list(expected)
    for name, tensor in loaded.items():
        assert isinstance(tensor, infercluster.DeviceTensor)
        assert tensor.device == "cuda:1" and tensor.__dlpack_device__() == (2, 1)
        assert tuple(tensor.shape) == tuple(expected[name].shape), name
        assert contents(tensor) == bytes_of(expected[name]), name
        assert tensor.data_ptr() % 256 == 0
    report = loaded.report
    assert report["moved_bytes"] == 0 and report["device_copy_bytes"] == report["bytes"]
    assert report["peak_host_bytes"] < 64 << 20
    assert double.counter("contexts_created:0") == 0


def test_without_a_framework_named_a_torch_without_cuda_is_no_obstacle(repository: pathlib.Path) -> None:
    loaded = infercluster.load(repository, device="cuda", names="layers.0.bias")
    assert isinstance(loaded["layers.0.bias"], infercluster.DeviceTensor)
    with pytest.raises(ValueError, match='framework="dlpack"'):
        infercluster.load(repository, device="cuda", framework="pt")
    with pytest.raises(ValueError, match="on the host"):
        infercluster.load(repository, device="cuda", framework="np")
    with pytest.raises(ValueError, match="CUDA devices"):
        infercluster.load(repository, framework="dlpack")


def test_slices(repository: pathlib.Path, backend: str, double: gpu_double.Control) -> None:
    slices: dict[str, Any] = {"layers.0.weight": infercluster.Shard(1, 2, 8), "layers.1.weight": (slice(7, 900),)}
    expected = infercluster.load(repository, slices=slices)
    loaded = infercluster.load(repository, device="cuda:0", framework="dlpack", slices=slices)
    for name, tensor in loaded.items():
        assert contents(tensor) == bytes_of(expected[name]), name
    with infercluster.open(repository, device="cuda:0", framework="dlpack") as handle:
        part = handle.get_tensor("layers.2.weight", slice(100, 200))
        assert contents(part) == bytes_of(infercluster.load(repository)["layers.2.weight"][100:200])


def test_into_fills_the_callers_tensors_and_allocates_nothing(
    many: tuple[pathlib.Path, dict[str, bytes]], backend: str, double: gpu_double.Control
) -> None:
    path, data = many
    given = dict(infercluster.load(path, device="cuda:0", framework="dlpack"))
    for _ in range(2):  # sleep and reload
        before = double.counter("allocated_bytes")
        loaded = infercluster.load(path, device="cuda:0", framework="dlpack", into=given)
        assert all(loaded[name] is given[name] for name in data)
        assert double.counter("allocated_bytes") == before
        assert {name: contents(tensor) for name, tensor in given.items()} == data
    wrong = {"t00": given["t01"]}
    with pytest.raises(ValueError, match="t00"):
        infercluster.load(path, device="cuda:0", framework="dlpack", into=wrong)
    with pytest.raises(ValueError, match="device"):
        infercluster.load(path, into={"t00": given["t00"]})


def test_a_stream_reuses_what_is_let_go_and_never_what_is_kept(
    many: tuple[pathlib.Path, dict[str, bytes]], backend: str, double: gpu_double.Control
) -> None:
    path, data = many
    chance = random.Random(5)
    kept: dict[str, Any] = {}
    with infercluster.stream(path, device="cuda:0", framework="dlpack", memory="12MiB") as stream:
        seen = set()
        for name, tensor in stream:
            seen.add(name)
            if chance.random() < 0.2 and len(kept) < 4:
                kept[name] = tensor
            else:
                assert contents(tensor) == data[name]
            del tensor
    assert seen == set(data) and kept
    for name, tensor in kept.items():
        assert contents(tensor) == data[name]


def test_keeping_more_than_the_window_is_an_error_that_says_so(
    many: tuple[pathlib.Path, dict[str, bytes]], double: gpu_double.Control
) -> None:
    path, data = many
    kept = []
    with pytest.raises(MemoryError, match="window"):
        for item in infercluster.stream(path, device="cuda:0", framework="dlpack", memory="6MiB"):
            kept.append(item)
    for name, tensor in kept:
        assert contents(tensor) == data[name]


def test_the_callers_allocator_gives_the_memory(many: tuple[pathlib.Path, dict[str, bytes]], double: gpu_double.Control) -> None:
    """As torch's does; on the threads of a stream too."""
    path, data = many
    alive: list[int] = []

    class Owner:
        def __init__(self, size: int) -> None:
            self.memory = _core.allocate_on_device(0, size)
            alive.append(size)

        def __del__(self) -> None:
            alive.remove(len(self.memory))

    def allocate(size: int) -> tuple[Any, int]:
        owner = Owner(size)
        return owner, owner.memory.address

    options = _core.options_from_environment()
    options.set_device(0, 0, allocate)
    repository = _core.open(str(path).encode(), "")
    job = _core.start_load(repository, options)
    while not job.wait(1):
        pass
    tensors, _, _ = job.finish()
    assert sum(alive) >= sum(map(len, data.values()))
    name, dtype, shape, memory = tensors[3]
    del tensors, job
    assert isinstance(memory, _core.DeviceMemory)
    assert contents(_device.DeviceTensor(dtype, shape, memory, 0)) == data[name]
    del memory
    gc.collect()
    assert alive == []

    options.memory = 6 << 20
    stream = _core.start_stream(repository, options)
    seen = {}
    while found := stream.next(1):
        if isinstance(found, tuple):
            seen[found[0]] = contents(_device.DeviceTensor(found[1], found[2], found[3], 0))
        del found
    assert seen == data
    del stream
    gc.collect()
    assert alive == []

    def refuse(size: int) -> tuple[Any, int]:
        raise RuntimeError(f"CUDA out of memory. Tried to allocate {size} bytes")

    options.set_device(0, 0, refuse)
    with pytest.raises(MemoryError, match="Tried to allocate"):
        _core.start_load(repository, options)


def test_a_sealed_file_is_verified_on_the_way(repository: pathlib.Path, double: gpu_double.Control) -> None:
    _core.seal(str(repository).encode())
    loaded = infercluster.load(repository, device="cuda:0", framework="dlpack", verify="always")
    assert all(file["verification"] == "seal" for file in loaded.report["files"])
    shard = sorted(repository.glob("*.safetensors"))[1]
    damaged = bytearray(shard.read_bytes())
    damaged[2 << 20] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(Exception, match="sealed"):
        infercluster.load(repository, device="cuda:0", framework="dlpack")


def test_a_machine_without_a_driver_says_so_and_loads_to_the_host(
    repository: pathlib.Path, python: Callable[..., Any]
) -> None:
    done = python(
        """
import json, sys
import infercluster
try:
    infercluster.load(sys.argv[1], device="cuda:0", framework="dlpack")
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([said, len(infercluster.load(sys.argv[1]))]))
""",
        repository,
        INFERCLUSTER_LIBCUDA="/nowhere/libcuda.so.1",
    )
    said, count = json.loads(done.stdout)
    assert count == 15 and "/nowhere/libcuda.so.1" in said, said


def test_a_device_that_is_not_there_is_refused_by_its_number(repository: pathlib.Path, double: gpu_double.Control) -> None:
    with pytest.raises(ValueError, match="9"):
        infercluster.load(repository, device="cuda:9", framework="dlpack")
    with pytest.raises(ValueError, match="cuda:x"):
        infercluster.load(repository, device="cuda:x")


def test_a_failure_of_any_call_is_one_error_and_leaks_nothing(
    many: tuple[pathlib.Path, dict[str, bytes]], double: gpu_double.Control
) -> None:
    path, data = many
    gc.collect()
    before = {name: double.counter(name) for name in ("live",)}
    failed = 0
    for nth in range(1, 400, 9):
        double.set_plan(f"any:{nth}=CUDA_ERROR_LAUNCH_FAILED")
        try:
            loaded = infercluster.load(path, device="cuda:0", framework="dlpack", memory="5MiB")
            double.set_plan("")
            assert {name: contents(tensor) for name, tensor in loaded.items()} == data
            del loaded
        except Exception as error:
            failed += 1
            assert "CUDA_ERROR_LAUNCH_FAILED" in str(error), error
        double.set_plan("")
        gc.collect()
        assert {name: double.counter(name) for name in before} == before, nth
    assert failed > 5
