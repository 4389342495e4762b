# SPDX-License-Identifier: Apache-2.0
"""Runs a method of an engine's loader with our stream in the place of its iterators over safetensors files, so that
everything else (which files, prefixes, filters, other formats) stays the engine's own."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_lock = threading.RLock()


def chosen_when_called(method: Any) -> None:
    """Raises unless a method chooses its iterator when it is called: one that does so later would get the engine's."""
    if inspect.isgeneratorfunction(method):
        raise RuntimeError(
            f"{method.__qualname__} is a generator: this version is not supported. Use another load format, such as"
            ' "auto"'
        )


@contextlib.contextmanager
def replaced(module: ModuleType, functions: Mapping[str, Any]) -> Iterator[None]:
    """While it is open, these names of the module are these functions. One at a time: the names are global."""
    with _lock:
        stock = {name: getattr(module, name) for name in functions if hasattr(module, name)}
        if not stock:
            raise RuntimeError(
                f"{module.__name__} has none of {', '.join(functions)}: this version is not supported."
                ' Use another load format, such as "auto"'
            )
        try:
            for name in stock:
                setattr(module, name, functions[name])
            yield
        finally:
            for name, function in stock.items():
                setattr(module, name, function)
