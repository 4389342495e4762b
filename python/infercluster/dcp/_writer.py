# SPDX-License-Identifier: Apache-2.0
"""Writer: torch.distributed.checkpoint saves through it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import uuid
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import _core, _log
from .._checkpoint.arguments import bytes_of
from .._checkpoint.interrupt import in_thread
from .._checkpoint.tensors import is_plain_memory, refuse_odd, strides_of
from . import _metadata, _process, _tickets
from ._form import form_of

_RATE_VARIABLE = "INFERCLUSTER_DCP_MAX_WRITE_RATE"
_STOCK_DATA = re.compile(r"__\d+_\d+\.distcp")


class Writer(StorageWriter, AsyncStager):
    """
    Each rank writes one segment, a safetensors file, and an index of it; the first rank commits. A checkpoint that is
    there stays until the new one is durable.

    As with torch's own writer, `checkpoint_id=` of dcp.save() overrides `path`. `overwrite` False: saving to a
    checkpoint that is there is an error. `max_write_rate`: bytes per second of this rank, as a number or as "1GiB"; None:
    INFERCLUSTER_DCP_MAX_WRITE_RATE, or no limit.
    """

    _synchronize_after_execute = False  # stage() returns when all is copied

    def __init__(
        self, path: str | os.PathLike[str] = "", *, overwrite: bool = True, max_write_rate: int | str | None = None
    ) -> None:
        self.path = pathlib.Path(path)
        self.overwrite = overwrite
        if max_write_rate is None:
            max_write_rate = os.environ.get(_RATE_VARIABLE) or None
            self._max_write_rate = bytes_of(max_write_rate, _RATE_VARIABLE)
        else:
            self._max_write_rate = bytes_of(max_write_rate, "max_write_rate")
        self.save_id = uuid.uuid4().hex
        self._begun: _tickets.Ticket | None = None  # on the first rank, until the save has ended
        self._rank = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_begun": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._discard()
        if checkpoint_id:
            self.path = pathlib.Path(checkpoint_id)
        self.save_id = uuid.uuid4().hex

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise NotImplementedError(
                "infercluster.dcp.Writer saves one checkpoint of all ranks, and needs use_collectives=True. To save each"
                " rank's state by itself, give each its own checkpoint_id and no_dist=True"
            )
        if self.path == pathlib.Path():
            raise ValueError("where to? Give checkpoint_id=, or Writer(path)")
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            if item.tensor_data is not None:
                form_of(item.index.fqn, item.tensor_data.properties.dtype)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        directory = self._directory()
        _metadata.make_directories(directory)
        if not self.overwrite and (directory / _metadata.FILE).exists():
            raise FileExistsError(f"{directory} holds a checkpoint already; to replace it, take Writer(overwrite=True)")
        epoch, save_id = in_thread(lambda: _process.saver().begin(os.fsencode(directory), self.overwrite))
        tickets = [_tickets.Ticket(str(directory), epoch, save_id, node, len(plans)) for node in range(len(plans))]
        self._begun = tickets[min(self._rank, len(plans) - 1)]
        _tickets.arrive(self._begun)  # nothing is sent where there is one rank
        return [dataclasses.replace(plan, storage_data=ticket) for plan, ticket in zip(plans, tickets, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        ticket = _tickets.latest(str(self._directory()))
        part = _Part()
        for item in plan.items:
            part.add(item, planner)
        results = part.results
        if results:
            saver, directory = _process.saver(), os.fsencode(ticket.directory)
            rate = self._max_write_rate
            reference, _, _ = in_thread(
                lambda: saver.write(directory, ticket.save, ticket.node, ticket.world, part.tensors, [], rate)
            )
            results[0] = dataclasses.replace(results[0], storage_data=reference)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        ticket = self._begun
        if ticket is None:
            raise RuntimeError("finish() is for the rank that made the plan, once")
        try:
            self._commit(ticket, metadata, results)
        except BaseException:
            self._discard()
            raise
        self._begun = None
        metadata.storage_data = _metadata.Locator(ticket.save_id)
        metadata.storage_meta = self.storage_meta()
        metadata.version = CURRENT_DCP_VERSION
        directory = pathlib.Path(ticket.directory)
        _metadata.publish(directory, metadata)
        _remove_stock_data(directory)

    def _commit(self, ticket: _tickets.Ticket, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        saver, directory = _process.saver(), os.fsencode(ticket.directory)
        parts = [result.storage_data for of_rank in results for result in of_rank if result.storage_data is not None]
        text = [(_metadata.KEY, _metadata.text_of(metadata))]
        held = _held(metadata, results)

        def commit() -> None:
            own, _, _ = saver.write(directory, ticket.save, ticket.world, ticket.world, _core.Tensors(), text)
            saver.commit(directory, ticket.save, ticket.world, [*parts, own], held)

        in_thread(commit)

    def _discard(self) -> None:
        """Of a save that failed: by now every rank has told DCP so, and none writes any more."""
        ticket, self._begun = self._begun, None
        if ticket is None:
            return
        try:
            _process.saver().discard(os.fsencode(ticket.directory), ticket.save)
        except OSError as error:
            _log.LOGGER.warning("cannot tidy up after a save that failed: %s", error)

    def _directory(self) -> pathlib.Path:
        return pathlib.Path(os.path.realpath(self.path))

    @property
    def checkpoint_id(self) -> pathlib.Path:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_local(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    # As torch's own writer it is its own stager, when dcp.async_save() is given no other.

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return _process.stager().stage(state_dict)

    def synchronize_staging(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Part:
    """What one rank writes. Keeps the memory."""

    def __init__(self) -> None:
        self.tensors = _core.Tensors()
        self.results: list[WriteResult] = []
        self._kept: list[Any] = []

    def add(self, item: WriteItem, planner: SavePlanner) -> None:
        data = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            assert not isinstance(data, torch.Tensor)
            self._add_bytes(item, data.getbuffer())
        else:
            assert isinstance(data, torch.Tensor)
            self._add_tensor(item, data.detach())

    def _add_bytes(self, item: WriteItem, data: memoryview) -> None:
        size = data.nbytes
        memory = torch.frombuffer(data, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        self._kept.append(memory)
        self.tensors.add(item.index.fqn, "U8", [size], [0], [size], memory.data_ptr(), [])
        self.results.append(WriteResult(item.index, size, None))

    def _add_tensor(self, item: WriteItem, tensor: torch.Tensor) -> None:
        name, data = item.index.fqn, item.tensor_data
        assert data is not None and data.chunk is not None
        refuse_odd(name, tensor)
        if tensor.dtype != data.properties.dtype or tensor.numel() != data.chunk.sizes.numel():
            raise ValueError(
                f'"{name}": the plan says {data.properties.dtype} {list(data.chunk.sizes)}, and the planner gave'
                f" {tensor.dtype} {list(tensor.shape)}. Its transform_object() must agree with its plan"
            )
        self.results.append(WriteResult(item.index, tensor.nbytes, None))
        if tensor.numel() == 0 and data.size.numel() > 0:
            return  # a rank without rows: nothing of it, wherever it begins
        form = form_of(name, tensor.dtype)
        if not is_plain_memory(tensor, form.dtype):
            tensor = tensor.cpu().resolve_conj().resolve_neg()
        if form.viewed is not None:
            tensor = form.view(tensor if tensor.is_contiguous() else tensor.contiguous())
        self._kept.append(tensor)
        at, lengths = form.offsets(data.chunk.offsets), form.shape(data.chunk.sizes)
        strides = [] if tensor.numel() == 0 else strides_of(tensor)
        self.tensors.add(name, form.dtype, form.shape(data.size), at, lengths, tensor.data_ptr(), strides)


def _held(metadata: Metadata, results: list[list[WriteResult]]) -> _core.Tensors:
    """What all ranks wrote together."""
    sizes = {result.index.fqn: result.size_in_bytes for of_rank in results for result in of_rank}
    held = _core.Tensors()
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            held.add(name, "U8", [sizes[name]], [0], [sizes[name]], 0, [])
            continue
        form = form_of(name, stored.properties.dtype)
        for chunk in stored.chunks:
            if chunk.sizes.numel() == 0 and stored.size.numel() > 0:
                continue
            at, lengths = form.offsets(chunk.offsets), form.shape(chunk.sizes)
            held.add(name, form.dtype, form.shape(stored.size), at, lengths, 0, [])
    return held


def _remove_stock_data(directory: pathlib.Path) -> None:
    """Of the stock checkpoint whose .metadata was just replaced."""
    for entry in os.scandir(directory):
        if _STOCK_DATA.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


def is_local(checkpoint_id: str | os.PathLike[str]) -> bool:
    if isinstance(checkpoint_id, pathlib.Path):
        return True
    text = os.fspath(checkpoint_id)
    if "://" in text:
        return False
    return any(os.access(parent, os.W_OK) for parent in pathlib.Path(text).parents if parent.exists())
