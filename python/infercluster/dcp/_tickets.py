# SPDX-License-Identifier: Apache-2.0
"""How the ranks learn which save they take part in.

The first rank begins it, and DCP carries a ticket to each rank in its plan. Where plans are cached, the planner drops
the plan that came and takes its old one, with the ticket of an earlier save: so a ticket also takes itself to the
writer as it arrives.
"""

from __future__ import annotations

import threading
from typing import Any

_KEPT_MAX = 64  # saves to that many directories at once

_lock = threading.Lock()
_arrived: dict[str, Ticket] = {}  # by directory; guarded by _lock


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


def arrive(ticket: Ticket) -> None:
    with _lock:
        _arrived.pop(ticket.directory, None)
        _arrived[ticket.directory] = ticket
        while len(_arrived) > _KEPT_MAX:
            del _arrived[next(iter(_arrived))]


def latest(directory: str) -> Ticket:
    with _lock:
        found = _arrived.get(directory)
    if found is None:
        raise RuntimeError(
            f"{directory}: this rank was not told which save it takes part in: the storage data of its plan got lost. A"
            " planner must keep what prepare_global_plan() of the storage writer returns, and all ranks must save to"
            " the same checkpoint_id"
        )
    return found
