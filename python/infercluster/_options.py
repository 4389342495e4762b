# SPDX-License-Identifier: Apache-2.0
"""From what a caller asks in Python to the core's options."""

from __future__ import annotations

import operator
import os
import re
import sys
from typing import Any

from . import _core, _device, _dtypes, _jobs
from ._environment import disabled
from ._types import Into, Names, Shard, Slice, Slices, Source

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def core_of(repository: _core.Repository | None = None) -> Any:
    """The extension module, or what stands for it over the stock package: as `repository` was opened, or now."""
    if disabled() if repository is None else not isinstance(repository, _core.Repository):
        from . import _stock

        return _stock
    return _core


def open_repository(src: Source, revision: str | None) -> _core.Repository:
    repository: _core.Repository = core_of().open(os.fsencode(src), revision or "")
    return repository


def byte_count(memory: int | str, name: str = "memory") -> int:
    """From bytes, or text such as "512MiB" or "1.5 GiB" (K, M, G and T are powers of two with an i, of ten without)."""
    if isinstance(memory, str):
        found = _SIZE.fullmatch(memory)
        if not found:
            raise ValueError(f'{name} is "{memory}"; expected bytes, or a size such as "512MiB"')
        number, prefix, binary = found.groups()
        unit: int = (1024 if binary else 1000) ** (" kmgt".index(prefix.lower()) if prefix else 0)
        return int(float(number) * unit)
    number_of_bytes = operator.index(memory)
    if not 0 <= number_of_bytes < 1 << 63:
        raise ValueError(f"{name} is {number_of_bytes} bytes; expected a positive number, or None for the default")
    return number_of_bytes


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[\\")


def _bounds(part: slice, size: int) -> tuple[int, int]:
    if part.step not in (None, 1):
        raise ValueError(f"{part} has a step; load the range and index the tensor")
    begin, end, _ = part.indices(size)
    return begin, max(begin, end)


def bounds_of(pattern: str, asked: Any, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """[begin, end) of the leading dimensions that `slices[pattern]` names, for this tensor."""
    parts = asked if isinstance(asked, tuple) else (asked,)
    if not all(isinstance(part, slice) for part in parts):
        expected = "a slice, a tuple of slices, or infercluster.Shard(dim, rank, world)"
        raise TypeError(f'slices["{pattern}"] is {asked!r}; expected {expected}')
    if len(parts) > len(shape):
        raise ValueError(f'slices["{pattern}"] has {len(parts)} dimensions, and tensor "{name}" has {len(shape)}')
    return tuple(_bounds(part, size) for part, size in zip(parts, shape, strict=False))


def _wanted(repository: _core.Repository, patterns: list[str]) -> list[str]:
    names = repository.names()
    if not patterns:
        return names
    exactly = {pattern for pattern in patterns if not _is_pattern(pattern)}
    others = [pattern for pattern in patterns if _is_pattern(pattern)]
    return [name for name in names if name in exactly or any(_core.matches(pattern, name) for pattern in others)]


def _add_slices(options: _core.Options, repository: _core.Repository, slices: Slices) -> None:
    """The core's rules. Bounds that are open or count from the end depend on each tensor's shape: there it gets a
    rule of its own."""
    left = dict.fromkeys(_wanted(repository, options.names) if slices else [])
    for pattern, asked in slices.items():
        if pattern in left:
            matched = [pattern]
        else:
            matched = [name for name in left if _core.matches(pattern, name)] if _is_pattern(pattern) else []
        for name in matched:  # the first rule that matches decides
            del left[name]
        own_name = matched == [pattern]
        rule = _jobs.exact(pattern) if own_name else pattern
        if isinstance(asked, Shard):
            options.add_shard(rule, asked.dim, asked.rank, asked.world)
            continue
        ranges = {}
        for name in matched:
            info = repository.find(name)
            assert info is not None
            ranges[name] = bounds_of(pattern, asked, name, info[1])
        if len(set(ranges.values())) <= 1:
            options.add_slice(rule, next(iter(ranges.values()), ()))  # without a match the core refuses it
            continue
        for name, found in ranges.items():
            options.add_slice(_jobs.exact(name), found)


def _sliced_shape(shape: tuple[int, ...], asked: Slice) -> tuple[int, ...]:
    if isinstance(asked, Shard):
        if asked.dim >= len(shape):
            return shape
        size = shape[asked.dim]
        piece = -(-size // asked.world)
        begin = min(size, piece * asked.rank)
        return (*shape[: asked.dim], min(piece, size - begin), *shape[asked.dim + 1 :])
    parts = asked if isinstance(asked, tuple) else (asked,)
    bounds = [_bounds(part, size) for part, size in zip(parts, shape, strict=False)]
    return (*(end - begin for begin, end in bounds), *shape[len(bounds) :])


def add_into(options: _core.Options, repository: _core.Repository, into: Into, slices: Slices) -> None:
    """Checks every tensor of the caller; those where the load goes are filled by the core."""
    place = options.device
    for name, tensor in into.items():
        info = repository.find(name)
        if info is None:
            options.add_into(name, 0, 0)  # the core refuses it, by name
            continue
        dtype, shape, _, _ = info
        for pattern, asked in slices.items():
            if name == pattern or _core.matches(pattern, name):
                shape = _sliced_shape(shape, asked)
                break
        if isinstance(tensor, _device.DeviceTensor):
            if (tensor.dtype, tuple(tensor.shape)) != (dtype, shape):
                found = f"{tensor.dtype} {list(tensor.shape)}"
                raise ValueError(f'into["{name}"]: it is {found}, expected {dtype} {list(shape)}')
            options.add_into(name, tensor.data_ptr(), tensor.nbytes, tensor.ordinal)
            continue
        address, size = _dtypes.destination(name, dtype, shape, tensor)
        ordinal = place_of(tensor)
        if ordinal == place:
            options.add_into(name, address, size, ordinal)


ELSEWHERE = -2


def place_of(tensor: Any) -> int:
    """-1: the host; a CUDA ordinal; ELSEWHERE: another device, which the core cannot fill."""
    if not _dtypes.is_torch(tensor):
        return tensor.ordinal if isinstance(tensor, _device.DeviceTensor) else -1
    if tensor.device.type == "cuda" and sys.modules["torch"].version.cuda is not None:
        return int(tensor.device.index)
    return -1 if tensor.device.type == "cpu" else ELSEWHERE


def build(
    repository: _core.Repository,
    *,
    names: Names | None,
    slices: Slices | None,
    verify: str | None,
    memory: int | str | None,
    latency_target: float | None = None,
) -> _core.Options:
    """`verify` "auto", `memory` None and `latency_target` None leave what the environment says."""
    options: _core.Options = core_of(repository).options_from_environment()
    if names is not None:
        wanted = [names] if isinstance(names, str) else list(names)
        if not wanted:
            raise ValueError("names is empty; leave it out to load every tensor")
        # A tensor may be called what looks like a pattern.
        options.names = [_jobs.exact(name) if repository.find(name) else name for name in wanted]
    if verify is not None and verify != "auto":
        options.set_verify(verify)
    if memory is not None:
        options.memory = byte_count(memory)
    if latency_target is not None:
        if not 0 < latency_target < 3600:
            raise ValueError(f"latency_target is {latency_target}; expected seconds, such as 0.02, below an hour")
        options.latency_target = latency_target
    _add_slices(options, repository, slices or {})
    return options


def framework_and_device(framework: str | None, device: Any) -> tuple[str, str]:
    """ "pt", "np" or "dlpack", and "cpu" or a device as torch's `.to()` takes it ("cuda:N" always with its number)."""
    place = f"cuda:{device}" if isinstance(device, int) else "cpu" if device is None else str(device)
    if place.startswith("cpu"):
        return _dtypes.choose_framework(framework), "cpu"
    ordinal = _device.ordinal_of(place)
    if ordinal is not None and not disabled() and not _device.torch_has_rocm():
        return _device.choose_framework(framework, place), f"cuda:{ordinal}"
    kind = _dtypes.choose_framework(framework)
    if kind != "pt":
        raise ValueError(
            f'device is "{place}"; numpy arrays are on the host, and only framework="pt" has other devices'
        )
    return kind, place
