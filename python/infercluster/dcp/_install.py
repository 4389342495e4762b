# SPDX-License-Identifier: Apache-2.0
"""Puts Writer and Reader in the place of torch's FileSystemWriter and FileSystemReader, and takes them out again."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from .. import _log
from .._environment import disabled
from ._reader import Reader
from ._writer import Writer

_PACKAGE = "torch.distributed.checkpoint"
_DERIVED = ("_fsspec_filesystem", "hf_storage", "quantized_hf_storage")  # they derive from the stock classes when imported

_lock = threading.Lock()
_installed = False  # guarded by _lock


def _write(arguments: dict[str, Any]) -> Writer | None:
    """None: what only the stock writer does. How many files and threads, how they are synced and how far ahead they are
    copied is for us to say."""
    if arguments.get("_extensions") or not _is_default(FileSystemWriter, "serialization_format", arguments):
        return None
    return Writer(arguments["path"], overwrite=arguments.get("overwrite", True))


def _read(arguments: dict[str, Any]) -> Reader | None:
    return None if arguments.get("_extension_registry") is not None else Reader(arguments["path"])


def _is_default(of: type, name: str, arguments: dict[str, Any]) -> bool:
    parameter = inspect.signature(of).parameters.get(name)
    return parameter is None or name not in arguments or arguments[name] == parameter.default


class _StandIn(type):
    """The class of the stand-ins: they make ours, are bases as the stock classes are, and have both as instances."""

    _stock: type
    _ours: type
    _make: Callable[[dict[str, Any]], Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        if not any(isinstance(base, _StandIn) for base in bases):
            return super().__new__(mcs, name, bases, namespace)
        stock = tuple(base._stock if isinstance(base, _StandIn) else base for base in bases)
        return type(stock[0])(name, stock, namespace, **options)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(cls._stock).bind(*args, **kwargs).arguments
        made = cls._make(arguments)
        if made is not None:
            return made
        _log.LOGGER.info("torch's own %s does this: infercluster.dcp has no %s", cls._stock.__name__, sorted(arguments))
        return cls._stock(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls._stock, cls._ours))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls._stock, cls._ours))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._stock, name)


def _stand_in(stock: type, ours: type, make: Callable[[dict[str, Any]], Any]) -> Any:
    namespace = {
        "__doc__": stock.__doc__,
        "__module__": stock.__module__,
        "__qualname__": stock.__qualname__,
        "__signature__": inspect.signature(stock),
        "_stock": stock,
        "_ours": ours,
        "_make": staticmethod(make),
    }
    return _StandIn(stock.__name__, (), namespace)


_PAIRS = [
    (FileSystemWriter, _stand_in(FileSystemWriter, Writer, _write)),
    (FileSystemReader, _stand_in(FileSystemReader, Reader, _read)),
]


def _replace(pairs: list[tuple[Any, Any]]) -> None:
    """In every module that has imported them, but for this package."""
    by_id = {id(old): new for old, new in pairs}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module_name.partition(".")[0] == "infercluster":
            continue
        for name, value in list(vars(module).items()):
            if id(value) in by_id:
                vars(module)[name] = by_id[id(value)]


def install() -> None:
    """
    From now on `torch.distributed.checkpoint.FileSystemWriter(path)` and `FileSystemReader(path)` make ours, also where
    torch makes them itself (`dcp.save(state, checkpoint_id=...)`), in every module that has imported them. Classes that
    derive from them stay torch's; so do writers with extensions or another serialization format. Without effect under
    INFERCLUSTER_DISABLE=1.
    """
    global _installed
    with _lock:
        if _installed or disabled():
            return
        for name in _DERIVED:
            try:
                importlib.import_module(f"{_PACKAGE}.{name}")
            except ImportError as error:  # what it needs is not installed
                _log.LOGGER.debug("%s.%s: %s", _PACKAGE, name, error)
        _replace(_PAIRS)
        _installed = True


def uninstall() -> None:
    global _installed
    with _lock:
        if _installed:
            _replace([(ours, stock) for stock, ours in _PAIRS])
            _installed = False
