# SPDX-License-Identifier: Apache-2.0
"""What callers give, and exceptions, as the core wants them."""

from __future__ import annotations

import os

from .. import _options


def step_of(path: str) -> int:
    number = os.path.basename(path).removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def bytes_of(value: int | str | None, name: str) -> int:
    """0: left to the core."""
    if value is None or value == "auto":
        return 0
    found = _options.byte_count(value, name)
    if found == 0:
        raise ValueError(f"{name} is 0; expected more")
    return found


def described(error: BaseException) -> tuple[str, int, str]:
    """The core's code, errno and message of an exception."""
    code = getattr(error, "code", None)
    if not isinstance(code, str):
        code = "invalid argument" if isinstance(error, (ValueError, TypeError, KeyError)) else "I/O error"
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    return code, number, f"{type(error).__name__}: {error}"
