# SPDX-License-Identifier: Apache-2.0
"""CUDA devices: tensors over memory of a device, and whose allocator that memory comes from."""

from __future__ import annotations

import sys
from typing import Any

from . import _core, _dtypes
from ._dtypes import Shape

# The format's name -> (DLDataTypeCode, bits) of dlpack.h, version 1.1.
_DLPACK = {
    "F64": (2, 64), "F32": (2, 32), "F16": (2, 16), "BF16": (4, 16), "I64": (0, 64), "I32": (0, 32), "I16": (0, 16),
    "I8": (0, 8), "U64": (1, 64), "U32": (1, 32), "U16": (1, 16), "U8": (1, 8), "BOOL": (6, 8), "C64": (5, 64),
    "F8_E4M3": (10, 8), "F8_E4M3FNUZ": (11, 8), "F8_E5M2": (12, 8), "F8_E5M2FNUZ": (13, 8), "F8_E8M0": (14, 8),
}  # fmt: skip
_DLPACK_BYTES = (1, 8)


def torch_has_cuda() -> bool:
    """A torch with NVIDIA's CUDA and a driver; not one with ROCm, whose devices are called alike."""
    if not _dtypes.torch_is_there():
        return False
    import torch

    return torch.version.cuda is not None and torch.cuda.is_available()


def torch_has_rocm() -> bool:
    """Its devices are called "cuda" too; tensors reach them through the host."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.hip is not None


def ordinal_of(place: str) -> int | None:
    """Of "cuda" (torch's current device, else 0) and "cuda:N"; None: another device."""
    kind, colon, number = place.partition(":")
    if kind != "cuda":
        return None
    if colon:
        if not number.isdecimal():
            raise ValueError(f'device is "{place}"; expected "cuda" or "cuda:N"')
        return int(number)
    if "torch" in sys.modules and torch_has_cuda():
        return int(sys.modules["torch"].cuda.current_device())
    return 0


def core_ordinal(repository: Any, place: str) -> int | None:
    """The CUDA device that the core loads to by itself; None: the host, or a device that is reached through it."""
    if not isinstance(repository, _core.Repository) or torch_has_rocm():
        return None
    return ordinal_of(place)


def choose_framework(framework: str | None, place: str) -> str:
    """ "pt" or "dlpack". None: torch when it has this device, else objects that any DLPack consumer takes."""
    if framework == "dlpack":
        return "dlpack"
    kind = _dtypes.choose_framework(framework)
    if kind == "np" and framework is not None:
        raise ValueError(
            f'device is "{place}"; numpy arrays are on the host, and only framework="pt" or "dlpack" have other devices'
        )
    if kind == "pt" and torch_has_cuda():
        return "pt"
    if framework is None:
        return "dlpack"
    import torch

    raise ValueError(
        f'device is "{place}", and this torch ({torch.__version__}) has no CUDA device; install a torch with CUDA and '
        'a driver, or ask for framework="dlpack"'
    )


def use(options: _core.Options, ordinal: int, framework: str) -> None:
    """The load goes to this device: memory comes from torch's allocator where torch takes the tensors, ordered behind
    what its current stream has queued; else from the driver."""
    if framework != "pt":
        options.set_device(ordinal, 0, None)
        return
    import torch

    stream = torch.cuda.current_stream(ordinal)

    def allocate(size: int) -> tuple[Any, int]:
        # On threads of ours too, which have a current stream of their own.
        with torch.cuda.stream(stream):
            block = torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")
        return block, block.data_ptr()

    options.set_device(ordinal, stream.cuda_stream, allocate)


class DeviceTensor:
    """
    A tensor on a CUDA device for a program without torch: torch.from_dlpack, cupy.from_dlpack, jax.dlpack.from_dlpack
    and their like take it without a copy, and keep its memory.
    """

    def __init__(self, dtype: str, shape: Shape, memory: _core.DeviceMemory | None, ordinal: int) -> None:
        self._memory, self.ordinal = memory, ordinal
        self.dtype = dtype  # the format's name, such as "BF16"
        self.shape = shape

    @property
    def device(self) -> str:
        return f"cuda:{self.ordinal}"

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    def data_ptr(self) -> int:
        """The address on the device; 0 of a tensor without elements."""
        return 0 if self._memory is None else self._memory.address

    def numpy(self) -> Any:
        """A copy on the host."""
        import numpy

        array = numpy.empty(_dtypes.storage_shape(self.dtype, self.shape), dtype=_dtypes.numpy_dtype(self.dtype))
        if self._memory is not None:
            self._memory.copy_to_host(array.ctypes.data)
        return array

    def _as_dlpack(self) -> Any:
        if self._memory is None:
            raise BufferError("a tensor without elements has no memory to share")
        if self.dtype not in _DLPACK:
            raise BufferError(f"DLPack has no dtype {self.dtype}")
        return _core.dlpack(self._memory, *_DLPACK[self.dtype], self.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self._as_dlpack().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal

    def __repr__(self) -> str:
        return f"<infercluster.DeviceTensor: {self.dtype} {list(self.shape)} on {self.device}>"


def over_memory(
    framework: str, dtype: str, shape: Shape, memory: _core.Memory | _core.DeviceMemory | None, ordinal: int
) -> Any:
    """A tensor that shares `memory` and keeps it alive; None: it has no elements."""
    assert not isinstance(memory, _core.Memory)
    if framework == "dlpack":
        return DeviceTensor(dtype, shape, memory, ordinal)
    import torch

    shape = _dtypes.storage_shape(dtype, shape)
    if memory is None:
        return torch.empty(shape, dtype=_dtypes.torch_dtype(dtype), device=f"cuda:{ordinal}")
    # As bytes: torch takes fewer dtypes by DLPack than it has.
    flat = torch.utils.dlpack.from_dlpack(_core.dlpack(memory, *_DLPACK_BYTES, (len(memory),)))
    return flat.view(_dtypes.torch_dtype(dtype)).view(shape)
