# SPDX-License-Identifier: Apache-2.0
"""Where a rank's tensors live: memory of the caller, what a read brought whole, or memory of ours. Everything is also
seen as bytes, which every backend sends, whatever the dtype."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _dtypes
from .boxes import Box, Table, sizes_of, volume

# Memory of ours comes in blocks: one is let go when no tensor in it is left.
_BLOCK_BYTES = 1 << 30
_ALIGNMENT = 64
_HUGE_PAGE_BYTES = 2 << 20


def as_bytes(tensor: Any, sizes: tuple[int, ...]) -> Any:
    """A contiguous tensor's or array's memory as torch bytes of this shape."""
    import torch

    if not _dtypes.is_torch(tensor):
        import numpy

        if tensor.dtype != numpy.uint8:
            tensor = tensor.reshape(-1).view(numpy.uint8)
        tensor = torch.from_numpy(tensor)
    return tensor.reshape(-1).view(torch.uint8).view(sizes)


def typed(data: Any, table: Table, box: Box) -> Any:
    """The torch tensor that contiguous bytes of a box are."""
    shape = _dtypes.storage_shape(table.dtype, table.shape_of(box))
    return data.reshape(-1).view(_dtypes.torch_dtype(table.dtype)).view(shape)


def check_given(tables: Sequence[Table], boxes: Mapping[int, Box], given: Mapping[str, Any], device: Any) -> None:
    """Refuses memory of the caller that does not fit, by name."""
    import torch

    wanted = {tables[index].name: index for index in boxes}
    unknown = [f'"{name}"' for name in given if name not in wanted]
    if unknown:
        raise ValueError(f"memory was given for tensors that are not among the wanted ones: {', '.join(unknown)}")
    for name, tensor in given.items():
        table = tables[wanted[name]]
        _dtypes.destination(name, table.dtype, table.shape_of(boxes[wanted[name]]), tensor)
        place = tensor.device if _dtypes.is_torch(tensor) else torch.device("cpu")
        if place != device:
            raise ValueError(f'into["{name}"]: it is on {place}, and the group loads to {device}')


class Target:
    """The tensors of one rank. `device`: torch's, with its index."""

    def __init__(
        self, tables: Sequence[Table], boxes: Mapping[int, Box], given: Mapping[str, Any], framework: str, device: Any
    ) -> None:
        self._tables, self.boxes, self._given = tables, boxes, given
        self._framework, self._device = framework, device
        self._bytes: dict[int, Any] = {}
        for index, box in boxes.items():
            name = tables[index].name
            if name in given and volume(sizes_of(box)):
                self._bytes[index] = as_bytes(given[name], sizes_of(box))

    def allocate(self, indices: Sequence[int]) -> None:
        """Memory for those of these tensors that the caller gave none for."""
        import torch

        wanted = [index for index in indices if index not in self._bytes]
        if self._device.type != "cpu":
            for index in wanted:
                self._bytes[index] = torch.empty(sizes_of(self.boxes[index]), dtype=torch.uint8, device=self._device)
            return
        block: list[tuple[int, int]] = []
        end = 0
        for index in wanted:
            size = volume(sizes_of(self.boxes[index]))
            if block and end + size > _BLOCK_BYTES:
                self._allocate_block(block, end)
                block, end = [], 0
            block.append((index, end))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        if block:
            self._allocate_block(block, end)

    def _allocate_block(self, tensors: list[tuple[int, int]], size: int) -> None:
        import torch

        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                block.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without them
        for index, at in tensors:
            sizes = sizes_of(self.boxes[index])
            # A view of its own bytes only, so that the tensor's storage is as large as the tensor.
            view = memoryview(block)[at : at + volume(sizes)]
            self._bytes[index] = torch.frombuffer(view, dtype=torch.uint8).view(sizes)

    def adopt(self, index: int, data: Any) -> None:
        """What a read brought is the tensor."""
        self._bytes[index] = data

    def data(self, index: int) -> Any:
        """Bytes of the rank's box of a tensor; to be written in place."""
        return self._bytes[index]

    def given(self, index: int) -> Any:
        """The caller's object for a tensor; None: none."""
        return self._given.get(self._tables[index].name)

    @property
    def is_on_device(self) -> bool:
        return bool(self._device.type != "cpu")

    def synchronize(self) -> None:
        """All messages have arrived in the tensors."""
        import torch

        torch.get_device_module(self._device.type).current_stream(self._device).synchronize()

    def tensors(self) -> dict[str, Any]:
        """All, by name, in the order of files and offsets."""
        result = {}
        for index, box in self.boxes.items():
            table = self._tables[index]
            own = self._given.get(table.name)
            result[table.name] = self._object(index, table, box) if own is None else own
        return result

    def _object(self, index: int, table: Table, box: Box) -> Any:
        import torch

        data = self._bytes.get(index)
        shape = table.shape_of(box)
        if data is None:  # no bytes
            if self._framework == "np":
                return _dtypes.fresh("np", table.dtype, shape)[0]
            shape = _dtypes.storage_shape(table.dtype, shape)
            return torch.empty(shape, dtype=_dtypes.torch_dtype(table.dtype), device=self._device)
        if self._framework == "np":
            return _dtypes.over_memory("np", table.dtype, shape, data.reshape(-1).numpy())
        return typed(data, table, box)
