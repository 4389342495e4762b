# SPDX-License-Identifier: Apache-2.0
"""A load by a group: agree on the plan, read and exchange round by round, agree on the outcome."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core, _options
from .._load import Loaded
from .._types import Into, Names, Slices, Source
from . import request
from .boxes import Box, Table, bytes_of
from .plan import Plan, make_plan
from .reader import Read, Reader
from .report import Tally
from .target import Target, check_given
from .transfer import Round
from .wire import Comm, group_of

DEFAULT_TIMEOUT = 600.0
DEFAULT_WINDOW = 512 << 20
# Buckets that are read ahead of their round.
_AHEAD = 3
# A rank whose storage hangs says so before the others give it up.
_READ_SHARE = 0.5

_T = TypeVar("_T")


class _Request:
    """What this rank was asked, opened and checked."""

    def __init__(
        self, src: Source, revision: str | None, names: Names | None, slices: Slices | None, given: Into, device: Any
    ) -> None:
        self.device = device
        self.repository: _core.Repository = _options.open_repository(src, revision)
        self.tables: list[Table] = request.tables_of(self.repository)
        self.boxes: dict[int, Box] = request.wanted_boxes(self.repository, self.tables, names, slices)
        check_given(self.tables, self.boxes, given, device)


def load_in_group(
    src: Source,
    *,
    group: Any,
    device: Any,
    into: Into | None,
    names: Names | None,
    slices: Slices | None,
    framework: str | None,
    verify: str,
    revision: str | None,
    memory: int | str | None,
    timeout: float | None,
) -> Loaded:
    """`infercluster.load` with `group=`."""
    comm = Comm(group_of(group), timeout if timeout and timeout > 0 else DEFAULT_TIMEOUT, device)
    with comm.interrupts:
        tally = Tally(comm.rank, comm.world)
        given = dict(into or {})
        kind, window = "", DEFAULT_WINDOW

        def prepare() -> _Request:
            nonlocal kind, window
            kind, place = _options.framework_and_device(framework, device)
            where = comm.carry(place)
            if timeout is not None and timeout <= 0:
                raise ValueError(f"group_timeout is {timeout:g} s; expected more than 0")
            if memory is not None:
                window = _options.byte_count(memory)
            return _Request(src, revision, names, slices, given, where)

        error, asked = _attempt(prepare)
        comm.agree(0, error, "the start of the load")
        assert asked is not None
        plan = _agreed_plan(comm, asked, {"memory": window, "verify": verify, "device": asked.device.type}, window)
        target = Target(asked.tables, asked.boxes, given, kind, asked.device)
        reader = Reader(asked.repository, asked.tables, target, comm.rank, asked.device, verify, comm.interrupts)
        _Session(comm, plan, target, tally, window).run(reader)
        tensors = target.tensors()
        report = tally.report(asked.repository, sum(map(bytes_of, asked.boxes.values())), len(tensors))
        return Loaded(kind, [(name, "", (), None) for name in tensors], asked.repository.metadata, report, tensors)


def _agreed_plan(comm: Comm, asked: _Request, options: dict[str, Any], window: int) -> Plan:
    """From all ranks' requests; when they do not fit together, all ranks raise the same."""
    mine = request.announce(asked.repository, asked.tables, options, asked.boxes)
    payloads = comm.gather(mine.packed(asked.tables), "the requests")
    everyone = [request.Announcement.unpacked(payload, asked.tables) for payload in payloads]
    if (difference := request.disagreement(everyone)) is not None:
        raise ValueError(difference)
    return make_plan(asked.tables, [other.boxes for other in everyone], window)


def _attempt(call: Callable[[], _T]) -> tuple[BaseException | None, _T | None]:
    """A failure of this rank alone is kept for the next verdict."""
    try:
        return None, call()
    except (Exception, KeyboardInterrupt) as error:
        return error, None


class _Session:
    """The rounds of one load, from one rank's view."""

    def __init__(self, comm: Comm, plan: Plan, target: Target, tally: Tally, window: int) -> None:
        self._comm, self._plan, self._target, self._tally, self._window = comm, plan, target, tally, window
        self._in_flight: collections.deque[Round] = collections.deque()
        self._reading: collections.deque[concurrent.futures.Future[Read]] = collections.deque()

    def run(self, reader: Reader) -> None:
        try:
            self._rounds(reader)
        except BaseException:
            # What all agreed to send is on its way and ends; nothing more can be said to a rank that is lost.
            while self._in_flight and not self._comm.is_lost:
                self._in_flight.popleft().finish()
            raise
        finally:
            reader.close(self._comm.timeout)

    def _rounds(self, reader: Reader) -> None:
        comm, plan = self._comm, self._plan
        shared = collections.deque(plan.shared[comm.rank])
        error, _ = _attempt(self._allocate)
        comm.agree(1, error, "memory for the tensors")
        comm.warm_up()
        alone: list[concurrent.futures.Future[Read]] = []
        for number in range(plan.rounds):
            while shared and len(self._reading) < _AHEAD:
                self._reading.append(reader.start(shared.popleft()))
            if not shared and not alone:
                alone = [reader.start(bucket) for bucket in plan.alone[comm.rank]]
            error, one = _attempt(functools.partial(self._prepare, reader, number))
            comm.agree(2 + number, error, f"round {number + 1} of {plan.rounds}")
            assert one is not None
            while self._in_flight and one.nbytes + sum(other.nbytes for other in self._in_flight) > self._window:
                self._in_flight.popleft().finish()
            one.post()
            self._in_flight.append(one)
        while self._in_flight:
            self._in_flight.popleft().finish()
        alone = alone or [reader.start(bucket) for bucket in plan.alone[comm.rank]]
        error, _ = _attempt(lambda: [self._take(reader, future) for future in alone])
        if error is None and self._target.is_on_device:
            error, _ = _attempt(self._target.synchronize)
        comm.agree(2 + plan.rounds, error, "the other ranks' reads")

    def _allocate(self) -> None:
        """Memory for what does not come whole with one read of this rank."""
        rank = self._comm.rank
        pieces = [piece for bucket in self._plan.shared[rank] + self._plan.alone[rank] for piece in bucket]
        whole = {
            piece.tensor for piece in pieces if piece.box == self._target.boxes.get(piece.tensor) and not piece.is_cut
        }
        self._target.allocate(
            [index for index, box in self._target.boxes.items() if index not in whole and bytes_of(box)]
        )

    def _prepare(self, reader: Reader, number: int) -> Round:
        read = None
        if number < len(self._plan.shared[self._comm.rank]):
            read = self._take(reader, self._reading.popleft())
        one = Round(self._plan, number, self._comm, self._target)
        one.prepare(read)
        self._tally.exchanged(one.bytes_sent, one.bytes_received)
        return one

    def _take(self, reader: Reader, future: concurrent.futures.Future[Read]) -> Read:
        started = time.monotonic()
        read = reader.wait(future, self._comm.timeout * _READ_SHARE)
        self._tally.read(read.reports, time.monotonic() - started)
        return read
