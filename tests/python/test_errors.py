# SPDX-License-Identifier: Apache-2.0
"""Budgets, checksums, and what a caller is told when something is wrong."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re

import pytest
import safetensors.torch
from conftest import write_file

import infercluster


@pytest.mark.parametrize("memory", [0, 1, "1KB"])
def test_an_impossible_budget_is_refused_with_the_figure(repository: pathlib.Path, memory: object) -> None:
    with pytest.raises((MemoryError, ValueError), match=r"\d"):
        infercluster.load(repository, memory=memory)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", [-1, "lots", "-3", 1 << 70])
def test_a_budget_that_is_no_size_is_refused(repository: pathlib.Path, memory: object) -> None:
    with pytest.raises(ValueError, match="memory is"):
        infercluster.load(repository, memory=memory)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", ["8MiB", "64MiB", 1 << 40])
def test_working_memory_stays_within_the_budget(repository: pathlib.Path, memory: int | str, backend: str) -> None:
    loaded = infercluster.load(repository, memory=memory)
    budget = 8 << 20 if memory == "8MiB" else 64 << 20
    assert loaded.report["working_bytes"] <= budget
    assert loaded.report["peak_host_bytes"] <= loaded.report["bytes"] + budget


def test_a_tiny_file_takes_little_memory(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / "f", {"t": ("U8", [1 << 20], bytes(1 << 20))})
    assert infercluster.load(tmp_path / "f", memory="2GiB").report["peak_host_bytes"] < 40 << 20


def test_errors_are_standard_exceptions(repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        infercluster.load(tmp_path / "nothing")
    assert missing.value.errno == 2 and "nothing" in str(missing.value)
    for arguments, message in [
        ({"verify": "perhaps"}, "verify"),
        ({"framework": "tf"}, "framework"),
        ({"framework": "np", "device": "cuda"}, "device"),
    ]:
        with pytest.raises(ValueError, match=message):
            infercluster.load(repository, **arguments)  # type: ignore[arg-type]
    shard = repository / "model-00002-of-00003.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(safetensors.SafetensorError, match="model-00002-of-00003.safetensors") as cut:
        infercluster.load(repository)
    assert isinstance(cut.value, infercluster.SafetensorError)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00003.safetensors"):
        infercluster.load(repository)


def test_a_file_that_may_not_be_read(repository: pathlib.Path, python: object) -> None:
    program = """
import os, sys
import infercluster, infercluster.safetensors
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for call in (infercluster.load, lambda path: infercluster.safetensors.safe_open(path, "np")):
    try:
        call(sys.argv[1])
    except PermissionError as error:
        print(error.errno, error.filename)
"""
    path = repository / "model-00001-of-00003.safetensors"
    path.chmod(0)
    assert python(program, path).stdout == f"13 {path}\n" * 2  # type: ignore[operator]


def test_verify_always_without_checksums_is_an_error(repository: pathlib.Path) -> None:
    with pytest.raises(Exception, match="seal"):
        infercluster.load(repository, verify="always")
    report = infercluster.load(repository, verify="never").report
    assert all(file["verification"].startswith("unverified") for file in report["files"])


def test_a_seal_is_checked_and_names_the_bad_tensor(repository: pathlib.Path, backend: str) -> None:
    from infercluster import _core

    _core.seal(os.fsencode(repository))
    assert {file["verification"] for file in infercluster.load(repository).report["files"]} == {"seal"}
    shard = repository / "model-00002-of-00003.safetensors"
    mtime = shard.stat().st_mtime_ns
    with open(shard, "r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1000, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(shard, ns=(mtime, mtime))
    for verify in ("auto", "always"):
        with pytest.raises(safetensors.SafetensorError, match=r"00002-of-00003\.safetensors.*layers\.1\."):
            infercluster.load(repository, verify=verify)
    infercluster.load(repository, verify="never")


def test_the_log_goes_to_logging(repository: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    index = repository / "model.safetensors.index.json"
    text = json.loads(index.read_text())
    text["metadata"]["total_size"] += 1
    index.write_text(json.dumps(text))
    with caplog.at_level(logging.DEBUG, logger="infercluster"):
        loaded = infercluster.load(repository)
    assert any("total_size" in notice for notice in loaded.report["notices"])


def test_every_code_of_the_core_has_its_exception() -> None:
    from infercluster._errors import exception

    expected = {
        "invalid argument": ValueError,
        "not found": FileNotFoundError,
        "permission denied": PermissionError,
        "corrupt": infercluster.SafetensorError,
        "changed": OSError,
        "unsupported": RuntimeError,
        "too large": MemoryError,
        "out of memory": MemoryError,
        "I/O error": OSError,
        "timed out": TimeoutError,
        "cancelled": OSError,
        "internal error": RuntimeError,
    }
    source = (pathlib.Path(__file__).parents[2] / "src" / "base" / "error.cc").read_text()
    body = source[source.index("name_of(ErrorCode code)") :]
    names = set(re.findall(r'return "([^"]+)";', body[: body.index("\n}")])) - {"unknown"}
    assert names == set(expected)
    for name, kind in expected.items():
        error = exception(name, 0, "what", "/a/path", 7, "t", "do this", "Kind")
        tensor_missing = name == "not found"
        assert type(error) is (infercluster.TensorNotFoundError if tensor_missing else kind), name
        assert (error.code, error.path, error.offset, error.tensor, error.hint) == (name, "/a/path", 7, "t", "do this")  # type: ignore[attr-defined]
        assert "what" in str(error) and "/a/path" in str(error) and 'tensor "t"' in str(error)
    assert type(exception("not found", 0, "what", "/a/path", None, "", "", "")) is FileNotFoundError
