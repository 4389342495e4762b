# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a node load together: what one of them reads goes to all who want it.

Each rank says in its plan on which node it is. The coordinator, who sees all plans, gives a turn to those of a node
that want the same, and DCP carries it to them in their plans; then they meet in the store of torch's default process
group, under a name that only this load has. Ranks of different nodes have nothing to do with one another here.
"""

from __future__ import annotations

import dataclasses
import errno
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan

from .. import _core, _log
from .._checkpoint import ranks
from .._checkpoint.arguments import described
from .._checkpoint.interrupt import in_thread
from ._tickets import Arrivals

if TYPE_CHECKING:
    from .._types import LoadReport

_TELL_SECONDS = 5.0  # that telling the others why this rank ends may take


@dataclass(frozen=True)
class Presence:
    """What a rank says of itself."""

    token: str  # of this rank in this load
    node: str


class Turn:
    """What the coordinator tells a rank that loads together with others."""

    def __init__(self, token: str, meeting: str, rank: int, in_job: list[int], job_world: int) -> None:
        self.token, self.meeting = token, meeting
        self.rank, self.in_job, self.job_world = rank, in_job, job_world  # in_job: those of the node

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _turns.put(self.token, self)  # a planner may drop the plan that it came in


_turns: Arrivals[Turn] = Arrivals()  # by token


def presence() -> Presence | None:
    """None: this rank has nobody to share with."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    node = _core.neighbourhood()
    return Presence(uuid.uuid4().hex, node) if node else None


def turns_of(plans: list[LoadPlan]) -> list[LoadPlan]:
    """By the coordinator: the plans of all ranks, with the turn of each who shares."""
    nodes: dict[str, list[int]] = {}
    for rank, plan in enumerate(plans):
        if isinstance(plan, LoadPlan) and isinstance(plan.storage_data, Presence):
            nodes.setdefault(plan.storage_data.node, []).append(rank)
    meeting = uuid.uuid4().hex
    told = list(plans)
    for number, of_node in enumerate(nodes.values()):
        shares = _want_the_same([plans[rank] for rank in of_node])
        for place, rank in enumerate(of_node):
            token = plans[rank].storage_data.token
            turn = Turn(token, f"{meeting}/{number}", place, of_node, len(plans)) if shares else None
            told[rank] = dataclasses.replace(plans[rank], storage_data=turn)
    return told


def _want_the_same(plans: list[LoadPlan]) -> bool:
    seen: dict[MetadataIndex, int] = {}  # who wants something of this chunk
    for number, plan in enumerate(plans):
        for item in plan.items:
            if seen.setdefault(item.storage_index, number) != number:
                return True
    return False


def turn_of(plan: LoadPlan, token: str | None) -> Turn | None:
    arrived = _turns.pop(token) if token is not None else None
    return plan.storage_data if isinstance(plan.storage_data, Turn) else arrived


class Alone:
    """One rank that reads for itself."""

    def least(self, name: str | None) -> str | None:
        return name

    def restore(self, checkpoint: _core.Checkpoint, tensors: _core.Tensors) -> LoadReport:
        return in_thread(lambda: checkpoint.restore(tensors))

    def end_with(self, error: BaseException) -> NoReturn:
        raise error


class Together(Alone):
    """The ranks of a node that load together; all make the same calls in the same order. What fails on one fails on
    all, with the first cause."""

    def __init__(self, turn: Turn, call_seconds: float, read_seconds: float) -> None:
        self._call_seconds, self._read_seconds = call_seconds, read_seconds
        store = ranks.job_store(f"infercluster/load/{turn.meeting}", turn.job_world)
        self._ranks = in_thread(
            lambda: _core.ranks_over_store(
                store, turn.rank, len(turn.in_job), call_seconds, in_job=turn.in_job, job_world=turn.job_world
            )
        )

    def least(self, name: str | None) -> str | None:
        """Of what the ranks give; None is behind all names."""
        given = b"" if name is None else b"=" + name.encode()
        all_given = in_thread(lambda: self._ranks.gather("batch", given, self._call_seconds), self._cancel)
        names = [one[1:].decode() for one in all_given if one]
        return min(names) if names else None

    def restore(self, checkpoint: _core.Checkpoint, tensors: _core.Tensors) -> LoadReport:
        return in_thread(
            lambda: _core.restore_by(self._ranks, checkpoint, tensors, self._call_seconds, self._read_seconds),
            self._cancel,
        )

    def end_with(self, error: BaseException) -> NoReturn:
        interrupted = InterruptedError(errno.EINTR, "the load was interrupted")
        try:
            self._tell(error if isinstance(error, Exception) else interrupted)
        except Exception as first:
            # torch loses it where a process is gone, and its own talk fails for that.
            _log.LOGGER.error("a load failed: %s", first)
            if not isinstance(error, Exception) or str(first) == str(error):
                raise error from None
            raise first from error

    def _tell(self, error: Exception) -> NoReturn:
        in_thread(lambda: self._ranks.end_with(described(error), _TELL_SECONDS))
        raise AssertionError("it raises")

    def _cancel(self) -> None:
        try:
            self._ranks.end_with(("cancelled", 0, "it was interrupted"), _TELL_SECONDS)
        except Exception as told:
            _log.LOGGER.info("cancelled: %s", told)
