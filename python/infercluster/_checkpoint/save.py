# SPDX-License-Identifier: Apache-2.0
"""Save: one save, as its owner sees it."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Any, Literal

from .. import _core, _log
from .interrupt import in_thread

if TYPE_CHECKING:
    from .._types import SaveReport

_SLICE_SECONDS = 0.1  # Python sees signals between two


class Save:
    """A save on its way. Thread-safe."""

    def __init__(self, save: _core.Save, step: int, being_copied: list[Any]) -> None:
        self._save, self._step = save, step
        self._being_copied = being_copied  # memory that lives until it is staged
        self._is_told = False  # somebody got to know that it failed

    @property
    def step(self) -> int:
        return self._step

    @property
    def status(self) -> str:
        """ "scheduled" (agreed on), "staged" (copied: the state may be changed; nothing is saved yet), "fast" (where there
        is a fast tier: it is durable there, and outlives the job and the power, but not the node), "durable" (the root
        has it: it outlives the machine's power), or "failed" (the root has no such checkpoint). `report["tiers"]` says
        it of each tier."""
        return self._save.status

    def wait(self, timeout: float | None = None, *, tier: Literal["fast", "root"] = "root") -> Save:
        """
        Until it is durable: at the root; or, if asked for, on the fast tier (where there is none, or it was left out: at
        the root).

        Raises:
            OSError, ...: why it failed, the same on all ranks, each time it is asked for. TimeoutError: after so many
            seconds it is neither; it goes on.
        """
        if tier not in ("fast", "root"):
            raise ValueError(f'tier is {tier!r}; expected "fast" or "root"')
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_SECONDS if end is None else min(_SLICE_SECONDS, max(0.0, end - time.monotonic()))
            ended = self._save.wait_for(left, tier == "fast")
            _log.drain()
            if ended:
                try:
                    self._save.raise_error(tier == "fast")
                except Exception:
                    self._is_told = True
                    raise
                return self
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(errno.ETIMEDOUT, f"step {self._step} is not durable after {timeout:g} s; it goes on")

    def wait_until_staged(self) -> Save:
        """Until the state is copied, after save(wait="queued"). Raises why it failed before."""
        try:
            in_thread(self._save.wait_until_staged)
        finally:
            self._being_copied = []
        return self

    @property
    def report(self) -> SaveReport:
        """What happened so far, and where the time went."""
        return self._save.report()

    def _is_over(self) -> bool:
        """Nobody needs to be told of it any more."""
        if self.status != "scheduled":
            self._being_copied = []
        return self.status == "durable" or (self.status == "failed" and self._is_told)

    def __repr__(self) -> str:
        return f"<infercluster.Save: step {self._step}, {self.status}>"
