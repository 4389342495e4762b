# SPDX-License-Identifier: Apache-2.0
"""stream: each tensor as soon as its bytes are there, within a window of memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from . import _core, _device, _dtypes, _jobs, _log, _options
from ._types import Names, Report, Slices, Source


class Stream(Iterator[tuple[str, Any]]):
    """
    Yields (name, tensor) in the order of arrival. Memory of a tensor that the consumer has let go is used again; of
    one that it keeps, never: what it keeps counts against the window. Also a context manager: leaving it stops the
    reads.
    """

    def __init__(self, repository: _core.Repository, options: _core.Options, framework: str, device: Any) -> None:
        _log.follow_level()
        self._framework, self._device = framework, device
        self._metadata = repository.metadata
        self._report: Report | None = None
        self._ended = False
        self._ordinal = _device.core_ordinal(repository, device)
        if self._ordinal is not None:
            _device.use(options, self._ordinal, framework)
        self._stream: _core.Stream = _options.core_of(repository).start_stream(repository, options)

    @property
    def metadata(self) -> dict[str, str]:
        return self._metadata

    @property
    def report(self) -> Report:
        """What happened so far; complete when the stream has ended."""
        return self._stream.report() if self._report is None else self._report

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes done and bytes in all."""
        if self._report is not None:
            return self._report["bytes"], self._report["bytes"]
        return self._stream.progress()

    def __next__(self) -> tuple[str, Any]:
        if self._ended:
            raise StopIteration
        try:
            found: Any = self._stream.next(0)
            while found is None:
                _log.drain()
                found = self._stream.next(_jobs.WAIT_SECONDS)
        except BaseException:
            self.close()
            raise
        if found is False:
            self._report = self._stream.report()
            self.close()
            raise StopIteration
        name, dtype, shape, memory = found
        if self._ordinal is not None:
            tensor = _device.over_memory(self._framework, dtype, shape, memory, self._ordinal)
            del found, memory
            return name, tensor
        tensor = _dtypes.over_memory(self._framework, dtype, shape, memory)
        del found, memory  # the consumer alone keeps it
        return name, tensor if self._device == "cpu" else tensor.to(self._device)

    def close(self) -> None:
        """Stops; no read is in flight any more. Tensors that were handed out stay valid."""
        self._ended = True
        if self._report is None:
            self._report = self._stream.report()
        self._stream.close()
        _log.drain()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def stream(
    src: Source,
    *,
    device: Any = "cpu",
    names: Names | None = None,
    slices: Slices | None = None,
    framework: str | None = None,
    verify: str = "auto",
    revision: str | None = None,
    memory: int | str | None = None,
    latency_target: float | None = None,
) -> Stream:
    """
    Yields (name, tensor) as the bytes arrive. `memory` is the window: bytes of tensors that have been read and not
    yet let go, 1 GiB or what is free when left out; it must hold the largest tensor. The other arguments are those of
    `load`. On a CUDA device the window is the device's memory, and it is used again behind what the caller's current
    stream has queued when a tensor is let go: a tensor that another stream works on is to be kept until that is done.
    """
    kind, place = _options.framework_and_device(framework, device)
    repository = _options.open_repository(src, revision)
    options = _options.build(repository, names=names, slices=slices, verify=verify, memory=memory, latency_target=latency_target)
    return Stream(repository, options, kind, place)
