# SPDX-License-Identifier: Apache-2.0
"""safetensors.numpy: save, save_file, load, load_file, of dicts of numpy arrays."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from .._dtypes import Shape, numpy_dtype, storage_shape
from . import TensorSpec, deserialize, safe_open, serialize, serialize_file

Arrays = dict[str, "np.ndarray[Any, Any]"]


def _is_little_endian(tensor: np.ndarray[Any, Any]) -> bool:
    order = tensor.dtype.byteorder
    if order not in "=|<>":
        raise ValueError(f"Unexpected byte order {order}")
    return order != ">" and (order != "=" or sys.byteorder == "little")


def _flatten(tensor_dict: Arrays, keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """Unlike the stock package, an array that is not in C order is saved as what it shows, not as its memory lies."""
    flattened = {}
    for name, array in tensor_dict.items():
        tensor = array if _is_little_endian(array) else array.byteswap(inplace=False)
        if not tensor.flags.c_contiguous:
            tensor = np.array(tensor, order="C")
        keep_alive_buffer.append(tensor)
        flattened[name] = TensorSpec(
            dtype=tensor.dtype.name, shape=tensor.shape, data_ptr=tensor.ctypes.data, data_len=tensor.nbytes
        )
    return flattened


def save(tensor_dict: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these arrays."""
    keep_alive_buffer: list[Any] = []
    return serialize(_flatten(tensor_dict, keep_alive_buffer), metadata=metadata)


def save_file(tensor_dict: Arrays, filename: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
    """Writes these arrays to `filename`, which appears whole or not at all."""
    keep_alive_buffer: list[Any] = []
    serialize_file(_flatten(tensor_dict, keep_alive_buffer), filename, metadata=metadata)


def load(data: bytes) -> Arrays:
    """The arrays in the bytes of a safetensors file."""
    return _view2np(deserialize(data))


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> Arrays:
    """The arrays in a safetensors file."""
    with safe_open(filename, framework="np", backend=backend) as f:
        return f.get_tensors()


def _getdtype(dtype_str: str) -> np.dtype[Any]:
    found: np.dtype[Any] = numpy_dtype(dtype_str)
    return found


def _view2np(safeview: list[tuple[str, dict[str, Any]]]) -> Arrays:
    result: Arrays = {}
    for name, view in safeview:
        shape: Shape = storage_shape(view["dtype"], tuple(view["shape"]))
        result[name] = np.frombuffer(view["data"], dtype=_getdtype(view["dtype"])).reshape(shape)
    return result
