# SPDX-License-Identifier: Apache-2.0
"""infercluster checkpoint import, and export --format dcp|torch, by the program."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from infercluster import Checkpointer
from infercluster._checkpoint import convert
from test_checkpoint import equal

PROGRAM = pathlib.Path(os.environ.get("INFERCLUSTER_PROGRAM", pathlib.Path(__file__).parents[2] / "build/release/bin/infercluster"))

STATE: dict[str, Any] = {
    "model": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "step": 7, "big": 2**80, "none": None, "ordered": collections.OrderedDict(x=1),
}  # fmt: skip


def program(*words: object, code: int = 0) -> str:
    done = subprocess.run(
        [PROGRAM, "checkpoint", *map(str, words)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "INFERCLUSTER_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def by_key(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): by_key(value[key]) for key in sorted(value, key=str)}
    return [by_key(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    with Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(1, {"other": torch.zeros(1)}, wait=True)
        checkpointer.save(7, STATE, wait=True)
    return tmp_path / "run"


def test_to_a_torch_file_and_back(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = json.loads(program("export", root, tmp_path / "state.pt", "--format", "torch", "--json"))
    assert report["tensors"] == 3 and report["path"] == str(tmp_path / "state.pt")
    assert equal(torch.load(tmp_path / "state.pt", weights_only=True), STATE)
    program("import", tmp_path / "state.pt", tmp_path / "again", "--step", 3)
    assert equal(convert.read_own(str(tmp_path / "again"), None), STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "run", "state.pt"]


def test_to_a_stock_dcp_directory_and_back(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    program("export", root, tmp_path / "dcp", "--format", "dcp", "--step", 7)
    stock = by_key({**STATE, "ordered": dict(STATE["ordered"])})  # it knows dicts of text only, in an order of its own
    assert equal(by_key(convert.read_dcp(dcp.FileSystemReader(tmp_path / "dcp"))), stock)
    program("import", tmp_path / "dcp", tmp_path / "again", "--step", 3, "--quiet")
    assert equal(by_key(convert.read_own(str(tmp_path / "again"), 3)), stock)
    assert "exists=replace" in program("import", tmp_path / "dcp", tmp_path / "again", "--step", 3, code=1)
    program("import", tmp_path / "dcp", tmp_path / "again", "--step", 3, "--replace")


def test_no_output_is_never_a_success(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").write_text("mine")
    for words, message in (
        (("export", root, tmp_path / "there", "--format", "torch"), "there already"),
        (("export", root, tmp_path / "there", "--format", "dcp"), "there already"),
        (("export", root, tmp_path / "no" / "where.pt", "--format", "torch"), "no such directory"),
        (("export", root, tmp_path / "x", "--format", "dcp", "--step", 5), "step-5"),
        (("export", tmp_path / "nothing", tmp_path / "x", "--format", "torch"), "nothing"),
        (("export", root, tmp_path / "x", "--format", "torch", "--prefix", "model."), "--format hf"),
        (("import", root / "step-7", tmp_path / "y", "--step", 1), "already"),
        (("import", root, tmp_path / "y", "--step", 1), "no .metadata"),
        (("import", tmp_path / "there", tmp_path / "y", "--step", 1), ""),
    ):
        said = program(*words, code=1)
        assert message in said and len(said.splitlines()) == 1, said
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "x").exists()


def test_an_interpreter_without_the_package_is_told(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for interpreter, message in (("/nowhere/python", "INFERCLUSTER_PYTHON"), ("/usr/bin/python3", "infercluster and torch")):
        done = subprocess.run(
            [PROGRAM, "checkpoint", "export", root, tmp_path / "x", "--format", "torch"], capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "INFERCLUSTER_PYTHON": interpreter},
        )  # fmt: skip
        assert done.returncode == 1 and message in done.stderr
