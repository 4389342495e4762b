# SPDX-License-Identifier: Apache-2.0
"""What `get_slice(name)[index]` means: which box of the tensor is read, and which index is left to apply to it.

The stock package has two ways. Tensors of torch are indexed by torch, with all that it knows. Arrays of numpy (and
everything with backend="pread") take integers, slices with bounds that are not negative, one ellipsis and the empty
list.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from .._errors import SafetensorError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """`box[i]` is the range [begin, end) that is read of dimension i; `rest` is applied to what was read (None:
    nothing is left to do)."""

    box: tuple[tuple[int, int], ...]
    rest: tuple[Any, ...] | None


def _expand(items: list[Any], dimensions: int) -> list[Any]:
    """The ellipsis as full slices, and full slices for what is not named."""
    named = sum(item is not None and item is not Ellipsis for item in items)
    fill = [slice(None)] * max(dimensions - named, 0)
    for at, item in enumerate(items):
        if item is Ellipsis:
            return [*items[:at], *fill, *items[at + 1 :]]
    return [*items, *fill]


def like_torch(index: Any, shape: Shape) -> Selection | None:
    """None: more than a box; then the whole tensor is read and torch decides (and raises what it raises)."""
    items = _expand(list(index) if isinstance(index, tuple) else [index], len(shape))
    if sum(item is Ellipsis for item in items) or sum(item is not None for item in items) != len(shape):
        return None
    box: list[tuple[int, int]] = []
    rest: list[Any] = []
    for item in items:
        if item is None:
            rest.append(None)
            continue
        size = shape[len(box)]
        if isinstance(item, slice):
            if item.step is not None and (not isinstance(item.step, int) or item.step < 1):
                return None
            if any(bound is not None and not isinstance(bound, int) for bound in (item.start, item.stop)):
                return None
            begin, end, step = item.indices(size)
            box.append((begin, max(begin, end)))
            rest.append(slice(None, None, step))
        elif type(item) is int and -size <= item < size:
            at = item + size if item < 0 else item
            box.append((at, at + 1))
            rest.append(0)
        else:
            return None
    plain = all(isinstance(item, slice) and item.step == 1 for item in rest)
    return Selection(tuple(box), None if plain else tuple(rest))


@dataclass(frozen=True)
class _Item:
    """One dimension's index: an integer, or begin:end:step where None is an open bound."""

    begin: int | None
    end: int | None
    step: int = 1
    integer: bool = False

    def __str__(self) -> str:
        if self.integer:
            return str(self.begin)
        text = f"{'' if self.begin is None else self.begin}:{'' if self.end is None else self.end}"
        return text if self.step == 1 else f"{text}:{self.step}"


def _bound(value: Any) -> int | None:
    if value is None:
        return None
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def _item(value: Any, dimension: int, shape: Shape) -> _Item:
    if isinstance(value, slice):
        step = 1 if value.step is None else operator.index(value.step)
        begin, end = _bound(value.start), _bound(value.stop)
        if step < 1:
            raise SafetensorError(f"Slice step must be a positive integer, got {step}")
        return _Item(begin, end, step)
    try:
        number = operator.index(value)
    except TypeError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise SafetensorError(f"Unsupported slice index at position {dimension}: expected slice, int, or ellipsis")
    if number < 0:
        size = shape[dimension] if dimension < len(shape) else 0
        if number + size < 0:
            raise SafetensorError(f"Invalid index {number} for dimension {dimension} of size {size}")
        number += size
    return _Item(number, number + 1, integer=True)


def _items(index: Any, shape: Shape) -> list[_Item]:
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        return [_Item(0, 0)]
    values = list(index) if isinstance(index, tuple) else [index]
    ellipses = sum(value is Ellipsis for value in values)
    if ellipses > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    items: list[_Item] = []
    for value in values:
        if value is Ellipsis:
            items += [_Item(None, None)] * max(len(shape) - (len(values) - ellipses), 0)
        else:
            items.append(_item(value, len(items), shape))
    return items


def like_stock(index: Any, shape: Shape) -> Selection:
    """Unlike the stock package, an open slice of an empty dimension is empty, and a reversed slice is an error that
    says so."""
    items = _items(index, shape)

    def refuse(what: str) -> SafetensorError:
        return SafetensorError(f"Error during slicing [{', '.join(map(str, items))}] with shape {list(shape)}: {what}")

    if len(items) > len(shape):
        raise refuse("more slicing indexes than dimensions in tensor")
    box: list[tuple[int, int]] = [(0, size) for size in shape]
    rest: list[Any] = [slice(None)] * len(shape)
    for dimension in reversed(range(len(items))):
        item, size = items[dimension], shape[dimension]
        begin = 0 if item.begin is None else item.begin
        end = size if item.end is None else item.end
        if (begin >= size or end > size) and not begin == end == size == 0:
            asked = begin if begin >= size else end - 1
            raise refuse(f"index {asked} out of bounds for tensor dimension #{dimension} of size {size}")
        if end < begin:
            raise refuse(f"dimension #{dimension} ends at {end}, before it begins at {begin}")
        box[dimension] = (begin, end)
        rest[dimension] = 0 if item.integer else slice(None, None, item.step)
    plain = all(isinstance(item, slice) and item.step in (None, 1) for item in rest)
    return Selection(tuple(box), None if plain else tuple(rest))
