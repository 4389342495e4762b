# SPDX-License-Identifier: Apache-2.0
"""Boxes: the part of a tensor that someone wants, as [begin, end) of each dimension, in elements; of the last
dimension in bytes, so that no dtype matters any more. A scalar is one dimension of its bytes. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Table:
    """One tensor of a repository."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # elements
    nbytes: int

    @property
    def box(self) -> Box:
        """All of it."""
        if not self.shape:
            return ((0, self.nbytes),)
        rows = volume(self.shape[:-1])
        if not self.nbytes:
            return tuple((0, size) for size in self.shape)
        return (*((0, size) for size in self.shape[:-1]), (0, self.nbytes // rows))

    @property
    def unit(self) -> int:
        """Bytes that must stay together: an element, or what holds several of them."""
        return max(1, self.nbytes // volume(self.shape)) if self.nbytes else 1

    def in_bytes(self, box: Box) -> Box:
        """From elements of every dimension."""
        if not self.shape or not self.nbytes:
            return box if self.shape else self.box
        (_, row), last = self.box[-1], self.shape[-1]
        begin, end = box[-1]
        if begin * row % last or end * row % last:
            raise ValueError(
                f'tensor "{self.name}": the slice would cut a byte that holds several elements.'
                " Slice the last dimension at whole bytes"
            )
        return (*box[:-1], (begin * row // last, end * row // last))

    def in_elements(self, box: Box) -> Box:
        if not self.shape or not self.nbytes:
            return box if self.shape else ()
        (_, row), last = self.box[-1], self.shape[-1]
        begin, end = box[-1]
        return (*box[:-1], (begin * last // row, end * last // row))

    def shape_of(self, box: Box) -> tuple[int, ...]:
        """Of what is in the box, in elements."""
        return sizes_of(self.in_elements(box)) if self.shape else ()


def volume(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def sizes_of(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def bytes_of(box: Box) -> int:
    return volume(sizes_of(box))


def common(one: Box, other: Box) -> Box | None:
    """What lies in both; None: nothing."""
    result = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return result if all(begin < end for begin, end in result) else None


def hull(boxes: list[Box]) -> Box:
    return tuple((min(begin for begin, _ in sides), max(end for _, end in sides)) for sides in zip(*boxes, strict=True))


def within(outer: Box, inner: Box) -> tuple[slice, ...]:
    """Where `inner` lies in a tensor that holds `outer`."""
    return tuple(slice(begin - at, end - at) for (at, _), (begin, end) in zip(outer, inner, strict=True))


def is_contiguous(outer: Box, inner: Box) -> bool:
    """Whether `inner` is one run of bytes of a tensor that holds `outer`, in C order."""
    runs = False  # a dimension of more than one element was seen: all that follow must be whole
    for (a, b), (c, d) in zip(outer, inner, strict=True):
        if runs and (c, d) != (a, b):
            return False
        runs = runs or d - c > 1
    return True


def cut_at(box: Box, at: int, unit: int) -> tuple[Box, Box] | None:
    """Two boxes, one after the other in C order, of which the first has `at` bytes or a little less; None: it cannot
    be cut there. What is cut in its last dimension is cut at whole pages, else at whole `unit`s."""
    sizes = sizes_of(box)
    total = volume(sizes)
    for dimension, size in enumerate(sizes):
        if size < 2:
            continue
        step = 1
        if dimension == len(sizes) - 1:
            step = 4096 if size > 8192 else unit
        stride = total // size * step
        count = at // stride * step
        if not 0 < count < size:
            return None
        begin, end = box[dimension]
        middle = begin + count
        head, tail = box[:dimension], box[dimension + 1 :]
        return (*head, (begin, middle), *tail), (*head, (middle, end), *tail)
    return None


def chopped(box: Box, most: int, unit: int) -> list[Box]:
    """The box in pieces of `most` bytes or less, in C order, each one run of bytes of it. A row of more is chopped in
    its own dimensions; a unit of more stays one piece."""
    sizes = sizes_of(box)
    total = volume(sizes)
    if total <= most:
        return [box]
    for dimension, size in enumerate(sizes):
        if size < 2:
            continue
        last = dimension == len(sizes) - 1
        stride = total // size
        step = max(1, most // stride)
        if last:
            step = max(unit, step // 4096 * 4096 or step // unit * unit)
        begin, end = box[dimension]
        head, tail = box[:dimension], box[dimension + 1 :]
        parts = [(*head, (at, min(at + step, end)), *tail) for at in range(begin, end, step)]
        if last or stride <= most:
            return parts
        return list(itertools.chain.from_iterable(chopped(part, most, unit) for part in parts))
    return [box]
