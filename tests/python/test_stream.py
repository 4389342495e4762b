# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import pathlib

import numpy as np
import pytest
import safetensors.torch
from conftest import bytes_of, random_bytes, write_file

import infercluster

BLOCK = 4 << 20


@pytest.fixture
def many(tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, bytes]]:
    path = tmp_path / "many"
    data = {f"t{i:02}": random_bytes(BLOCK, i) for i in range(24)}
    write_file(path, {name: ("U8", [BLOCK], value) for name, value in data.items()})
    return path, data


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_every_tensor_comes_once_with_its_bytes(repository: pathlib.Path, framework: str, backend: str) -> None:
    expected = {}
    for path in sorted(repository.glob("*.safetensors")):
        expected |= safetensors.torch.load_file(path)
    with infercluster.stream(repository, framework=framework) as stream:
        seen = {name: bytes_of(tensor) for name, tensor in stream}
    assert seen == {name: bytes_of(tensor) for name, tensor in expected.items()}
    assert stream.report["bytes"] == sum(map(len, seen.values())) and stream.report["tensors"] == len(seen)
    assert stream.progress == (stream.report["bytes"],) * 2
    assert stream.metadata["format"] == "pt"
    assert list(stream) == []


def test_a_window_smaller_than_the_whole(many: tuple[pathlib.Path, dict[str, bytes]], backend: str) -> None:
    path, data = many
    stream = infercluster.stream(path, memory="24MiB", framework="np")
    seen = {}
    for name, tensor in stream:
        seen[name] = tensor.tobytes()
        del tensor
    assert seen == data
    assert stream.report["peak_host_bytes"] <= 24 << 20


def test_kept_tensors_keep_their_bytes(many: tuple[pathlib.Path, dict[str, bytes]]) -> None:
    path, data = many
    kept = {}
    stream = infercluster.stream(path, memory="40MiB", framework="np")
    for index, (name, tensor) in enumerate(stream):
        if index % 6 == 0:
            kept[name] = tensor
        del tensor
    del stream
    gc.collect()
    for name, tensor in kept.items():
        assert tensor.tobytes() == data[name]


def test_keeping_more_than_the_window_is_an_error_that_says_so(many: tuple[pathlib.Path, dict[str, bytes]]) -> None:
    path, data = many
    kept = {}
    with pytest.raises(MemoryError, match="window|memory"):
        for name, tensor in infercluster.stream(path, memory="24MiB", framework="np"):
            kept[name] = tensor
    assert kept
    for name, tensor in kept.items():
        assert tensor.tobytes() == data[name]


def test_a_window_too_small_is_refused_with_the_figure(many: tuple[pathlib.Path, dict[str, bytes]]) -> None:
    with pytest.raises((MemoryError, ValueError), match=r"\d"):
        infercluster.stream(many[0], memory="1MiB")


def test_leaving_early_stops_the_reads(many: tuple[pathlib.Path, dict[str, bytes]], backend: str) -> None:
    path, data = many
    with infercluster.stream(path, memory="16MiB", framework="np") as stream:
        name, tensor = next(stream)
    assert tensor.tobytes() == data[name]
    assert list(stream) == []
    assert stream.report["bytes"] < sum(map(len, data.values()))


def test_names_and_slices(repository: pathlib.Path) -> None:
    seen = dict(
        infercluster.stream(repository, names="*.weight", slices={"*": infercluster.Shard(0, 0, 4)}, framework="np")
    )
    assert {name: tensor.shape for name, tensor in seen.items()} == {
        f"layers.{i}.weight": (256, 2048) for i in range(3)
    }


def test_a_checkpoint_gives_way_while_a_stream_misses_its_latency_target(
    many: tuple[pathlib.Path, dict[str, bytes]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERCLUSTER_LATENCY_DIR", str(tmp_path / "latency"))
    monkeypatch.setenv("INFERCLUSTER_DIRECT", "always")  # what comes from the page cache waits for no disk
    state = {"weight": np.ones((16, 1 << 20), dtype=np.uint8)}
    cut = 0
    with infercluster.Checkpointer(tmp_path / "run", group="single") as checkpointer:
        checkpointer.save(0, state, wait=True)
        assert checkpointer.save(1, state, wait=True).report["requests_cut"] == 0  # nobody waits
        for step in range(2, 12):  # what a stream says is old after a second, and that may pass between two lines
            with infercluster.stream(many[0], framework="np", memory="24MiB", latency_target=1e-6) as stream:
                next(stream)
                save = checkpointer.save(step, state, wait=True)
            cut = save.report["requests_cut"]
            if cut > 0:
                break
        assert cut > 0 and save.report["throttled_seconds"] >= 0 and save.report["lowest_rate"] > 0


@pytest.mark.parametrize("target", [0, -1, 1e9, float("nan")])
def test_a_latency_target_that_is_none_is_refused(repository: pathlib.Path, target: float) -> None:
    for call in (infercluster.load, infercluster.stream):
        with pytest.raises(ValueError, match="latency_target"):
            call(repository, latency_target=target)
