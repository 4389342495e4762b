# SPDX-License-Identifier: Apache-2.0
"""What the ranks of dcp_worker.py save and load, in worlds of some of them."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from infercluster import dcp as ic

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GRIDS = {4: (2, 2), 6: (3, 2), 7: (7, 1)}


class World:
    """The first ranks of the job, as a job of their own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.group = dist.new_group(range(size))
        self.line = DeviceMesh("cpu", torch.arange(size))
        self.grid = DeviceMesh("cpu", torch.arange(size).reshape(GRIDS.get(size, (1, size))))

    def has_this(self) -> bool:
        return RANK < self.size

    def shard(self, full: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
        """Without a word between the ranks."""
        lengths, offsets = compute_local_shape_and_global_offset(full.shape, mesh, placements)
        local = full[tuple(slice(at, at + length) for at, length in zip(offsets, lengths, strict=True))].clone()
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())

    def state(self, seed: int) -> dict[str, Any]:
        made = torch.Generator().manual_seed(seed)

        def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(*shape, generator=made).to(dtype)

        return {
            "model": {
                "rows": self.shard(random(10, 3), self.line, [Shard(0)]),  # over 7 ranks two have none
                "columns": self.shard(random(5, 9, dtype=torch.bfloat16), self.line, [Shard(1)]),
                "same": self.shard(random(4, 4), self.line, [Replicate()]),
                "square": self.shard(random(11, 7), self.grid, [Shard(0), Shard(1)]),
                "twice": self.shard(random(13, 2, dtype=torch.float64), self.grid, [Shard(0), Shard(0)]),
                "mixed": self.shard(random(6, 5), self.grid, [Replicate(), Shard(0)]),
                "plain": random(7, 2),
                "turned": random(3, 8).t(),
                "complex": random(6, 2).to(torch.complex128),
                "flags": random(9) > 0,
                "nothing": torch.empty(0, 3),
            },
            "optimizer": {"step": torch.tensor(float(seed)), "big": 10**30 + seed, "none": None, "betas": (0.9, seed)},
            "rng": torch.Generator().manual_seed(seed).get_state(),
            "nested": [1, {"a": b"bytes", "b": [True, 2.5, "text"]}],
        }


def wide_state(world: World | None) -> dict[str, Any]:
    """Some MiB: what all ranks hold, what they share out, and both (None: all of it, whole)."""
    made = torch.Generator().manual_seed(7)
    same, rows, hybrid = (torch.randn(*shape, generator=made) for shape in ((1_000_001,), (1500, 500), (1000, 501)))
    if world is not None:
        rows = world.shard(rows, world.line, [Shard(0)])
        hybrid = world.shard(hybrid, world.grid, [Replicate(), Shard(0)])
    return {"model": {"same": same, "rows": rows, "hybrid": hybrid}, "step": torch.tensor(7), "optimizer": {"list": [1, "a", None]}}


class Forgetful(DefaultLoadPlanner):
    """Keeps nothing of a plan but its items."""

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        return LoadPlan(new_plan.items)


class Failing(DefaultLoadPlanner):
    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        raise ValueError("no memory for it")


class Noting(ic.Reader):
    """torch's own talk fails when a process is gone, and hides what failed before."""

    failure = ""

    def read_data(self, plan: LoadPlan, planner: Any) -> Any:
        try:
            return super().read_data(plan, planner)
        except BaseException as error:
            self.failure = str(error)
            raise


def emptied(value: Any) -> Any:
    if isinstance(value, DTensor):
        return DTensor(torch.full_like(value._local_tensor, 3), value._spec, requires_grad=False)
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value)
    if isinstance(value, dict):
        return {key: emptied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [emptied(item) for item in value]
    return "not loaded"


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, DTensor):
        one, other = one._local_tensor, other._local_tensor
    if type(one) is not type(other):
        return [f"{path}: {type(other).__name__} for {type(one).__name__}"]
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{path}: other keys"]
        return [found for key in one for found in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, (list, tuple)):
        found = [] if len(one) == len(other) else [f"{path}: other length"]
        return found + [f for i, (a, b) in enumerate(zip(one, other, strict=False)) for f in differences(a, b, f"{path}.{i}")]
    return [] if one == other else [path]
