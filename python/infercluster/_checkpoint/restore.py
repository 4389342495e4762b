# SPDX-License-Identifier: Apache-2.0
"""load: what a checkpoint holds, into a state that is there."""

from __future__ import annotations

import contextlib
import fnmatch
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .. import _core
from .._device import DeviceTensor
from .._errors import TensorNotFoundError
from . import pages, tensors, values
from .interrupt import in_thread
from .pages import Pages
from .tree import ABSENT, PAGES, TENSOR, TREE_KEY, Flat, Stored, has_state
from .values import listed, name_of

if TYPE_CHECKING:
    from .._types import LoadReport
    from .tensors import HeldBox, Shape


@dataclass
class _Target:
    name: str
    destination: Any  # of the caller
    memory: Any  # that the core fills; when it is not the destination, copied to it afterwards


class Saved(Protocol):
    """A checkpoint, as far as a restore looks at it."""

    @property
    def path(self) -> str: ...
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...], int]]: ...
    def metadata(self) -> list[dict[str, str]]: ...


class MoreIsNeededError(Exception):
    """Of the checkpoint than what this rank saved."""


class Trees:
    """The trees that the ranks saved: a rank's own first, then the others', for what it had not. `is_whole` False: only
    its own is known."""

    def __init__(self, checkpoint: Saved, rank: int, is_whole: bool = True) -> None:
        texts = [texts.get(TREE_KEY) for texts in checkpoint.metadata()]
        own = rank if rank < len(texts) else 0
        self._texts = [texts[own], *texts[:own], *texts[own + 1 :]] if texts else []
        self._is_whole = is_whole
        self._read: list[Stored] = []
        self._path = checkpoint.path

    def _trees(self) -> Iterable[Stored]:
        for i, text in enumerate(self._texts):
            if i > 0 and not self._is_whole:
                raise MoreIsNeededError
            if i == len(self._read):
                self._read.append(Stored(json.loads(text)) if text is not None else Stored({"$dict": []}))
            yield self._read[i]

    def own(self) -> Stored:
        return next(iter(self._trees()), Stored({"$dict": []}))

    def find(self, name: str) -> Any:
        for tree in self._trees():
            found = tree.find(name)
            if found is not ABSENT:
                return found
        return ABSENT


class Restore(ABC):
    """One load. collect() looks at all of `into` and changes nothing; then tensors are filled; apply() sets the rest."""

    def __init__(
        self,
        checkpoint: Saved,
        rank: int,
        only: str | list[str] | None,
        strict: bool,
        cast: bool,
        is_whole: bool = True,
    ) -> None:
        self._checkpoint = checkpoint
        self._stored = checkpoint.tensors()  # name -> dtype, shape, chunks
        self._trees = Trees(checkpoint, rank, is_whole)
        self._only = [only] if isinstance(only, str) else only
        self._strict, self._cast = strict, cast
        self._targets: list[_Target] = []
        self._missing: list[str] = []
        self._different: list[str] = []
        self._seen: set[str] = set()
        self._states: dict[str, Any] = {}  # by name: what load_state_dict() will get

    def collect(self, into: Any) -> None:
        self._collect(into, ())
        if self._missing and self._strict:
            raise TensorNotFoundError(
                f"{self._checkpoint.path} does not have: {listed(self._missing)}. To load what it has, ask for"
                " strict=False, or name what you want with only="
            )
        if self._different:
            hint = "" if self._cast else ". Nothing is converted unasked; dtypes are with cast=True"
            raise ValueError(f"{self._checkpoint.path}: what was saved differs: {listed(self._different)}{hint}")

    def unexpected(self) -> list[str]:
        """Names of the checkpoint that `into` has no place for."""
        names = {*self._stored, *self._trees.own().leaves}
        return sorted(name for name in names - self._seen if self._is_wanted(name))

    def _is_wanted(self, name: str) -> bool:
        return self._only is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._only)

    def _collect(self, node: Any, path: tuple[Any, ...]) -> None:
        name = name_of(path)
        if tensors.is_tensor(node):
            if self._is_wanted(name):
                self._add_tensor(name, node)
        elif isinstance(node, Pages):
            self._add_pages(name, node)
        elif has_state(node):
            self._collect_state(node, path)
        elif isinstance(node, Mapping) and node:
            for key, value in node.items():
                self._collect(value, (*path, key))
        elif isinstance(node, (list, tuple)) and node:
            for i, value in enumerate(node):
                self._collect(value, (*path, i))
        elif self._is_wanted(name):
            found = self._trees.find(name)
            self._seen.update(_under(name, found))
            if found is ABSENT:
                self._missing.append(name)
            elif _holds(found, TENSOR):
                self._different.append(f"{name} (saved as a tensor, wanted as a {type(node).__name__})")
            elif _holds(found, PAGES):
                self._different.append(f"{name} (saved as pages, wanted as a {type(node).__name__})")

    def _add_pages(self, name: str, wanted: Pages) -> None:
        self._seen.add(name)
        ids = {}
        for identity, slot in wanted._checked_ids().items():
            page = pages.name_of_page(name, identity)
            if self._is_wanted(name) or self._is_wanted(page):
                if all([self._has_part(page, pool) for pool in wanted._pools]):
                    ids[identity] = slot
        if len(set(ids.values())) < len(ids):
            raise ValueError(f'"{name}": two pages are to be loaded into one slot')
        self._want_pages(name, wanted, ids)

    def _has_part(self, page: str, pool: pages.Pool) -> bool:
        name = page + pool.suffix
        self._seen.add(name)
        if name not in self._stored:
            self._missing.append(name)
            return False
        dtype, shape, _ = self._stored[name]
        if (dtype, shape) != (pool.dtype, pool.shape):
            self._different.append(
                f"{name} (saved as {dtype} {list(shape)}, wanted as {pool.dtype} {list(pool.shape)}, and pages are not cast)"
            )
        return True

    def _add_tensor(self, name: str, tensor: Any) -> None:
        self._seen.add(name)
        stored = self._stored.get(name)
        if stored is None:
            if self._trees.find(name) is ABSENT:
                self._missing.append(name)
            else:
                self._different.append(f"{name} (saved as a plain value, wanted as a tensor)")
            return
        described = tensors.describe(name, tensor)
        dtype, shape, _ = stored
        if described.shape != shape:
            self._different.append(f"{name} (saved with the shape {list(shape)}, wanted {list(described.shape)})")
            return
        if described.dtype != dtype and not self._cast:
            self._different.append(f"{name} (saved as {dtype}, wanted as {described.dtype})")
            return
        for part in described.parts:
            if part.memory is None:
                continue
            if not tensors.is_writable(part.memory):
                self._different.append(f"{name} (the array to load into is read-only)")
                return
            as_is = described.dtype == dtype and self._can_fill(part.memory, dtype)
            if not as_is and isinstance(part.memory, DeviceTensor):
                self._different.append(f"{name} (a DeviceTensor is filled as it was saved, and by no stock checkpoint)")
                return
            memory = part.memory if as_is else tensors.empty(part.memory, dtype, part.lengths)
            self._targets.append(_Target(name, part.memory, memory))
            self._want(name, dtype, shape, part, memory)

    def _can_fill(self, memory: Any, dtype: str) -> bool:
        """Without a copy on the host that goes there afterwards."""
        return tensors.is_plain_memory(memory, dtype)

    @abstractmethod
    def _want(self, name: str, dtype: str, shape: Shape, part: HeldBox, memory: Any) -> None:
        """This memory gets that part of a tensor."""

    @abstractmethod
    def _want_pages(self, name: str, wanted: Pages, ids: Mapping[Any, int]) -> None:
        """These slots get the pages of these ids, which are there as they are wanted."""

    def _collect_state(self, node: Any, path: tuple[Any, ...]) -> None:
        """What was saved decides which keys come back (an optimizer that has not stepped has no state yet); tensors
        that the object has are filled in place."""
        name = name_of(path)
        found = self._trees.find(name)
        if self._only is not None or found is ABSENT:
            self._collect(dict(node.state_dict()), path)  # by its own keys
            return
        saved = Stored(found)
        theirs: dict[str, Any] = {}
        flat = Flat(node)
        for key, tensor in (*flat.tensors.items(), *flat.pages.items()):
            theirs[_joined(name, key)] = tensor
            if saved.find(key) is ABSENT:
                self._missing.append(_joined(name, key))
        self._states[name] = values.decode(found, lambda kind, content: self._state_tensor(kind, content, theirs))
        self._seen.update(_under(name, found))

    def _state_tensor(self, kind: str, content: Any, theirs: dict[str, Any]) -> Any:
        if kind == PAGES and isinstance(theirs.get(content[0]), Pages):
            self._add_pages(content[0], theirs[content[0]])
            return theirs[content[0]]
        if kind != TENSOR:
            return values.no_stored(kind, content)
        name, framework = content
        tensor = theirs.get(name)
        if tensor is None:
            dtype, shape, chunks = self._stored[name]
            if chunks > 1:
                self._different.append(
                    f"{name} (saved in {chunks} parts, and the object has no tensor for it that says which are wanted:"
                    " initialise its state first)"
                )
            tensor = tensors.fresh(framework, dtype, shape)
        self._add_tensor(name, tensor)
        return tensor

    def apply(self, into: Any) -> None:
        for target in self._targets:
            if target.memory is not target.destination:
                tensors.copy_into(target.destination, target.memory)
        self._apply(into, ())

    def _apply(self, node: Any, path: tuple[Any, ...]) -> Any:
        """Returns what belongs in the node's place."""
        name = name_of(path)
        if tensors.is_tensor(node) or isinstance(node, Pages):
            return node
        if has_state(node):
            if name in self._states:
                node.load_state_dict(self._states[name])
            else:
                node.load_state_dict(self._apply(dict(node.state_dict()), path))
            return node
        if isinstance(node, Mapping) and node:
            for key in list(node):
                value = self._apply(node[key], (*path, key))
                if value is not node[key]:
                    node[key] = value  # type: ignore[index]
            return node
        if isinstance(node, list) and node:
            for i, item in enumerate(node):
                node[i] = self._apply(item, (*path, i))
            return node
        if isinstance(node, tuple) and node:
            items = [self._apply(item, (*path, i)) for i, item in enumerate(node)]
            if all(new is old for new, old in zip(items, node, strict=True)):
                return node
            return type(node)(*items) if hasattr(node, "_fields") else tuple(items)
        found = self._trees.find(name) if self._is_wanted(name) else ABSENT
        return node if found is ABSENT else values.decode(found, values.no_stored)


class OwnRestore(Restore):
    def __init__(
        self, checkpoint: _core.Checkpoint, rank: int, only: str | list[str] | None, strict: bool, cast: bool
    ) -> None:
        super().__init__(checkpoint, rank, only, strict, cast, checkpoint.is_whole)
        self._core_checkpoint, self._core_tensors = checkpoint, _core.Tensors()
        self._filled: list[tuple[Pages, list[int]]] = []  # and the slots

    def _can_fill(self, memory: Any, dtype: str) -> bool:
        return tensors.core_can_copy(memory, dtype)

    def _want(self, name: str, dtype: str, shape: Shape, part: HeldBox, memory: Any) -> None:
        tensors.add(self._core_tensors, name, dtype, shape, part, memory)

    def _want_pages(self, name: str, wanted: Pages, ids: Mapping[Any, int]) -> None:
        pages.add_targets(self._core_tensors, name, wanted, ids)
        self._filled.append((wanted, list(ids.values())))

    def has_all(self) -> bool:
        """Whether the checkpoint knows where all is that was collected, and nothing is in doubt."""
        if self._core_checkpoint.is_whole:
            return True
        return not self._missing and not self._different and self._core_checkpoint.covers(self._core_tensors)

    def read(self, checkpointer: _core.Checkpointer) -> LoadReport:
        """By all ranks of the checkpointer together; the same verdict on all."""
        with contextlib.ExitStack() as writing:
            for wanted, slots in self._filled:
                writing.enter_context(wanted.writing(slots))
            return checkpointer.restore(self._core_checkpoint, self._core_tensors)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name and key else name or key


def _under(name: str, found: Any) -> set[str]:
    """The names of what is in a part of a tree."""
    return {name} if found is ABSENT else {_joined(name, key) for key in Stored(found).leaves}


def _holds(json_value: Any, kind: str) -> bool:
    if isinstance(json_value, list):
        return any(_holds(item, kind) for item in json_value)
    if isinstance(json_value, dict):
        return kind in json_value or any(_holds(item, kind) for item in json_value.values())
    return False


def looked_at_own(
    root: bytes, step: int, rank: int, world: int, into: Any, only: str | list[str] | None, strict: bool, cast: bool
) -> OwnRestore | None:
    """By the indexes that this rank needs for what it saved, where there are as many ranks as then: those of a large
    job are more than what it reads besides. None: anything is in doubt, and all of the checkpoint must be looked at."""
    own = in_thread(lambda: _core.open_own_checkpoint(root, step, rank, world))
    try:
        restore = OwnRestore(own, rank, only, strict, cast)
        restore.collect(into)
    except Exception:
        if own.is_whole:
            raise
        return None
    return restore if restore.has_all() else None
