# SPDX-License-Identifier: Apache-2.0
"""A rank's reads, behind the thread that exchanges: bucket by bucket through the core, straight into the final tensors
where they can land there."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import functools
import threading
import time
from collections.abc import Sequence
from typing import Any

from .. import _core
from .._load import load_opened
from .._types import Report
from .boxes import Table, is_contiguous, sizes_of, within
from .interrupt import Interrupts
from .plan import Bucket, Piece
from .target import Target, as_bytes, typed

# While one read ends, the next has begun.
_READS_AT_ONCE = 2


class Stopped(Exception):
    """The load has failed elsewhere."""


@dataclasses.dataclass
class Read:
    """A bucket's bytes, piece by piece, each in the shape of its box."""

    pieces: list[tuple[Piece, Any]] = dataclasses.field(default_factory=list)
    reports: list[Report] = dataclasses.field(default_factory=list)


class Reader:
    def __init__(
        self,
        repository: _core.Repository,
        tables: Sequence[Table],
        target: Target,
        rank: int,
        device: Any,
        verify: str,
        interrupts: Interrupts,
    ) -> None:
        self._interrupts = interrupts
        self._repository, self._tables, self._target = repository, tables, target
        self._rank, self._device, self._verify = rank, device, verify
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(_READS_AT_ONCE, "infercluster-group")
        self._all: list[concurrent.futures.Future[Read]] = []
        self._stream: Any = None
        if device.type == "cuda":
            import torch

            self._stream = torch.cuda.current_stream(device)

    def start(self, bucket: Bucket) -> concurrent.futures.Future[Read]:
        future = self._pool.submit(self._read, bucket)
        self._all.append(future)
        return future

    def wait(self, future: concurrent.futures.Future[Read], seconds: float) -> Read:
        deadline = time.monotonic() + seconds
        while True:
            if self._interrupts.seen is not None:
                raise self._interrupts.seen
            try:
                return future.result(timeout=0.1)
            except concurrent.futures.TimeoutError:
                if future.done() and (error := future.exception()):
                    raise error from None
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, f"reading took longer than {seconds:g} s") from None

    def close(self, seconds: float) -> None:
        """Stops what has not begun, and waits for reads in flight: the caller's memory is at rest then."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        concurrent.futures.wait(self._all, timeout=seconds)

    def _read(self, bucket: Bucket) -> Read:
        read = Read()
        for pieces in _without_repeats(bucket):
            if self._stop.is_set():
                raise Stopped
            self._load(pieces, read)
        return read

    def _load(self, pieces: list[Piece], read: Read) -> None:
        names, slices, into = [], {}, {}
        for piece in pieces:
            table = self._tables[piece.tensor]
            names.append(table.name)
            if piece.box != table.box:
                slices[table.name] = tuple(slice(begin, end) for begin, end in table.in_elements(piece.box))
            if (destination := self._destination(piece)) is not None:
                into[table.name] = destination
        load = functools.partial(
            load_opened, self._repository, "pt", str(self._device), into=into, names=names, slices=slices or None,
            verify=self._verify, memory=None,
        )  # fmt: skip
        if self._stream is None:
            loaded = load()
        else:
            import torch

            with torch.cuda.stream(self._stream):
                loaded = load()
            self._stream.synchronize()
        read.reports.append(loaded.report)
        for piece in pieces:
            data = as_bytes(loaded[self._tables[piece.tensor].name], sizes_of(piece.box))
            read.pieces.append((piece, data))
            self._keep(piece, data)

    def _destination(self, piece: Piece) -> Any:
        """Where this rank wants the bytes; None: the core shall allocate, or they are to be cut up."""
        mine = self._target.boxes.get(piece.tensor)
        if piece.is_cut or mine is None:
            return None
        if piece.box == mine:
            return self._target.given(piece.tensor)
        if not is_contiguous(mine, piece.box):
            return None
        region = self._target.data(piece.tensor)[within(mine, piece.box)]
        return typed(region, self._tables[piece.tensor], piece.box)

    def _keep(self, piece: Piece, data: Any) -> None:
        """This rank's own part of what did not land in its tensor."""
        mine = self._target.boxes.get(piece.tensor)
        part = dict(piece.wanted).get(self._rank)
        if mine is None or part is None:
            return
        if piece.box == mine and not piece.is_cut:
            if self._target.given(piece.tensor) is None:
                self._target.adopt(piece.tensor, data)
        elif piece.is_cut or not is_contiguous(mine, piece.box):
            self._target.data(piece.tensor)[within(mine, part)].copy_(data[within(piece.box, part)])


def _without_repeats(bucket: Bucket) -> list[list[Piece]]:
    """Loads of a bucket: none names a tensor twice."""
    loads: list[list[Piece]] = []
    seen: set[int] = set()
    for piece in bucket:
        if not loads or piece.tensor in seen:
            loads.append([])
            seen.clear()
        loads[-1].append(piece)
        seen.add(piece.tensor)
    return loads
