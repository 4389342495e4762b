# SPDX-License-Identifier: Apache-2.0
"""Time of the device check, and how a part of it ends: every stage has its share, and the whole ends by a deadline, whatever a program does."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """The stage's share is used up."""


class Failed(Exception):
    """A check did not hold."""


class Skipped(Exception):
    """What is needed is not on this machine."""


@dataclass
class Done:
    status: int
    stdout: str
    stderr: str

    @property
    def why(self) -> str:
        """The last line of what it said."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.status}"


class Budget:
    def __init__(self, ends: float) -> None:
        self.ends = ends  # on time.time()'s clock, which the caller of this process shares
        self._stage_ends = ends

    def left(self) -> float:
        return min(self._stage_ends, self.ends) - time.time()

    def stage(self, share: float) -> None:
        """From now on at most `share` seconds, until the next stage."""
        self._stage_ends = time.time() + share

    def run(self, command: list[str], environment: dict[str, str], cwd: pathlib.Path, most: float = 1e9) -> Done:
        """Runs a program for at most `most` seconds of the stage's, and fails it after these. It is ended with all that it
        started when the time is over."""
        allowed = min(most, self.left())
        if allowed < 1:
            raise OutOfTime
        process = subprocess.Popen(
            command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            stdout, stderr = process.communicate(timeout=allowed)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                pass  # it waits for a driver, and does not end; nobody waits for it
            if isinstance(error, subprocess.TimeoutExpired):
                raise (OutOfTime() if self.left() < 1 else Failed(f"it has not ended after {allowed:.0f} s")) from None
            raise
        return Done(process.returncode, stdout, stderr)
