# SPDX-License-Identifier: Apache-2.0
"""A group of real processes over gloo, kept for many loads."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
from types import TracebackType
from typing import Any

WORKER = pathlib.Path(__file__).parent / "group_worker.py"


class Ranks:
    def __init__(self, world: int, store: pathlib.Path) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, WORKER, str(rank), str(world), str(store)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(world)
        ]  # fmt: skip
        assert [self.answer(rank) for rank in range(world)] == ["ready"] * world

    def answer(self, rank: int) -> Any:
        """None: the process has ended."""
        output = self._processes[rank].stdout
        assert output is not None
        try:
            return pickle.load(output)
        except EOFError:
            return None

    def ask(
        self, rank: int, size: int, source: object, options: dict[str, Any], hook: tuple[str, Any] | None = None
    ) -> None:
        stdin = self._processes[rank].stdin
        assert stdin is not None
        pickle.dump((size, (str(source), options, hook)), stdin)
        stdin.flush()

    def load(
        self, sources: Any, options: list[dict[str, Any]], hooks: dict[int, tuple[str, Any]] | None = None
    ) -> list[Any]:
        """infercluster.load by as many ranks as there are options; their answers, by rank. `sources`: one, or a list by
        rank. `hooks`: what happens to a rank, see group_worker.before_reading."""
        size = len(options)
        paths = sources if isinstance(sources, list) else [sources] * size
        for rank in range(size):
            self.ask(rank, size, paths[rank], options[rank], (hooks or {}).get(rank))
        return [self.answer(rank) for rank in range(size)]

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
