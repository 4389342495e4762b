# SPDX-License-Identifier: Apache-2.0
"""Log lines of the core reach the logger "infercluster".

Threads of the core must not take the GIL to log: their lines wait in a bounded queue, and the Python thread that
waits for them passes them on.
"""

from __future__ import annotations

import atexit
import logging
import os

from . import _core

LOGGER = logging.getLogger("infercluster")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def follow_level() -> None:
    """Makes the core as talkative as the logger is, unless INFERCLUSTER_LOG says how much it shall say."""
    if "INFERCLUSTER_LOG" not in os.environ:
        wanted = LOGGER.getEffectiveLevel()
        _core.set_log_level(next((i for i, level in enumerate(_LEVELS) if level >= wanted), len(_LEVELS)))


def drain() -> None:
    for level, text in _core.take_log():
        LOGGER.log(_LEVELS[min(level, len(_LEVELS) - 1)], "%s", text)


def _at_exit() -> None:
    _core.log_to_stderr()
    drain()


_core.log_to_queue()
atexit.register(_at_exit)
