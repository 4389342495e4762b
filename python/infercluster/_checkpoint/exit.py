# SPDX-License-Identifier: Apache-2.0
"""What happens to saves on their way when the process ends.

- It ends by itself (also by an exception or sys.exit): it waits until they are durable. Where one fails that nobody was
  told of, the error is logged and the exit code is 1.
- SIGTERM, where the program has no handler of its own (the default action would end it at once): the same wait, then the
  end by that signal. A scheduler that kills after its grace period leaves the last durable checkpoint.
- SIGKILL, os._exit(), a crash: the last durable checkpoint stays; the rest is swept by the next job.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import TYPE_CHECKING

from .. import _log

if TYPE_CHECKING:
    from .checkpointer import Checkpointer

_open: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
_lock = threading.Lock()
_is_registered = False


def _finish_all() -> bool:
    """Waits for all of them. False: one failed that nobody was told of."""
    good = True
    for checkpointer in list(_open):
        try:
            checkpointer.close()
        except Exception as error:
            _log.LOGGER.error("a checkpoint was not saved: %s", error)
            print(f"infercluster: a checkpoint was not saved: {error}", file=sys.stderr)
            good = False
    return good


def _at_exit() -> None:
    if _finish_all():
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _finish_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _forget_in_child() -> None:
    """A forked child saves nothing of its parent's."""
    global _lock
    _lock = threading.Lock()
    _open.clear()
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def register(checkpointer: Checkpointer) -> None:
    global _is_registered
    with _lock:
        _open.add(checkpointer)
        if not _is_registered:
            atexit.register(_at_exit)  # the last come first: before the core is told that the interpreter exits
            # Processes of multiprocessing never come to atexit.
            multiprocessing.util.Finalize(None, _at_exit, exitpriority=100)
            os.register_at_fork(after_in_child=_forget_in_child)
            _is_registered = True
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def unregister(checkpointer: Checkpointer) -> None:
    with _lock:
        _open.discard(checkpointer)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and not _open and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
