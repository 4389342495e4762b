# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that torch.distributed.checkpoint's own writer saved, for Checkpointer.load. They have no checksums, and
like all that is pickled they must come from someone trusted."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from .. import _dtypes
from . import tensors, values
from .restore import Restore, Saved
from .tree import TENSOR, TREE_KEY

if TYPE_CHECKING:
    from .._types import LoadReport
    from .pages import Pages
    from .tensors import HeldBox, Shape


class _Marker:
    """Stands for a tensor in the tree of values."""

    def __init__(self, name: str) -> None:
        self.name = name


class StockCheckpoint(Saved):
    def __init__(self, path: str) -> None:
        self._path = path
        self.reader = FileSystemReader(path)
        try:
            self.saved = self.reader.read_metadata()
        except OSError:
            raise
        except Exception as error:  # whatever unpickling comes to
            raise ValueError(f"{path}/.metadata cannot be read: {error}. It needs the version of torch that saved it") from error
        if not all(isinstance(info, _StorageInfo) for info in (self.saved.storage_data or {}).values()):
            raise ValueError(
                f"{path} was not saved by torch.distributed.checkpoint's own writer: only what is in its __*.distcp files can"
                " be read here; load it by the library that saved it"
            )
        self.reader.set_up_storage_reader(self.saved, is_coordinator=False)
        names = tensors.names_of_torch()
        self.odd: dict[str, torch.dtype] = {}  # tensors of dtypes that are not read
        self._tensors: dict[str, tuple[str, Shape, int]] = {}
        for name, entry in self.saved.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                continue
            dtype = names.get(entry.properties.dtype)
            if dtype is None or dtype == "F4":
                self.odd[name] = entry.properties.dtype
            else:
                self._tensors[name] = (dtype, tuple(entry.size), len(entry.chunks))
        self._tree = values.encode(self._nested(), _leaf)

    @property
    def path(self) -> str:
        return self._path

    def tensors(self) -> dict[str, tuple[str, Shape, int]]:
        return self._tensors

    def metadata(self) -> list[dict[str, str]]:
        return [{TREE_KEY: json.dumps(self._tree)}]

    def _nested(self) -> dict[str, Any]:
        """All that was saved, with markers for tensors. A list of values without tensors was saved as one of them."""
        objects = self._objects()
        paths: dict[str, Any] = self.saved.planner_data or {}
        nested: dict[str, Any] = {}
        for name in self.saved.state_dict_metadata:
            path = tuple(paths.get(name, (name,)))
            at = nested
            for key in path[:-1]:
                at = at.setdefault(str(key), {})
            at[str(path[-1])] = objects[name] if name in objects else _Marker(name)
        return nested

    def _objects(self) -> dict[str, Any]:
        names = [name for name, entry in self.saved.state_dict_metadata.items() if isinstance(entry, BytesStorageMetadata)]
        nowhere, empty = torch.Size([0]), torch.Size([])
        items = [
            ReadItem(LoadItemType.BYTE_IO, MetadataIndex(name), nowhere, MetadataIndex(name), nowhere, empty)
            for name in names
        ]
        filler = _Filler({})
        self.reader.read_data(LoadPlan(items), filler).wait()
        return filler.objects


def _leaf(value: Any, path: tuple[Any, ...]) -> values.Json | None:
    return {TENSOR: [value.name, "pt"]} if isinstance(value, _Marker) else None


class StockRestore(Restore):
    """Each rank reads by itself, by torch's own reader."""

    def __init__(self, checkpoint: StockCheckpoint, rank: int, only: str | list[str] | None, strict: bool, cast: bool) -> None:
        super().__init__(checkpoint, rank, only, strict, cast)
        self._stock = checkpoint
        self._wanted: dict[str, list[tuple[HeldBox, Any]]] = {}  # and memory for it

    def _add_tensor(self, name: str, tensor: Any) -> None:
        if name in self._stock.odd:
            self._seen.add(name)
            self._different.append(f"{name} (saved with the dtype {self._stock.odd[name]}, which only torch's own reader loads)")
        else:
            super()._add_tensor(name, tensor)

    def _collect_state(self, node: Any, path: tuple[Any, ...]) -> None:
        # By the object's own keys: torch saved whole numbers among them as text.
        self._collect(dict(node.state_dict()), path)

    def _want(self, name: str, dtype: str, shape: Shape, part: HeldBox, memory: Any) -> None:
        if math.prod(part.lengths):
            self._wanted.setdefault(name, []).append((part, memory))

    def _want_pages(self, name: str, wanted: Pages, ids: Mapping[Any, int]) -> None:
        if ids:
            self._different.append(f"{name} (saved as tensors, wanted as Pages: load them as tensors)")

    def read_alone(self) -> LoadReport:
        begin = time.monotonic()
        items: list[ReadItem] = []
        for name, parts in self._wanted.items():
            entry = self._stock.saved.state_dict_metadata[name]
            assert isinstance(entry, TensorStorageMetadata)
            boxes = [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.lengths)) for part, _ in parts]
            found = create_read_items_for_chunk_list(name, entry, boxes)
            if sum(math.prod(item.lengths) for item in found) < sum(math.prod(part.lengths) for part, _ in parts):
                raise ValueError(f'{self._stock.path}: "{name}" is not all there: its chunks leave out part of what is wanted')
            items += found
        memory = {name: [_as_torch(memory, self._stored[name][0]) for _, memory in parts] for name, parts in self._wanted.items()}
        self._stock.reader.read_data(LoadPlan(items), _Filler(memory)).wait()
        stored = {item.storage_index for item in items}
        infos = [self._stock.saved.storage_data[index] for index in stored]
        bytes_read = sum(info.length for info in infos)
        return {
            "bytes": sum(tensor.nbytes for parts in memory.values() for tensor in parts),
            "bytes_read": bytes_read, "bytes_received": 0, "node_ranks": 1, "node_bytes_read": bytes_read,
            "index_bytes": 0,
            "segments": len({info.relative_path for info in infos}), "seconds": time.monotonic() - begin,
            "tier": "root", "notice": "",
        }  # fmt: skip


def _as_torch(memory: Any, dtype: str) -> torch.Tensor:
    """The same memory."""
    if _dtypes.is_torch(memory):
        return memory  # type: ignore[no-any-return]
    plain = memory.view(f"u{memory.dtype.itemsize}") if memory.dtype.itemsize <= 8 else memory
    return torch.from_numpy(plain).view(getattr(torch, _dtypes.TORCH_NAMES[dtype]))


class _Filler(LoadPlanner):
    """Where what is read goes, for a plan that is made already."""

    def __init__(self, memory: dict[str, list[torch.Tensor]]) -> None:
        self._memory = memory
        self.objects: dict[str, Any] = {}

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        box = self._memory[read_item.dest_index.fqn][read_item.dest_index.index or 0]
        return narrow_tensor_by_index(box, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.objects[read_item.dest_index.fqn] = torch.load(value, weights_only=False)

    def _made_already(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("the plan is made by now")

    set_up_planner = create_local_plan = create_global_plan = finish_plan = resolve_bytes = _made_already
