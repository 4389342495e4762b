# SPDX-License-Identifier: Apache-2.0
"""INFERCLUSTER_DISABLE=1: what the package takes from the extension module, over the stock package safetensors
instead. No engine, no threads, no verification, no memory budget: the same tensors, as stock code would load them."""

from __future__ import annotations

import ctypes
import fnmatch
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ._types import FileReport, Report, Shard


class Repository:
    """Files and their tensors, found as the core finds them."""

    def __init__(self, files: list[str]) -> None:
        from safetensors import safe_open

        self.files = files
        self.metadata: dict[str, str] = {}
        self._framework = "pt" if importlib.util.find_spec("torch") else "np"
        self._tensors: dict[str, tuple[str, tuple[int, ...], str]] = {}
        for file in files:
            with safe_open(file, framework=self._framework) as handle:
                self.metadata = self.metadata or handle.metadata() or {}
                for name in handle.offset_keys():
                    part = handle.get_slice(name)
                    self._tensors[name] = (part.get_dtype(), tuple(part.get_shape()), file)

    def names(self) -> list[str]:
        return list(self._tensors)

    def find(self, name: str) -> tuple[str, tuple[int, ...], int, str] | None:
        if name not in self._tensors:
            return None
        from ._core import tensor_bytes

        dtype, shape, file = self._tensors[name]
        return dtype, shape, tensor_bytes(dtype, shape), file

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], Any]:
        """The shape of the part, and a buffer with its bytes."""
        from safetensors import safe_open

        _, shape, file = self._tensors[name]
        sliced = (*(end - begin for begin, end in ranges), *shape[len(ranges) :])
        with safe_open(file, framework=self._framework) as handle:
            if 0 in sliced:
                return sliced, bytearray()
            index = tuple(slice(begin, end) for begin, end in ranges)
            tensor = handle.get_slice(name)[index] if sliced != shape else handle.get_tensor(name)
        if self._framework == "pt":
            import torch

            return sliced, bytearray(tensor.clone().contiguous().reshape(-1).view(torch.uint8).numpy())
        return sliced, bytearray(tensor.tobytes())


class Options:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.memory: int | None = None
        self.latency_target = 0.0  # nobody is told
        self.slices: list[tuple[str, list[tuple[int, int]] | Shard]] = []
        self.into: dict[str, tuple[int, int]] = {}
        self.device = -1  # the host: other devices are reached through it

    def set_verify(self, name: str) -> None:
        if name not in ("auto", "always", "never"):
            raise ValueError(f'verify is "{name}"; expected "auto", "always" or "never"')
        if name == "always":
            raise ValueError(
                'verify="always" cannot be had while INFERCLUSTER_DISABLE is set: the stock package verifies nothing'
            )

    def add_slice(self, pattern: str, ranges: list[tuple[int, int]]) -> None:
        self.slices.append((pattern, ranges))

    def add_shard(self, pattern: str, dimension: int, rank: int, world: int) -> None:
        self.slices.append((pattern, Shard(dimension, rank, world)))

    def add_into(self, name: str, address: int, bytes: int, device: int = -1) -> None:  # noqa: A002 - as the extension
        self.into[name] = (address, bytes)

    def ranges_for(self, name: str, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        for pattern, asked in self.slices:
            if _matches(pattern, name):
                if not isinstance(asked, Shard):
                    return asked
                if asked.dim >= len(shape):
                    return []
                piece = -(-shape[asked.dim] // asked.world)
                begin = min(shape[asked.dim], piece * asked.rank)
                return [*((0, size) for size in shape[: asked.dim]), (begin, min(begin + piece, shape[asked.dim]))]
        return []


def _matches(pattern: str, name: str) -> bool:
    from ._core import matches

    return matches(pattern, name)


def options_from_environment() -> Options:
    return Options()


def _files_of(path: str, revision: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        if path.count("/") != 1 or path.startswith(("/", ".")):
            raise FileNotFoundError(2, "No such file or directory", path)
        from huggingface_hub import snapshot_download

        path = snapshot_download(path, revision=revision or None, local_files_only=True)
    indexes = sorted(name for name in os.listdir(path) if name.endswith(".safetensors.index.json"))
    if indexes:
        with open_file(os.path.join(path, indexes[0])) as index:
            return sorted({os.path.join(path, shard) for shard in json.load(index)["weight_map"].values()})
    files = sorted(os.path.join(path, name) for name in os.listdir(path) if fnmatch.fnmatch(name, "*.safetensors"))
    if not files:
        raise FileNotFoundError(2, "No safetensors file in this directory", path)
    return files


open_file = open


def open(source: bytes, revision: str) -> Repository:  # noqa: A001 - as in the extension module
    return Repository(_files_of(os.fsdecode(source), revision))


class _Run:
    """A job and a stream in one: reads when it is asked."""

    def __init__(self, repository: Repository, options: Options) -> None:
        self._repository, self._options = repository, options
        self._started = time.monotonic()
        self._bytes = 0
        self._count = 0
        wanted = options.names
        self._names = [
            name for name in repository.names() if not wanted or any(_matches(pattern, name) for pattern in wanted)
        ]
        unknown = [pattern for pattern in wanted if not any(_matches(pattern, name) for name in self._names)]
        unknown += [name for name in options.into if name not in self._names]
        if unknown:
            from ._errors import TensorNotFoundError

            raise TensorNotFoundError(f"no tensor has the name or pattern {', '.join(unknown)}")
        self._arriving = self._read()

    def _read(self) -> Iterator[tuple[str, str, tuple[int, ...], Any]]:
        for name in self._names:
            found = self._repository.find(name)
            assert found is not None
            dtype, shape, _, _ = found
            shape, memory = self._repository.read(name, self._options.ranges_for(name, shape))
            self._bytes += len(memory)
            self._count += 1
            if name in self._options.into:
                address, size = self._options.into[name]
                ctypes.memmove(address, (ctypes.c_char * size).from_buffer(memory) if size else b"", size)
                memory = None
            yield name, dtype, shape, memory

    def wait(self, seconds: float) -> bool:
        return True

    def wait_for_page_cache(self, seconds: float) -> bool:
        return True

    def cancel(self) -> None:
        self._arriving = iter(())

    def close(self) -> None:
        self._arriving = iter(())

    def progress(self) -> tuple[int, int]:
        total = sum(found[2] for name in self._names if (found := self._repository.find(name)))
        return self._bytes, total

    def next(self, seconds: float) -> Any:
        return next(self._arriving, False)

    def report(self) -> Report:
        seconds = time.monotonic() - self._started
        why = "INFERCLUSTER_DISABLE is set"
        files: list[FileReport] = [
            {"path": file, "bytes": 0, "mode": "mapped", "reason": why, "verification": f"unverified: {why}"}
            for file in self._repository.files
        ]
        return {
            "bytes": self._bytes,
            "tensors": self._count,
            "seconds": seconds,
            "gib_per_s": self._bytes / max(seconds, 1e-9) / 2**30,
            "backend": "safetensors",
            "backend_reason": why,
            "peak_host_bytes": self._bytes,
            "working_bytes": 0,
            "files": files,
            "waited": {"storage": 0.0, "memory": 0.0, "verify": 0.0, "other": seconds},
            "moved_bytes": 0,
            "device_copies": 0,
            "device_copy_bytes": 0,
            "gds_bytes": 0,
            "bytes_read": self._bytes,
            "requests": 0,
            "retries": 0,
            "page_cache_fill_bytes": 0,
            "donated_blocks": 0,
            "notices": [],
        }

    def finish(self) -> tuple[list[Any], dict[str, str], Report]:
        tensors = list(self._arriving)
        return tensors, self._repository.metadata, self.report()


def start_load(repository: Repository, options: Options) -> _Run:
    return _Run(repository, options)


def start_stream(repository: Repository, options: Options) -> _Run:
    return _Run(repository, options)
