# SPDX-License-Identifier: Apache-2.0
"""infercluster.dcp in one process: torch.distributed.checkpoint's own functions over our storage."""

from __future__ import annotations

import os
import pathlib
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import Metadata

import infercluster
from infercluster import dcp as ic

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
]


def state_of(seed: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made)

    return {
        "model": {
            "weight": some(10, 3), "half": some(7).bfloat16(), "turned": some(4, 5).t(), "every other": some(9, 4)[::2, 1:],
            "complex": torch.complex(some(3), some(3)).to(torch.complex128), "small": torch.complex(some(2), some(2)),
            "eight": some(5).to(torch.float8_e4m3fn), "no rows": torch.empty(0, 3), "scalar": torch.tensor(seed),
            "broad": some(1, 4).expand(3, 4), "image": some(2, 3, 4, 5).to(memory_format=torch.channels_last),
        },
        "optimizer": {"step": 10**30 + seed, "none": None, "betas": (0.9, 0.95), "list": [1, "a", b"x", {"k": (1, 2)}]},
        "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
        "epoch": seed,
    }  # fmt: skip


def emptied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value, memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: emptied(item) for key, item in value.items()}
    return [emptied(item) for item in value] if isinstance(value, list) else "not loaded"


def bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(one: Any, other: Any, path: str = "") -> None:
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert bytes_of(one) == bytes_of(other), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}.{i}")
    else:
        assert one == other, path


def loaded(path: pathlib.Path, like: dict[str, Any], reader: Any = ic.Reader) -> dict[str, Any]:
    into: dict[str, Any] = emptied(like)
    dcp.load(into, storage_reader=reader(path))
    return into


def names(path: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


FILES = [".metadata", "COMMIT", "node-0.0.{0}.safetensors", "node-0.{0}.index.json", "node-1.{0}.index.json"]


def files(epoch: int) -> list[str]:
    return [name.format(epoch) for name in FILES]


@pytest.fixture
def installed() -> Iterator[None]:
    ic.install()
    yield
    ic.uninstall()


def test_a_state_comes_back_equal_in_value_and_type(tmp_path: pathlib.Path) -> None:
    state, path = state_of(1), tmp_path / "new" / "folders" / "step-5"
    metadata = dcp.save(state, storage_writer=ic.Writer(path))
    assert names(path) == files(1)
    assert_same(state, loaded(path, state))
    read = ic.Reader(path).read_metadata()
    assert read.state_dict_metadata == metadata.state_dict_metadata
    assert read.planner_data == metadata.planner_data
    assert list(read.state_dict_metadata) == list(metadata.planner_data)
    assert len(pickle.dumps(metadata.storage_data)) < 200


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_limit_of_the_rate_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "variable":
        monkeypatch.setenv("INFERCLUSTER_DCP_MAX_WRITE_RATE", "40MiB")
    writer = ic.Writer(tmp_path / "a", max_write_rate="40MiB" if by == "argument" else None)
    begin = time.monotonic()
    dcp.save({"large": torch.zeros(36 << 20, dtype=torch.uint8)}, storage_writer=writer)
    assert time.monotonic() - begin > 0.6  # the last of five requests, 8 MiB at most, waits for the others
    with pytest.raises(ValueError, match="max_write_rate"):
        ic.Writer(tmp_path / "a", max_write_rate=0)


def test_stock_tools_open_the_segments(tmp_path: pathlib.Path) -> None:
    import safetensors.torch

    state = state_of(2)
    dcp.save(state, storage_writer=ic.Writer(tmp_path / "c"))
    tensors = safetensors.torch.load_file(tmp_path / "c" / "node-0.0.1.safetensors")
    assert torch.equal(tensors["model.weight"], state["model"]["weight"])
    assert torch.equal(tensors["model.turned"], state["model"]["turned"])


def test_a_new_one_takes_the_place_of_the_old(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "last"
    dcp.save(state_of(1), storage_writer=ic.Writer(path))
    (path / "meta.pt").write_bytes(b"of the trainer")
    dcp.save(state_of(2), storage_writer=ic.Writer(path))
    assert names(path) == sorted([*files(2), "meta.pt"])
    assert_same(state_of(2)["model"], loaded(path, state_of(2))["model"])
    with pytest.raises(dcp.api.CheckpointException, match="Writer\\(overwrite=True\\)"):
        dcp.save(state_of(3), storage_writer=ic.Writer(path, overwrite=False))
    assert loaded(path, state_of(2))["epoch"] == 2


def test_a_stock_checkpoint_is_read_and_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "last"
    dcp.save(state_of(1), storage_writer=dcp.FileSystemWriter(path))
    assert_same(state_of(1)["model"], loaded(path, state_of(1))["model"])
    dcp.save(state_of(2), storage_writer=ic.Writer(path))
    assert names(path) == files(1)
    assert loaded(path, state_of(2))["epoch"] == 2


def test_a_save_that_fails_leaves_the_old_one_and_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last"
    dcp.save(state_of(1), storage_writer=ic.Writer(path))
    writer = ic.Writer(path)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("infercluster.dcp._metadata.text_of", full)
    saving = dcp.async_save(state_of(2), storage_writer=writer, no_dist=True)
    with pytest.raises(dcp.api.CheckpointException, match="No space left"):
        saving.result()
    monkeypatch.undo()
    assert names(path) == files(1)
    assert loaded(path, state_of(1))["epoch"] == 1
    dcp.save(state_of(3), storage_writer=writer)
    assert loaded(path, state_of(3))["epoch"] == 3


def test_complete_means_durable(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    real = ic.Writer._commit

    def slow(self: ic.Writer, *arguments: Any) -> None:
        reached.set()
        assert go_on.wait(60)
        real(self, *arguments)

    monkeypatch.setattr(ic.Writer, "_commit", slow)
    saving = dcp.async_save(state_of(1), storage_writer=ic.Writer(tmp_path / "c"), async_stager=ic.Stager(), no_dist=True)
    assert reached.wait(60)
    assert not saving.done()
    assert "COMMIT" not in names(tmp_path / "c") and ".metadata" not in names(tmp_path / "c")
    with pytest.raises(dcp.api.CheckpointException, match="neither COMMIT nor .metadata"):
        dcp.load({"epoch": 0}, storage_reader=ic.Reader(tmp_path / "c"))
    go_on.set()
    saving.result()
    assert names(tmp_path / "c") == files(1)


def test_other_dtypes_are_refused_all_at_once(tmp_path: pathlib.Path) -> None:
    state = {"a": torch.arange(4.0), "b": torch.arange(3), "c": torch.ones(2)}
    for path, writer in ((tmp_path / "ours", ic.Writer), (tmp_path / "stock", dcp.FileSystemWriter)):
        dcp.save(state, storage_writer=writer(path))
        into = {"a": torch.zeros(4, dtype=torch.float16), "b": torch.zeros(3), "c": torch.zeros(2)}
        with pytest.raises(dcp.api.CheckpointException) as refused:
            dcp.load(into, storage_reader=ic.Reader(path))
        said = str(refused.value)
        assert "a (saved as torch.float32, wanted as torch.float16)" in said
        assert "b (saved as torch.int64, wanted as torch.float32)" in said and "cast=True" in said
        assert not into["c"].any()
        dcp.load(into, storage_reader=ic.Reader(path, cast=True))
        assert into["a"].tolist() == [0, 1, 2, 3] and into["b"].tolist() == [0, 1, 2]


def test_what_cannot_be_saved_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(dcp.api.CheckpointException, match='"layer.q" has the dtype torch.qint8'):
        dcp.save({"layer": {"q": quantized}}, storage_writer=ic.Writer(tmp_path / "c"))


def test_damage_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "c"
    dcp.save(state_of(1), storage_writer=ic.Writer(path))
    segment = path / "node-0.0.1.safetensors"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(dcp.api.CheckpointException, match="node-0.0.1.safetensors"):
        loaded(path, state_of(1))
    (path / "COMMIT").unlink()
    with pytest.raises(dcp.api.CheckpointException, match="its COMMIT is gone"):
        loaded(path, state_of(1))


def test_torchs_own_reader_says_what_to_do(tmp_path: pathlib.Path) -> None:
    dcp.save(state_of(1), storage_writer=ic.Writer(tmp_path / "c"))
    with pytest.raises(dcp.api.CheckpointException, match="storage_reader=infercluster.dcp.Reader"):
        loaded(tmp_path / "c", state_of(1), dcp.FileSystemReader)


def test_a_checkpoint_of_the_checkpointer_says_what_to_do(tmp_path: pathlib.Path) -> None:
    with infercluster.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(2)}, wait=True)
    with pytest.raises(dcp.api.CheckpointException, match="load it with infercluster.Checkpointer"):
        dcp.load({"w": torch.zeros(2)}, storage_reader=ic.Reader(tmp_path / "step-1"))


def test_installed_it_serves_those_who_make_the_stock_classes(tmp_path: pathlib.Path, installed: None) -> None:
    state = state_of(1)
    dcp.save(state, checkpoint_id=tmp_path / "a")
    dcp.save(state, storage_writer=dcp.FileSystemWriter(str(tmp_path / "b"), single_file_per_rank=True, thread_count=4))
    assert names(tmp_path / "a") == names(tmp_path / "b") == files(1)
    into = emptied(state)
    dcp.load(into, checkpoint_id=tmp_path / "b")
    assert_same(state, into)
    dcp_to_torch_save(tmp_path / "a", tmp_path / "whole.pt")
    assert_same(state, torch.load(tmp_path / "whole.pt", weights_only=False))
    assert isinstance(ic.Writer("x"), dcp.FileSystemWriter) and isinstance(dcp.FileSystemReader("x"), ic.Reader)

    class Own(dcp.FileSystemWriter):
        def finish(self, metadata: Metadata, results: Any) -> None:
            super().finish(metadata, results)

    dcp.save(state, storage_writer=Own(tmp_path / "own"))
    assert names(tmp_path / "own") == [".metadata", "__0_0.distcp"]
    ic.uninstall()
    dcp.save(state, checkpoint_id=tmp_path / "c")
    assert names(tmp_path / "c") == [".metadata", "__0_0.distcp"]


def test_a_variable_installs_it_when_torch_is_imported(python: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    program = """
import sys, warnings
warnings.simplefilter("ignore")
exec(open(sys.argv[1]).read().partition("\\n")[2])
assert "torch" not in sys.modules
import torch
import torch.distributed.checkpoint as dcp
dcp.save({"w": torch.ones(2)}, checkpoint_id=sys.argv[2])
import os
print(os.path.exists(sys.argv[2] + "/COMMIT"))
"""
    startup = pathlib.Path(infercluster.__file__).parents[1] / "infercluster_patch.pth"
    for variables, ours in (({"INFERCLUSTER_DCP": "1"}, True), ({"INFERCLUSTER_DCP": "1", "INFERCLUSTER_DISABLE": "1"}, False)):
        assert python(program, startup, tmp_path / str(ours), **variables).stdout.strip() == str(ours)


def resources() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "VmLck", "Threads")}
    return {**kib, "descriptors": len(os.listdir("/proc/self/fd"))}


def test_fifty_asynchronous_saves_leave_no_trace(tmp_path: pathlib.Path) -> None:
    state = {f"w{i}": torch.randn(1 << 20) for i in range(8)}  # 32 MiB
    stager, seen = ic.Stager(), []
    for i in range(50):
        state["w0"].fill_(i)
        saving = dcp.async_save(state, storage_writer=ic.Writer(tmp_path / "last"), async_stager=stager, no_dist=True)
        state["w0"].fill_(-1)
        saving.result()
        seen.append(resources())
    assert loaded(tmp_path / "last", state)["w0"].unique().tolist() == [49]
    assert seen[-1]["VmRSS"] - seen[1]["VmRSS"] < 8 << 10, seen
    for name in ("VmLck", "descriptors"):
        assert seen[-1][name] <= seen[1][name], seen
    assert seen[-1]["Threads"] <= seen[1]["Threads"] + 1, seen  # of an executor that is about to end
    stager.close()


def test_copies_are_never_overwritten_while_somebody_holds_them() -> None:
    for processes in (False, True):
        stager = ic.Stager(processes=processes)
        held = [stager.stage({"w": torch.full((1000,), float(i)), "n": [i]}) for i in range(4)]
        assert [(one["w"].unique().tolist(), one["n"]) for one in held] == [([float(i)], [i]) for i in range(4)]
        addresses = {one["w"].data_ptr() for one in held}
        del held
        assert stager.stage({"w": torch.zeros(1000)})["w"].data_ptr() in addresses


def test_what_dcp_pickles_can_be_pickled(tmp_path: pathlib.Path) -> None:
    for one in (ic.Writer(tmp_path, overwrite=False), ic.Reader(tmp_path, cast=True), ic.Stager()):
        assert type(pickle.loads(pickle.dumps(one))) is type(one)
    assert pickle.loads(pickle.dumps(ic.Writer(tmp_path, overwrite=False))).overwrite is False
