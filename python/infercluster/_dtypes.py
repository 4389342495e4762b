# SPDX-License-Identifier: Apache-2.0
"""The format's dtypes in torch and numpy, and tensors over given memory. Imports a framework only when it is asked
for."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

from ._errors import SafetensorError

Shape = tuple[int, ...]

# The format's name -> torch's. F6 has no torch dtype: as in the stock package, it is refused.
TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
# In numpy these come from ml_dtypes.
ML_DTYPES = {"BF16", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"}


def not_understood(dtype: str) -> SafetensorError:
    return SafetensorError(f"Dtype not understood: {dtype}")


@functools.cache
def torch_dtype(dtype: str) -> Any:
    import torch

    name = TORCH_NAMES.get(dtype)
    found = getattr(torch, name, None) if name else None
    if found is None:
        raise (
            not_understood(dtype)
            if name is None
            else SafetensorError(f"This torch ({torch.__version__}) has no dtype {name}")
        )
    return found


@functools.cache
def numpy_dtype(dtype: str) -> Any:
    """F4 is packed, two elements a byte, and numpy has no such dtype: its bytes come as uint8."""
    import numpy

    if dtype == "F4":
        return numpy.dtype(numpy.uint8)
    name = TORCH_NAMES.get(dtype)
    if name is None:
        raise not_understood(dtype)
    if dtype in ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise SafetensorError(f"A numpy array of {dtype} needs the package ml_dtypes") from None
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def storage_shape(dtype: str, shape: Shape) -> Shape:
    """The shape of the tensor object: of F4, whose two elements share a byte, the last dimension is half as long."""
    if dtype != "F4" or not shape:
        return shape
    if shape[-1] % 2:
        raise SafetensorError(f"f4_x2 dtype requires that the last dim be divisible by 2 in torch: got {list(shape)}")
    return (*shape[:-1], shape[-1] // 2)


def torch_is_there() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def choose_framework(framework: str | None) -> str:
    """ "pt" or "np". None: torch when it is installed, else numpy."""
    if framework is None:
        return "pt" if torch_is_there() else "np"
    if framework in ("pt", "torch", "pytorch"):
        return "pt"
    if framework in ("np", "numpy"):
        return "np"
    if framework == "dlpack":
        raise ValueError('framework is "dlpack", which is for CUDA devices; on the host take "pt" or "np"')
    raise ValueError(f'framework is "{framework}"; expected "pt", "np", on a CUDA device "dlpack", or None')


def over_memory(framework: str, dtype: str, shape: Shape, memory: Any) -> Any:
    """A tensor that shares `memory`, a writable buffer, and keeps it alive."""
    shape = storage_shape(dtype, shape)
    if framework == "pt":
        import torch

        if 0 in shape:
            return torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")
        return torch.frombuffer(memory, dtype=torch_dtype(dtype)).view(shape)
    import numpy

    if 0 in shape:
        return numpy.empty(shape, dtype=numpy_dtype(dtype))
    return numpy.frombuffer(memory, dtype=numpy_dtype(dtype)).reshape(shape)


def fresh(framework: str, dtype: str, shape: Shape) -> tuple[Any, int, int]:
    """A new tensor, not initialised, with its address and bytes."""
    shape = storage_shape(dtype, shape)
    if framework == "pt":
        import torch

        tensor = torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")
        return tensor, tensor.data_ptr(), tensor.nbytes
    import numpy

    array = numpy.empty(shape, dtype=numpy_dtype(dtype))
    return array, array.ctypes.data, array.nbytes


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def destination(name: str, dtype: str, shape: Shape, tensor: Any) -> tuple[int, int]:
    """Address and bytes of a caller's tensor that shall take these; refuses what does not fit, by name."""
    expected = storage_shape(dtype, shape)

    def refuse(what: str) -> ValueError:
        return ValueError(f'into["{name}"]: {what}')

    if is_torch(tensor):
        wanted, found, found_shape = torch_dtype(dtype), tensor.dtype, tuple(tensor.shape)
        if tensor.layout != sys.modules["torch"].strided:
            raise refuse(f"a tensor of layout {tensor.layout} cannot take bytes; expected a dense one")
        contiguous, writable = tensor.is_contiguous(), True
        on_device = tensor.device.type in ("cpu", "cuda")
        address, size = (tensor.data_ptr(), tensor.nbytes) if on_device else (0, tensor.nbytes)
    else:
        import numpy

        if not isinstance(tensor, numpy.ndarray):
            raise TypeError(f'into["{name}"]: expected a torch.Tensor or numpy.ndarray, found {type(tensor).__name__}')
        wanted, found, found_shape = numpy_dtype(dtype), tensor.dtype, tensor.shape
        contiguous, writable = tensor.flags.c_contiguous, tensor.flags.writeable
        address, size = tensor.ctypes.data, tensor.nbytes
    if found != wanted:
        raise refuse(f"its dtype is {found}, the file holds {wanted} ({dtype})")
    if found_shape != expected:
        raise refuse(f"its shape is {list(found_shape)}, expected {list(expected)}")
    if not contiguous:
        raise refuse("it is not contiguous in C order")
    if not writable:
        raise refuse("it is read-only")
    return address, size
