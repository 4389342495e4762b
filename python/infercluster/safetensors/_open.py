# SPDX-License-Identifier: Apache-2.0
"""safe_open: the stock package's lazy reader, over private memory. Small reads are plain preads; large ones run
through the engine."""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from .. import _core, _dtypes
from .._errors import SafetensorError
from . import _device, _index

# Larger reads are worth a job of the engine: parallel requests into huge pages.
_ENGINE_BYTES = 16 << 20
# A slice of several pieces: up to so many are read one by one ...
_PIECES_MAX = 256
# ... else all from the first to the last, when that is no more than so many bytes; else the engine decides.
_SPAN_BYTES_MAX = 4 << 20

Box = tuple[tuple[int, int], ...]
_Self = TypeVar("_Self", bound="safe_open")


def _open_failed(error: OSError, filename: str) -> OSError:
    if error.errno != errno.ENOENT:
        return error
    # The stock package's message, without the number; the number stays readable.
    missing = FileNotFoundError(f"No such file or directory: {filename}")
    missing.errno = error.errno
    return missing


class Source:
    """One open file: its table, and reads of it. Thread-safe; lives as long as a handle or a slice of it does."""

    def __init__(self, filename: Any) -> None:
        path = os.fspath(filename)
        self.filename = os.fsdecode(path)
        try:
            self.file = _core.open_file(os.fsencode(path))
        except OSError as error:
            raise _open_failed(error, self.filename) from None
        except ValueError as error:
            raise OSError(errno.ENODEV, str(error)) from None  # a directory, a device
        self.identity = self.file.identity
        size = self.identity[2]
        try:
            length = _core.parse_header_length(self.file.read(min(8, size), 0), size)
            self.header = _core.parse_header(self.file.read(length, 8), size)
        except SafetensorError as error:
            where = "" if self.filename in str(error) else f"{self.filename}: "
            raise SafetensorError(f"Error while deserializing header: {where}{error}") from None
        # What the engine reads is verified when that is asked for; plain reads are not.
        self._verify = os.environ.get("INFERCLUSTER_VERIFY") == "always"
        self._engine_bytes = 1 if self._verify else _ENGINE_BYTES
        self._lock = threading.Lock()
        self._repository: Any = None  # guarded by _lock; False: the engine would open another file

    def info(self, name: str) -> tuple[str, _dtypes.Shape, int, int]:
        found = self.header.find(name)
        if found is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return found

    def repository(self) -> Any:
        """The same file, as the engine opens it by its path; False when the path leads to another file by now."""
        with self._lock:
            if self._repository is None:
                repository = _core.open(os.fsencode(self.filename), "")
                self._repository = repository if repository.identities == [self.identity] else False
            return self._repository

    def read(self, framework: str, name: str) -> Any:
        dtype, shape, begin, end = self.info(name)
        if end - begin >= self._engine_bytes:
            memory = self._by_engine(name, None)
            if memory is not None:
                return _dtypes.over_memory(framework, dtype, shape, memory)
        tensor, address, size = _dtypes.fresh(framework, dtype, shape)
        if size:
            self.file.read_into(address, end - begin, begin)
        return tensor

    def _on_engine(self, run: Callable[[Any], Any]) -> Any:
        """None: plain reads of the open file must do, as its path leads elsewhere by now, or this process was forked."""
        try:
            repository = self.repository()
            if repository:
                return run(repository)
        except (OSError, RuntimeError) as error:
            number = getattr(error, "errno", None)
            # An unlink changes the ctime, and nothing else.
            replaced = number in (errno.ENOENT, errno.ESTALE) and self.file.identity[:4] == self.identity[:4]
            if self._verify or not (replaced or getattr(error, "code", "") == "unsupported"):
                raise
        if self._verify:
            raise OSError(errno.ESTALE, "the file was replaced, so that it cannot be verified any more", self.filename)
        return None

    def _by_engine(self, name: str, box: Box | None) -> Any:
        from .._jobs import load_one

        return self._on_engine(lambda repository: load_one(repository, name, box))

    def to_device(self, name: str | None, ordinal: int) -> dict[str, Any] | None:
        """One tensor (None: all), straight to a CUDA device of torch. None: go by way of the host, since it is little,
        or the engine cannot; what torch itself has against the device, it says there in its own words."""
        infos = map(self.info, self.header.names() if name is None else [name])
        if sum(end - begin for _, _, begin, end in infos) < self._engine_bytes:
            return None
        from .. import _device as cuda
        from .._jobs import load_to_device

        try:
            loaded = self._on_engine(lambda repository: load_to_device(repository, ordinal, name))
        except (MemoryError, ValueError):
            return None  # no room there, no such device
        if loaded is None:
            return None
        return {at: cuda.over_memory("pt", dtype, shape, memory, ordinal) for at, dtype, shape, memory in loaded}

    def read_all(self, framework: str) -> dict[str, Any]:
        names = self.header.names()
        infos = [self.info(name) for name in names]
        if sum(end - begin for _, _, begin, end in infos) >= self._engine_bytes:
            from .._jobs import load_whole

            loaded = self._on_engine(load_whole)
            if loaded is not None:
                return {one[0]: _dtypes.over_memory(framework, *one[1:]) for one in loaded}
        return {name: self.read(framework, name) for name in names}

    def read_box(self, framework: str, name: str, box: Box) -> Any:
        """The tensor's part in `box`, which counts in dimensions of the tensor object (F4: packed)."""
        dtype, shape, begin, end = self.info(name)
        stored = _dtypes.storage_shape(dtype, shape)
        lengths = tuple(stop - start for start, stop in box)
        if lengths == stored:
            return self.read(framework, name)
        itemsize = (end - begin) // math.prod(stored) if end > begin else 0
        logical = lengths if dtype != "F4" else (*lengths[:-1], lengths[-1] * 2)
        pieces = _pieces(box, stored, itemsize)
        if pieces.count <= _PIECES_MAX and (pieces.row * pieces.count < self._engine_bytes or dtype == "F4"):
            tensor, address, _ = _dtypes.fresh(framework, dtype, logical)
            for at, start in enumerate(pieces.starts() if pieces.count else ()):
                self.file.read_into(address + at * pieces.row, pieces.row, begin + start)
            return tensor
        if pieces.span > min(_SPAN_BYTES_MAX, self._engine_bytes) and dtype != "F4":
            memory = self._by_engine(name, box)
            if memory is not None:
                return _dtypes.over_memory(framework, dtype, logical, memory)
        return self._cut(framework, name, box)

    def _cut(self, framework: str, name: str, box: Box) -> Any:
        """Reads the rows of the first dimension, and copies the part of them that is wanted."""
        dtype, shape, begin, end = self.info(name)
        stored = _dtypes.storage_shape(dtype, shape)
        row = (end - begin) // stored[0]
        first, last = box[0]
        rows = (last - first, *shape[1:])
        tensor, address, _ = _dtypes.fresh(framework, dtype, rows)
        self.file.read_into(address, row * (last - first), begin + row * first)
        part = tensor[(slice(None), *(slice(start, stop) for start, stop in box[1:]))]
        return part.clone() if framework == "pt" else part.copy()


@dataclass(frozen=True)
class _Pieces:
    """The contiguous pieces of a box: all of `row` bytes, the first at `offset` of the tensor, the last `last` bytes
    behind the first."""

    offset: int
    row: int
    counts: tuple[int, ...]  # of the dimensions outside of a piece, and their strides in bytes
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.counts) if self.row else 0

    @property
    def span(self) -> int:
        return self.row + sum((count - 1) * stride for count, stride in zip(self.counts, self.strides, strict=True))

    def starts(self) -> Iterator[int]:
        steps = [range(0, count * stride, stride) for count, stride in zip(self.counts, self.strides, strict=True)]
        return (self.offset + sum(step) for step in itertools.product(*steps))


def _pieces(box: Box, stored: _dtypes.Shape, itemsize: int) -> _Pieces:
    if any(start == stop for start, stop in box):
        return _Pieces(0, 0, (), ())
    strides = [itemsize] * len(stored)
    for dimension in reversed(range(len(stored) - 1)):
        strides[dimension] = strides[dimension + 1] * stored[dimension + 1]
    inner = len(stored) - 1  # the innermost dimension that is cut: a piece is one range of it
    while inner > 0 and box[inner] == (0, stored[inner]):
        inner -= 1
    return _Pieces(
        offset=sum(start * stride for (start, _), stride in zip(box, strides, strict=True)),
        row=(box[inner][1] - box[inner][0]) * strides[inner],
        counts=tuple(stop - start for start, stop in box[:inner]),
        strides=tuple(strides[:inner]),
    )


class SafeSlice:
    """What `get_slice` gives: index it to read a part."""

    def __init__(self, source: Source, name: str, framework: _device.Framework, device: Any, torch_rules: bool) -> None:
        self._source, self._name, self._framework, self._device = source, name, framework, device
        self._torch_rules = torch_rules
        self._dtype, self._shape, _, _ = source.info(name)

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: Any) -> Any:
        stored = _dtypes.storage_shape(self._dtype, self._shape)
        kind = self._framework.reads_as
        if self._torch_rules:
            selection = _index.like_torch(index, stored)
            if selection is None:
                return self._framework.deliver(self._source.read(kind, self._name)[index], self._device)
        else:
            selection = _index.like_stock(index, stored)
        tensor = self._source.read_box(kind, self._name, selection.box)
        if selection.rest is not None:
            tensor = tensor[selection.rest]
            if kind == "np":
                tensor = _device.own_array(tensor)
            elif not self._torch_rules:
                tensor = tensor.contiguous()
        return self._framework.deliver(tensor, self._device)


class safe_open:  # noqa: N801 - the stock package's name
    """
    Opens a safetensors file; tensors are read when they are asked for.

    Args:
        filename (`str`, or `os.PathLike`): the file
        framework (`str`): `pt`, `np`, `flax`, `tf`, `mlx` or `paddle`, or their long names
        device (`str` or `int`, defaults to `"cpu"`): where the tensors go
        backend (`str`, *keyword-only*): `"mmap"` or `"pread"`, as in the stock package. Nothing is mapped with
        either: bytes are read into
            private memory, so that a file that is cut or replaced cannot kill the process or change tensors in use.
            With `"pread"`, slices follow the stock package's rules for it.
    """

    def __init__(self, filename: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        self._framework = _device.framework_named(framework)
        self._device = _device.device_named(device)
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        source = Source(filename)
        self._framework.check_device(self._device)
        self._framework.load_module()
        self._torch_rules = self._framework.reads_as == "pt" and backend == "mmap"
        self._source: Source | None = source

    def _open(self) -> Source:
        if self._source is None:
            raise SafetensorError("File is closed")
        return self._source

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, _exc_type: type[BaseException] | None, _exc_value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._source = None

    def keys(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._open().header.names())

    def offset_keys(self) -> list[str]:
        """Names, in the order in which the tensors lie in the file."""
        return self._open().header.names()

    def metadata(self) -> dict[str, str] | None:
        """The free-form text of the header; None when there is none."""
        found = self._open().header.metadata
        return None if found is None else dict(found)

    def get_tensor(self, name: str) -> Any:
        """The tensor, whole."""
        ordinal = self._framework.core_ordinal(self._device)
        found = None if ordinal is None else self._open().to_device(name, ordinal)
        if found is not None:
            return found[name]
        return self._framework.deliver(self._open().read(self._framework.reads_as, name), self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, by name, in the order of `offset_keys`."""
        ordinal = self._framework.core_ordinal(self._device)
        found = None if ordinal is None else self._open().to_device(None, ordinal)
        if found is not None:
            return found
        deliver: Callable[[Any, Any], Any] = self._framework.deliver
        return {
            name: deliver(tensor, self._device)
            for name, tensor in self._open().read_all(self._framework.reads_as).items()
        }

    def get_slice(self, name: str) -> SafeSlice:
        """An object to index: only the part that is asked for is read."""
        return SafeSlice(self._open(), name, self._framework, self._device, self._torch_rules)


class _safe_open_handle(safe_open):  # noqa: N801 - the stock package's name
    """As `safe_open`, of a file object that has a `name` on this machine."""

    def __init__(self, f: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        _ = f.fileno
        super().__init__(f.name, framework, device, backend=backend)
