# SPDX-License-Identifier: Apache-2.0
"""infercluster.safetensors beyond what the reference's tests ask."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import stat

import numpy
import pytest
import safetensors
import torch
from conftest import bytes_of, random_bytes, write_file

import infercluster.safetensors
import infercluster.safetensors.numpy
import infercluster.safetensors.torch
from infercluster.safetensors import safe_open

ROWS, COLUMNS = 5000, 1111


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, numpy.ndarray]:
    """One tensor of 22 MB behind an odd header: large enough for the engine."""
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    data = random_bytes(ROWS * COLUMNS * 4, 1)
    write_file(path, {"odd": ("U8", [3], b"abc"), "t[0]*": ("I32", [ROWS, COLUMNS], data)}, padding=5)
    return path, numpy.frombuffer(data, dtype=numpy.int32).reshape(ROWS, COLUMNS)


def bytes_read_by(call: object) -> int:
    """What this process asked of read calls, by the kernel's count."""

    def count() -> int:
        return int(pathlib.Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

    before = count()
    overhead = count() - before
    before = count()
    call()  # type: ignore[operator]
    return count() - before - overhead


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_whole_tensors_and_slices_of_a_large_file(
    large: tuple[pathlib.Path, numpy.ndarray], framework: str, backend: str
) -> None:
    path, expected = large
    with safe_open(path, framework) as handle:
        assert bytes_of(handle.get_tensor("t[0]*")) == expected.tobytes()
        assert bytes_of(handle.get_tensors()["t[0]*"]) == expected.tobytes()
        part = handle.get_slice("t[0]*")
        for index in [
            slice(10, 4900),
            (slice(None), slice(100, 1000)),
            (slice(7, 4000), 5),
            (slice(0, 5000, 7), slice(1, 1111, 3)),
            17,
        ]:
            assert bytes_of(part[index]) == expected[index].tobytes()


def test_a_slice_reads_only_its_bytes(large: tuple[pathlib.Path, numpy.ndarray]) -> None:
    path, _ = large
    with safe_open(path, "np") as handle:
        part = handle.get_slice("t[0]*")
        assert bytes_read_by(lambda: part[100:200]) == 100 * COLUMNS * 4
        assert bytes_read_by(lambda: part[0:200, 10:20]) == 200 * 10 * 4
        assert bytes_read_by(lambda: part[4999, 7]) == 4
        assert bytes_read_by(lambda: handle.get_slice("t[0]*").get_shape()) == 0


def test_slices_from_a_pool_of_threads(large: tuple[pathlib.Path, numpy.ndarray]) -> None:
    path, expected = large
    with safe_open(path, "pt") as handle, concurrent.futures.ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda row: handle.get_slice("t[0]*")[row : row + 300], range(0, ROWS, 97)))
    for row, part in zip(range(0, ROWS, 97), parts, strict=True):
        assert bytes_of(part) == expected[row : row + 300].tobytes()


def test_a_slice_outlives_its_handle_and_a_closed_handle_is_refused(large: tuple[pathlib.Path, numpy.ndarray]) -> None:
    path, expected = large
    with safe_open(path, "np") as handle:
        part = handle.get_slice("t[0]*")
    assert (part[3] == expected[3]).all()
    for call in (
        handle.keys,
        handle.offset_keys,
        handle.metadata,
        handle.get_tensors,
        lambda: handle.get_tensor("odd"),
    ):
        with pytest.raises(safetensors.SafetensorError, match="File is closed"):
            call()


def test_a_file_that_is_replaced_keeps_its_old_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    infercluster.safetensors.numpy.save_file({"t": numpy.zeros(5 << 20, dtype=numpy.int32)}, path)
    with safe_open(path, "np") as handle:
        infercluster.safetensors.numpy.save_file({"t": numpy.ones(5 << 20, dtype=numpy.int32)}, path)
        assert not handle.get_tensor("t").any()
        assert not handle.get_tensors()["t"].any()
        assert not handle.get_slice("t")[:,].any()
    assert infercluster.safetensors.numpy.load_file(path)["t"].all()


def test_a_file_that_is_removed_can_still_be_read(
    large: tuple[pathlib.Path, numpy.ndarray], tmp_path: pathlib.Path
) -> None:
    path, expected = large
    copy = tmp_path / "copy"
    os.link(path, copy)
    with safe_open(copy, "np") as handle:
        copy.unlink()
        assert bytes_of(handle.get_tensor("t[0]*")) == expected.tobytes()
        assert bytes_of(handle.get_tensors()["t[0]*"]) == expected.tobytes()
        assert bytes_of(handle.get_slice("t[0]*")[:, 1:1000]) == expected[:, 1:1000].tobytes()


def test_a_forked_child_reads_large_tensors(large: tuple[pathlib.Path, numpy.ndarray], python: object) -> None:
    program = """
import os, sys
import infercluster.safetensors.numpy as ours
expected = ours.load_file(sys.argv[1])["t[0]*"]
with ours.safe_open(sys.argv[1], "np") as handle:
    part = handle.get_slice("t[0]*")
    child = os.fork()
    if child == 0:
        good = (ours.load_file(sys.argv[1])["t[0]*"] == expected).all() and (part[:, 3:1000] == expected[:, 3:1000]).all()
        os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    python(program, large[0])  # type: ignore[operator]


def test_what_is_read_is_verified_when_that_is_asked_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infercluster import _core

    path = tmp_path / "f"
    infercluster.safetensors.numpy.save_file({"a": numpy.zeros((400, 400)), "b": numpy.ones((400, 400))}, path)
    monkeypatch.setenv("INFERCLUSTER_VERIFY", "always")
    with safe_open(path, "np") as handle, pytest.raises(Exception, match="seal"):
        handle.get_tensor("a")
    _core.seal(os.fsencode(path))
    with safe_open(path, "np") as handle:
        assert handle.get_tensor("b").all() and handle.get_slice("b")[:, 3:5].all() and handle.get_tensors()["b"].all()
    times = path.stat()
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with safe_open(path, "np") as handle:
        assert not handle.get_tensor("a").any()
        for read in (
            handle.get_tensors,
            lambda: handle.get_tensor("b"),
            lambda: handle.get_slice("b")[390:],
            lambda: handle.get_slice("b")[:, 399],
        ):
            with pytest.raises(safetensors.SafetensorError, match='"b"'):
                read()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="verified|No such file|changed"):
            handle.get_slice("a")[1]


def test_a_file_that_is_cut_is_an_error_not_a_signal(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    infercluster.safetensors.numpy.save_file({"t": numpy.ones(1000, dtype=numpy.int32)}, path)
    with safe_open(path, "np") as handle:
        os.truncate(path, 3000)
        with pytest.raises(safetensors.SafetensorError, match="offset"):
            handle.get_tensor("t")


def test_packed_f4_and_f6(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    write_file(path, {"f4": ("F4", [3, 4], bytes(range(6))), "f6": ("F6_E2M3", [4], b"abc")})
    with safe_open(path, "pt") as handle:
        assert handle.get_tensor("f4").shape == (3, 2) and handle.get_tensor("f4").dtype == torch.float4_e2m1fn_x2
        assert bytes_of(handle.get_slice("f4")[1:]) == bytes([2, 3, 4, 5])
        with pytest.raises(safetensors.SafetensorError, match="Dtype not understood: F6_E2M3"):
            handle.get_tensor("f6")
    with safe_open(path, "np") as handle:
        assert (handle.get_tensor("f4") == numpy.arange(6, dtype=numpy.uint8).reshape(3, 2)).all()


def test_zero_sizes_are_the_same_by_file_and_by_bytes(tmp_path: pathlib.Path) -> None:
    shapes = {"a": [0], "b": [0, 4], "c": [2, 0], "scalar": [], "d": [3]}
    tensors = {name: torch.ones(shape, dtype=torch.float32) for name, shape in shapes.items()}
    for chosen in (shapes, {"a": [0], "b": [0, 4]}, {"scalar": []}, {}):
        path = tmp_path / f"f{len(chosen)}"
        infercluster.safetensors.torch.save_file({name: tensors[name] for name in chosen}, path, {"only": "metadata"})
        for loaded in (
            infercluster.safetensors.torch.load_file(path),
            infercluster.safetensors.torch.load(path.read_bytes()),
        ):
            assert {name: list(tensor.shape) for name, tensor in loaded.items()} == chosen
        with safe_open(path, "np") as handle:
            assert handle.metadata() == {"only": "metadata"}
            for name, shape in chosen.items():
                assert list(handle.get_slice(name)[...].shape) == shape


def test_saving_is_atomic_and_keeps_mode_and_links(tmp_path: pathlib.Path) -> None:
    path, link = tmp_path / "f", tmp_path / "link"
    infercluster.safetensors.numpy.save_file({"t": numpy.zeros(3)}, path)
    path.chmod(0o640)
    link.symlink_to(path)
    with open(path, "rb") as old:
        infercluster.safetensors.numpy.save_file({"t": numpy.ones(3)}, link)
        assert old.read().endswith(bytes(24))
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert infercluster.safetensors.numpy.load_file(path)["t"].all()
    assert sorted(os.listdir(tmp_path)) == ["f", "link"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: pathlib.Path, python: object) -> None:
    path = tmp_path / "f"
    infercluster.safetensors.numpy.save_file({"t": numpy.arange(3)}, path)
    before = path.read_bytes()
    program = """
import resource, signal, sys, numpy
import infercluster.safetensors.numpy as ours
from infercluster import SafetensorError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ours.save_file({"t": numpy.zeros(1 << 20)}, sys.argv[1])
except SafetensorError as error:
    print(error)
"""
    assert "File too large" in python(program, path).stdout  # type: ignore[operator]
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["f"]
    with pytest.raises(safetensors.SafetensorError, match="I/O error: No such file or directory"):
        infercluster.safetensors.numpy.save_file({"t": numpy.zeros(1)}, tmp_path / "missing" / "f")


def test_missing_files_and_folders(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        safe_open(tmp_path / "nothing", "np")
    assert caught.value.errno == 2
    with pytest.raises(OSError, match="regular file"):
        safe_open(tmp_path, "np")
