# SPDX-License-Identifier: Apache-2.0
"""Puts ours in the place of the stock package, for code that imports it itself, and takes it out again."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

from .._environment import disabled

_BASE = ("safe_open", "_safe_open_handle", "serialize", "serialize_file", "deserialize", "TensorSpec")
_FRAMEWORK = ("save", "save_file", "load", "load_file", "save_model", "load_model")
_MODULES = {"": _BASE, ".torch": _FRAMEWORK, ".numpy": _FRAMEWORK}

_lock = threading.Lock()
_depth = 0  # guarded by _lock: how many patches are active
_done: list[tuple[Any, Any]] = []  # guarded by _lock: (stock's, ours)
_own: set[tuple[str, str]] = set()  # guarded by _lock: module and name that were bound to ours before, and stay so


def _pairs() -> list[tuple[Any, Any]]:
    """The stock package's objects and ours. Frameworks' modules count only when the stock ones are imported: what
    imports them later takes the names of the base module from it, and those are ours by then."""
    pairs = []
    for suffix, names in _MODULES.items():
        stock = sys.modules.get(f"safetensors{suffix}")
        if stock is None:
            continue
        ours = importlib.import_module(f"infercluster.safetensors{suffix}")
        pairs += [
            (getattr(stock, name), getattr(ours, name))
            for name in names
            if hasattr(stock, name) and hasattr(ours, name)
        ]
    return [(old, new) for old, new in pairs if old is not new]


def _is_ours(name: str) -> bool:
    return name == "infercluster" or name.startswith("infercluster.") or name == "safetensors._safetensors_rust"


def _bindings(objects: list[Any]) -> list[tuple[str, str, Any]]:
    """(module, name, object) of every module-level name outside of this package that is bound to one of these
    objects."""
    ids = {id(one) for one in objects}
    found = []
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not _is_ours(module_name):
            found += [(module_name, name, value) for name, value in list(vars(module).items()) if id(value) in ids]
    return found


def _replace(pairs: list[tuple[Any, Any]]) -> None:
    by_id = {id(old): new for old, new in pairs}
    for module_name, name, value in _bindings([old for old, _ in pairs]):
        if (module_name, name) not in _own:
            vars(sys.modules[module_name])[name] = by_id[id(value)]


def _apply() -> None:
    importlib.import_module("safetensors")
    _done[:] = _pairs()
    _own.clear()
    _own.update((module_name, name) for module_name, name, _ in _bindings([new for _, new in _done]))
    _replace(_done)


def _restore() -> None:
    _replace([(new, old) for old, new in _done])
    _done.clear()
    _own.clear()


class patch:  # noqa: N801 - used like a function
    """
    While the context is open, `safetensors.safe_open`, `safetensors.torch.load_file` and their like are ours, in the
    stock package and in every module that has imported them. Nests. What keeps such an object elsewhere than under a
    module's name is not reached. Without effect under INFERCLUSTER_DISABLE=1.
    """

    def __enter__(self) -> patch:
        global _depth
        if not disabled():
            with _lock:
                if _depth == 0:
                    _apply()
                _depth += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        global _depth
        if not disabled():
            with _lock:
                _depth -= 1
                if _depth == 0:
                    _restore()
