# SPDX-License-Identifier: Apache-2.0
"""One rank's exception, raised on every rank: of the same class, with the same text and attributes."""

from __future__ import annotations

import builtins
import json
from typing import Any

from .._errors import SafetensorError, TensorNotFoundError

_TEXT_MAX = 4096
_ATTRIBUTES = ("code", "path", "offset", "tensor", "hint", "kind")
_OWN: dict[str, type[Exception]] = {"SafetensorError": SafetensorError, "TensorNotFoundError": TensorNotFoundError}
_STANDARD = ("ValueError", "TypeError", "KeyError", "MemoryError", "RuntimeError", "TimeoutError", "ConnectionError")


def packed(error: BaseException) -> bytes:
    document: dict[str, Any] = {"class": _class_of(error), "text": _text(error)[:_TEXT_MAX]}
    if isinstance(error, OSError):
        document |= {"errno": error.errno, "filename": error.filename and str(error.filename)}
    for name in _ATTRIBUTES:
        value = getattr(error, name, None)
        if value is None or isinstance(value, (str, int)):
            document[name] = value
    return json.dumps(document).encode()


def _class_of(error: BaseException) -> str:
    for one in type(error).__mro__:
        if one is OSError or one.__name__ in _OWN or one.__name__ in _STANDARD:
            return one.__name__
    # torch's OutOfMemoryError is a RuntimeError; Ctrl-C on one rank is a failure for the others.
    return "RuntimeError"


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or ""
    text = str(error)
    known = type(error).__name__ in _OWN or type(error).__name__ in _STANDARD
    return text if known and text else f"{type(error).__name__}: {text}" if text else type(error).__name__


def unpacked(data: bytes, rank: int, others: int) -> Exception:
    """`others`: how many more ranks failed at the same time."""
    document = json.loads(data)
    more = f" ({others} more failed with it)" if others else ""
    text = f"rank {rank}: {document['text']}{more}"
    name, number = document["class"], document.get("errno")
    result: Exception
    if name == "OSError" or number is not None:
        path = document.get("filename")
        result = OSError(number, text, path) if number is not None else OSError(text)
    elif name in _OWN:
        result = _OWN[name](text)
    elif name in _STANDARD:
        result = getattr(builtins, name)(text)
    else:
        result = RuntimeError(text)
    for attribute in _ATTRIBUTES:
        setattr(result, attribute, document.get(attribute))
    result.rank = rank  # type: ignore[attr-defined]
    return result
