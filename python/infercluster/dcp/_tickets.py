# SPDX-License-Identifier: Apache-2.0
"""How the ranks learn which save they take part in.

The first rank begins it, and DCP carries a ticket to each rank in its plan. Where plans are cached, the planner drops
the plan that came and takes its old one, with the ticket of an earlier save: so a ticket also takes itself to the
writer as it arrives.
"""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_KEPT_MAX = 64  # calls on that many directories at once


class Arrivals(Generic[T]):
    """What came in plans, until its time: the last _KEPT_MAX of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: dict[str, T] = {}  # guarded by _lock

    def put(self, key: str, value: T) -> None:
        with self._lock:
            self._arrived.pop(key, None)
            self._arrived[key] = value
            while len(self._arrived) > _KEPT_MAX:
                del self._arrived[next(iter(self._arrived))]

    def get(self, key: str) -> T | None:
        with self._lock:
            return self._arrived.get(key)

    def pop(self, key: str) -> T | None:
        with self._lock:
            return self._arrived.pop(key, None)


class Ticket:
    def __init__(self, directory: str, epoch: int, save_id: str, node: int, world: int) -> None:
        self.directory = directory
        self.epoch, self.save_id = epoch, save_id
        self.node, self.world = node, world  # the rank's place among those that save

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        arrive(self)

    @property
    def save(self) -> tuple[int, str]:
        return self.epoch, self.save_id


_tickets: Arrivals[Ticket] = Arrivals()  # by directory


def arrive(ticket: Ticket) -> None:
    _tickets.put(ticket.directory, ticket)


def latest(directory: str) -> Ticket:
    found = _tickets.get(directory)
    if found is None:
        raise RuntimeError(
            f"{directory}: this rank was not told which save it takes part in: the storage data of its plan got lost. A"
            " planner must keep what prepare_global_plan() of the storage writer returns, and all ranks must save to"
            " the same checkpoint_id"
        )
    return found
