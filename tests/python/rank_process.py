# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes forked from one that has torch in it: by itself, each would take seconds to import it."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess

PRELOADED = [
    "torch", "torch.distributed", "torch.distributed.checkpoint", "torch.distributed.device_mesh", "torch.distributed.tensor",
    "torch.distributed.fsdp",
]  # fmt: skip
_context = multiprocessing.get_context("forkserver")
_alive: list[ForkServerProcess] = []


def _run(program: str, arguments: list[str], environment: dict[str, str], output: str, errors: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(pathlib.Path(program).parent))
    runpy.run_path(program, run_name="__main__")


def _start_server() -> None:
    _context.set_forkserver_preload(PRELOADED)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # it counts when torch is imported
    forkserver.ensure_running()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


@atexit.register
def _kill() -> None:
    for process in _alive:
        process.kill()


class RankProcess:
    """Runs a program (a path) with these arguments and this environment at once; the part of subprocess.Popen that tests
    of ranks need."""

    def __init__(self, program: pathlib.Path | str, arguments: list[str], environment: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._files = [pathlib.Path(self._folder.name) / name for name in ("output", "errors")]
        for file in self._files:
            file.touch()
        _start_server()
        self._process = _context.Process(target=_run, args=(str(program), arguments, environment, *map(str, self._files)))
        self._process.start()
        _alive.append(self._process)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Standard output and errors, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(self._process.name, timeout, self._files[0].read_text(), self._files[1].read_text())
        if self._process in _alive:
            _alive.remove(self._process)
        output, errors = (file.read_text() for file in self._files)
        return output, errors
