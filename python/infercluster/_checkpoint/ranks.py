# SPDX-License-Identifier: Apache-2.0
"""Which ranks save together, and by what they talk: torch.distributed's store, or a directory that all of them see."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core, _log
from .interrupt import in_thread

_PAUSE_FIRST, _PAUSE_MAX = 0.5e-3, 50e-3  # between two looks: seconds
_PAUSE_PER_RANK = 25e-6  # at most; more where many ranks ask one store
_FOLDER = ".ranks"  # in the root of the checkpoints, where launchers give no other directory


@dataclass(frozen=True)
class Launched:
    """What a launcher says of this process by its environment."""

    launcher: str
    rank: int
    world: int


# The first whose variables are set. Slurm's are those of a step, which srun starts: a batch script alone is one process.
_LAUNCHERS = (
    ("infercluster", "INFERCLUSTER_RANK", "INFERCLUSTER_WORLD"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched(environment: Mapping[str, str]) -> Launched | None:
    for launcher, rank, world in _LAUNCHERS:
        if rank in environment and world in environment:
            try:
                found = Launched(launcher, int(environment[rank]), int(environment[world]))
            except ValueError:
                raise ValueError(
                    f"{rank}={environment[rank]!r} and {world}={environment[world]!r} are no rank and number of ranks"
                ) from None
            if not 0 <= found.rank < found.world:
                raise ValueError(f"{rank} is {found.rank}, which is not one of {world}={found.world} ranks")
            return found
    return None


def _job_name(environment: Mapping[str, str]) -> str:
    """Tells jobs apart that use one directory at once."""
    for variable in ("INFERCLUSTER_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in environment.get(variable, ""))
        if name:
            return name[:64]
    return "job"


class TorchStore:
    """A store of torch.distributed, as the core wants one; `ranks` ask it. Called by several threads."""

    def __init__(self, store: Any, ranks: int) -> None:
        self._store = store
        self._pause_max = max(_PAUSE_MAX, ranks * _PAUSE_PER_RANK)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, seconds: float) -> bytes | None:
        # TCPStore's own wait() logs a warning of several lines whenever its time is over, and holds the connection.
        end, pause = time.monotonic() + seconds, _PAUSE_FIRST
        while not self._store.check([key]):
            left = end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, self._pause_max)
        return bytes(self._store.get(key))

    def set_if_absent(self, key: str, value: bytes) -> bytes:
        return bytes(self._store.compare_set(key, "", value))

    def erase(self, key: str) -> None:
        self._store.delete_key(key)


def job_store(prefix: str, ranks: int) -> TorchStore:
    """That of torch's default process group, by a connection of our own: torch waits on its one for up to half an hour.
    Raises what torch does where there is none."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    store: Any = _get_default_store()
    try:
        store = store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        pass
    return TorchStore(PrefixStore(prefix, store), ranks)


def _of_group(group: Any, seconds: float) -> _core.Ranks | None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("this process is not a member of the group")
    if world == 1:
        return None
    name = _world.pg_names.get(group, "")
    shared = job_store(f"infercluster/checkpoint/{name}/{_count(name)}", world)
    return in_thread(lambda: _core.ranks_over_store(shared, rank, world, seconds))


_counts: dict[str, int] = {}


def _count(name: str) -> int:
    """How many checkpointers this process has made for the group; the same on all its ranks."""
    _counts[name] = _counts.get(name, -1) + 1
    return _counts[name]


def _by_environment(found: Launched, root: str, seconds: float) -> _core.Ranks:
    directory = os.environ.get("INFERCLUSTER_RENDEZVOUS") or os.path.join(root, _FOLDER)
    _log.LOGGER.info("rank %d of %d by %s; they meet in %s", found.rank, found.world, found.launcher, directory)
    os.makedirs(directory, exist_ok=True)
    name = _job_name(os.environ)
    return in_thread(
        lambda: _core.ranks_in_directory(os.fsencode(directory), name, found.rank, found.world, seconds)
    )


def ranks_of(group: Any, root: str, seconds: float) -> _core.Ranks | None:
    """None: this process alone. `group` as Checkpointer has it."""
    if group == "single":
        return None
    dist = sys.modules.get("torch.distributed")
    initialised = dist is not None and dist.is_available() and dist.is_initialized()
    if group is None and not initialised:
        group = "env"
    if group == "env":
        found = launched(os.environ)
        return _by_environment(found, root, seconds) if found is not None and found.world > 1 else None
    if not initialised:
        raise ValueError("group= needs torch.distributed.init_process_group() first")
    assert dist is not None
    if group is None or group is True or group == "world":
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f'group is {group!r}; expected a torch.distributed process group, "world" for the default one, "env" for'
            ' ranks by the launcher\'s environment, or "single"'
        )
    return _of_group(group, seconds)


def is_default_group(group: Any) -> bool:
    """After ranks_of(): whether the ranks are those of torch's default process group."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    return group is None or group is True or group == "world" or group is dist.group.WORLD
