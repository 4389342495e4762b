# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gpu_double  # noqa: E402

BACKENDS = ("uring", "threads")

# The GPU's libraries are their doubles in this process and its children; nothing of them is loaded before a test uses a
# device.
for _name, _value in gpu_double.environment().items():
    if _name != "PYTHONPATH":
        os.environ.setdefault(_name, _value)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test's fixtures see by its stash that it failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a test on both backends."""
    monkeypatch.setenv("INFERCLUSTER_BACKEND", request.param)
    yield request.param


@pytest.fixture
def double() -> Iterator[gpu_double.Control]:
    """The driver's double, with nothing in it, and copies that take a moment."""
    gc.collect()
    made = gpu_double.Control()
    made.reset()
    made.set_plan("delay_us=0..300 seed=11")
    yield made
    made.set_plan("")
    gc.collect()


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a fresh interpreter."""

    def run(program: str, *arguments: object, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr[-4000:]
        return done

    return run


def write_file(
    path: pathlib.Path,
    tensors: dict[str, tuple[str, list[int], bytes]],
    *,
    padding: int | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """A safetensors file made by hand: tensors in the given order, and `padding` spaces behind the header (None: to a
    multiple of 8)."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 if padding is None else padding)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def random_bytes(count: int, seed: int) -> bytes:
    return numpy.random.default_rng(seed).integers(0, 256, count, dtype=numpy.uint8).tobytes()


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """Three shards with an index, all dtypes that both frameworks have, 24 MiB."""
    folder = tmp_path / "repository"
    folder.mkdir()
    weight_map = {}
    for shard in range(3):
        name = f"model-{shard + 1:05}-of-00003.safetensors"
        tensors = {
            f"layers.{shard}.weight": ("F32", [1024, 2048], random_bytes(8 << 20, shard)),
            f"layers.{shard}.bias": ("BF16", [333], random_bytes(666, 10 + shard)),
            f"layers.{shard}.empty": ("F16", [0, 4], b""),
            f"layers.{shard}.scalar": ("I64", [], random_bytes(8, 20 + shard)),
            f"layers.{shard}.odd": ("U8", [7, 3], random_bytes(21, 30 + shard)),
        }
        write_file(folder / name, tensors, metadata={"format": "pt", "shard": str(shard)})
        weight_map |= dict.fromkeys(tensors, name)
    total = 3 * ((8 << 20) + 666 + 8 + 21)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    )
    return folder


def bytes_of(tensor: object) -> bytes:
    """A tensor's bytes, of whatever dtype and framework."""
    if isinstance(tensor, numpy.ndarray):
        return tensor.tobytes()
    import torch

    assert isinstance(tensor, torch.Tensor)
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
