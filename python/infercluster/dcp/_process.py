# SPDX-License-Identifier: Apache-2.0
"""What all writers of a process share, so that memory stays from save to save although programs make a writer for each."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from .. import _core, _log

if TYPE_CHECKING:
    from ._stager import Stager

_VISIBLE_SECONDS = 300.0


@functools.cache
def _saver_of(process: int) -> _core.PartSaver:
    _log.follow_level()
    return _core.part_saver(0, _VISIBLE_SECONDS)


def saver() -> _core.PartSaver:
    return _saver_of(os.getpid())


@functools.cache
def stager() -> Stager:
    from ._stager import Stager

    return Stager()
