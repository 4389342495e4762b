# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves and loads the state of a job."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import _core, _log
from .._errors import SafetensorError, TensorNotFoundError
from . import apart, pages, ranks
from . import exit as process_exit
from .arguments import bytes_of, described, step_of
from .interrupt import in_thread
from .restore import OwnRestore, Saved, Trees, looked_at_own
from .save import Save
from .tiers import Tier, fast_tier, is_of_storage
from .tree import PAGES
from .values import listed

if TYPE_CHECKING:
    from .._types import LoadReport
    from .stock import StockRestore

Step = int | Literal["latest"]
T = TypeVar("T")

class Checkpointer:
    """
    Saves the state of a job while the job goes on. All ranks make the same calls in the same order, in one thread.

        with infercluster.Checkpointer("/lustre/run") as checkpointer:
            start = checkpointer.load(state)             # None: there is none yet
            for step in range(start or 0, steps):
                train(state)
                if step % 100 == 0:
                    checkpointer.save(step, state)       # returns when the state may be changed again

    The state is a dict of names to tensors (torch's on any device, DTensor, numpy's, `Part`s of larger ones), `Pages` of a server, plain values, and objects with
    state_dict() and load_state_dict(), nested as it comes. A checkpoint is a folder `step-N` of safetensors files; it
    is one once it holds a valid COMMIT, and only then `latest()` names it. See `Save.status` for the events.

    Leaving the `with` block waits until all is durable, and raises where a save failed that nobody was told of. What
    happens when the process ends with a save on its way: it waits for it, at exit and on SIGTERM; see `_checkpoint/exit.py`.

    Args:
        root: a directory that all ranks see; made when it is missing. keep: how many of the newest durable checkpoints
        stay (0: all), keep_every: and those whose step it divides. arena_bytes: host memory for copies of the state,
        as a number or as "8GiB"; "auto": half of what is free. A larger state is copied in parts, and the caller waits
        longer. tiers: storage of the node above the root, at most one: a path, or a `Tier`. Saves are made durable
        there first, and go on to the root behind the job's back; what a job leaves behind, the next one with the same
        tiers brings to the root. Each root has a directory of its own there; its parent must be there, and three more
        checkpoints than are kept find room. max_write_rate: bytes per second of this rank to the root. group: the ranks: a process group of torch.distributed,
        or "world" for the default one; "env": rank and number of ranks from the launcher's environment (torchrun,
        Open MPI, MPICH, Slurm, or INFERCLUSTER_RANK and INFERCLUSTER_WORLD), which meet in a directory below `root` (or
        INFERCLUSTER_RENDEZVOUS); "single": this process alone. None: the default group where there is one, else "env".
        call_timeout: seconds that a rank waits for the others to make the same call, write_timeout: until all have
        written.

    Raises:
        OSError: the root cannot be used. TimeoutError: the other ranks did not come, by their numbers. ValueError.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int | None = None,
        arena_bytes: int | str = "auto",
        tiers: Sequence[str | os.PathLike[str] | Tier] | None = None,
        max_write_rate: int | str | None = None,
        group: Any = None,
        call_timeout: float = 300,
        write_timeout: float = 3600,
    ) -> None:
        for name, value in (("keep", keep), ("keep_every", keep_every or 0)):
            if value < 0:
                raise ValueError(f"{name} is {value}; expected 0 or more")
        fast = fast_tier(tiers)
        _log.follow_level()
        self._has_fast = fast is not None
        self._root = os.path.abspath(os.fspath(root))
        self._is_closed = False
        self._saves: list[Save] = []  # that may fail without anybody being told
        os.makedirs(self._root, exist_ok=True)
        self._ranks = ranks.ranks_of(group, self._root, call_timeout)
        self._knows_meshes = ranks.is_default_group(group)  # ranks of meshes are those of the default group
        open_core: Callable[[], _core.Checkpointer] = lambda: _core.open_checkpointer(
            os.fsencode(self._root),
            ranks=self._ranks,
            keep=keep,
            keep_every=keep_every or 0,
            arena_bytes=bytes_of(arena_bytes, "arena_bytes"),
            max_write_rate=bytes_of(max_write_rate, "max_write_rate"),
            call_seconds=call_timeout,
            write_seconds=write_timeout,
            fast=fast,
        )
        # With a fast tier it meets the other ranks.
        self._core = in_thread(open_core) if self._has_fast else open_core()
        process_exit.register(self)

    @property
    def root(self) -> str:
        return self._root

    @property
    def rank(self) -> int:
        return self._ranks.rank if self._ranks is not None else 0

    @property
    def world(self) -> int:
        return self._ranks.world if self._ranks is not None else 1

    def save(
        self,
        step: int,
        state: Any,
        *,
        wait: bool | Literal["queued"] = False,
        exists: Literal["error", "replace"] = "error",
    ) -> Save:
        """
        Returns when the caller may go on and change the state: it is copied then, and nothing is saved yet. With `wait`
        when it is durable at the root. A third save waits for the first of two that are still being written; with a fast
        tier, also until no more than two are not at the root yet.

        Args:
            wait: "queued" returns as soon as copies from devices are queued. Work that is queued on the current streams
            from then on, such as the optimizer's next step, begins behind them; other streams and the host leave the
            state of devices alone until Save.wait_until_staged() has returned. State of the host is copied.
            exists: when the step is saved already, as after a rollback: "error", or "replace" it; the old one goes only
            when the new one is durable.

        Raises:
            ValueError, TypeError: what cannot be saved, by name; the step is there. OSError, TimeoutError: the first
            cause on any rank, the same on all. Also, once, why an earlier save failed that was not waited for; then
            nothing is saved.
        """
        self._check_open()
        if not isinstance(wait, bool) and wait != "queued":
            raise ValueError(f'wait is {wait!r}; expected True, False or "queued"')
        if exists not in ("error", "replace"):
            raise ValueError(f'exists is {exists!r}; expected "error" or "replace"')
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}; expected a whole number of 0 or more")
        try:
            listed, metadata, memory = apart.taken_apart(state, self._knows_meshes)
        except Exception as error:
            self._conclude(error)
            raise
        until = wait if wait == "queued" else "durable" if wait else "staged"
        call = lambda: self._core.save(step, listed, metadata, exists == "replace", until)  # noqa: E731
        try:
            save = Save(in_thread(call, self._core.cancel), step, memory if until == "queued" else [])
        except Exception:
            for earlier in self._saves:  # it may be their error
                earlier._is_told = earlier._is_told or earlier.status == "failed"
            raise
        del memory
        self._saves = [other for other in self._saves if not other._is_over()]
        self._saves.append(save)
        return save

    def load(
        self,
        into: Any,
        *,
        step: Step = "latest",
        path: str | os.PathLike[str] | None = None,
        only: str | list[str] | None = None,
        strict: bool = True,
        cast: bool = False,
    ) -> int | None:
        """
        Fills the tensors of `into`, sets its plain values, and gives objects their state. Every byte is checked against
        the checksum that was taken before it was written. Any mesh and number of ranks may load what any other saved.
        What several ranks of a node want is read once among them.

        Stock checkpoints of torch.distributed.checkpoint are loaded too: a `step-N` that holds its .metadata and
        __*.distcp, or `path`. They have no checksums, and each rank reads them by itself; names are the keys that lead
        to a value, joined by dots.

        Args:
            into: a state as for save(). step: a number, or "latest": what rank 0 finds. path: the directory of one
            checkpoint instead of a step of the root. only: names or shell patterns
            of what is loaded; the rest stays. strict: refuse where names are missing, or the checkpoint has more.
            cast: convert dtypes, as the framework does; refused otherwise, as other shapes always are.

        Returns:
            The step (of a stock checkpoint: the N of its directory's step-N, or 0); None where `latest` finds none, and
            nothing was loaded.

        Raises:
            KeyError: names that are missing, all of them. ValueError: dtypes or shapes that differ, by name; nothing
            was changed then. FileNotFoundError: no such step. SafetensorError, OSError: damaged or not readable; what
            `into` holds is undefined then. The first cause on any rank, the same on all.
        """
        self._check_open()
        if step != "latest" and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            raise ValueError(f'step is {step!r}; expected a whole number of 0 or more, or "latest"')
        number: int | None = None
        chosen: _core.Place | None = None
        if path is None:
            if self._has_fast:
                chosen = in_thread(lambda: self._core.choose(None if step == "latest" else step), self._core.cancel)
                number = chosen.step if chosen is not None else None
            elif step == "latest":
                number = in_thread(self._core.agree_on_latest, self._core.cancel)
            if step != "latest":
                number = step
            if number is None:
                return None
        elif step != "latest":
            raise ValueError(f"path and step ({step}) were both given; name one checkpoint")
        place = os.path.join(self._root, f"step-{number}") if path is None else os.path.abspath(os.fspath(path))
        is_fast, notice = (chosen.is_fast, chosen.notice) if chosen is not None else (False, "")

        def look(fast: _core.Place | None) -> tuple[OwnRestore | StockRestore, int]:
            # A rank that fails before the read says so in its place: the others are in it, or come to it.
            return self._in_turn(lambda: self._looked_at(into, place, number, only, strict, cast, fast))

        restore, found = look(chosen if is_fast else None)
        if isinstance(restore, OwnRestore):
            try:
                report = self._read(restore)
            except (SafetensorError, OSError) as error:  # the same on all ranks, which go on in the same way
                if chosen is None or not is_fast or not chosen.is_at_root or not is_of_storage(error):
                    raise
                is_fast, notice = False, f"read from the root: {error}"
                _log.LOGGER.warning("step %s: %s", number, notice)
                restore, found = look(None)
                assert isinstance(restore, OwnRestore)  # the same save
                report = self._read(restore)
        else:
            alone = restore.read_alone
            report = self._in_turn(lambda: in_thread(alone))
        self._last_load = {**report, "tier": "fast" if is_fast else "root", "notice": notice}
        self._in_turn(lambda: restore.apply(into))
        self._conclude(None)
        return found

    def _read(self, restore: OwnRestore) -> LoadReport:
        return in_thread(lambda: restore.read(self._core), self._core.cancel if self.world > 1 else None)

    def _looked_at(
        self,
        into: Any,
        path: str,
        step: int | None,
        only: str | list[str] | None,
        strict: bool,
        cast: bool,
        fast: _core.Place | None,
    ) -> tuple[OwnRestore | StockRestore, int]:
        """And the step's number. `step`: None where only the path was given. `fast`: the fast tier has it."""
        restore: OwnRestore | StockRestore | None
        checkpoint: Saved
        is_stock = fast is None and _core.is_stock_dcp(os.fsencode(path))
        if step is not None and fast is None and not is_stock and self.world > 1:
            restore = looked_at_own(os.fsencode(self._root), step, self.rank, self.world, into, only, strict, cast)
            if restore is not None:
                return restore, step
        if is_stock:
            from .stock import StockCheckpoint, StockRestore

            checkpoint = stock = in_thread(lambda: StockCheckpoint(path))
            restore, found = StockRestore(stock, self.rank, only, strict, cast), step_of(path)
        else:
            root = os.fsencode(path if step is None else self._root)

            def opened() -> _core.Checkpoint:
                if fast is not None:
                    return self._core.open_place(fast)
                return _core.open_checkpoint_in(root) if step is None else _core.open_checkpoint(root, step)

            own = in_thread(opened)
            checkpoint = own
            restore, found = OwnRestore(own, self.rank, only, strict, cast), own.step
        restore.collect(into)
        if strict and self.world == 1:
            unexpected = restore.unexpected()
            if unexpected:
                raise TensorNotFoundError(
                    f"{checkpoint.path} has more than there is a place for: {listed(unexpected)}. To leave it, ask for"
                    " strict=False, or name what you want with only="
                )
        return restore, found

    def _in_turn(self, call: Callable[[], T]) -> T:
        """What this rank does alone, while the others go on to their next call together; its failure ends that."""
        try:
            return call()
        except Exception as error:
            self._conclude(error)
            raise
        except BaseException:
            self._conclude(InterruptedError(errno.EINTR, "the load was interrupted"))
            raise

    def _conclude(self, failure: BaseException | None) -> None:
        if self.world == 1:
            if failure is not None:
                raise failure
            return
        cause = None if failure is None else described(failure)
        try:
            in_thread(lambda: self._core.conclude(cause), self._core.cancel)
        except Exception as error:
            raise error from failure

    @property
    def last_load(self) -> LoadReport | None:
        """Of the last load() that succeeded on this rank."""
        return self._last_load

    _last_load: LoadReport | None = None

    def latest(self) -> int | None:
        """The newest step that is durable at the root and whole; only this rank looks."""
        self._check_open()
        return self._core.latest()

    def steps(self) -> list[int]:
        """Steps that are durable at the root, ascending; only this rank looks."""
        self._check_open()
        return self._core.steps()

    def page_ids(self, name: str, *, step: Step = "latest") -> list[Any]:
        """
        Of the `Pages` that were saved under this name, by all ranks; only this rank looks. So a server that starts again
        knows which slots it needs before it loads.

        Raises:
            KeyError: there are no pages of this name. FileNotFoundError: no such step.
        """
        self._check_open()
        number = self._core.latest() if step == "latest" else step  # None: the core says what is there
        checkpoint = in_thread(lambda: _core.open_checkpoint(os.fsencode(self._root), number))
        found = Trees(checkpoint, self.rank).find(name)
        if not isinstance(found, dict) or PAGES not in found:
            raise KeyError(f'{checkpoint.path} has no pages of the name "{name}"')
        return pages.ids_of(checkpoint.tensors(), name, found[PAGES][1:])

    def wait(self) -> None:
        """Until every save is durable, and what goes is removed; raises why the first one failed that nobody was told of."""
        self._check_open()
        pending, self._saves = self._saves, []
        failure: BaseException | None = None
        for save in pending:
            if save._is_over():
                continue
            try:
                save.wait()
            except Exception as error:
                failure = failure or error
        in_thread(self._core.wait_idle)  # what the retention removes is gone too
        if failure is not None:
            raise failure

    def close(self) -> None:
        """As wait(); then the memory and threads are given back."""
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True
            self._core.close()
            process_exit.unregister(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the checkpointer is closed")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as error:
            if exc is None:
                raise
            _log.LOGGER.error("a checkpoint was not saved: %s", error)

    def __repr__(self) -> str:
        return f"<infercluster.Checkpointer: {self._root}, rank {self.rank} of {self.world}>"
