# SPDX-License-Identifier: Apache-2.0
"""The group: small bytes gathered from every rank, verdicts that all ranks share, and waits that end.

A rank that fails still takes part in the next verdict, which tells every rank at the same place that one has failed and
why. So no rank is left alone in a collective, except by one that died or hangs: then the wait ends with an error of the
backend, or at the deadline.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import time
from collections.abc import Callable
from typing import Any

from . import causes
from .interrupt import Interrupts

_HINT = "Look at the other ranks' logs; the group cannot be used any more"
# Python sees signals between two waits.
_SLICE = datetime.timedelta(seconds=0.1)


class Comm:
    """A group of torch.distributed, from one rank's view. Used by one thread."""

    def __init__(self, group: Any, timeout: float, place: Any = None) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self.dist, self.group = torch, dist, group
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self.timeout = timeout
        self.is_lost = False  # another rank has gone, or is late: nothing can be agreed on any more
        self._backends = _backends(dist.get_backend_config(group))
        # Where status travels; the same kind on every rank, whatever devices they load to.
        self._control: Any = torch.device("cpu")
        if "cpu" not in self._backends and self._backends:
            self._control = self._indexed(next(iter(self._backends)))
            with contextlib.suppress(RuntimeError):  # a place that is none is told to all ranks, see carry()
                wanted = torch.device(f"cuda:{place}" if isinstance(place, int) else place or "cpu")
                self._control = self._indexed(wanted) if wanted.type in self._backends else self._control
        self._waits_in_backend = self._backends.get(self._control.type) == "gloo"
        self.device: Any = self._control  # where messages are sent from
        self.interrupts = Interrupts()

    def carry(self, place: str) -> Any:
        """Tensors are on this device; returns torch's, with its index."""
        device = self._torch.device(place)
        if self.world > 1 and device.type not in self._backends:
            raise ValueError(
                f"the group's backends ({', '.join(sorted(set(self._backends.values())))}) cannot send {device.type}"
                ' tensors. Make the group with init_process_group("cpu:gloo,cuda:nccl"), or load to another device'
            )
        device = self._indexed(device)
        # gloo sends device tensors only in some collectives: there messages go through the host.
        self.device = self._torch.device("cpu") if self._backends.get(device.type) == "gloo" else device
        return device

    def _indexed(self, device: Any) -> Any:
        device = self._torch.device(device)
        if device.type == "cpu" or device.index is not None:
            return device
        return self._torch.device(device.type, self._torch.get_device_module(device.type).current_device())

    def warm_up(self) -> None:
        """One collective of all ranks, which NCCL asks for before messages between some of them."""
        if self.world > 1 and self._backends.get(self.device.type, "gloo") != "gloo":
            number = self._torch.zeros(1, device=self.device)
            what = "the group's first collective"
            work = self.attempt(lambda: self.dist.all_reduce(number, group=self.group, async_op=True), what)
            self._finish(work, what, False)

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        """Every rank's payload, by rank."""
        if self.world == 1:
            return [payload]
        lengths = self._gather_numbers([len(payload)], what)
        sizes = [length for (length,) in lengths]
        most = max(sizes)
        if most == 0:
            return [b""] * self.world
        mine = self._torch.zeros(most, dtype=self._torch.uint8)
        mine[: len(payload)] = self._torch.frombuffer(bytearray(payload or b"\0"), dtype=self._torch.uint8)[
            : len(payload)
        ]
        mine = mine.to(self._control)
        everyone = self._torch.empty(most * self.world, dtype=self._torch.uint8, device=self._control)
        self._gather(everyone, mine, what)
        data = bytes(everyone.cpu().numpy())
        return [data[rank * most : rank * most + size] for rank, size in enumerate(sizes)]

    def agree(self, step: int, error: BaseException | None, what: str) -> None:
        """Returns when all ranks are at this step and none has failed; else every rank raises the first cause: that of
        the lowest rank among those that failed by this step."""
        error = error or self.interrupts.seen
        if self.world == 1:
            if error is not None:
                raise error
            return
        statuses = self._gather_numbers([step, int(error is not None)], what)
        failed = [rank for rank, (_, status) in enumerate(statuses) if status]
        if failed:
            payloads = self.gather(causes.packed(error) if error is not None else b"", "the causes of a failure")
            if isinstance(error, KeyboardInterrupt):
                raise error
            raise causes.unpacked(payloads[failed[0]], failed[0], len(failed) - 1) from error
        if any(other != step for other, _ in statuses):  # ranks run different versions, or mixed two loads up
            raise RuntimeError(f"the ranks are at different steps: {[other for other, _ in statuses]}")

    def wait(self, work: Any, what: str) -> None:
        """Until a message of the data has come or gone. On a device: until the current stream waits for it."""
        self._finish(work, what, self._waits_in_backend and self.device.type == "cpu")

    def _gather_numbers(self, numbers: list[int], what: str) -> list[list[int]]:
        mine = self._torch.tensor(numbers, dtype=self._torch.int64, device=self._control)
        everyone = self._torch.empty(len(numbers) * self.world, dtype=self._torch.int64, device=self._control)
        self._gather(everyone, mine, what)
        flat: list[int] = everyone.tolist()
        return [flat[rank * len(numbers) : (rank + 1) * len(numbers)] for rank in range(self.world)]

    def _gather(self, everyone: Any, mine: Any, what: str) -> None:
        parts = list(everyone.view(self.world, -1).unbind(0))
        work = self.attempt(lambda: self.dist.all_gather(parts, mine, group=self.group, async_op=True), what)
        self._finish(work, what, self._waits_in_backend)

    def attempt(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: BaseException) -> OSError:
        self.is_lost = True
        return OSError(
            errno.ECONNABORTED,
            f"rank {self.rank} lost one of the other ranks while it waited for {what}: {error}. {_HINT}",
        )

    def _late(self, what: str) -> OSError:
        self.is_lost = True
        return OSError(
            errno.ETIMEDOUT, f"rank {self.rank} waited {self.timeout:g} s for {what} of the other ranks. {_HINT}"
        )

    def _finish(self, work: Any, what: str, in_backend: bool) -> None:
        deadline = time.monotonic() + self.timeout
        pause = 20e-6
        while True:
            try:
                if in_backend:
                    work.wait(_SLICE)
                    return
                if work.is_completed():
                    work.wait()
                    return
            except RuntimeError as error:
                if not in_backend or work.is_completed():
                    raise self._lost(what, error) from error
            if time.monotonic() > deadline:
                raise self._late(what)
            if not in_backend:
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)


def _backends(config: str) -> dict[str, str]:
    """From "cpu:gloo,cuda:nccl"."""
    pairs = (part.partition(":") for part in str(config).lower().split(",") if part)
    return {device: backend for device, _, backend in pairs}


def group_of(group: Any) -> Any:
    """The process group that a caller means."""
    try:
        import torch.distributed as dist
    except ImportError:
        raise ValueError("group= needs torch; install it, or load without a group") from None
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("group= needs torch.distributed.init_process_group() first")
    if group is True or group == "world":
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f'group is {group!r}; expected a torch.distributed process group, or "world" for the default one'
        )
    if dist.get_rank(group) < 0:
        raise ValueError("this process is not a member of the group")
    return group
