# SPDX-License-Identifier: Apache-2.0
"""What a result was measured on."""

import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _first_line(path: str, prefix: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(prefix):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown"


def _file_system(path: pathlib.Path) -> str:
    """Type of the file system that holds `path`, by the longest mount point above it."""
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, point, this, *_ = line.split()
            inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, this
    return kind


def describe(data: pathlib.Path) -> dict:
    memory_kib = _first_line("/proc/meminfo", "MemTotal").split()[0]
    try:
        huge = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8").strip()
    except OSError:
        huge = "unknown"
    return {
        "cpu": _first_line("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory_kib) / 2**20, 1) if memory_kib.isdigit() else None,
        "kernel": platform.release(),
        "file_system": _file_system(data.resolve()),
        "transparent_hugepage": huge,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit measured, with "+changes" when the tree differs from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, capture_output=True,
                                 text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
