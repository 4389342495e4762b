# SPDX-License-Identifier: Apache-2.0
"""Tensors to the format's bytes and back. A file appears whole or not at all: it is written beside its name, synced
and renamed."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from .._dtypes import TORCH_NAMES
from .._errors import SafetensorError

_FORMAT_NAMES = {name: dtype for dtype, name in TORCH_NAMES.items()}
_PARTS_MAX = 1000  # of one writev; the kernel takes 1024
_WRITE_BYTES_MAX = 1 << 30  # of one writev; the kernel takes 2 GiB less a page
_NAME_BYTES_MAX = 255
_BYTES = bytes  # `deserialize` has a parameter of that name


class TensorSpec:
    """
    One tensor for `serialize` and `serialize_file`: dtype by its name in torch or numpy, shape, address and bytes of
    its contiguous memory, which the caller keeps. Of `float4_e2m1fn_x2` the packed shape is given; `shape` counts
    elements.
    """

    __slots__ = ("_data_len", "_data_ptr", "_dtype", "_shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        if not isinstance(dtype, str):
            raise TypeError(f"argument 'dtype': '{type(dtype).__name__}' object cannot be converted to 'str'")
        if dtype not in _FORMAT_NAMES:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(sorted(_FORMAT_NAMES))}')
        numbers = [operator.index(size) for size in shape]
        values = [*numbers, operator.index(data_ptr), operator.index(data_len)]
        if any(not 0 <= value < 1 << 64 for value in values):
            raise OverflowError(
                "can't convert negative int to unsigned" if min(values) < 0 else "int too big to convert"
            )
        self._dtype = _FORMAT_NAMES[dtype]
        if self._dtype == "F4" and numbers:
            numbers[-1] *= 2
        self._shape, self._data_ptr, self._data_len = numbers, values[-2], values[-1]

    @property
    def dtype(self) -> str:
        """The format's name, such as "F32"."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """Elements in each dimension, as the header says."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """Address of the tensor's memory."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """Bytes of the tensor's memory."""
        return self._data_len

    def __repr__(self) -> str:
        memory = f"data_ptr={self._data_ptr}, data_len={self._data_len}"
        return f"TensorSpec(dtype='{self._dtype}', shape={self._shape}, {memory})"


def _checked_metadata(metadata: Mapping[str, str] | None) -> list[tuple[str, str]] | None:
    if metadata is None:
        return None
    for key, value in metadata.items():
        for text in (key, value):
            if not isinstance(text, str):
                raise TypeError(f"argument 'metadata': '{type(text).__name__}' object cannot be converted to 'str'")
    return sorted(metadata.items())


def _parts(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None) -> list[bytes | memoryview]:
    """The file's parts in their order: the header, then each tensor's memory."""
    if not isinstance(tensor_dict, Mapping):
        raise TypeError(f"argument 'tensor_dict': '{type(tensor_dict).__name__}' object cannot be converted to 'dict'")
    for name, spec in tensor_dict.items():
        if not isinstance(name, str) or not isinstance(spec, TensorSpec):
            found = f"{type(name).__name__} and {type(spec).__name__}"
            raise TypeError(f"argument 'tensor_dict': expected a dict of str and TensorSpec, found {found}")
    pairs = _checked_metadata(metadata)
    try:
        header, placed = _core.build_header(
            [(name, spec.dtype, spec.shape) for name, spec in tensor_dict.items()], pairs
        )
    except (SafetensorError, ValueError, MemoryError) as error:
        raise SafetensorError(f"Error while serializing: {error}") from None
    parts: list[bytes | memoryview] = [header]
    for name, begin, end in placed:
        spec = tensor_dict[name]
        if spec.data_len != end - begin:
            raise SafetensorError(
                f'Error while serializing: invalid shape, data type, or offset for tensor: "{name}", {spec.dtype}'
                f" {spec.shape}, takes {end - begin} bytes, and {spec.data_len} were given"
            )
        if end > begin:
            memory = (ctypes.c_char * (end - begin)).from_address(spec.data_ptr)
            parts.append(memoryview(memory).cast("B"))
    return parts


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file that holds these tensors and this text."""
    return b"".join(_parts(tensor_dict, metadata))


def _write_all(fd: int, parts: list[bytes | memoryview]) -> None:
    views = [memoryview(part) for part in parts]
    at = 0
    while at < len(views):
        batch: list[memoryview] = []
        size = 0
        for view in views[at : at + _PARTS_MAX]:
            batch.append(view[: _WRITE_BYTES_MAX - size])
            size += len(batch[-1])
            if size >= _WRITE_BYTES_MAX:
                break
        written = os.writev(fd, batch)
        while at < len(views) and written >= len(views[at]):
            written -= len(views[at])
            at += 1
        if written:
            views[at] = views[at][written:]


@contextlib.contextmanager
def _replacing(path: bytes) -> Iterator[int]:
    """A descriptor to write to; when the block ends well, what was written is synced and takes the place of `path`."""
    folder, name = os.path.split(path)
    folder_fd = os.open(folder or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = b".%s.%s.tmp" % (name[: _NAME_BYTES_MAX - 24], secrets.token_hex(8).encode())
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder_fd)
        try:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(fd, stat.S_IMODE(os.stat(name, dir_fd=folder_fd).st_mode))
                yield fd
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder_fd)
            raise
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors file. Who has the old file open keeps the old bytes; on an error the old file stays."""
    path = os.fsencode(filename)
    parts = _parts(tensor_dict, metadata)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # a pipe or a device: there is nothing to replace
            try:
                _write_all(fd, parts)
            finally:
                os.close(fd)
            return
        with _replacing(os.path.realpath(path)) as fd:
            _write_all(fd, parts)
    except OSError as error:
        message = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno}): {os.fsdecode(path)}"
        raise SafetensorError(message) from error


def deserialize(bytes: Any) -> list[tuple[str, dict[str, Any]]]:  # noqa: A002 - the stock package's name
    """(name, {"shape", "dtype", "data"}) of each tensor in a file's bytes; the data is copied."""
    if not isinstance(bytes, _BYTES):
        raise TypeError(f"argument 'bytes': '{type(bytes).__name__}' object cannot be converted to 'bytes'")
    size = len(bytes)
    try:
        length = _core.parse_header_length(bytes[:8], size)
        header = _core.parse_header(bytes[8 : 8 + length], size)
    except SafetensorError as error:
        raise SafetensorError(f"Error while deserializing: {error}") from None
    view = memoryview(bytes)
    items: list[tuple[str, dict[str, Any]]] = []
    for name in header.names():
        found = header.find(name)
        assert found is not None
        dtype, shape, begin, end = found
        items.append((name, {"shape": list(shape), "dtype": dtype, "data": bytearray(view[begin:end])}))
    return items
