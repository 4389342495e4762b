# SPDX-License-Identifier: Apache-2.0
"""Calls of the core that wait for long, with Ctrl-C heard meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from .. import _log

T = TypeVar("T")

_SLICE_SECONDS = 0.1  # log lines are passed on between two


def in_thread(call: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
    """What `call` returns or raises, from a thread of its own. After an interrupt: `cancel`, which makes it end, and
    the interrupt once it has ended; without `cancel` it is left to its own deadline."""
    result: list[T] = []
    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="ic-call", daemon=True).start()
    try:
        while not ended.wait(_SLICE_SECONDS):
            _log.drain()
    except BaseException:
        if cancel is not None:
            cancel()
            ended.wait()
        raise
    finally:
        _log.drain()
    if failure:
        raise failure[0]
    return result[0]
