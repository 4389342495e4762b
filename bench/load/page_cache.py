# SPDX-License-Identifier: Apache-2.0
"""Puts files into, or out of, the page cache, and proves it. Only the files named are touched, never the whole cache."""

import ctypes
import os
import random
import time

_PAGE = 4096
_CACHESTAT = 451  # the same number on every architecture
_DROP_TRIES = 100
_DROP_PAUSE_S = 0.1


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


_libc = ctypes.CDLL(None, use_errno=True)


def _cachestat(descriptor: int) -> int | None:
    """Pages of a file in the page cache; None where the kernel has no cachestat or refuses it."""
    whole, found = _Range(0, 0), _Stat()
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(found), 0) != 0:
        return None
    return found.cached


def _probe(descriptor: int, size: int, probes: int = 256) -> float:
    """Share of random pages that can be read without waiting for the device. A probe that finds nothing makes the kernel read
    ahead, so the descriptor is told that its reads are random: then it brings in the page that was probed, and none beside it. That
    page is dropped again."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pages = -(-size // _PAGE)
    chosen = random.sample(range(pages), min(pages, probes))
    buffer, missed = bytearray(1), []
    for page in chosen:
        try:
            os.preadv(descriptor, [buffer], page * _PAGE, os.RWF_NOWAIT)
        except BlockingIOError:
            missed.append(page)
    for page in missed:
        os.preadv(descriptor, [buffer], page * _PAGE)  # until its read is over, it cannot be dropped
        os.posix_fadvise(descriptor, page * _PAGE, _PAGE, os.POSIX_FADV_DONTNEED)
    return 1.0 - len(missed) / len(chosen)


def residency(paths: list[str]) -> float:
    """Share of the files' bytes that are in the page cache, 0 to 1."""
    cached = total = 0.0
    for path in paths:
        size = os.stat(path).st_size
        if size == 0:
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            pages = _cachestat(descriptor)
            share = _probe(descriptor, size) if pages is None else pages * _PAGE / (-(-size // _PAGE) * _PAGE)
        finally:
            os.close(descriptor)
        cached += min(1.0, share) * size
        total += size
    return cached / total if total else 0.0


def drop(paths: list[str]) -> float:
    """Writes the files back and drops their pages. Pages under readahead stay until it is over, so it is asked for again
    until they are gone or the tries are used up. Returns the residency that is left."""
    left = 1.0
    for _ in range(_DROP_TRIES):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        left = residency(paths)
        if left == 0.0:
            break
        time.sleep(_DROP_PAUSE_S)
    return left


def fill(paths: list[str]) -> float:
    """Reads the files that are not wholly in the page cache. Returns the residency."""
    buffer = bytearray(4 << 20)
    for path in paths:
        if residency([path]) >= 1.0:
            continue
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return residency(paths)
