# SPDX-License-Identifier: Apache-2.0
"""A state, as a caller gives it: tensors, plain values, and objects with state_dict(), in nested dicts, lists and
tuples. Each leaf has a name: the keys that lead to it, joined by dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import tensors, values
from .pages import Pages, kind_of
from .values import Json, name_of

PAGES = "$pages"  # in the tree of values: [name, pools, type of the ids]
TENSOR = "$tensor"  # in the tree of values: [name, "pt" or "np"]
TREE_KEY = "infercluster.tree"  # of the metadata that each rank saves


def has_state(value: Any) -> bool:
    """A module, an optimizer, a scheduler, a data loader, ..."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, Mapping)


def state_of(value: Any) -> Any:
    return value.state_dict() if has_state(value) else value


class Flat:
    """A state taken apart."""

    def __init__(self, state: Any) -> None:
        self.tensors: dict[str, Any] = {}
        self.pages: dict[str, Pages] = {}
        state = state_of(state)
        if not isinstance(state, Mapping):
            raise TypeError(
                f"the state is a {type(state).__name__}; expected a dict of names to tensors, values and objects with"
                " state_dict()"
            )
        self.tree: Json = values.encode(_as_dict(state), self._leaf)
        for path in self.pages:
            inside = next((name for name in self.tensors if name.startswith(path + "/")), None)
            if inside is not None:
                raise ValueError(f'"{inside}" would be taken for one of the pages of "{path}": rename one of the keys')

    def _leaf(self, value: Any, path: tuple[Any, ...]) -> Json | None:
        if tensors.is_tensor(value):
            name = name_of(path)
            if name in self.tensors:
                raise ValueError(f'two tensors of the state have the name "{name}": rename one of the keys')
            self.tensors[name] = value
            return {TENSOR: [name, "pt" if not _is_numpy(value) else "np"]}
        if isinstance(value, Pages):
            name = name_of(path)
            if name in self.pages:
                raise ValueError(f'two values of the state have the name "{name}": rename one of the keys')
            self.pages[name] = value
            return {PAGES: [name, *kind_of(value)]}
        if has_state(value):
            return values.encode(_as_dict(value.state_dict()), self._leaf, path)
        if isinstance(value, Mapping) and type(value) is not dict and _has_tensors(value):
            return values.encode(_as_dict(value), self._leaf, path)
        return None


def _is_numpy(value: Any) -> bool:
    if isinstance(value, tensors.Part):
        value = value.memory
    return type(value).__module__.partition(".")[0] == "numpy" or hasattr(value, "__array_interface__")


def _as_dict(state: Any) -> Any:
    """state_dict() of a module is an OrderedDict with an attribute that torch makes anew."""
    return dict(state) if isinstance(state, Mapping) else state


def _has_tensors(value: Any) -> bool:
    if tensors.is_tensor(value) or isinstance(value, Pages) or has_state(value):
        return True
    if isinstance(value, Mapping):
        return any(_has_tensors(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_has_tensors(item) for item in value)


_ABSENT = object()


class Stored:
    """The tree of values that one rank saved."""

    def __init__(self, tree: Json) -> None:
        self.leaves: dict[str, Json] = {}  # of values that are neither dict, list nor tuple, by name
        self.containers: dict[str, Json] = {}
        self._walk(tree, ())

    def _walk(self, json: Json, path: tuple[Any, ...]) -> None:
        children: list[tuple[Any, Json]] | None = None
        if isinstance(json, list):
            children = list(enumerate(json))
        elif isinstance(json, dict):
            ((kind, content),) = json.items()
            if kind in ("$dict", "$OrderedDict"):
                children = [(values.decode(key, values.no_stored), item) for key, item in content]
            elif kind == "$tuple":
                children = list(enumerate(content))
        name = name_of(path)
        if children is None:
            self.leaves[name] = json
            return
        self.containers[name] = json
        for key, item in children:
            self._walk(item, (*path, key))

    def find(self, name: str) -> Json:
        """ABSENT when it is not there."""
        if name in self.leaves:
            return self.leaves[name]
        return self.containers.get(name, _ABSENT)


ABSENT = _ABSENT
