# SPDX-License-Identifier: Apache-2.0
"""Stager: copies a state for dcp.async_save() into memory that is kept from save to save."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from .. import _core

_ALIGNMENT = 64
_BLOCKS = 2  # of shared memory, by turns


class Stager(AsyncStager):
    """
    stage() returns when all is copied: tensors on whatever device into host memory, all else by copy.deepcopy. The
    memory is used again once nobody holds a tensor of it. `processes`: it is shared memory (/dev/shm must have room for
    two copies), which a process-based executor gets without another copy.
    """

    _synchronize_after_execute = False

    def __init__(self, *, processes: bool = False) -> None:
        self._processes = processes
        self._pool = _core.StagingPool()
        self._shared: list[torch.UntypedStorage] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_processes": self._processes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Stager.__init__(self, processes=state["_processes"])

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        copies = _Copies()
        for tensor in _tensors_in(state_dict):
            copies.add(tensor)
        copies.copy_to(self._memory(copies.bytes))
        staged = _walk(state_dict, copies.of)
        assert isinstance(staged, dict)
        return staged

    def synchronize_staging(self) -> None:
        pass

    def close(self) -> None:
        self._pool.trim()
        self._shared.clear()

    def _memory(self, size: int) -> torch.Tensor:
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        if not self._processes:
            return torch.frombuffer(self._pool.acquire(size), dtype=torch.uint8)
        storage = self._free_block(size)
        if storage is None:
            storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
        if len(self._shared) < _BLOCKS:
            self._shared.append(storage)
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def _free_block(self, size: int) -> torch.UntypedStorage | None:
        """The one that nobody has held for longest, if it is large enough; else it goes."""
        if len(self._shared) < _BLOCKS:
            return None
        for i, one in enumerate(self._shared):
            if torch._C._storage_Use_Count(one._cdata) == 1:
                del self._shared[i]
                return one if one.nbytes() >= size else None
        return None


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, DTensor):
        yield value._local_tensor
    elif isinstance(value, ShardedTensor):
        yield from (shard.tensor for shard in value.local_shards())
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _tensors_in(item)


def _walk(value: Any, of_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same containers, tensors as `of_tensor` gives them, and copies of all else."""
    if isinstance(value, DTensor):
        return _dtensor(value, of_tensor(value._local_tensor))
    if isinstance(value, ShardedTensor):
        shards = [Shard(of_tensor(shard.tensor), shard.metadata) for shard in value.local_shards()]
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, sharded_tensor_metadata=value.metadata(), process_group=value._process_group
        )
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if type(value) is dict:
        return {key: _walk(item, of_tensor) for key, item in value.items()}
    if isinstance(value, dict):
        same = copy.copy(value)  # an OrderedDict with attributes, as of Module.state_dict()
        for key, item in value.items():
            same[key] = _walk(item, of_tensor)
        return same
    if type(value) is list:
        return [_walk(item, of_tensor) for item in value]
    if type(value) is tuple:
        return tuple(_walk(item, of_tensor) for item in value)
    return copy.deepcopy(value)


def _dtensor(like: DTensor, local: torch.Tensor) -> DTensor:
    """With `local` in the place of its own. torch takes over the local tensor's storage offset when it makes one, and
    then crashes when it pickles it for another process; so it is made of one that begins at 0."""
    made = DTensor(local.new_empty(1).expand(local.shape), like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    made._local_tensor = local
    return made


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its bytes are its elements, row by row."""
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return known and tensor.layout == torch.strided and not tensor.is_quantized


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


class _Copies:
    """Each tensor is copied once, however often it occurs."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sources: dict[int, torch.Tensor] = {}
        self._staged: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        if _is_dense(tensor) and id(tensor) not in self._sources:
            self._sources[id(tensor)] = tensor
            self.bytes += _padded(tensor)

    def copy_to(self, memory: torch.Tensor) -> None:
        ranges = []
        at = 0
        for key, tensor in self._sources.items():
            source = tensor.detach()
            room = memory[at : at + source.nbytes]
            at += _padded(source)
            staged = room.view(source.dtype).view(source.shape) if source.nbytes else torch.empty_like(source, device="cpu")
            self._staged[key] = staged
            if source.device.type == "cpu" and source.is_contiguous() and not source.is_conj() and not source.is_neg():
                ranges.append((source.data_ptr(), staged.data_ptr(), source.nbytes))
            else:
                staged.copy_(source)
        _core.copy_memory(ranges)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._staged.get(id(tensor))
        return found if found is not None else tensor.detach().clone().cpu()
