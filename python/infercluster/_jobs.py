# SPDX-License-Identifier: Apache-2.0
"""Running jobs of the core: waiting in slices, so that Ctrl-C works, and never leaving memory that a read may still
write."""

from __future__ import annotations

import atexit
import os
import re
import threading
from typing import TYPE_CHECKING

from . import _core, _log

if TYPE_CHECKING:
    from ._types import Report

Box = tuple[tuple[int, int], ...]
Tensor = tuple[str, str, tuple[int, ...], "_core.Memory | _core.DeviceMemory | None"]

# Python sees signals between two waits.
WAIT_SECONDS = 0.05

_filling_lock = threading.Lock()
_filling: list[
    _core.Job
] = []  # guarded by _filling_lock: finished, but still filling the page cache behind their loads


def exact(name: str) -> str:
    """The pattern that matches this name only."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def _keep_filling(job: _core.Job) -> None:
    with _filling_lock:
        _filling[:] = [earlier for earlier in _filling if not earlier.wait_for_page_cache(0)]
        if not job.wait_for_page_cache(0):
            _filling.append(job)


def _forget_in_child() -> None:
    """A forked child has none of the threads that fill."""
    global _filling_lock
    _filling_lock = threading.Lock()
    _filling.clear()


def _at_exit() -> None:
    _core.prepare_exit()
    _filling.clear()  # stops them


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_at_exit)


def wait_for_page_cache(seconds: float | None) -> bool:
    """True when no page cache is being filled behind an earlier load any more."""
    with _filling_lock:
        jobs = list(_filling)
    for job in jobs:
        left = seconds
        while not job.wait_for_page_cache(WAIT_SECONDS if left is None else min(WAIT_SECONDS, max(left, 0))):
            if left is not None:
                left -= WAIT_SECONDS
                if left <= 0:
                    return False
    return True


def run(repository: _core.Repository, options: _core.Options) -> tuple[list[Tensor], dict[str, str], Report]:
    """All tensors in the order of files and offsets, the metadata and the report. On any exception no read is in
    flight any more."""
    _log.follow_level()
    from ._options import core_of

    job: _core.Job = core_of(repository).start_load(repository, options)
    try:
        while not job.wait(WAIT_SECONDS):
            _log.drain()
        result = job.finish()
    except BaseException:
        job.close()
        raise
    finally:
        _log.drain()
    _keep_filling(job)
    return result


def load_one(repository: _core.Repository, name: str, box: Box | None) -> _core.Memory:
    options = _core.options_from_environment()
    options.names = [exact(name)]
    if box is not None:
        options.add_slice(exact(name), list(box))
    ((_, _, _, memory),), _, _ = run(repository, options)
    assert isinstance(memory, _core.Memory)
    return memory


def load_whole(repository: _core.Repository) -> list[Tensor]:
    tensors, _, _ = run(repository, _core.options_from_environment())
    return tensors


def load_to_device(repository: _core.Repository, ordinal: int, name: str | None) -> list[Tensor]:
    """One tensor (None: all) in memory of torch's allocator on a CUDA device."""
    from . import _device

    options = _core.options_from_environment()
    if name is not None:
        options.names = [exact(name)]
    _device.use(options, ordinal, "pt")
    tensors, _, _ = run(repository, options)
    return tensors
