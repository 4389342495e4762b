# SPDX-License-Identifier: Apache-2.0
"""What is no tensor, as JSON that gives back the same value of the same type. Pure.

JSON's own null, true, strings, and whole numbers of up to 53 bits stand for themselves, a list for a list. Everything
else is an object with one member whose name begins with "$". What no rule here covers is pickled: such a value is
unpickled when it is loaded, which runs code, so it must come from someone trusted.
"""

from __future__ import annotations

import base64
import collections
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any

Json = Any

_NAMED_MAX = 20  # in one message
_SAFE_INTEGER = 2**53  # beyond it other readers of JSON round


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _plain(value: Any) -> Json | None:
    """What stands for itself; None: it does not."""
    kind = type(value)
    if kind is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:  # lone surrogates, as of file names that are no UTF-8
            return {"$text": _base64(value.encode("utf-8", "surrogatepass"))}
        return value
    if kind is bool:
        return value
    if kind is int:
        return value if -_SAFE_INTEGER < value < _SAFE_INTEGER else {"$int": hex(value)}
    if kind is float:
        return {"$float": value.hex()}
    if kind is complex:
        return {"$complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"$bytes": _base64(value)}
    if kind is bytearray:
        return {"$bytearray": _base64(bytes(value))}
    return None


def _of_torch(value: Any) -> Json | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.dtype):
        return {"$torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$torch.device": str(value)}
    if type(value) is torch.Size:
        return {"$torch.Size": list(value)}
    return None


def _of_numpy(value: Any) -> Json | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.hasobject:
        return None
    if value.dtype.kind not in "biufcSUmM":  # others are not told by their name alone
        return None
    return {"$numpy": [value.dtype.str, _base64(value.tobytes())]}


def encode(value: Any, of_leaf: Callable[[Any, tuple[Any, ...]], Json | None], path: tuple[Any, ...] = ()) -> Json:
    """`of_leaf` is asked first, with the path of keys: what it returns stands for the value."""
    found = of_leaf(value, path)
    if found is not None:
        return found
    if value is None:
        return None
    found = _plain(value)
    if found is not None:
        return found
    kind = type(value)
    if kind is list:
        return [encode(item, of_leaf, (*path, i)) for i, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [encode(item, of_leaf, (*path, i)) for i, item in enumerate(value)]}
    if kind is dict:
        return {"$dict": _pairs(value, of_leaf, path)}
    if kind is collections.OrderedDict:
        return {"$OrderedDict": _pairs(value, of_leaf, path)}
    if kind in (set, frozenset):
        return {"$" + kind.__name__: [encode(item, no_leaf) for item in value]}
    found = _of_torch(value)
    if found is None:
        found = _of_numpy(value)
    if found is not None:
        return found
    return {"$pickle": _base64(_pickled(value, path))}


def _pairs(value: dict[Any, Any], of_leaf: Callable[[Any, tuple[Any, ...]], Json | None], path: tuple[Any, ...]) -> Json:
    return [[encode(key, no_leaf), encode(item, of_leaf, (*path, key))] for key, item in value.items()]


def _pickled(value: Any, path: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        where = name_of(path)
        raise TypeError(
            f'"{where}" is a {type(value).__name__}, which cannot be saved: {error}.'
            " Leave it out, or give its state as a dict of tensors and plain values"
        ) from error


def no_leaf(value: Any, path: tuple[Any, ...]) -> Json | None:
    return None


def name_of(path: tuple[Any, ...]) -> str:
    """The name of what is at this path of keys: "model.layers.0.weight"."""
    return ".".join(str(key) for key in path)


def listed(names: Iterable[str]) -> str:
    """For a message: in order, and how many there are beyond the first."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + more


def _numpy_scalar(parts: list[str]) -> Any:
    import numpy

    dtype, data = parts
    return numpy.frombuffer(base64.b64decode(data), dtype=numpy.dtype(dtype))[0]


def _torch(kind: str, value: Any) -> Any:
    import torch

    if kind == "dtype":
        return getattr(torch, value)
    return torch.device(value) if kind == "device" else torch.Size(value)


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "$text": lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    "$int": lambda text: int(text, 16),
    "$float": float.fromhex,
    "$complex": lambda parts: complex(*(float.fromhex(part) for part in parts)),
    "$bytes": base64.b64decode,
    "$bytearray": lambda text: bytearray(base64.b64decode(text)),
    "$set": lambda items: {decode(item, no_stored) for item in items},
    "$frozenset": lambda items: frozenset(decode(item, no_stored) for item in items),
    "$numpy": _numpy_scalar,
    "$torch.dtype": lambda name: _torch("dtype", name),
    "$torch.device": lambda name: _torch("device", name),
    "$torch.Size": lambda sizes: _torch("Size", sizes),
    "$pickle": lambda text: pickle.loads(base64.b64decode(text)),
}


def decode(json: Json, of_stored: Callable[[str, Json], Any]) -> Any:
    """The inverse of encode(); `of_stored` makes the value of what `of_leaf` had returned, by its one member."""
    if isinstance(json, list):
        return [decode(item, of_stored) for item in json]
    if not isinstance(json, dict):
        return json
    ((kind, content),) = json.items()
    if kind == "$tuple":
        return tuple(decode(item, of_stored) for item in content)
    if kind in ("$dict", "$OrderedDict"):
        pairs = ((decode(key, no_stored), decode(item, of_stored)) for key, item in content)
        return dict(pairs) if kind == "$dict" else collections.OrderedDict(pairs)
    if kind in _SIMPLE:
        return _SIMPLE[kind](content)
    return of_stored(kind, content)


def no_stored(kind: str, content: Json) -> Any:
    raise ValueError(f'the checkpoint holds a value of the kind "{kind}", which this release does not know; use a newer one')
