# SPDX-License-Identifier: Apache-2.0
"""Errors of the C++ core as standard Python exceptions."""

from __future__ import annotations

import errno as _errno

try:
    # Callers catch the class of the stock package, so it is ours, too.
    from safetensors import SafetensorError as SafetensorError
except ImportError:

    class SafetensorError(Exception):  # type: ignore[no-redef]
        """A safetensors file breaks the rules of its format, or an operation on it does."""

    SafetensorError.__module__ = "infercluster.safetensors"


class TensorNotFoundError(KeyError):
    """A tensor that was asked for by name is not there. `str()` is the plain message."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def _sentence(message: str, path: str, offset: int | None, tensor: str, hint: str) -> str:
    parts = [path] if path else []
    if tensor:
        parts.append(f'tensor "{tensor}"')
    if offset is not None:
        parts.append(f"offset {offset}")
    text = ": ".join([*parts, message])
    return f"{text}. {hint}" if hint else text


def _os_error(number: int, text: str, path: str) -> OSError:
    # OSError() picks the subclass (FileNotFoundError, PermissionError, ...) by the number.
    return OSError(number, text, path) if path else OSError(number, text)


# The core's codes, by its names for them, and the errno that says the same where no system call has failed.
_NUMBERS = {
    "not found": _errno.ENOENT,
    "permission denied": _errno.EACCES,
    "changed": _errno.ESTALE,
    "I/O error": _errno.EIO,
    "timed out": _errno.ETIMEDOUT,
    "cancelled": _errno.ECANCELED,
}


def exception(
    code: str, number: int, message: str, path: str, offset: int | None, tensor: str, hint: str, kind: str
) -> BaseException:
    """The exception for an error of the core. Called by the extension module; the parts stay readable as attributes."""
    text = _sentence(message, path, offset, tensor, hint)
    result: BaseException
    if code == "not found" and (tensor or not (path or number)):
        result = TensorNotFoundError(text)
    elif code in _NUMBERS:
        # OSError prints the path itself, behind the message.
        result = _os_error(number or _NUMBERS[code], _sentence(message, "", offset, tensor, hint), path)
    elif code == "corrupt":
        result = SafetensorError(text)
    elif code in ("too large", "out of memory"):
        result = MemoryError(text)
    elif code == "invalid argument":
        result = ValueError(text)
    else:
        result = RuntimeError(text)
    for name, value in (
        ("code", code),
        ("path", path),
        ("offset", offset),
        ("tensor", tensor),
        ("hint", hint),
        ("kind", kind),
    ):
        setattr(result, name, value)
    return result
