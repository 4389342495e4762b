# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that saves and loads through torch.distributed.checkpoint. One process group of all ranks serves
many cases: a smaller world is a subgroup of its first ranks. Prints a line of JSON per case. Run by test_dcp_ranks.py."""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_states import RANK, WORLD, Failing, Forgetful, Noting, World, differences, emptied, wide_state
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.tensor import DTensor, Shard

from infercluster import _core
from infercluster import dcp as ic
from infercluster.dcp import _reader

warnings.simplefilter("ignore")


class Job:
    def __init__(self, root: pathlib.Path, worlds: list[int]) -> None:
        self.root = root
        self.worlds = {size: World(size) for size in worlds}
        self.cases = 0

    def load(self, world: World, path: pathlib.Path, reader: Any, seed: int) -> list[str]:
        expected = world.state(seed)
        into = emptied(expected)
        dcp.load(into, storage_reader=reader(path), process_group=world.group)
        return differences(expected, into)

    def save(self, world: World, path: pathlib.Path, writer: Any, seed: int, **options: Any) -> None:
        dcp.save(world.state(seed), storage_writer=writer(path), process_group=world.group, **options)

    def matrix(self, saved_by: list[int], loaded_by: list[int]) -> list[str]:
        """Stock and ours, each saved by each world and loaded by each through its own reader, and stock by ours."""
        found = []
        for size in saved_by:
            world = self.worlds[size]
            for name, writer in (("stock", dcp.FileSystemWriter), ("ours", ic.Writer)):
                if world.has_this():
                    self.save(world, self.root / f"{name}-{size}", writer, size)
            dist.barrier()
            for into in loaded_by:
                reading = self.worlds[into]
                readers = [("stock", dcp.FileSystemReader), ("ours", ic.Reader), ("stock", ic.Reader)]
                for name, reader in readers if reading.has_this() else []:
                    wrong = self.load(reading, self.root / f"{name}-{size}", reader, size)
                    found += [f"{name} of {size} by {into} with {reader.__name__}: {one}" for one in wrong]
                    self.cases += 1
            dist.barrier()
        return found

    def cached_plans(self, size: int) -> list[str]:
        """The planner drops the plans that come, from the second save on."""
        world, found = self.worlds[size], []
        if world.has_this():
            for seed in (1, 2, 3):
                path = self.root / ("cached" if seed == 2 else f"cached-{seed}")
                for _ in range(2):
                    self.save(world, path, ic.Writer, seed, planner=DefaultSavePlanner(enable_plan_caching=True))
                found += self.load(world, path, ic.Reader, seed)
        dist.barrier()
        return found

    def asynchronous(self, size: int) -> list[str]:
        """What is saved is what was there at the call (P09)."""
        world, found = self.worlds[size], []
        stager = ic.Stager()
        for seed in (1, 2, 3) if world.has_this() else ():
            state = world.state(seed)
            path = self.root / f"async-{seed}"
            saving = dcp.async_save(
                state, storage_writer=ic.Writer(path), async_stager=stager, process_group=world.group
            )
            for value in state["model"].values():
                (value._local_tensor if isinstance(value, DTensor) else value).zero_()
            state["nested"][1]["b"].clear()
            saving.result()
            found += self.load(world, path, ic.Reader, seed)
        dist.barrier()
        return found

    def one_fails(self, size: int, failing: int) -> list[str]:
        """One rank cannot write: all get one first cause, what was there stays, and the next save works."""
        world = self.worlds[size]
        path, errors = self.root / "limited", []
        if world.has_this():
            self.save(world, path, ic.Writer, 1)
            if failing == RANK:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            try:
                self.save(world, path, ic.Writer, 2)
            except dcp.api.CheckpointException as error:
                errors = [f"{sorted(error.failures)} {[str(one[0]) for one in error.failures.values()]}"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            errors += self.load(world, path, ic.Reader, 1)
            writer = ic.Writer(path)
            dcp.save(world.state(3), storage_writer=writer, process_group=world.group)
            errors += self.load(world, path, ic.Reader, 3)
            if RANK == 0:
                errors += [entry.name for entry in path.iterdir() if ".2." in entry.name]
        dist.barrier()
        return errors

    def wrong_dtype(self, size: int) -> list[str]:
        world = self.worlds[size]
        path, said = self.root / "dtypes", []
        if world.has_this():
            self.save(world, path, ic.Writer, 4)
            into = emptied(world.state(4))
            into["model"]["plain"] = into["model"]["plain"].half()
            rows = into["model"]["rows"]
            into["model"]["rows"] = DTensor.from_local(
                rows._local_tensor.bfloat16(), world.line, [Shard(0)], run_check=False, shape=rows.shape, stride=rows.stride()
            )
            try:
                dcp.load(into, storage_reader=ic.Reader(path), process_group=world.group)
            except dcp.api.CheckpointException as error:
                said = sorted({str(one[0]) for one in error.failures.values()})
            dcp.load(into, storage_reader=ic.Reader(path, cast=True), process_group=world.group)
            expected = world.state(4)["model"]
            if not torch.equal(into["model"]["plain"], expected["plain"].half()):
                said.append("wrong cast of plain")
            if not torch.equal(into["model"]["rows"]._local_tensor, expected["rows"]._local_tensor.bfloat16()):
                said.append("wrong cast of rows")
        dist.barrier()
        return said

    def fsdp(self, size: int, into: int) -> list[str]:
        """FSDP2 with its optimizer, resharded."""
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard

        def trained(world: World, seed: int, steps: int) -> tuple[Any, Any]:
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(5, 13), torch.nn.ReLU(), torch.nn.Linear(13, 3))
            fully_shard(model, mesh=world.line)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for _ in range(steps):
                model(torch.ones(2, 5)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return model, optimizer

        def whole(model: Any, optimizer: Any) -> dict[str, Any]:
            states = get_state_dict(model, optimizer)
            return {"model": states[0], "optimizer": states[1]}

        path, found = self.root / "fsdp", []
        expected = None
        if self.worlds[size].has_this():
            state = whole(*trained(self.worlds[size], 1, 3))
            dcp.save(state, storage_writer=ic.Writer(path), process_group=self.worlds[size].group)
            expected = {key: value.full_tensor() for key, value in state["model"].items()}
        dist.barrier()
        if self.worlds[into].has_this():
            model, optimizer = trained(self.worlds[into], 2, 1)
            state = whole(model, optimizer)
            dcp.load(state, storage_reader=ic.Reader(path), process_group=self.worlds[into].group)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            loaded = {key: value.full_tensor() for key, value in model.state_dict().items()}
            found = [key for key in loaded if expected is not None and not torch.equal(loaded[key], expected[key])]
            found += [f"step {value}" for key, value in state["optimizer"]["state"].items() if "step" in key and value != 3]
        dist.barrier()
        return found

    def sharded_tensors(self, size: int) -> list[str]:
        """torch's older kind, saved through the stager."""
        from torch.distributed._shard.sharded_tensor import ShardedTensor
        from torch.distributed._shard.sharded_tensor.shard import Shard as Part

        world, found = self.worlds[size], []

        def made(full: torch.Tensor) -> Any:
            at, length = 3 * RANK, max(min(3, len(full) - 3 * RANK), 0)
            local = full[at : at + length].clone()
            parts = [Part.from_tensor_and_offsets(local, [at, 0], RANK)] if length else []
            return ShardedTensor._init_from_local_shards(parts, *full.shape, process_group=world.group)

        if world.has_this():
            full = torch.randn(8, 2, generator=torch.Generator().manual_seed(size))
            path = self.root / "sharded"
            state = {"w": made(full)}
            saving = dcp.async_save(state, storage_writer=ic.Writer(path), async_stager=ic.Stager(), process_group=world.group)
            for part in state["w"].local_shards():
                part.tensor.zero_()
            saving.result()
            dcp.load(state, storage_reader=ic.Reader(path), process_group=world.group)
            for part in state["w"].local_shards():
                if not torch.equal(part.tensor, full[3 * RANK : 3 * RANK + 3]):
                    found.append("w")
            whole = {"w": torch.zeros(8, 2)}
            dcp.load(whole, storage_reader=ic.Reader(path), process_group=world.group)
            found += [] if torch.equal(whole["w"], full) else ["whole"]
        dist.barrier()
        return found

    def processes(self, size: int) -> list[str]:
        """async_save by a process of its own."""
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        world, found = self.worlds[size], []
        stager = ic.Stager(processes=True)
        for seed in (1, 2):
            state = world.state(seed)
            path = self.root / f"process-{seed}"
            saving = dcp.async_save(
                state, storage_writer=ic.Writer(path), async_stager=stager, process_group=world.group,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )  # fmt: skip
            state["model"]["plain"].zero_()
            saving.result()
            found += self.load(world, path, ic.Reader, seed)
        return found

    def installed(self, size: int) -> list[str]:
        """dcp.save() and dcp.load() with no more than a checkpoint_id, as torchtitan calls them."""
        world, found = self.worlds[size], []
        ic.install()
        if world.has_this():
            path = self.root / "installed"
            dcp.save(world.state(5), checkpoint_id=str(path), process_group=world.group)
            into = emptied(world.state(5))
            dcp.load(into, checkpoint_id=str(path), process_group=world.group)
            found = differences(world.state(5), into)
            if not (path / "COMMIT").exists() or not (path / ".metadata").exists():
                found.append("not ours")
        ic.uninstall()
        dist.barrier()
        return found

    def shared(self, saved_by: int, loaded_by: int) -> Any:
        """By the way it is loaded: what is wrong, and what the rank and its node read. And what there is to read."""
        path = self.root / f"wide-{saved_by}"
        saving, reading = self.worlds[saved_by], self.worlds[loaded_by]
        if saving.has_this() and not path.exists():
            dcp.save(wide_state(saving), storage_writer=ic.Writer(path), process_group=saving.group)
        dist.barrier()
        found = {}
        for way in ("plain", "forgetful", "batches", "nodes") if reading.has_this() else ():
            reader, expected = ic.Reader(path), wide_state(reading)
            into = emptied(expected)
            planner = Forgetful() if way == "forgetful" else DefaultLoadPlanner()
            own, aside = _core.neighbourhood(), _reader._ASIDE_BYTES
            if way == "batches":
                into["model"]["same"] = into["model"]["same"].double()
                expected["model"]["same"] = expected["model"]["same"].double()
                reader.cast, _reader._ASIDE_BYTES = True, RANK * 1_000_000
            if way == "nodes":
                _core.neighbourhood = lambda: f"{own} {RANK // 2}"
            dcp.load(into, storage_reader=reader, planner=planner, process_group=reading.group)
            _core.neighbourhood, _reader._ASIDE_BYTES = lambda: own, aside
            found[way] = [differences(expected, into), reader.report]
        reader, into = ic.Reader(path), emptied(wide_state(None))
        dcp.load(into, storage_reader=reader, no_dist=True)
        found["whole"] = [differences(wide_state(None), into), reader.report]
        dist.barrier()
        return found

    def loads_fail(self, failing: int) -> list[Any]:
        """One rank cannot, then a block is damaged: what each rank of the four says."""
        world, said = self.worlds[4], []
        own = _core.neighbourhood()
        for way in ("planner", "nodes", "damage"):
            path = self.root / "failing"
            dcp.save(wide_state(world), storage_writer=ic.Writer(path), process_group=world.group)
            if way == "damage" and RANK == 0:
                for segment in path.glob("*.safetensors"):
                    with open(segment, "r+b") as file:
                        file.seek(-100, os.SEEK_END)
                        byte = file.read(1)
                        file.seek(-100, os.SEEK_END)
                        file.write(bytes([byte[0] ^ 1]))
            dist.barrier()
            if way == "nodes":
                _core.neighbourhood = lambda: f"{own} {RANK // 2}"
            planner = Failing() if failing == RANK and way != "damage" else DefaultLoadPlanner()
            try:
                dcp.load(emptied(wide_state(world)), storage_reader=ic.Reader(path), planner=planner, process_group=world.group)
            except dcp.api.CheckpointException as error:
                said.append({rank: str(one[0]) for rank, one in error.failures.items()})
            _core.neighbourhood = lambda: own
        return said

    def dies(self, dying: int) -> None:
        """In the middle of a load, for the memory that it loads into is gone."""
        world, path = self.worlds[4], self.root / "dying"
        state = wide_state(world)
        dcp.save(state, storage_writer=ic.Writer(path), process_group=world.group)
        if dying == RANK:
            with open(self.root / "memory", "w+b") as file:
                file.truncate(state["model"]["same"].nbytes)
                memory = mmap.mmap(file.fileno(), 0)
                state["model"]["same"] = torch.frombuffer(memory, dtype=torch.float32)
                file.truncate(0)
        reader = Noting(path, call_timeout=60, read_timeout=60)
        try:
            dcp.load(state, storage_reader=reader, process_group=world.group)
        except Exception:
            print(json.dumps(reader.failure), flush=True)
        os._exit(0)

    def run(self, action: str) -> Any:
        what, *numbers = action.split(":")
        cases: dict[str, Callable[..., Any]] = {
            "cached": self.cached_plans, "async": self.asynchronous, "fails": self.one_fails, "dtype": self.wrong_dtype,
            "fsdp": self.fsdp, "processes": self.processes, "installed": self.installed,
            "sharded": self.sharded_tensors, "shared": self.shared, "loads_fail": self.loads_fail, "dies": self.dies,
        }  # fmt: skip
        if what == "matrix":
            saved_by, loaded_by = ([int(size) for size in sizes.split(",")] for sizes in numbers)
            return [self.matrix(saved_by, loaded_by), self.cases]
        return cases[what](*(int(number) for number in numbers))


def main(root: str, worlds: str, actions: list[str]) -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_STORE"]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    job = Job(pathlib.Path(root), [int(size) for size in worlds.split(",")])
    for action in actions:
        print(json.dumps(job.run(action)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
