# SPDX-License-Identifier: Apache-2.0
"""The messages of one round: prepared by each rank alone (which may fail), then posted by all in one order (which may
not), and finished later. Large pieces travel in place; small ones share a message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .boxes import Box, bytes_of, is_contiguous, sizes_of, within
from .plan import Piece, Plan
from .reader import Read
from .target import Target
from .wire import Comm

_IN_PLACE_BYTES = 1 << 20


@dataclass
class _Message:
    owner: int
    to: int | None  # None: everyone
    parts: list[tuple[Piece, Box]]  # what it carries, in this order
    buffer: Any = None
    unpack: list[Callable[[], None]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(box) for _, box in self.parts)


def _messages(plan: Plan, number: int) -> Iterator[_Message]:
    """Of a round, in the order in which every rank posts them."""
    for owner, buckets in enumerate(plan.shared):
        if number >= len(buckets):
            continue
        small: dict[int | None, _Message] = {}
        for piece in buckets[number]:
            everyone = len(piece.wanted) == plan.world and not piece.is_cut
            targets: list[tuple[int | None, Box]] = [(None, piece.box)] if everyone else [*piece.wanted]
            for to, box in targets:
                if to == owner:
                    continue
                if bytes_of(box) >= _IN_PLACE_BYTES:
                    yield _Message(owner, to, [(piece, box)])
                else:
                    small.setdefault(to, _Message(owner, to, [])).parts.append((piece, box))
        yield from small.values()


class Round:
    """One round, from one rank's view."""

    def __init__(self, plan: Plan, number: int, comm: Comm, target: Target) -> None:
        self._comm, self._target = comm, target
        self.what = f"round {number + 1} of {plan.rounds}"
        rank = comm.rank
        self._messages = [one for one in _messages(plan, number) if one.to is None or rank in (one.owner, one.to)]
        self.bytes_sent = sum(one.nbytes for one in self._messages if one.owner == rank)
        self.bytes_received = sum(one.nbytes for one in self._messages if one.owner != rank)
        self._works: list[Any] = []

    @property
    def nbytes(self) -> int:
        return self.bytes_sent + self.bytes_received

    def prepare(self, read: Read | None) -> None:
        """Buffers for what comes and goes. `read`: this rank's bucket of the round."""
        data = {id(piece): bytes_ for piece, bytes_ in (read.pieces if read else [])}
        for message in self._messages:
            if message.owner == self._comm.rank:
                self._pack(message, data)
            else:
                self._make_room(message)

    def _pack(self, message: _Message, data: dict[int, Any]) -> None:
        import torch

        parts = [data[id(piece)][within(piece.box, box)].reshape(-1) for piece, box in message.parts]
        message.buffer = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._comm.device)

    def _make_room(self, message: _Message) -> None:
        import torch

        regions = [self._region(piece, box) for piece, box in message.parts]
        if len(regions) == 1 and regions[0].is_contiguous() and regions[0].device == self._comm.device:
            message.buffer = regions[0].view(-1)
            return
        message.buffer = torch.empty(message.nbytes, dtype=torch.uint8, device=self._comm.device)
        at = 0
        for region in regions:
            part = message.buffer[at : at + region.numel()].view(region.shape)
            message.unpack.append(functools.partial(region.copy_, part))
            at += region.numel()

    def _region(self, piece: Piece, box: Box) -> Any:
        mine = self._target.boxes[piece.tensor]
        region = self._target.data(piece.tensor)[within(mine, box)]
        return region.view(sizes_of(box)) if is_contiguous(mine, box) else region

    def post(self) -> None:
        """Every rank comes here at the same point, and nothing but a lost rank makes it fail."""
        comm, dist = self._comm, self._comm.dist
        directed = []
        for message in self._messages:
            if message.to is None:
                send = functools.partial(
                    dist.broadcast, message.buffer, group=comm.group, group_src=message.owner, async_op=True
                )
                self._works.append(comm.attempt(send, self.what))
            elif message.owner == comm.rank:
                directed.append(dist.P2POp(dist.isend, message.buffer, group=comm.group, group_peer=message.to))
            else:
                directed.append(dist.P2POp(dist.irecv, message.buffer, group=comm.group, group_peer=message.owner))
        if directed:
            self._works += comm.attempt(lambda: dist.batch_isend_irecv(directed), self.what)

    def finish(self) -> None:
        for work in self._works:
            self._comm.wait(work, self.what)
        self._works.clear()
        for message in self._messages:
            for unpack in message.unpack:
                unpack()
        self._messages.clear()
