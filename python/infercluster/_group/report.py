# SPDX-License-Identifier: Apache-2.0
"""One rank's report: that of its reads, and what the exchange brought."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .. import _core
from .._types import FileReport, Report, Waited


class Tally:
    """What happens while a group loads."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._started = time.monotonic()
        self._reports: list[Report] = []
        self._sent = self._received = self._rounds = 0
        self._reading_seconds = 0.0

    def read(self, reports: Sequence[Report], waited: float) -> None:
        self._reports += reports
        self._reading_seconds += waited

    def exchanged(self, sent: int, received: int) -> None:
        self._sent += sent
        self._received += received
        self._rounds += 1

    def report(self, repository: _core.Repository, delivered: int, tensors: int) -> Report:
        seconds = time.monotonic() - self._started
        first = self._reports[0] if self._reports else None
        waited: Waited = {
            "storage": self._reading_seconds, "memory": 0.0, "verify": 0.0, "other": seconds - self._reading_seconds
        }  # fmt: skip
        return {
            "bytes": delivered,
            "tensors": tensors,
            "seconds": seconds,
            "gib_per_s": delivered / max(seconds, 1e-9) / 2**30,
            "backend": first["backend"] if first else "none",
            "backend_reason": first["backend_reason"] if first else "",
            "peak_host_bytes": max((report["peak_host_bytes"] for report in self._reports), default=0),
            "working_bytes": max((report["working_bytes"] for report in self._reports), default=0),
            "files": self._files(repository),
            "waited": waited,
            "moved_bytes": self._sum("moved_bytes"),
            "device_copies": self._sum("device_copies"),
            "device_copy_bytes": self._sum("device_copy_bytes"),
            "gds_bytes": self._sum("gds_bytes"),
            "bytes_read": self._sum("bytes_read"),
            "requests": self._sum("requests"),
            "retries": self._sum("retries"),
            "page_cache_fill_bytes": self._sum("page_cache_fill_bytes"),
            "donated_blocks": self._sum("donated_blocks"),
            "notices": list(dict.fromkeys(text for report in self._reports for text in report["notices"])),
            "group": {
                "rank": self._rank,
                "world": self._world,
                "rounds": self._rounds,
                "bytes_received": self._received,
                "bytes_sent": self._sent,
            },
        }

    def _sum(self, key: str) -> int:
        return sum(dict(report)[key] for report in self._reports)  # type: ignore[misc]

    def _files(self, repository: _core.Repository) -> list[FileReport]:
        """A file that this rank read nothing of has mode "none": another rank reads and verifies it."""
        files: dict[str, FileReport] = {
            path: {"path": path, "bytes": 0, "mode": "none", "reason": "", "verification": "unverified: not read here"}
            for path in repository.files
        }
        for report in self._reports:
            for file in report["files"]:
                if file["bytes"]:
                    so_far = files.setdefault(file["path"], file)["bytes"]
                    files[file["path"]] = {**file, "bytes": so_far + file["bytes"]}
        return list(files.values())
