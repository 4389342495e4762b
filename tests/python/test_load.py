# SPDX-License-Identifier: Apache-2.0
"""infercluster.load and open: right bytes, right objects, right errors."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import re
import time

import ml_dtypes
import numpy
import pytest
import safetensors.torch
import torch
from conftest import bytes_of, random_bytes, write_file

import infercluster


def stock(repository: pathlib.Path) -> dict[str, torch.Tensor]:
    result = {}
    for path in sorted(repository.glob("*.safetensors")):
        result |= safetensors.torch.load_file(path)
    return result


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_repository_loads_as_with_the_stock_package(repository: pathlib.Path, framework: str, backend: str) -> None:
    expected = stock(repository)
    loaded = infercluster.load(repository, framework=framework)
    assert set(loaded) == set(expected) and len(loaded) == len(expected) and "nothing" not in loaded
    for name, tensor in loaded.items():
        assert tuple(tensor.shape) == tuple(expected[name].shape)
        assert bytes_of(tensor) == bytes_of(expected[name])
        assert loaded[name] is tensor
    assert loaded.metadata == {"format": "pt", "shard": "0"}
    report = loaded.report
    assert report["backend"] == {"uring": "io_uring", "threads": "threads"}[backend]
    assert report["bytes"] == sum(tensor.nbytes for tensor in expected.values()) and report["tensors"] == len(expected)
    assert {file["path"] for file in report["files"]} == {str(path) for path in repository.glob("*.safetensors")}
    assert {file["mode"] for file in report["files"]} <= {"direct", "buffered", "resident"}
    assert all(file["reason"] and file["verification"] for file in report["files"])
    assert set(report) == set(infercluster.Report.__required_keys__)
    assert abs(sum(report["waited"].values()) - report["seconds"]) <= 0.05 * report["seconds"] + 0.01


def test_dtypes_of_both_frameworks(tmp_path: pathlib.Path) -> None:
    names = {
        "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
        "I64": ("int64", 8), "I32": ("int32", 4),
        "I16": ("int16", 2), "I8": ("int8", 1), "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2),
        "U8": ("uint8", 1),
        "BOOL": ("bool", 1), "C64": ("complex64", 8), "F8_E4M3": ("float8_e4m3fn", 1),
        "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
        "F8_E5M2": ("float8_e5m2", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
    }  # fmt: skip
    path = tmp_path / "f"
    write_file(
        path,
        {dtype: (dtype, [2, 3], bytes([1] * 6 * size)) for dtype, (_, size) in names.items()}
        | {"F4": ("F4", [2, 6], bytes(6))},
    )
    as_torch, as_numpy = infercluster.load(path, framework="torch"), infercluster.load(path, framework="numpy")
    for dtype, (name, size) in names.items():
        assert as_torch[dtype].dtype == getattr(torch, name) and as_torch[dtype].shape == (2, 3)
        assert as_numpy[dtype].dtype == numpy.dtype(getattr(ml_dtypes, name, name)) and as_numpy[dtype].shape == (2, 3)
        for tensor, address in (
            (as_torch[dtype], as_torch[dtype].data_ptr()),
            (as_numpy[dtype], as_numpy[dtype].ctypes.data),
        ):
            assert bytes_of(tensor) == bytes([1] * 6 * size)
            assert address % (size if dtype != "C64" else 4) == 0
    assert as_torch["F4"].dtype == torch.float4_e2m1fn_x2 and as_torch["F4"].shape == (2, 3)
    assert as_numpy["F4"].dtype == numpy.uint8 and as_numpy["F4"].shape == (2, 3)
    write_file(path, {"f6": ("F6_E3M2", [4], b"abc")})
    with pytest.raises(infercluster.SafetensorError, match="Dtype not understood: F6_E3M2"):
        infercluster.load(path)["f6"]


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_tensors_are_writable_private_and_outlive_all(tmp_path: pathlib.Path, framework: str) -> None:
    path = tmp_path / "f"
    data = random_bytes(1 << 20, 3)
    write_file(path, {"a": ("U8", [1 << 20], data), "b": ("U8", [1 << 20], data)})
    loaded = infercluster.load(path, framework=framework)
    a, b = loaded["a"], loaded["b"]
    a[:] = 7
    del loaded, a
    path.unlink()
    gc.collect()
    assert bytes_of(b) == data
    view = b[5:10]
    del b
    gc.collect()
    assert bytes_of(view) == data[5:10]


def test_memory_is_freed_with_the_last_tensor(tmp_path: pathlib.Path, python: object) -> None:
    path = tmp_path / "f"
    write_file(path, {"a": ("U8", [64 << 20], bytes(64 << 20))})
    program = """
import gc, sys, infercluster
def resident():  # explicit huge pages count apart
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return sum(int(lines.get(name, "0").split()[0]) for name in ("VmRSS", "HugetlbPages")) * 1024
infercluster.load(sys.argv[1], framework="np", names="a")
gc.collect()
before = resident()
for _ in range(8):
    kept = infercluster.load(sys.argv[1], framework="np")["a"]
    assert resident() - before > 60 << 20
    del kept
    gc.collect()
print((resident() - before) >> 20)
"""
    assert int(python(program, path).stdout) < 32  # type: ignore[operator]


def test_names_and_patterns(repository: pathlib.Path) -> None:
    assert set(infercluster.load(repository, names="layers.1.*")) == {
        f"layers.1.{part}" for part in ("weight", "bias", "empty", "scalar", "odd")
    }
    assert list(infercluster.load(repository, names=["layers.2.odd", "layers.?.bias"])) == [
        "layers.0.bias",
        "layers.1.bias",
        "layers.2.bias",
        "layers.2.odd",
    ]
    with pytest.raises(infercluster.TensorNotFoundError, match="nope.*neither") as caught:
        infercluster.load(repository, names=["nope", "layers.0.odd", "neither*"])
    assert isinstance(caught.value, KeyError) and not str(caught.value).startswith("'")
    with pytest.raises(ValueError, match="names is empty"):
        infercluster.load(repository, names=[])


def test_a_tensor_called_like_a_pattern(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    write_file(path, {"a[0]*\\": ("U8", [2], b"12"), "a0": ("U8", [2], b"34")})
    assert list(infercluster.load(path, names="a[0]*\\", slices={"a[0]*\\": slice(1, 2)}, framework="np").items()) == [
        ("a[0]*\\", numpy.array([50]))
    ]


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_slices(repository: pathlib.Path, framework: str, backend: str) -> None:
    expected = stock(repository)
    slices = {
        "layers.0.weight": (slice(None), slice(100, -100)),
        "layers.1.weight": slice(-7, None),
        "layers.2.weight": infercluster.Shard(1, 3, 5),
        "*.bias": infercluster.Shard(0, 1, 2),
        "*.odd": (slice(1, 3), slice(2)),
    }
    loaded = infercluster.load(repository, slices=slices, framework=framework)
    wanted = {
        "layers.0.weight": expected["layers.0.weight"][:, 100:-100],
        "layers.1.weight": expected["layers.1.weight"][-7:],
        "layers.2.weight": torch.chunk(expected["layers.2.weight"], 5, 1)[3],
        "layers.2.bias": torch.chunk(expected["layers.2.bias"], 2, 0)[1],
        "layers.0.odd": expected["layers.0.odd"][1:3, :2],
        "layers.1.scalar": expected["layers.1.scalar"],
    }
    for name, tensor in wanted.items():
        assert tuple(loaded[name].shape) == tuple(tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name
    for bad, message in [({"layers.0.odd": (slice(0, 1),) * 3}, "2"), ({"*.odd": slice(0, 4, 2)}, "step")]:
        with pytest.raises(ValueError, match=message):
            infercluster.load(repository, slices=bad)
    with pytest.raises(TypeError, match="Shard"):
        infercluster.load(repository, slices={"layers.0.odd": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="rank 5"):
        infercluster.Shard(0, 5, 5)
    with pytest.raises(KeyError, match="nothing"):
        infercluster.load(repository, slices={"nothing": slice(1)})


def test_the_first_slice_rule_decides(repository: pathlib.Path) -> None:
    slices = {
        "layers.0.odd": slice(1),
        "layers.[01].*": slice(-2, None),
        "*.odd": infercluster.Shard(0, 0, 2),
        "*": slice(3),
    }
    names = ["*.odd", "*.bias"]
    loaded = infercluster.load(repository, slices=slices, names=names, framework="np")
    assert {name: len(tensor) for name, tensor in loaded.items()} == {
        "layers.0.bias": 2, "layers.0.odd": 1, "layers.1.bias": 2, "layers.1.odd": 2, "layers.2.bias": 3, "layers.2.odd": 4,
    }  # fmt: skip
    with pytest.raises(KeyError, match="layers.1.odd"):
        infercluster.load(repository, slices={"*": slice(3), "layers.1.odd": slice(1)}, names=names)


def test_a_slice_of_each_of_many_tensors_takes_linear_time(tmp_path: pathlib.Path) -> None:
    count = 20_000
    write_file(tmp_path / "f", {f"t{i}": ("U8", [1 + i % 3], bytes([7] * (1 + i % 3))) for i in range(count)})
    started = time.process_time()
    loaded = infercluster.load(tmp_path / "f", slices={"*": slice(-1, None)}, framework="np")
    assert len(loaded) == count and loaded.report["bytes"] == count
    assert time.process_time() - started < 10  # quadratic: minutes


def test_one_of_eight_ranks_reads_an_eighth(repository: pathlib.Path) -> None:
    loaded = infercluster.load(repository, names="*.weight", slices={"*": infercluster.Shard(0, 2, 8)})
    assert loaded.report["bytes"] == 3 << 20
    assert loaded.report["bytes_read"] <= (3 << 20) + 3 * 2 * 4096


def test_into_fills_and_returns_the_callers_tensors(repository: pathlib.Path, backend: str) -> None:
    expected = stock(repository)
    weight, bias = torch.zeros(1024, 2048), numpy.zeros(333, dtype=ml_dtypes.bfloat16)
    part, empty = torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(0, 4, dtype=torch.float16)
    into = {"layers.0.weight": weight, "layers.1.bias": bias, "layers.2.odd": part, "layers.0.empty": empty}
    loaded = infercluster.load(repository, into=into, slices={"layers.2.odd": slice(2, 4)})
    for name, tensor in into.items():
        assert loaded[name] is tensor
    assert torch.equal(weight, expected["layers.0.weight"]) or bytes_of(weight) == bytes_of(expected["layers.0.weight"])
    assert bytes_of(bias) == bytes_of(expected["layers.1.bias"])
    assert bytes_of(part) == bytes_of(expected["layers.2.odd"][2:4])
    assert bytes_of(loaded["layers.2.weight"]) == bytes_of(expected["layers.2.weight"])


@pytest.mark.parametrize(("tensor", "message"), [
    (torch.zeros(1024, 2048, dtype=torch.float64), "dtype is torch.float64"),
    (torch.zeros(2048, 1024), r"shape is \[2048, 1024\], expected \[1024, 2048\]"),
    (torch.zeros(2048, 1024).T, "not contiguous"),
    (numpy.zeros((1024, 2048)), "dtype is float64"),
    (numpy.zeros((2048, 1024), dtype=numpy.float32).T, "not contiguous"),
    (numpy.frombuffer(bytes(8 << 20), dtype=numpy.float32).reshape(1024, 2048), "read-only"),
])  # fmt: skip
def test_into_refuses_what_does_not_fit(repository: pathlib.Path, tensor: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf'into\["layers.0.weight"\]: .*{message}'):
        infercluster.load(repository, into={"layers.0.weight": tensor})


def test_into_refuses_other_objects_and_unknown_names(repository: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="bytearray"):
        infercluster.load(repository, into={"layers.0.weight": bytearray(8)})
    with pytest.raises((KeyError, ValueError), match="nothing"):
        infercluster.load(repository, into={"nothing": torch.zeros(1)})


def test_open_reads_only_what_is_asked(repository: pathlib.Path, backend: str) -> None:
    expected = stock(repository)
    with infercluster.open(repository, framework="np") as handle:
        assert set(handle) == set(expected) and "layers.0.odd" in handle and len(handle) == len(expected)
        info = handle.info("layers.0.bias")
        assert (info.dtype, info.shape, info.nbytes) == ("BF16", (333,), 666)
        assert info.file == str(repository / "model-00001-of-00003.safetensors") and info.file in handle.files
        assert handle.metadata["shard"] == "0"
        assert bytes_of(handle["layers.1.weight"]) == bytes_of(expected["layers.1.weight"])
        assert bytes_of(handle.get_tensor("layers.1.weight", (slice(3, 5), slice(1, 2)))) == bytes_of(
            expected["layers.1.weight"][3:5, 1:2]
        )
        assert handle.load(names="*.odd").report["bytes"] == 63
        with pytest.raises(KeyError):
            handle["nothing"]
    with pytest.raises(ValueError, match="closed"):
        handle["layers.0.odd"]


def test_zero_sizes_and_headers_without_tensors(tmp_path: pathlib.Path, backend: str) -> None:
    path = tmp_path / "f"
    write_file(
        path,
        {
            "a": ("F32", [0], b""),
            "x": ("U8", [3], b"xyz"),
            "b": ("F32", [0, 4], b""),
            "c": ("F32", [2, 0], b""),
            "s": ("U8", [], b"s"),
        },
    )
    for framework in ("pt", "np"):
        loaded = infercluster.load(path, framework=framework)
        assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {
            "a": (0,),
            "x": (3,),
            "b": (0, 4),
            "c": (2, 0),
            "s": (),
        }
        assert bytes_of(loaded["x"]) == b"xyz" and bytes_of(loaded["s"]) == b"s"
    for tensors, metadata in (({"a": ("F32", [0, 3], b"")}, None), ({}, None), ({}, {"only": "this"})):
        write_file(path, tensors, metadata=metadata)
        loaded = infercluster.load(path)
        assert list(loaded) == list(tensors) and loaded.metadata == (metadata or {}) and loaded.report["bytes"] == 0


@pytest.mark.parametrize("padding", [0, 1, 2, 3, 5, 7, 8, 440, 499, 3900, 3967, 4030])
def test_any_header_length_gives_right_bytes_at_aligned_addresses(
    tmp_path: pathlib.Path, padding: int, backend: str
) -> None:
    path = tmp_path / "f"
    sizes = {"u": 1, "f": 4095, "g": 4097, "h": 512 * 3 + 1, "i": (1 << 20) + 3, "tail": 100}
    tensors = {}
    for seed, (name, count) in enumerate(sizes.items()):
        width = 1 if name == "u" else 4
        tensors[name] = ("U8" if width == 1 else "F32", [count], random_bytes(count * width, seed))
    write_file(path, tensors, padding=padding)
    loaded = infercluster.load(path, framework="np")
    for name, (_, _, data) in tensors.items():
        assert loaded[name].tobytes() == data, name
        assert loaded[name].ctypes.data % loaded[name].dtype.alignment == 0


def test_tensors_over_two_gib(tmp_path: pathlib.Path, backend: str) -> None:
    """A sparse file: 3 GiB in one tensor, with marks where 32-bit arithmetic would go wrong."""
    path = tmp_path / "sparse"
    size = 3 << 30
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    marks = [2**31 - 1, 2**31, 2**31 + 4096, size - 1]
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        begin = file.tell()
        file.truncate(begin + size)
        for value, mark in enumerate(marks, 1):
            os.pwrite(file.fileno(), bytes([value]), begin + mark)
    if _available_bytes() < 5 << 30:
        pytest.skip("less than 5 GiB of memory are free")
    tensor = infercluster.load(path, framework="np")["t"]
    assert [tensor[mark] for mark in marks] == [1, 2, 3, 4]
    assert not tensor[2**31 + 1 : 2**31 + 4096].any() and not tensor[:4096].any()
    with infercluster.safetensors.safe_open(path, "np") as handle:
        part = handle.get_slice("t")[2**31 - 1 : 2**31 + 1]
        assert part.tolist() == [1, 2]


def _available_bytes() -> int:
    return int(re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024  # type: ignore[index]


def test_another_device_gets_each_tensor_as_it_arrives(repository: pathlib.Path, backend: str) -> None:
    """torch's device without memory stands for one of a GPU: what counts is the way there."""
    destination = torch.empty(333, dtype=torch.bfloat16, device="meta")
    loaded = infercluster.load(repository, device="meta", into={"layers.0.bias": destination}, memory="64MiB")
    assert len(loaded) == 15 and all(tensor.device.type == "meta" for tensor in loaded.values())
    assert loaded["layers.0.bias"] is destination and loaded["layers.1.weight"].shape == (1024, 2048)
    assert loaded.report["tensors"] == 15 and loaded.metadata["shard"] == "0"
    with pytest.raises(ValueError, match="shape"):
        infercluster.load(repository, device="meta", into={"layers.0.weight": destination.to(torch.float32)})
    with infercluster.open(repository, device="meta") as handle:
        assert handle["layers.0.odd"].device.type == "meta"
    assert all(tensor.device.type == "meta" for _, tensor in infercluster.stream(repository, device="meta"))
