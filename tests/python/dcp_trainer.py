# SPDX-License-Identifier: Apache-2.0
"""Programs that save through torch's own classes, of real trainers, with infercluster.dcp installed. Prints a line of
JSON per thing done. Run by test_dcp_trainers.py."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from infercluster import dcp as ic

warnings.simplefilter("ignore")


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Linear(5, 13)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def moments(optimizer: Any) -> list[torch.Tensor]:
    return [state["exp_avg"].full_tensor() for state in optimizer.state.values()]


def accelerate(root: pathlib.Path) -> None:
    """What Accelerator.save_state() and transformers' Trainer call for FSDP with sharded state dicts."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
    from safetensors.torch import load_file

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    accelerator = Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    model, optimizer = trained(1)
    fsdp_utils.save_fsdp_model(plugin, accelerator, model, str(root))
    fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, str(root))
    other, empty = trained(2)
    fsdp_utils.load_fsdp_model(plugin, accelerator, other, str(root))
    fsdp_utils.load_fsdp_optimizer(plugin, accelerator, empty, other, str(root))
    fsdp_utils.merge_fsdp_weights(str(root / "pytorch_model_fsdp_0"), str(root / "merged"))
    merged = load_file(root / "merged" / "model.safetensors")
    say(
        commits=sorted(str(path.parent.name) for path in root.rglob("COMMIT")),
        model=torch.equal(other.weight.full_tensor(), model.weight.full_tensor()),
        optimizer=all(torch.equal(*pair) for pair in zip(moments(optimizer), moments(empty), strict=True)),
        merged=torch.equal(merged["weight"], model.weight.full_tensor()),
    )


def lightning(root: pathlib.Path) -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    strategy = ModelParallelStrategy(
        lambda model, mesh: fully_shard(model, mesh=mesh["data_parallel"]), data_parallel_size=1, tensor_parallel_size=1,
        save_distributed_checkpoint=True,
    )  # fmt: skip
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch()

    def made(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        model = fabric.setup_module(torch.nn.Linear(5, 13))
        optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
        fabric.backward(model(torch.ones(2, 5)).sum())
        optimizer.step()
        return model, optimizer

    model, optimizer = made(1)
    for step in (6, 7):
        fabric.save(root / "last", {"model": model, "optimizer": optimizer, "step": step})
    other, empty = made(2)
    state = {"model": other, "optimizer": empty, "step": 0}
    fabric.load(root / "last", state)
    say(
        files=sorted(path.name for path in (root / "last").iterdir()),
        step=state["step"],
        model=torch.equal(other.weight.full_tensor(), model.weight.full_tensor()),
        optimizer=all(torch.equal(*pair) for pair in zip(moments(optimizer), moments(empty), strict=True)),
    )


class Steps:
    """State that says of which step it is."""

    def __init__(self) -> None:
        self.step = 0
        self.values = torch.zeros(300_000)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.values = state["step"], state["values"]


class AsTitan:
    """The manager of checkpoints as torchtitan 0.3.0 has it, where that is not installed: the calls of torch that it
    makes, which folders it takes for checkpoints, and which it removes."""

    def __init__(self, folder: pathlib.Path, state: Steps) -> None:
        self.folder, self.state = folder, state
        self.group = dist.new_group(backend="gloo")
        self.saving: Any = None

    def steps(self, complete: bool) -> list[int]:
        found = [path for path in self.folder.glob("step-*") if not complete or (path / ".metadata").is_file()]
        return sorted(int(match[1]) for path in found if (match := re.search(r"step-(\d+)", path.name)))

    def load(self) -> None:
        if found := self.steps(complete=True):
            dcp.load({"train": self.state}, checkpoint_id=str(self.folder / f"step-{found[-1]}"))

    def save(self, step: int) -> None:
        self.wait()
        path = str(self.folder / f"step-{step}")
        self.saving = dcp.async_save({"train": self.state}, checkpoint_id=path, process_group=self.group)
        for old in self.steps(complete=False)[:-2]:
            shutil.rmtree(self.folder / f"step-{old}")

    def wait(self) -> None:
        if self.saving is not None:
            self.saving.result()


def manager_of(root: pathlib.Path, state: Steps) -> Any:
    if importlib.util.find_spec("torchtitan") is None:
        return AsTitan(root, state)
    from torchtitan.components.checkpointer import CheckpointManager

    config = CheckpointManager.Config(enable=True, folder=str(root), interval=1, keep_latest_k=2, async_mode="async")
    return CheckpointManager(
        config, dataloader=Steps(), model_parts=[torch.nn.Linear(4, 4)], optimizers=Steps(), lr_schedulers=Steps(),
        states={"train": state}, sd_adapter=None,
    )  # fmt: skip


def titan(root: pathlib.Path, last: int) -> None:
    """Resumes, and saves each step until it is killed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = Steps()
    manager = manager_of(root, state)
    manager.load()
    say(resumed=state.step, right=bool((state.values == state.step).all()))
    for step in range(state.step + 1, last + 1):
        state.step = step
        state.values.fill_(step)
        manager.save(step)
        say(began=step)
        if isinstance(manager, AsTitan):
            manager.wait()
        else:
            manager.maybe_wait_for_saving()
        say(complete=step)


if __name__ == "__main__":
    ic.install()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = pathlib.Path(sys.argv[2])
    {"accelerate": accelerate, "lightning": lightning, "titan": titan}[sys.argv[1]](folder, *map(int, sys.argv[3:]))  # type: ignore[operator]
