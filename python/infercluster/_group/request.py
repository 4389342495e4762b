# SPDX-License-Identifier: Apache-2.0
"""What one rank asks, as boxes by tensor; how it travels to the other ranks; and whether the ranks agree."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core, _options
from .._errors import TensorNotFoundError
from .._types import Names, Shard, Slice, Slices
from .boxes import Box, Table

# What a rank's announcement may unpack to.
_ANNOUNCEMENT_BYTES_MAX = 1 << 30


def tables_of(repository: _core.Repository) -> list[Table]:
    tables = []
    for name in repository.names():
        found = repository.find(name)
        assert found is not None
        tables.append(Table(name, *found[:3]))
    return tables


def _elements(name: str, shape: tuple[int, ...], pattern: str, asked: Slice) -> Box:
    whole = [(0, size) for size in shape]
    if isinstance(asked, Shard):
        if asked.dim >= len(shape):
            raise ValueError(f'tensor "{name}": cannot be cut in dimension {asked.dim}: its shape is {list(shape)}')
        piece = -(-shape[asked.dim] // asked.world)
        begin = min(shape[asked.dim], piece * asked.rank)
        whole[asked.dim] = (begin, min(begin + piece, shape[asked.dim]))
        return tuple(whole)
    bounds = _options.bounds_of(pattern, asked, name, shape)
    return (*bounds, *whole[len(bounds) :])


def wanted_boxes(
    repository: _core.Repository, tables: Sequence[Table], names: Names | None, slices: Slices | None
) -> dict[int, Box]:
    """By tensor, in the order of the tables. The rules are those of `load`."""
    asked = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not asked:
        raise ValueError("names is empty; leave it out to load every tensor")
    literal = {name for name in asked if repository.find(name)}
    patterns = dict.fromkeys((name for name in asked if name not in literal), False)
    rules = [(pattern, part, pattern if repository.find(pattern) else None) for pattern, part in (slices or {}).items()]
    used = [False] * len(rules)
    boxes = {}
    for index, table in enumerate(tables):
        matched = [pattern for pattern in patterns if _core.matches(pattern, table.name)]
        patterns.update(dict.fromkeys(matched, True))
        if asked and not matched and table.name not in literal:
            continue
        box: Box = tuple((0, size) for size in table.shape)
        for at, (pattern, part, name) in enumerate(rules):
            if table.name == name or (name is None and _core.matches(pattern, table.name)):
                box, used[at] = _elements(table.name, table.shape, pattern, part), True
                break
        boxes[index] = table.in_bytes(box)
    missing = [f'"{pattern}"' for pattern, found in patterns.items() if not found]
    if missing:
        raise TensorNotFoundError(f"no tensor has the name or pattern {', '.join(missing)}")
    idle = [f'"{pattern}"' for (pattern, _, _), found in zip(rules, used, strict=True) if not found]
    if idle:
        raise TensorNotFoundError(f"no wanted tensor matches the slice rule {', '.join(idle)}")
    return boxes


@dataclass(frozen=True)
class Announcement:
    """One rank's view of the source, and what it wants of it."""

    files: list[list[Any]]  # [name, size, [device, inode, mtime, ctime]]
    table: str  # a hash over all tensors
    options: dict[str, Any]
    boxes: dict[int, Box]

    def packed(self, tables: Sequence[Table]) -> bytes:
        whole = [index for index, box in self.boxes.items() if box == tables[index].box]
        parts = {index: box for index, box in self.boxes.items() if box != tables[index].box}
        document = {
            "files": self.files,
            "table": self.table,
            "options": self.options,
            "whole": _as_runs(whole),
            "parts": [[index, *box] for index, box in parts.items()],
        }
        return zlib.compress(json.dumps(document).encode(), 1)

    @staticmethod
    def unpacked(data: bytes, tables: Sequence[Table]) -> Announcement:
        """Boxes that lie outside of our tables are left out: then the hashes differ, too."""
        document = json.loads(zlib.decompressobj().decompress(data, _ANNOUNCEMENT_BYTES_MAX))
        boxes: dict[int, Box] = {}
        for begin, end in document["whole"]:
            boxes |= {index: tables[index].box for index in range(begin, min(end, len(tables)))}
        for index, *sides in document["parts"]:
            boxes[index] = tuple((begin, end) for begin, end in sides)
        return Announcement(document["files"], document["table"], document["options"], dict(sorted(boxes.items())))


def _as_runs(indices: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1][1] += 1
        else:
            runs.append([index, index + 1])
    return runs


def announce(
    repository: _core.Repository, tables: Sequence[Table], options: Mapping[str, Any], boxes: dict[int, Box]
) -> Announcement:
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{table.name}\0{table.dtype}\0{table.shape}\0{table.nbytes}\n".encode())
    identities = getattr(repository, "identities", None) or [()] * len(repository.files)
    files: list[list[Any]] = []
    for path, identity in zip(repository.files, identities, strict=True):
        size = identity[2] if identity else os.stat(path).st_size
        files.append([os.path.basename(path), size, [n for at, n in enumerate(identity) if at != 2]])
    return Announcement(files, digest.hexdigest(), dict(options), boxes)


def _difference(rank: int, first: Announcement, other: Announcement) -> str | None:
    mine, theirs = {name: size for name, size, _ in first.files}, {name: size for name, size, _ in other.files}
    lines = [f'"{name}" is not there on rank {rank}' for name in mine if name not in theirs]
    lines += [f'"{name}" is not there on rank 0' for name in theirs if name not in mine]
    lines += [
        f'"{name}" has {mine[name]} bytes on rank 0 and {theirs[name]} on rank {rank}'
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]
    for (name, size, one), (other_name, other_size, two) in zip(first.files, other.files, strict=False):
        same_file = one[:2] == two[:2] and one and (name, size) == (other_name, other_size)
        if same_file and one != two:
            lines.append(f'"{name}" changed between the ranks\' looks at it')
    if not lines and first.table != other.table:
        lines = ["the files' tensors differ in names, dtypes or shapes"]
    if lines:
        return f"rank {rank} sees another source than rank 0: {'; '.join(lines[:8])}"
    for key, value in first.options.items():
        if other.options.get(key) != value:
            return f"the ranks differ in {key}: {value!r} on rank 0, {other.options.get(key)!r} on rank {rank}"
    return None


def disagreement(all_ranks: Sequence[Announcement]) -> str | None:
    """What keeps the ranks from loading together; None: nothing."""
    found = [_difference(rank, all_ranks[0], other) for rank, other in enumerate(all_ranks)]
    return next((text for text in found if text), None)
