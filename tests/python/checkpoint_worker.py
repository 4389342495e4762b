# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that saves: does the actions that its arguments name, and prints what came of each as a line of
JSON. Run by test_checkpoint_ranks.py."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

import numpy as np

import infercluster


def rows(rank: int, world: int, total: int) -> tuple[int, int]:
    size = -(-total // world)
    return min(rank * size, total), min((rank + 1) * size, total)


def torch_state(seed: int) -> dict[str, Any]:
    """Sharded, replicated and uneven tensors, by the default group."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    world = dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)

    def made(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    line = init_device_mesh("cpu", (world,))
    state = {
        "rows": distribute_tensor(made(10, 3), line, [Shard(0)]),
        "columns": distribute_tensor(made(4, 9), line, [Shard(1)]),
        "same": distribute_tensor(made(5), line, [Replicate()]),
        "plain": made(7, 2),
        "scalar": torch.tensor(seed),
        "rank": dist.get_rank(),
        "seed": seed,
    }
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        state["square"] = distribute_tensor(made(5, 7), square, [Shard(0), Shard(1)])
        state["twice"] = distribute_tensor(made(9, 2), square, [Shard(0), Shard(0)])
        state["mixed"] = distribute_tensor(made(6, 3), square, [Replicate(), Shard(0)])
    else:
        state["square"] = distribute_tensor(made(5, 7), line, [Shard(1)])
        state["twice"] = distribute_tensor(made(9, 2), line, [Shard(0)])
        state["mixed"] = distribute_tensor(made(6, 3), line, [Replicate()])
    return state


def wide_state(rank: int, world: int) -> dict[str, Any]:
    """Some MiB: what all ranks hold, and rows of what they share."""
    whole = np.arange(3_000_000, dtype=np.float32).reshape(1500, 2000)
    begin, end = rows(rank, world, 1500)
    return {
        "same": np.arange(2_000_000, dtype=np.float64), "step": np.full(1, 7),
        "part": infercluster.Part(whole[begin:end].copy(), shape=whole.shape, offsets=(begin, 0)),
    }  # fmt: skip


def zeroed(state: dict[str, Any]) -> dict[str, Any]:
    def zero(value: Any) -> Any:
        if isinstance(value, infercluster.Part):
            return infercluster.Part(value.memory * 0, value.shape, value.offsets)
        return value * 0

    return {name: zero(value) for name, value in state.items()}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    def whole(value: Any) -> Any:
        if isinstance(value, infercluster.Part):
            return value.memory
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    return [
        name
        for name in one
        if name != "rank" and not bool(np.array_equal(np.asarray(whole(one[name])), np.asarray(whole(other[name]))))
    ]


def main(root: str, group: str, actions: list[str]) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if group == "torch":
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_STORE"]), is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    checkpointer = infercluster.Checkpointer(
        root, tiers=[os.environ["TEST_FAST"].replace("RANK", str(rank))] if "TEST_FAST" in os.environ else None, call_timeout=float(os.environ.get("TEST_TIMEOUT", "60")), write_timeout=60, max_write_rate=os.environ.get("TEST_RATE", "256MiB")
    )

    def state_of(seed: int) -> dict[str, Any]:
        if group == "torch":
            return torch_state(seed)
        whole = np.arange(30).reshape(10, 3) * seed
        begin, end = rows(rank, world, 10)
        part = infercluster.Part(whole[begin:end].copy(), shape=(10, 3), offsets=(begin, 0))
        return {"part": part, "same": np.full(8, seed * 100), "seed": seed, "rank": rank}

    def perform(action: str) -> Any:
        what, *arguments = action.split(":")
        numbers = [int(argument) for argument in arguments if argument.lstrip("-").isdigit()]
        if what == "save":
            checkpointer.save(numbers[0], state_of(numbers[0]), wait=True, exists="replace" if "replace" in action else "error")
        elif what == "fast":  # durable there; its drain is on the way
            save = checkpointer.save(numbers[0], wide_state(rank, world), exists="replace" if "replace" in action else "error")
            save.wait(tier="fast")
            return save.status
        elif what == "tier":
            report = checkpointer.last_load
            return None if report is None else [report["tier"], report["notice"]]
        elif what == "begin":
            checkpointer.save(numbers[0], state_of(numbers[0]))
        elif what == "load":
            expected = state_of(numbers[0])
            into = zeroed(expected)
            found = checkpointer.load(into, step=numbers[1] if len(numbers) > 1 else "latest")
            return [found, differences(expected, into) if found is not None else [], into["rank"] if "rank" in into else -1]
        elif what == "bad":
            state = state_of(1)  # by all: the mesh's ranks talk
            checkpointer.save(77, {**state, "hook": lambda: None} if rank == numbers[0] else state)
        elif what == "mistake":
            checkpointer.load({"seed": 0, "nothing": 1} if rank == numbers[0] else {"seed": 0}, strict=rank == numbers[0])
        elif what == "limit" and rank == numbers[0]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (numbers[1], resource.RLIM_INFINITY))
        elif what == "unlimit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        elif what == "die" and rank == numbers[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "stay" and rank == numbers[0]:
            signal.pause()
        elif what == "steps":
            return checkpointer.steps()
        elif what == "wide":
            checkpointer.save(numbers[0], wide_state(rank, world), wait=True)
        elif what == "indexed":
            expected = wide_state(rank, world)
            into = {**zeroed(expected), **({} if len(arguments) == 1 else {"rank": 0})}
            checkpointer.load(into, step=numbers[0], strict=False)
            report = checkpointer.last_load
            assert report is not None
            return [differences(expected, into), report["index_bytes"]]
        elif what == "share":  # the whole, a part, or some names of it
            expected = wide_state(rank, world)
            into = zeroed(expected)
            checkpointer.load(into, step=numbers[0], only=arguments[1:] or None)
            report = checkpointer.last_load
            assert report is not None
            return [[name for name in expected if name not in differences(expected, into)], report["bytes_read"], report["bytes_received"]]
        return None

    for action in actions:
        try:
            answer: dict[str, Any] = {"value": perform(action)}
        except Exception as error:
            answer = {"error": type(error).__name__, "errno": getattr(error, "errno", None), "text": str(error)}
        print(json.dumps(answer), flush=True)
    checkpointer.close()
    if group == "torch":
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
