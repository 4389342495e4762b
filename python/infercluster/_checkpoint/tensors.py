# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch (also DTensor and ShardedTensor) and arrays of numpy, as boxes of whole tensors in memory."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

from .. import _core, _device, _dtypes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """
    What this process holds of a larger tensor, for states that are no DTensor: `memory`, a torch.Tensor or numpy.ndarray,
    is the box of a tensor of the shape `shape` that begins at `offsets`. All ranks together hold each element; what
    several hold alike is saved once.
    """

    memory: Any
    shape: Shape
    offsets: Shape


@dataclass
class HeldBox:
    """What this process holds of a tensor: one box of it, row-major when `memory` is contiguous."""

    offsets: Shape
    lengths: Shape
    memory: Any  # a torch.Tensor or numpy.ndarray of the shape `lengths`


@dataclass
class Sharding:
    """How a DTensor is spread over the ranks of its mesh, where plain rules say it: then no rank needs to be told what
    the others hold."""

    mesh_shape: Shape
    ranks: tuple[int, ...]  # of the default group, row-major
    cuts: list[tuple[int, int]]  # (dimension of the mesh, of the tensor), in the order they are made


@dataclass
class Described:
    dtype: str  # the format's name, such as "BF16"
    shape: Shape  # of the whole tensor
    parts: list[HeldBox]
    sharding: Sharding | None = None


def is_tensor(value: Any) -> bool:
    if isinstance(value, (Part, _device.DeviceTensor)) or _dtypes.is_torch(value):
        return True
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return not value.dtype.hasobject
    return hasattr(value, "local_shards") and hasattr(value, "metadata")  # ShardedTensor is no Tensor


@functools.cache
def names_of_torch() -> dict[Any, str]:
    import torch

    return {getattr(torch, name): dtype for dtype, name in _dtypes.TORCH_NAMES.items() if hasattr(torch, name)}


@functools.cache
def _names_of_numpy() -> dict[Any, str]:
    import numpy

    found: dict[Any, str] = {}
    for dtype, name in _dtypes.TORCH_NAMES.items():
        if dtype == "F4":
            continue
        if dtype not in _dtypes.ML_DTYPES:
            found[numpy.dtype(name)] = dtype
        elif "ml_dtypes" in sys.modules:
            found[numpy.dtype(getattr(sys.modules["ml_dtypes"], name))] = dtype
    return found


def _dtype_of(name: str, tensor: Any) -> str:
    if not _dtypes.is_torch(tensor):
        found = _names_of_numpy().get(tensor.dtype)
        if found is None and tensor.dtype.newbyteorder("=") in _names_of_numpy():
            raise TypeError(f'"{name}" is big-endian ({tensor.dtype}); save it with .astype(dtype.newbyteorder("="))')
    else:
        found = names_of_torch().get(tensor.dtype)
    if found is None:
        raise TypeError(
            f'"{name}" has the dtype {tensor.dtype}, which safetensors files do not have. Save a view of it: of'
            " complex128 torch.view_as_real(), of others .view(torch.uint8)"
        )
    return found


def refuse_odd(name: str, tensor: Any) -> None:
    """Of a tensor of torch: refuses, by name, what has no values that could be saved."""
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise TypeError(f'"{name}" is a tensor of layout {tensor.layout}; save its dense form or its parts')
    if tensor.is_quantized:
        raise TypeError(f'"{name}" is a quantized tensor; save its int_repr(), scale and zero point')
    if tensor.device.type == "meta":
        raise TypeError(f'"{name}" is on the meta device and has no values; give it memory first')


def _elements(dtype: str, shape: Shape) -> Shape:
    """From the tensor object's shape: two elements of F4 share one of its bytes."""
    return (*shape[:-1], shape[-1] * 2) if dtype == "F4" and shape else shape


def _chunks_of_dtensor(name: str, tensor: Any) -> list[tuple[Shape, Shape, Any]]:
    for placement in tensor.placements:
        if placement.is_partial():
            raise TypeError(f'"{name}" is a DTensor with the placement {placement}; redistribute it first')
    local = tensor.to_local()
    chunks = tensor.__create_chunk_list__()
    if not chunks or local.numel() == 0:
        return [((0,) * tensor.dim(), (0,) * tensor.dim(), None)] if tensor.dim() else [((), (), local)]
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(local.shape):
        raise TypeError(f'"{name}" is a DTensor whose shard is not one box; redistribute it to plain Shard placements')
    return [(tuple(chunks[0].offsets), tuple(chunks[0].sizes), local)]


def _cuts_after(mesh_shape: Shape, placements: tuple[Any, ...], dimension: int) -> bool:
    """Whether the placement there cuts what all others of its tensor dimension left: FSDP over tensor parallelism."""
    from torch.distributed.tensor import Shard

    placement = placements[dimension]
    if type(placement).__name__ != "_StridedShard":
        return False
    others = [i for i, other in enumerate(placements) if i != dimension and getattr(other, "dim", None) == placement.dim]
    later = all(i > dimension and type(placements[i]) is Shard for i in others)
    return later and placement.split_factor == math.prod(mesh_shape[i] for i in others)


def _sharding_of(tensor: Any) -> Sharding | None:
    """None: it is not told by torch's placements as they are used (interleaved ones, an unusual placement)."""
    from torch.distributed.tensor import Replicate, Shard

    mesh = tensor.device_mesh.mesh
    cuts: list[tuple[int, int]] = []
    after: list[tuple[int, int]] = []
    for dimension, placement in enumerate(tensor.placements):
        if type(placement) is Shard:
            cuts.append((dimension, placement.dim))
        elif _cuts_after(tuple(mesh.shape), tensor.placements, dimension):
            after.append((dimension, placement.dim))
        elif type(placement) is not Replicate:
            return None
    return Sharding(tuple(mesh.shape), tuple(mesh.flatten().tolist()), cuts + after)


def describe(name: str, tensor: Any) -> Described:
    """Refuses, by name, what cannot be saved."""
    if isinstance(tensor, Part):
        held = describe(name, tensor.memory)
        if held.sharding is not None or len(held.parts) != 1 or held.parts[0].lengths != held.shape:
            raise TypeError(f'"{name}" is a Part of a tensor that is spread over ranks itself')
        return Described(held.dtype, tuple(tensor.shape), [HeldBox(tuple(tensor.offsets), held.shape, held.parts[0].memory)])
    if hasattr(tensor, "local_shards"):  # ShardedTensor
        shards = [(tuple(s.metadata.shard_offsets), tuple(s.metadata.shard_sizes), s.tensor) for s in tensor.local_shards()]
        dtype = names_of_torch()[tensor.metadata().tensor_properties.dtype]
        shape = tuple(tensor.metadata().size)
        return Described(dtype, shape, [HeldBox(*shard) for shard in shards])
    if isinstance(tensor, _device.DeviceTensor):
        return Described(tensor.dtype, tensor.shape, [HeldBox((0,) * len(tensor.shape), tensor.shape, tensor)])
    dtype = _dtype_of(name, tensor)
    shape = _elements(dtype, tuple(tensor.shape))
    if not _dtypes.is_torch(tensor):
        return Described(dtype, shape, [HeldBox((0,) * len(shape), shape, tensor)])
    if hasattr(tensor, "__create_chunk_list__"):  # DTensor
        parts = []
        for offsets, lengths, local in _chunks_of_dtensor(name, tensor):
            if local is not None:
                refuse_odd(name, local)
            parts.append(HeldBox(_elements(dtype, offsets), _elements(dtype, lengths), local))
        return Described(dtype, shape, parts, _sharding_of(tensor) if dtype != "F4" else None)
    refuse_odd(name, tensor)
    return Described(dtype, shape, [HeldBox((0,) * len(shape), shape, tensor.detach())])


def is_plain_memory(memory: Any, dtype: str) -> bool:
    """Whether the core can copy from and to it as it is: on the host, and with nothing left to compute."""
    if isinstance(memory, _device.DeviceTensor):
        return False
    if _dtypes.is_torch(memory):
        if memory.device.type != "cpu" or memory.is_conj() or memory.is_neg():
            return False
        return dtype != "F4" or bool(memory.is_contiguous())
    return True


def device_of(memory: Any, dtype: str) -> int | None:
    """The CUDA device whose memory the core can copy from and to as it is. None: the host, or not as it is."""
    if isinstance(memory, _device.DeviceTensor):
        return memory.ordinal
    if not _dtypes.is_torch(memory) or memory.device.type != "cuda" or _device.torch_has_rocm():
        return None
    if memory.is_conj() or memory.is_neg() or not _is_one_copy(tuple(memory.shape), memory.stride()):
        return None
    return None if dtype == "F4" and not memory.is_contiguous() else int(memory.device.index)


def core_can_copy(memory: Any, dtype: str) -> bool:
    return device_of(memory, dtype) is not None or is_plain_memory(memory, dtype)


def add(listed: _core.Tensors, name: str, dtype: str, shape: Shape, part: HeldBox, memory: Any) -> None:
    """`memory`, which core_can_copy(), for the box of `part`; None: it has no elements. On a device it is copied in the
    order of torch's current stream."""
    if memory is None:
        listed.add(name, dtype, shape, part.offsets, part.lengths, 0, [])
        return
    device = device_of(memory, dtype)
    place = -1 if device is None else device
    listed.add(name, dtype, shape, part.offsets, part.lengths, address_of(memory), strides_of(memory), place)
    if device is not None and _dtypes.is_torch(memory):
        listed.follow_stream(device, sys.modules["torch"].cuda.current_stream(device).cuda_stream)


def _is_one_copy(shape: Shape, strides: Shape) -> bool:
    """Contiguous, or rows at equal distances, which one command of the hardware copies; strides in elements."""
    dimensions = [(count, stride) for count, stride in zip(shape, strides, strict=True) if count != 1]
    if any(count == 0 for count, _ in dimensions):
        return True
    run = 1
    while dimensions and dimensions[-1][1] == run:
        run *= dimensions.pop()[0]
    if not dimensions:
        return True
    count, stride = dimensions.pop()
    distance = stride
    while dimensions and dimensions[-1][1] == count * distance:
        count *= dimensions.pop()[0]
    return not dimensions and stride >= run


def strides_of(memory: Any) -> list[int]:
    """Bytes between neighbours of each dimension; empty: row-major without gaps."""
    if isinstance(memory, _device.DeviceTensor):
        return []
    if _dtypes.is_torch(memory):
        if memory.is_contiguous():
            return []
        return [stride * memory.element_size() for stride in memory.stride()]
    return [] if memory.flags.c_contiguous else list(memory.strides)


def is_writable(memory: Any) -> bool:
    return not hasattr(memory, "flags") or bool(memory.flags.writeable)


def address_of(memory: Any) -> int:
    return int(memory.data_ptr() if hasattr(memory, "data_ptr") else memory.ctypes.data)


def as_plain(memory: Any) -> Any:
    """A copy that is_plain_memory(), with the same elements."""
    if _dtypes.is_torch(memory):
        return memory.detach().cpu().resolve_conj().resolve_neg().contiguous()
    import numpy

    return numpy.ascontiguousarray(memory).reshape(memory.shape)


def empty(like: Any, dtype: str, lengths: Shape) -> Any:
    """Plain memory for a box, of the framework of `like`."""
    framework = "pt" if like is None or _dtypes.is_torch(like) else "np"
    return _dtypes.fresh(framework, dtype, lengths)[0]


def copy_into(destination: Any, source: Any) -> None:
    """With the conversion that the framework makes."""
    if _dtypes.is_torch(destination):
        destination.copy_(source)
    else:
        destination[...] = source


def fresh(framework: str, dtype: str, shape: Shape) -> Any:
    """A new tensor of the whole shape, for the framework that a tensor was saved from."""
    if framework == "pt" and not _dtypes.torch_is_there():
        framework = "np"
    return _dtypes.fresh(framework, dtype, shape)[0]
