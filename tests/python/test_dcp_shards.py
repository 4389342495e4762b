# SPDX-License-Identifier: Apache-2.0
"""infercluster.dcp by many ranks without processes: the plans and pieces that torch's planners would hand to each."""

from __future__ import annotations

import itertools
import math
import pathlib
import pickle
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata,
)  # fmt: skip
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from infercluster import dcp as ic

Box = tuple[tuple[int, ...], tuple[int, ...]]


def chunked(size: int, parts: int) -> list[tuple[int, int]]:
    """As torch.chunk cuts; the last parts may be empty, and begin at the end or at 0, which is where it went wrong."""
    step = -(-size // parts)
    return [(min(i * step, size), max(min(step, size - i * step), 0)) for i in range(parts)]


def boxes_of(shape: tuple[int, ...], cuts: tuple[int, ...], offset_of_empty: int | None) -> list[Box]:
    found = []
    for ranges in itertools.product(*(chunked(size, parts) for size, parts in zip(shape, cuts, strict=True))):
        at, lengths = (tuple(one) for one in zip(*ranges, strict=True))
        if math.prod(lengths) == 0 and offset_of_empty is not None:
            at = (offset_of_empty,) * len(at)
        found.append((at, lengths))
    return found


class Planner:
    def __init__(self, full: torch.Tensor) -> None:
        self.full = full

    def resolve_data(self, item: WriteItem) -> torch.Tensor:
        assert item.tensor_data is not None
        return part_of(self.full, (tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)))

    def resolve_tensor(self, item: Any) -> torch.Tensor:
        return part_of(self.full, (tuple(item.dest_offsets), tuple(item.lengths)))

    def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
        pass


def part_of(full: torch.Tensor, box: Box) -> torch.Tensor:
    return full[tuple(slice(at, at + length) for at, length in zip(*box, strict=True))]


def save_by_boxes(path: pathlib.Path, full: torch.Tensor, boxes: list[Box]) -> None:
    properties = TensorProperties(dtype=full.dtype)
    chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(lengths)) for at, lengths in boxes]
    plans = [
        SavePlan([WriteItem(MetadataIndex("w", chunk.offsets), WriteItemType.SHARD, None, TensorWriteData(chunk, properties, full.shape))])
        for chunk in chunks
    ]  # fmt: skip
    metadata = Metadata({"w": TensorStorageMetadata(properties, full.shape, chunks)})
    writers = [ic.Writer(path) for _ in plans]
    for rank, writer in enumerate(writers):
        writer.set_up_storage_writer(rank == 0, rank=rank)
    results = []
    central = writers[0].prepare_global_plan([w.prepare_local_plan(plan) for w, plan in zip(writers, plans, strict=True)])
    for writer, plan in zip(writers, central, strict=True):
        arrived = pickle.loads(pickle.dumps(plan))  # as over the wire
        results.append(writer.write_data(arrived, Planner(full)).value())  # type: ignore[arg-type]
    writers[0].finish(metadata, results)


@pytest.mark.parametrize("offset_of_empty", [None, 0])
@pytest.mark.parametrize(
    ("shape", "cuts"), [((10, 3), (8, 1)), ((4096,), (30,)), ((5, 9), (1, 4)), ((7, 10), (3, 4)), ((2, 2), (5, 1)), ((0, 4), (3, 1))]
)
def test_uneven_shards_come_back_in_any_other(
    tmp_path: pathlib.Path, shape: tuple[int, ...], cuts: tuple[int, ...], offset_of_empty: int | None
) -> None:
    full = torch.randn(shape)
    save_by_boxes(tmp_path, full, boxes_of(shape, cuts, offset_of_empty))
    for world in (1, 2, 3, 7, 16):
        for dimension in range(len(shape)):
            again = torch.full(shape, 9.0)
            for box in boxes_of(shape, tuple(world if d == dimension else 1 for d in range(len(shape))), None):
                reader = ic.Reader(tmp_path)
                stored = reader.read_metadata().state_dict_metadata["w"]
                wanted = ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))
                items = create_read_items_for_chunk_list("w", stored, [wanted])
                planner = Planner(part_of(again, box))
                reader.read_data(LoadPlan(items), planner).wait()  # type: ignore[arg-type]
            assert torch.equal(again, full), (world, dimension)


@pytest.mark.parametrize(("boxes", "what"), [
    ([((0,), (4,)), ((5,), (5,))], "no rank holds 1 of its 10 elements"),
    ([((0,), (6,)), ((5,), (5,))], "overlap"),
])  # fmt: skip
def test_holes_and_overlaps_are_refused_at_the_save(tmp_path: pathlib.Path, boxes: list[Box], what: str) -> None:
    with pytest.raises(ValueError, match="\"?w\"?.*it cannot be saved so") as refused:
        save_by_boxes(tmp_path, torch.zeros(10), boxes)
    assert what in str(refused.value)
    assert list(tmp_path.iterdir()) == []
