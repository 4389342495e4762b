# SPDX-License-Identifier: Apache-2.0
"""Reader: torch.distributed.checkpoint loads through it, our checkpoints and its own."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import _core
from .._checkpoint.interrupt import in_thread
from .._checkpoint.tensors import is_plain_memory, strides_of
from .._checkpoint.values import listed
from .._environment import switched_on
from . import _metadata, _sharing
from ._form import form_of
from ._writer import is_local

if TYPE_CHECKING:
    from .._types import LoadReport

_ASIDE_BYTES = 1 << 30  # of host memory at once, for what cannot be read into its place


class Reader(StorageReader):
    """
    Reads what infercluster.dcp.Writer saved and what torch's own FileSystemWriter saved. Every byte of ours is checked
    against the checksum that was taken before it was written, and read once: what several ranks of a node want, by one
    of them for all (INFERCLUSTER_RESTORE_SHARED=0: by each for itself). Where one of them fails, all do, with the first
    cause. Stock checkpoints each rank reads by itself.

    A tensor of another dtype than was saved is an error that names it, unless cast=True (or INFERCLUSTER_DCP_CAST=1).

    `call_timeout`: seconds that a rank waits for the others of its node to begin to read, `read_timeout`: until all have
    read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        *,
        cast: bool | None = None,
        call_timeout: float = 300,
        read_timeout: float = 3600,
    ) -> None:
        self.path = pathlib.Path(path)
        self.cast = switched_on("INFERCLUSTER_DCP_CAST") if cast is None else cast
        self.call_timeout, self.read_timeout = call_timeout, read_timeout
        self._token: str | None = None  # of the load that is under way
        self._report: LoadReport | None = None
        self.load_id = uuid.uuid4().hex
        self._stored: _metadata.Stored | None = None
        self._stock: FileSystemReader | None = None
        self._metadata: Metadata | None = None  # of a stock checkpoint

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stored": None, "_stock": None, "_metadata": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.path = pathlib.Path(checkpoint_id)
        self.load_id = uuid.uuid4().hex
        self._stored = self._stock = self._metadata = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if has_commit(self.path):
            if self._stored is None:
                path = pathlib.Path(os.path.realpath(self.path))
                self._stored = in_thread(lambda: _metadata.Stored(path))
            metadata = self._stored.metadata()
        else:
            metadata = self._read_stock_metadata(*args, **kwargs)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def _read_stock_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if not any(self.path.glob("*" + _metadata.FILE)):
            raise FileNotFoundError(
                f"{self.path} holds no checkpoint: neither COMMIT nor {_metadata.FILE}. A save that did not finish leaves"
                " such a directory; use an earlier checkpoint"
            )
        self._stock = FileSystemReader(self.path)
        self._metadata = self._stock.read_metadata(*args, **kwargs)
        if isinstance(self._metadata.storage_data, _metadata.Locator):
            raise FileNotFoundError(
                f"{self.path} was saved by infercluster.dcp, and its COMMIT is gone, so nothing says that it is whole; use"
                " another checkpoint"
            )
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._stock is not None:
            self._stock.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        if self._stock is not None:
            return self._stock.prepare_local_plan(plan)
        own = _sharing.presence() if plan.storage_data is None else None
        self._token = own.token if own is not None else None
        return plan if own is None else dataclasses.replace(plan, storage_data=own)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return _sharing.turns_of(plans) if self._stock is None else self._stock.prepare_global_plan(plans)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        turn, self._token = _sharing.turn_of(plan, self._token), None
        node = _sharing.Alone() if turn is None else _sharing.Together(turn, self.call_timeout, self.read_timeout)
        try:
            if self._stock is None and self._stored is None:
                self.read_metadata()
            targets = _resolve(plan, planner)
            self._check(targets)
            if self._stock is not None:
                return self._stock.read_data(plan, _Resolved(planner, targets))
            assert self._stored is not None
            objects = _objects(plan, self._stored)
            self._report = _read([*targets, *objects], self._stored, node)
        except BaseException as error:
            node.end_with(error)
        for target in targets:
            planner.commit_tensor(target.item, target.tensor)
        for one in objects:
            planner.load_bytes(one.item, io.BytesIO(one.tensor.numpy().tobytes()))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def report(self) -> LoadReport | None:
        """Of the last load of ours that succeeded on this rank."""
        return self._report

    def _saved_dtype(self, name: str) -> torch.dtype:
        if self._stored is not None:
            return self._stored.dtype(name)
        assert self._metadata is not None
        saved = self._metadata.state_dict_metadata[name]
        assert isinstance(saved, TensorStorageMetadata)
        return saved.properties.dtype

    def _check(self, targets: list[_Target]) -> None:
        different = {}
        for target in targets:
            saved = self._saved_dtype(target.item.storage_index.fqn)
            if saved != target.tensor.dtype and not self.cast:
                different[target.item.dest_index.fqn] = f"saved as {saved}, wanted as {target.tensor.dtype}"
            if tuple(target.tensor.shape) != tuple(target.item.lengths):
                raise ValueError(
                    f'"{target.item.dest_index.fqn}": the planner gave memory of the shape {list(target.tensor.shape)} for'
                    f" {list(target.item.lengths)}"
                )
        if different:
            named = listed(f"{name} ({what})" for name, what in different.items())
            raise ValueError(
                f"{self.path}: the dtype differs: {named}. Nothing is converted unasked: load into the saved dtype, or"
                " take infercluster.dcp.Reader(cast=True) or INFERCLUSTER_DCP_CAST=1"
            )

    @property
    def checkpoint_id(self) -> pathlib.Path:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_local(checkpoint_id)


def has_commit(directory: pathlib.Path) -> bool:
    """While a replacement takes over there also is COMMIT.N."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return any(name == "COMMIT" or (name.startswith("COMMIT.") and name[7:].isdigit()) for name in names)


@dataclass
class _Target:
    item: ReadItem
    tensor: torch.Tensor  # of an object: memory for its bytes

    @property
    def name(self) -> str:
        return self.item.storage_index.fqn


def _resolve(plan: LoadPlan, planner: LoadPlanner) -> list[_Target]:
    items = (item for item in plan.items if item.type != LoadItemType.BYTE_IO)
    return [_Target(item, planner.resolve_tensor(item).detach()) for item in items]


class _Resolved(LoadPlanner):
    """The planner, with what it has resolved already."""

    def __init__(self, planner: LoadPlanner, targets: list[_Target]) -> None:
        self._planner = planner
        self._tensors = {id(target.item): target.tensor for target in targets}

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self._tensors[id(read_item)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._planner.commit_tensor(read_item, tensor)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self._planner.load_bytes(read_item, value)

    def _made_already(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("the plan is made by now")

    set_up_planner = create_local_plan = create_global_plan = finish_plan = resolve_bytes = _made_already


class _Batch:
    """Targets that are read together."""

    def __init__(self) -> None:
        self.tensors = _core.Tensors()
        self._kept: list[Any] = []
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []  # memory that was read into, where it goes

    def add(self, target: _Target, stored: _metadata.Stored) -> None:
        if target.item.type == LoadItemType.BYTE_IO:
            shape = tuple(target.tensor.shape)
            self.tensors.add(target.name, "U8", shape, (0,), shape, target.tensor.data_ptr(), [])
        else:
            self._add_tensor(target, stored)

    def _add_tensor(self, target: _Target, stored: _metadata.Stored) -> None:
        name, item = target.name, target.item
        saved = stored.dtype(name)
        form = form_of(name, saved)
        into = target.tensor
        if _aside_bytes(target, stored):
            into = torch.empty(into.shape, dtype=saved)
            self._aside.append((into, target.tensor))
        chunk = item.storage_index.offset or (0,) * len(item.lengths)
        at = [first + offset for first, offset in zip(chunk, item.storage_offsets, strict=True)]
        memory = form.view(into)
        self._kept.append(memory)
        dtype, shape, _ = stored.tensors[name]
        lengths = form.shape(item.lengths)
        self.tensors.add(name, dtype, shape, form.offsets(at), lengths, memory.data_ptr(), strides_of(memory))

    def deliver(self) -> None:
        for memory, tensor in self._aside:
            tensor.copy_(memory)


def _aside_bytes(target: _Target, stored: _metadata.Stored) -> int:
    """Of memory that it is read into, and copied from; 0: it is read into its place."""
    if target.item.type == LoadItemType.BYTE_IO:
        return 0
    tensor, saved = target.tensor, stored.dtype(target.name)
    if tensor.dtype == saved and is_plain_memory(tensor, form_of(target.name, saved).dtype):
        return 0
    return tensor.numel() * saved.itemsize


def _batches(
    targets: list[_Target], stored: _metadata.Stored, least: Callable[[str | None], str | None]
) -> Iterator[_Batch]:
    """One, unless more memory would be needed aside than is fair on this rank, or on another of its node: all of a name
    is in one batch on all of them, so that each byte is read once."""
    ordered = sorted((target for target in targets if target.tensor.numel()), key=lambda target: target.name)
    at = 0
    while True:
        last = least(_last_that_fits(ordered[at:], stored))
        batch = _Batch()
        while at < len(ordered) and (last is None or ordered[at].name <= last):
            batch.add(ordered[at], stored)
            at += 1
        yield batch
        if last is None:
            return


def _last_that_fits(targets: list[_Target], stored: _metadata.Stored) -> str | None:
    """Its name; None: all do."""
    aside = 0
    for target in targets:
        aside += _aside_bytes(target, stored)
        if aside >= _ASIDE_BYTES:
            return target.name if target.name != targets[-1].name else None
    return None


def _read(targets: list[_Target], stored: _metadata.Stored, node: _sharing.Alone) -> LoadReport:
    reports = []
    for batch in _batches(targets, stored, node.least):
        reports.append(node.restore(stored.checkpoint, batch.tensors))
        batch.deliver()
    total = reports[0]
    for report in reports[1:]:
        total["bytes"] += report["bytes"]
        total["bytes_read"] += report["bytes_read"]
        total["bytes_received"] += report["bytes_received"]
        total["node_bytes_read"] += report["node_bytes_read"]
        total["segments"] += report["segments"]
        total["seconds"] += report["seconds"]
    return total


def _objects(plan: LoadPlan, stored: _metadata.Stored) -> list[_Target]:
    items = (item for item in plan.items if item.type == LoadItemType.BYTE_IO)
    return [_Target(item, torch.empty(stored.tensors[item.storage_index.fqn][1], dtype=torch.uint8)) for item in items]
