# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during a load by a group: kept until all ranks can be told, instead of raised in the middle of a collective."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While it is open, the first Ctrl-C is kept in `seen`, and the second raised at once. It changes nothing outside of
    the main thread, or where a program handles the signal itself."""

    def __init__(self) -> None:
        self.seen: KeyboardInterrupt | None = None
        self._before: Any = None

    def _keep(self, number: int, frame: FrameType | None) -> None:
        if self.seen is not None:
            raise KeyboardInterrupt
        self.seen = KeyboardInterrupt()

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._keep)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if exc_type is None and self.seen is not None:  # it came when nobody could be told any more
            raise self.seen
