# SPDX-License-Identifier: Apache-2.0
"""Pages: the state of a server that goes on serving."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core, _dtypes
from . import tensors

Id = int | str
_numbers = itertools.count(1)  # of Pages of this process: equal generations of two of them say nothing
_SLOTS_MAX = 1 << 32


@dataclass(frozen=True)
class Pool:
    """What each page has in one tensor."""

    suffix: str  # of its name
    dtype: str
    shape: tuple[int, ...]  # of the whole page's part
    offsets: tuple[int, ...]  # of what this rank holds of it
    lengths: tuple[int, ...]
    address: int  # of slot 0
    stride: int  # bytes between two slots
    slots: int


class Pages:
    """
    Pages of a server's pools, such as blocks of a KV cache or adapters, saved while the server goes on.

        generations = numpy.zeros(blocks, numpy.uint64)
        pages = infercluster.Pages({"k": k_cache, "v": v_cache}, generations, ids={7: 3, 8: 0})  # page 7 is in slot 3
        with pages.writing([3]):
            ...                                              # the content of slot 3 changes
        checkpointer.save(step, {"kv": pages, "requests": table})
        checkpointer.load({"kv": Pages(...)}, only="kv")     # by id, into the slots that `ids` says there

    A page is saved as of one moment, whatever the server does meanwhile, and the server waits for nothing: each slot has
    a counter, its generation, which is odd while the slot's content changes and even at rest. A page that changed while
    it was copied is copied again. What was saved before under the same generation is not written again, but linked to.

    Keep one object as long as the pools live: generations are compared within it alone. They say nothing over a restart,
    so the first save of a new process, and of a new object, writes every page. Slots that are given to another page while
    save() runs would be saved under the old id: give no slot away before it returns.

    Args:
        pools: a tensor of torch or numpy in host memory, whose first dimension is the slot and whose slots lie
        contiguous each, or several by name (the name has no "/"). With several ranks, `infercluster.Part` of one whose
        other dimensions are cut; a page whose content ranks do not share out so belongs to one of them alone.
        generations: a counter per slot, uint64 or int64, in host memory; whoever changes a slot without writing() adds
        1 before the first and after the last write. ids: which pages there are: id (whole numbers, or texts) to slot,
        also later by the attribute `ids`. None: each slot, by its number.

    Raises:
        TypeError, ValueError: by the pool's name.
    """

    def __init__(self, pools: Any, generations: Any, ids: Mapping[Any, int] | Iterable[int] | None = None) -> None:
        named = dict(pools) if isinstance(pools, Mapping) else {"": pools}
        if not named:
            raise ValueError("no pool was given")
        for name in named:
            if not isinstance(name, str) or "/" in name or (not name and isinstance(pools, Mapping)):
                raise ValueError(f'a pool is called {name!r}; expected a text without "/"')
        self._pools = [_pool_of(name, tensor) for name, tensor in named.items()]
        self._slots = self._pools[0].slots
        for name, pool in zip(named, self._pools, strict=True):
            if pool.slots != self._slots:
                raise ValueError(f'the pool "{name}" has {pool.slots} slots, and the first one {self._slots}')
        self._generations = _address_of_counters(generations, self._slots)
        self._alive = (named, generations)
        self._number = next(_numbers)
        self.ids: dict[Any, int] = _ids_of(range(self._slots) if ids is None else ids)
        self._checked_ids()

    @property
    def slots(self) -> int:
        return self._slots

    @contextlib.contextmanager
    def writing(self, slots: Iterable[int]) -> Iterator[None]:
        """The content of these slots changes in the block, which one thread at a time may enter for a slot. Takes no
        lock."""
        listed = [self._checked_slot(slot) for slot in slots]
        _core.begin_changes(self._generations, listed)
        try:
            yield
        finally:
            _core.end_changes(self._generations, listed)

    def __repr__(self) -> str:
        return f"<infercluster.Pages: {len(self.ids)} in {self._slots} slots of {len(self._pools)} pools>"

    def _checked_slot(self, slot: Any) -> int:
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} is not one of {self._slots}")
        return int(slot)

    def _checked_ids(self) -> dict[Any, int]:
        """As they are now; the server may go on."""
        ids = self.ids.copy()
        kinds = {type(identity) for identity in ids}
        if kinds - {int, str} or len(kinds) > 1:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise TypeError(f"ids of pages are of the types {names}; expected int or str, and one of them alone")
        for slot in ids.values():
            self._checked_slot(slot)
        return ids


def _ids_of(ids: Mapping[Any, int] | Iterable[int]) -> dict[Any, int]:
    return dict(ids) if isinstance(ids, Mapping) else {int(slot): int(slot) for slot in ids}


def _pool_of(name: str, tensor: Any) -> Pool:
    described = tensors.describe(name, tensor)
    if len(described.parts) != 1 or described.sharding is not None:
        raise TypeError(f'the pool "{name}" is spread over ranks: give what this rank holds, as a Part')
    part = described.parts[0]
    memory = part.memory
    if len(described.shape) < 2 or part.lengths[0] != described.shape[0]:
        raise ValueError(f'the pool "{name}" has the shape {list(described.shape)}; expected slots first, all of them here')
    if not tensors.is_plain_memory(memory, described.dtype):
        raise TypeError(f'the pool "{name}" is not in host memory as it is; Pages on other devices are not supported')
    if not tensors.is_writable(memory):
        raise ValueError(f'the pool "{name}" is read-only')
    strides = tensors.strides_of(memory) or _row_major(memory)
    if part.lengths[0] > 0 and tensors.strides_of(memory[0]):
        raise ValueError(f'each slot of the pool "{name}" must be contiguous; its strides are {strides} bytes')
    if 0 in part.lengths:
        raise ValueError(f'the pool "{name}" has the shape {list(described.shape)}, and no elements')
    suffix = f"/{name}" if name else ""
    offsets, lengths = part.offsets[1:], part.lengths[1:]
    address = tensors.address_of(memory)
    return Pool(suffix, described.dtype, described.shape[1:], offsets, lengths, address, strides[0], part.lengths[0])


def _row_major(memory: Any) -> list[int]:
    if _dtypes.is_torch(memory):
        return [stride * memory.element_size() for stride in memory.stride()]
    return list(memory.strides)


def _address_of_counters(generations: Any, slots: int) -> int:
    described = tensors.describe("generations", generations) if tensors.is_tensor(generations) else None
    if described is None or described.dtype not in ("U64", "I64"):
        raise TypeError("generations must be an array of uint64 or int64, of torch or numpy")
    memory = described.parts[0].memory if len(described.parts) == 1 else None
    plain = memory is not None and tensors.is_plain_memory(memory, described.dtype) and tensors.is_writable(memory)
    if not plain or described.shape != (slots,) or tensors.strides_of(memory):
        raise ValueError(f"generations must be {slots} numbers, contiguous, writable and in host memory; one for each slot")
    return tensors.address_of(memory)


def name_of_page(path: str, identity: Id) -> str:
    return f"{path}/{identity}"


def add(listed: _core.Tensors, path: str, pages: Pages) -> None:
    """To what is saved."""
    ids = pages._checked_ids()
    names = [name_of_page(path, identity) for identity in ids]
    listed.add_pages(names, list(ids.values()), _as_tuples(pages), pages._generations, pages._number * _SLOTS_MAX)


def add_targets(listed: _core.Tensors, path: str, pages: Pages, ids: Mapping[Any, int]) -> None:
    """To what is loaded into."""
    listed.add_pages([name_of_page(path, identity) for identity in ids], list(ids.values()), _as_tuples(pages), 0, 0)


def _as_tuples(pages: Pages) -> list[tuple[Any, ...]]:
    return [
        (pool.suffix, pool.dtype, pool.shape, pool.offsets, pool.lengths, pool.address, pool.stride)
        for pool in pages._pools
    ]


def kind_of(pages: Pages) -> list[Any]:
    """What the tree of values keeps of them, beside their name: pools, and whether ids are texts."""
    is_text = any(isinstance(identity, str) for identity in pages.ids)
    return [[pool.suffix for pool in pages._pools], "str" if is_text else "int"]


def ids_of(names: Iterable[str], path: str, kind: list[Any]) -> list[Any]:
    """The ids of the pages of that name in a checkpoint with these tensors."""
    suffixes, type_name = kind
    first: str = suffixes[0]
    prefix = path + "/"
    texts = [name[len(prefix) : len(name) - len(first)] for name in names if name.startswith(prefix) and name.endswith(first)]
    return sorted(map(int, texts)) if type_name == "int" else sorted(texts)
