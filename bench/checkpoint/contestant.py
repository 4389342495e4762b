# SPDX-License-Identifier: Apache-2.0
"""Saves by one contestant, in a process of its own. usage: contestant.py NAME FOLDER BYTES SAVES

The state is host memory of torch: tensors as a model of that size has them. Each save is timed twice: the stall, until the caller may
change its state again, and the total, until all of it would outlive the machine's power; where a contestant does not fsync what it
wrote, that is done for it, inside of the total. Between two saves the state changes. At the end the last one is read back and compared.
Prints "ready", waits for a line on standard input, saves, and prints one JSON object on the last line.
"""

import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
import time

import torch

MIB = 1 << 20


def made_state(size: int) -> dict[str, torch.Tensor]:
    """Large matrices, and a small vector before each."""
    state, left, number = {}, size, 0
    while left > 0:
        for name, elements in ((f"layers.{number}.norm", 4096), (f"layers.{number}.weight", 16 * MIB)):
            elements = min(elements, left // 4)
            if elements:
                state[name] = torch.empty(elements).uniform_(-1, 1) if number == 0 else torch.full((elements,), float(number))
                left -= 4 * elements
        number += 1
        if left < 4:
            break
    return state


def sync_tree(folder: pathlib.Path) -> None:
    """For those that leave it to the kernel."""
    for path in [*sorted(folder.rglob("*")), folder, folder.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def by_infercluster(state, folder):
    import infercluster

    # As a job would: what was saved before goes, its files with it, when the next is durable.
    checkpointer = infercluster.Checkpointer(folder, keep=1, group="single")

    def save(number):
        begun = checkpointer.save(number, state)
        return begun.wait, lambda: begun.report

    def load(number, into):
        checkpointer.load(into, step=number)

    return save, load, checkpointer.close


def _one_rank() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def by_dcp(asynchronous, threads):
    def make(state, folder):
        import torch.distributed.checkpoint as dcp

        _one_rank()

        def save(number):
            path = folder / f"{number}"
            writer = dcp.FileSystemWriter(path, single_file_per_rank=threads == 1, thread_count=threads)
            if not asynchronous:
                dcp.save(state, storage_writer=writer)
                return (lambda: sync_tree(path)), None
            future = dcp.async_save(state, storage_writer=writer)

            def wait():
                future.result()
                sync_tree(path)

            return wait, None

        def load(number, into):
            dcp.load(into, checkpoint_id=str(folder / f"{number}"))

        return save, load, lambda: None

    return make


def by_torch_save(state, folder):
    def save(number):
        path = folder / f"{number}"
        path.mkdir()
        torch.save(state, path / "state.pt")
        return (lambda: sync_tree(path)), None

    def load(number, into):
        for name, tensor in torch.load(folder / f"{number}" / "state.pt", weights_only=True).items():
            into[name].copy_(tensor)

    return save, load, lambda: None


def by_safetensors(state, folder):
    from safetensors.torch import load_file, save_file

    def save(number):
        path = folder / f"{number}"
        path.mkdir()
        save_file(state, path / "state.safetensors")
        return (lambda: sync_tree(path)), None

    def load(number, into):
        for name, tensor in load_file(folder / f"{number}" / "state.safetensors").items():
            into[name].copy_(tensor)

    return save, load, lambda: None


def by_torchsnapshot(state, folder):
    from torchsnapshot import Snapshot, StateDict

    def save(number):
        path = folder / f"{number}"
        pending = Snapshot.async_take(str(path), {"state": StateDict(**{"tensors": state})})

        def wait():
            pending.wait()
            sync_tree(path)

        return wait, None

    def load(number, into):
        Snapshot(str(folder / f"{number}")).restore({"state": StateDict(**{"tensors": into})})

    return save, load, lambda: None


def by_torch_checkpointing(state, folder):
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.config import AsyncCheckpointSaverConfig
    from torch_checkpointing.staging import CheckpointStagerConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    _one_rank()
    staging = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
    # With direct I/O, its default, it fails with EINVAL: its writes are not aligned.
    config = CheckpointManager.Config(save=AsyncCheckpointSaverConfig(staging_config=staging),
                                      storage_config=LocalFileSystemStorageConfig(use_direct_io=False))
    manager = CheckpointManager(config)

    def save(number):
        path = folder / f"{number}"
        written = manager.save(str(path), {"state": state})
        manager._staging_future.result()  # the state must not change before

        def wait():
            written.result()
            sync_tree(path)

        return wait, None

    def load(number, into):
        manager.load(str(folder / f"{number}"), into={"state": into})

    return save, load, manager.close


# Name: how it saves, and the package whose version is printed.
CONTESTANTS = {
    "infercluster": (by_infercluster, "infercluster"),
    "dcp.async_save": (by_dcp(True, 1), "torch"),
    "dcp.async_save-4-threads": (by_dcp(True, 4), "torch"),
    "dcp.save": (by_dcp(False, 1), "torch"),
    "dcp.save-2-threads": (by_dcp(False, 2), "torch"),
    "dcp.save-4-threads": (by_dcp(False, 4), "torch"),
    "torch.save": (by_torch_save, "torch"),
    "safetensors-save_file": (by_safetensors, "safetensors"),
    "torchsnapshot": (by_torchsnapshot, "torchsnapshot"),
    "torch_checkpointing": (by_torch_checkpointing, "torch-checkpointing"),
}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "this tree"


def main() -> int:
    name, folder, size, saves = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    make, package = CONTESTANTS[name]
    state = made_state(size)
    try:
        save, load, close = make(state, folder)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return 0
    print("ready", flush=True)
    sys.stdin.readline()
    stalls, totals, reports = [], [], []
    for number in range(1, saves + 1):
        state["layers.0.norm"].fill_(number)
        begin = time.perf_counter()
        wait, report = save(number)
        stalls.append(time.perf_counter() - begin)
        wait()
        totals.append(time.perf_counter() - begin)
        if report is not None:
            reports.append(report())
        if number < saves and (folder / f"{number}").exists():
            shutil.rmtree(folder / f"{number}")
    into = {tensor_name: torch.zeros_like(tensor) for tensor_name, tensor in state.items()}
    load(saves, into)
    wrong = [tensor_name for tensor_name, tensor in state.items() if not torch.equal(tensor, into[tensor_name])]
    close()
    print(json.dumps({
        "bytes": sum(tensor.nbytes for tensor in state.values()), "stalls": stalls, "totals": totals, "wrong": wrong,
        "version": version(package), "report": reports[-1] if reports else {},
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
