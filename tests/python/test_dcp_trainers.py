# SPDX-License-Identifier: Apache-2.0
"""Trainers that make torch's own writer and reader, with infercluster.dcp installed."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import pytest

TRAINER = pathlib.Path(__file__).parent / "dcp_trainer.py"


def start(what: str, root: pathlib.Path, *arguments: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(TRAINER), what, str(root), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(what: str, root: pathlib.Path) -> dict[str, Any]:
    process = start(what, root)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-4000:]
    answer = json.loads(output.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_accelerate_saves_loads_and_merges(tmp_path: pathlib.Path) -> None:
    assert said("accelerate", tmp_path) == {
        "commits": ["optimizer_0", "pytorch_model_fsdp_0"], "model": True, "optimizer": True, "merged": True,
    }  # fmt: skip


def test_transformers_trainer_saves_by_accelerate() -> None:
    from accelerate.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer
    from transformers import trainer

    assert trainer.save_fsdp_model is save_fsdp_model and trainer.save_fsdp_optimizer is save_fsdp_optimizer
    assert trainer.load_fsdp_model is load_fsdp_model and trainer.load_fsdp_optimizer is load_fsdp_optimizer


@pytest.mark.skipif(importlib.util.find_spec("lightning_fabric") is None, reason="lightning-fabric is not installed")
def test_lightning_saves_twice_and_loads(tmp_path: pathlib.Path) -> None:
    files = [".metadata", "COMMIT", "meta.pt", "node-0.0.2.safetensors", "node-0.2.index.json", "node-1.2.index.json"]
    assert said("lightning", tmp_path) == {"files": files, "step": 7, "model": True, "optimizer": True}


def test_torchtitans_cycle_of_save_kill_resume_and_purge_loses_nothing(tmp_path: pathlib.Path) -> None:
    """What was said to be complete is there after a kill at any time, and right; what is resumed from is whole."""
    chance = random.Random(5)
    complete = 0
    for _ in range(3):
        process = start("titan", tmp_path, 10_000)
        assert process.stdout is not None
        kill_at = None
        for line in process.stdout:
            answer = json.loads(line)
            if "resumed" in answer:
                assert answer["right"] and answer["resumed"] >= complete, answer
                kill_at = answer["resumed"] + chance.randrange(3, 8)
            complete = answer.get("complete", complete)
            if answer.get("began") == kill_at:
                time.sleep(chance.random() * 0.03)  # the moment of the kill, anywhere in a save
                process.kill()
        process.communicate(timeout=60)
    assert complete >= 9
    assert len(list(tmp_path.glob("step-*"))) <= 4
