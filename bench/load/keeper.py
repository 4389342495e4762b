# SPDX-License-Identifier: Apache-2.0
"""Keeps memory backed by the host until a load wants it.

A virtual machine with free page reporting gives memory that has been free for a moment back to its host; the next touch of it then
costs a fault in the host, at a twentieth of the usual speed. Which contestant meets such memory is chance, and the difference
is larger than that between any two of them. So the bench holds touched memory, and lets go of it just ahead of what a load takes:
all contestants find memory that the host has backed. Where there is no such reporting, this changes nothing.
"""

import ctypes
import mmap
import pathlib
import threading

_CHUNK = 128 << 20
_AHEAD = 1 << 30
_POLL_S = 0.005
_MARGIN = 2 << 30  # stays free: neither the page cache nor anyone else is pushed out
_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def is_needed() -> bool:
    """Whether this machine reports its free pages to a host."""
    return pathlib.Path("/sys/module/page_reporting").exists() or any(pathlib.Path("/sys/bus/virtio/drivers/virtio_balloon").glob("virtio*"))


def _meminfo(key: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    raise OSError(f"/proc/meminfo has no {key}")


def _touched(size: int) -> mmap.mmap:
    chunk = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    chunk.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(chunk))
    if _libc.madvise(address, size, _POPULATE_WRITE) != 0:
        for offset in range(0, size, mmap.PAGESIZE):
            chunk[offset] = 1
    return chunk


class Keeper:
    """Holds up to `size` bytes. Not thread-safe, but for the thread of its own that feeds a load."""

    def __init__(self, size: int) -> None:
        self._size = size if is_needed() else 0
        self._chunks: list[mmap.mmap] = []
        self._feeder: threading.Thread | None = None
        self._stop = threading.Event()

    def hold(self) -> None:
        """Takes back what the last load has freed, while the host still backs it, and more where that does not suffice."""
        while len(self._chunks) * _CHUNK < self._size and _meminfo("MemFree") > _MARGIN + _CHUNK:
            self._chunks.append(_touched(_CHUNK))

    def start_feeding(self) -> None:
        """From now until stop_feeding(), so much memory is let go as is taken by others, and a little more."""
        self._stop.clear()
        free_before, released = _meminfo("MemFree"), self._release(_AHEAD)
        self._feeder = threading.Thread(target=self._feed, args=(free_before, released), daemon=True)
        self._feeder.start()

    def stop_feeding(self) -> None:
        self._stop.set()
        if self._feeder is not None:
            self._feeder.join()
            self._feeder = None

    def close(self) -> None:
        self.stop_feeding()
        self._release(self._size)

    def _feed(self, free_before: int, released: int) -> None:
        while self._chunks and not self._stop.wait(_POLL_S):
            taken = free_before + released - _meminfo("MemFree")
            released += self._release(taken + _AHEAD - released)

    def _release(self, size: int) -> int:
        """Bytes let go: whole chunks, at least `size` where so much is held."""
        released = 0
        while released < size and self._chunks:
            self._chunks.pop().close()
            released += _CHUNK
        return released
