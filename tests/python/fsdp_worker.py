# SPDX-License-Identifier: Apache-2.0
"""One rank of FSDP2 over tensor parallelism, 2 x 2: saves its parameters. Says as JSON whether their placements say all."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import infercluster
from infercluster._checkpoint import tensors

SIZES = ((8, 12), (10, 6), (7, 5), (33, 9))  # even, and uneven in every way


def made(index: int, kind: str) -> torch.nn.Linear:
    output, inputs = SIZES[index]
    linear = torch.nn.Linear(inputs, output, bias=False)
    values = torch.arange(output * inputs, dtype=torch.float32).reshape(output, inputs)
    linear.weight = torch.nn.Parameter(values + 1000 * index + (500 if kind == "rows" else 0))
    return linear


def whole_state() -> dict[str, torch.Tensor]:
    return {f"{kind}{i}": made(i, kind).weight.data for i in range(len(SIZES)) for kind in ("columns", "rows")}


def box_by(sharding: tensors.Sharding, shape: tuple[int, ...], coordinates: list[int]) -> tuple[list[int], list[int]]:
    offsets, lengths = [0] * len(shape), list(shape)
    for mesh_dimension, dimension in sharding.cuts:
        rows = -(-lengths[dimension] // sharding.mesh_shape[mesh_dimension])
        begin = min(rows * coordinates[mesh_dimension], lengths[dimension])
        offsets[dimension] += begin
        lengths[dimension] = min(rows, lengths[dimension] - begin)
    return offsets, lengths


def main(root: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_STORE"]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state: dict[str, Any] = {}
    for i in range(len(SIZES)):
        for kind, style in (("columns", ColwiseParallel()), ("rows", RowwiseParallel())):
            model = torch.nn.ModuleDict({"one": made(i, kind)})
            parallelize_module(model, mesh["tp"], {"one": style})
            fully_shard(model["one"], mesh=mesh["dp"])
            state[f"{kind}{i}"] = model["one"].weight.data
    said = {}
    for name, tensor in state.items():
        held = tensors.describe(name, tensor)
        assert held.sharding is not None, (name, tensor.placements)
        offsets, lengths = box_by(held.sharding, held.shape, tensor.device_mesh.get_coordinate())
        assert (tuple(offsets), tuple(lengths)) == (held.parts[0].offsets, held.parts[0].lengths), (name, tensor.placements)
        said[name] = held.sharding.cuts
    with infercluster.Checkpointer(root) as checkpointer:
        checkpointer.save(1, state, wait=True)
    print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
