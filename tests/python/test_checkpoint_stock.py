# SPDX-License-Identifier: Apache-2.0
"""infercluster.Checkpointer loads what torch.distributed.checkpoint's own writer saved."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from infercluster import Checkpointer, Pages, Part
from test_checkpoint import equal
from test_checkpoint_ranks import run, values

STATE: dict[str, Any] = {
    "model": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16) / 3, "e": torch.empty(0, 3)},
    "list": [torch.arange(3), torch.arange(4)], "names": ["x", "y"], "step": 7, "big": 2**80, "none": None, "pair": (1, "b"),
}  # fmt: skip


def save_stock(state: Any, path: pathlib.Path) -> pathlib.Path:
    dcp.save(copy.deepcopy(state), storage_writer=dcp.FileSystemWriter(path), no_dist=True)
    return path


def emptied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value) - 1 if value.dtype != torch.bool else torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: emptied(item) for key, item in value.items()}
    return [emptied(item) for item in value] if isinstance(value, list) and any(map(torch.is_tensor, value)) else 0


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "run").mkdir()
    save_stock(STATE, tmp_path / "run" / "step-5")
    return tmp_path / "run"


def test_a_step_and_a_path_come_back_equal(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    elsewhere = save_stock({"a": torch.arange(4.0)}, tmp_path / "elsewhere")
    with Checkpointer(root) as checkpointer:
        assert checkpointer.steps() == [5] and checkpointer.latest() == 5
        for step in (5, "latest"):
            into = emptied(STATE)
            assert checkpointer.load(into, step=step) == 5
            assert equal(into, STATE)
        report = checkpointer.last_load
        assert report is not None and report["bytes"] == 12 * 4 + 5 * 2 + 7 * 8 and report["bytes_read"] > report["bytes"]
        into = {"a": torch.zeros(4)}
        assert checkpointer.load(into, path=elsewhere) == 0
        assert into["a"].tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="both"):
            checkpointer.load(into, step=5, path=elsewhere)


def test_saves_beside_it_leave_it_alone(root: pathlib.Path) -> None:
    before = sorted((path.name, path.read_bytes()) for path in (root / "step-5").iterdir())
    with Checkpointer(root, keep=1) as checkpointer:
        for step in (1, 7, 8):
            checkpointer.save(step, {"a": torch.full((3,), float(step))}, wait=True)
        checkpointer.wait()
        assert checkpointer.steps() == [5, 8] and checkpointer.latest() == 8
        into = {"a": torch.zeros(3)}
        assert checkpointer.load(into) == 8 and into["a"].tolist() == [8, 8, 8]
        assert checkpointer.load(into, path=root / "step-8") == 8
        with pytest.raises(ValueError, match="not ours"):
            checkpointer.save(5, {"a": torch.zeros(3)}, wait=True)
    assert sorted((path.name, path.read_bytes()) for path in (root / "step-5").iterdir()) == before


def test_names_shapes_and_dtypes_are_checked_as_for_ours(root: pathlib.Path) -> None:
    with Checkpointer(root) as checkpointer:
        part = {"model": {"a": torch.zeros(3, 4), "b": torch.zeros(5)}}
        with pytest.raises(ValueError, match="model.b .saved as BF16, wanted as F32"):
            checkpointer.load(part, strict=False)
        checkpointer.load(part, strict=False, cast=True)
        assert equal(part["model"], {"a": STATE["model"]["a"], "b": STATE["model"]["b"].float()})
        with pytest.raises(KeyError, match="more than there is a place for.*pair"):
            checkpointer.load(part, cast=True)
        with pytest.raises(ValueError, match=r"model.a .saved with the shape \[3, 4\]"):
            checkpointer.load({"model": {"a": torch.zeros(4, 3)}}, strict=False)
        with pytest.raises(KeyError, match="nothing"):
            checkpointer.load({"nothing": 1})
        only = emptied(STATE)
        checkpointer.load(only, only="model.*")
        assert equal(only["model"], STATE["model"]) and only["step"] == 0


def test_arrays_of_numpy_and_parts_are_filled(root: pathlib.Path) -> None:
    a = np.zeros((3, 2), dtype=np.float32)
    with Checkpointer(root) as checkpointer:
        checkpointer.load({"model": {"a": Part(a, shape=(3, 4), offsets=(0, 1))}}, strict=False)
    assert a.tolist() == STATE["model"]["a"][:, 1:3].tolist()


def test_a_module_and_its_optimizer_get_their_state(tmp_path: pathlib.Path) -> None:
    def made(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * seed)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    saved, into = made(1), made(2)
    path = save_stock({name: value.state_dict() for name, value in saved.items()}, tmp_path / "stock")
    with Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.load(into, path=path)
    for name in saved:
        assert equal(into[name].state_dict(), saved[name].state_dict())


def test_what_cannot_be_read_is_refused_in_words(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    odd = save_stock({"wide": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "odd")
    (root / "step-6").mkdir()
    with Checkpointer(root) as checkpointer:
        with pytest.raises(ValueError, match="wide .saved with the dtype torch.complex128"):
            checkpointer.load({"wide": torch.zeros(2)}, path=odd)
        with pytest.raises(FileNotFoundError, match="no checkpoint"):
            checkpointer.load({"wide": 1}, path=root / "step-6")
        with pytest.raises(FileNotFoundError, match="step-99"):
            checkpointer.load({"wide": 1}, path=tmp_path / "step-99")
        (root / "step-5" / ".metadata").write_bytes(b"no pickle")
        with pytest.raises(ValueError, match=r"step-5/.metadata cannot be read"):
            checkpointer.load(emptied(STATE))


def test_pages_are_refused_in_words(tmp_path: pathlib.Path) -> None:
    path = save_stock({"kv/0": torch.arange(3.0), "kv/1": torch.arange(3.0)}, tmp_path / "run" / "step-2")
    pool, generations = np.zeros((2, 3), np.float32), np.zeros(2, np.uint64)
    with Checkpointer(tmp_path / "run") as checkpointer:
        with pytest.raises(ValueError, match="kv .saved as tensors, wanted as Pages"):
            checkpointer.load({"kv": Pages(pool, generations)}, path=path)
        with pytest.raises(KeyError, match="kv/7"):
            checkpointer.load({"kv": Pages(pool, generations, ids={7: 0})}, path=path)
        with pytest.raises(RuntimeError, match="stock checkpoint of torch.distributed.checkpoint"):
            checkpointer.page_ids("kv")
    assert not pool.any() and not generations.any()


def test_several_ranks_load_their_parts(root: pathlib.Path) -> None:
    whole = np.arange(3_000_000, dtype=np.float32).reshape(1500, 2000)
    state = {"same": torch.arange(2_000_000, dtype=torch.float64), "step": torch.full((1,), 7), "part": torch.from_numpy(whole)}
    save_stock(state, root / "step-9")
    of_ranks = values(run(root, 3, "env", ["share:9"]))
    assert [of_rank[0][0] for of_rank in of_ranks] == [["same", "step", "part"]] * 3
    next((root / "step-9").glob("*.distcp")).unlink()
    failures = [of_rank[0] for of_rank in run(root, 3, "env", ["share:9"])]
    assert failures[0]["error"] and all(failure == failures[0] for failure in failures)
