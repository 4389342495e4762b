# SPDX-License-Identifier: Apache-2.0
"""Against the reference implementation: its own tests, byte-identical files, and what each reads of the other."""

from __future__ import annotations

import pathlib
import random

import ml_dtypes
import numpy
import pytest
import reference_suite
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from conftest import bytes_of

import infercluster.safetensors
import infercluster.safetensors.numpy
import infercluster.safetensors.torch

NAMES = [
    "a",
    "b.weight",
    "x" * 200,
    "\u00e9\u4e2d",
    "",
    'quote"s',
    "back\\slash",
    "new\nline",
    "tab\t",
    "\u0001",
    "z/slash",
    "\U0001f600",
]
TORCH = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool", "complex64",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


def generated(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """Tensors of every dtype, empty, scalar and odd, and at most one metadata entry: the reference's order of several
    is random."""
    source = random.Random(seed)
    tensors = {}
    for _ in range(source.choice([0, 1, 2, 5, 20])):
        dtype = getattr(torch, source.choice(TORCH))
        shape = [source.choice([0, 1, 2, 3, 7, 16, 33]) for _ in range(source.choice([0, 1, 1, 2, 3, 4]))]
        if dtype == torch.float4_e2m1fn_x2 and not shape:
            shape = [4]
        count = torch.Size(shape).numel() * dtype.itemsize
        data = torch.tensor(
            [source.randrange(2 if dtype == torch.bool else 256) for _ in range(count)], dtype=torch.uint8
        )
        name = source.choice(NAMES) + str(source.randrange(5))
        tensors[name] = data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    metadata = source.choice([None, {}, {"format": "pt"}, {'k\u00e9y "1"': "v\u0007\u2028"}])
    return tensors, metadata if tensors else metadata or None


def test_no_tensors_and_empty_metadata_are_a_readable_file() -> None:
    """The one input where the reference's bytes are not ours: it writes `{},"__metadata__":{}`, which it cannot read
    either."""
    assert infercluster.safetensors.torch.load(infercluster.safetensors.torch.save({}, {})) == {}
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load(safetensors.torch.save({}, {}))


def test_the_references_own_tests(tmp_path: pathlib.Path) -> None:
    try:
        assert reference_suite.main(tmp_path) == 0
    except reference_suite.UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("seed", range(200))
def test_files_are_byte_identical_and_each_reads_the_other(seed: int, tmp_path: pathlib.Path) -> None:
    tensors, metadata = generated(seed)
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    infercluster.safetensors.torch.save_file(tensors, ours, metadata)
    safetensors.torch.save_file(tensors, theirs, metadata)
    assert ours.read_bytes() == theirs.read_bytes()
    assert infercluster.safetensors.torch.save(tensors, metadata) == theirs.read_bytes()
    ours_loaded = infercluster.safetensors.torch.load_file(theirs)
    theirs_loaded = safetensors.torch.load_file(ours)
    assert (
        set(ours_loaded) == set(theirs_loaded) == set(tensors)
    )  # the order of empty tensors at one offset is random there
    for name, tensor in tensors.items():
        for loaded in (ours_loaded[name], theirs_loaded[name]):
            assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape
            assert bytes_of(loaded) == bytes_of(tensor)


@pytest.mark.parametrize("seed", range(20))
def test_numpy_files_are_byte_identical(seed: int, tmp_path: pathlib.Path) -> None:
    source = numpy.random.default_rng(seed)
    dtypes = [
        numpy.float64,
        numpy.float32,
        numpy.int16,
        numpy.uint8,
        numpy.bool_,
        numpy.complex64,
        ">i4",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
    ]
    arrays = {
        f"t{i}": source.integers(0, 2, source.integers(0, 5, source.integers(0, 4))).astype(
            source.choice(numpy.array(dtypes, dtype=object))
        )
        for i in range(6)
    }
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    infercluster.safetensors.numpy.save_file(arrays, ours, {"a": "b"})
    safetensors.numpy.save_file(arrays, theirs, {"a": "b"})
    assert ours.read_bytes() == theirs.read_bytes()
    loaded = infercluster.safetensors.numpy.load_file(ours)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype.newbyteorder("=") and loaded[name].shape == array.shape
        assert (loaded[name] == array).all()
        assert loaded[name].flags.writeable


def test_an_array_that_is_not_in_c_order_is_saved_as_it_shows(tmp_path: pathlib.Path) -> None:
    array = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
    infercluster.safetensors.numpy.save_file({"t": array.T, "s": array[:, ::2]}, tmp_path / "f")
    loaded = infercluster.safetensors.numpy.load_file(tmp_path / "f")
    assert (loaded["t"] == array.T).all() and (loaded["s"] == array[:, ::2]).all()


BAD = {
    "empty": b"",
    "short": b"\x01\x02\x03",
    "too large": b"\xff" * 16,
    "header behind the end": (100).to_bytes(8, "little") + b"{}",
    "not UTF-8": (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc",
    "not JSON": (4).to_bytes(8, "little") + b"nope",
    "unknown dtype": (58).to_bytes(8, "little")
    + b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}    '
    + bytes(4),
    "trailing bytes": (2).to_bytes(8, "little") + b"{}x",
    "hole": (56).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}  ' + bytes(8),
    "size": (56).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}  ' + bytes(4),
}


@pytest.mark.parametrize("kind", BAD)
def test_both_refuse_a_bad_file_with_the_same_exception(kind: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(BAD[kind])
    for package in (safetensors, infercluster.safetensors):
        with pytest.raises(safetensors.SafetensorError, match="^Error while deserializing header: "):
            package.safe_open(path, "np")
        with pytest.raises(safetensors.SafetensorError, match="^Error while deserializing: "):
            package.deserialize(BAD[kind])
    with pytest.raises(safetensors.SafetensorError, match="bad.safetensors"):
        infercluster.safetensors.safe_open(path, "np")


def outcome(call: object) -> tuple[object, ...]:
    try:
        found = call()  # type: ignore[operator]
    except Exception as error:
        return type(error).__name__, str(error)
    return tuple(found.shape), str(found.dtype), bytes_of(found)


INDEXES = [
    0, -1, 3, 5, -6, slice(None), slice(1, 3), slice(2), slice(3, None), slice(0, 5, 2), slice(1, 5, 3), slice(0, 6),
    slice(5, None), ..., (), [],
    [0, 1], (0, 1), (-1, -1), (slice(1, 3), slice(2, 4)), (..., 2), (..., slice(1, 3)), (1, ...), (0, ..., 0),
    (..., ...), (slice(None), 2, 1),
    (0, 0, 0, 0), (slice(None), slice(None), slice(0, 3, 2)), (slice(None), slice(None), 2), True, None, "x", 1.5,
    (slice(None), -7), (20, 0),
    slice(None, None, -1), slice(None, None, 0), (slice(0, 2), slice(3, 4), slice(1, 2)), slice(-2, None),
    slice(None, -1), (None, 0), (0, None, 1),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("backend_name", ["mmap", "pread"])
@pytest.mark.parametrize("index", INDEXES, ids=repr)
def test_slices_are_the_references(framework: str, backend_name: str, index: object, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    infercluster.safetensors.numpy.save_file({"t": numpy.arange(60, dtype=numpy.int32).reshape(5, 4, 3)}, path)
    found = []
    for package in (safetensors, infercluster.safetensors):
        with package.safe_open(path, framework, backend=backend_name) as handle:
            found.append(outcome(lambda: handle.get_slice("t")[index]))  # noqa: B023
    assert found[1] == found[0]


@pytest.mark.parametrize("arguments", [
    {"framework": "nope"}, {"framework": 3}, {"framework": "np", "device": "cuda:0"},
    {"framework": "np", "device": "nope"},
    {"framework": "pt", "device": "cuda:x"}, {"framework": "pt", "device": "mps:1"},
    {"framework": "np", "backend": "nope"},
])  # fmt: skip
def test_wrong_arguments_raise_what_the_reference_raises(arguments: dict[str, object], tmp_path: pathlib.Path) -> None:
    infercluster.safetensors.numpy.save_file({"t": numpy.arange(3)}, tmp_path / "f")
    raised = []
    for package in (safetensors, infercluster.safetensors):
        with pytest.raises(Exception) as caught:
            package.safe_open(tmp_path / "f", **arguments)
        raised.append(caught.type)
    assert raised[0] is raised[1]
