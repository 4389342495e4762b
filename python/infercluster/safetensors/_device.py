# SPDX-License-Identifier: Apache-2.0
"""Frameworks and devices by the stock package's names, and how a tensor that was read on the host gets there."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from .. import _device as _cuda
from .._errors import SafetensorError

_NAMES = {
    "pt": "pytorch", "torch": "pytorch", "pytorch": "pytorch", "np": "numpy", "numpy": "numpy", "tf": "tensorflow",
    "tensorflow": "tensorflow", "jax": "flax", "flax": "flax", "mlx": "mlx", "paddle": "paddle",
}  # fmt: skip
_INDEXED = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu")


@dataclass(frozen=True)
class Framework:
    name: str

    @property
    def reads_as(self) -> str:
        """What the bytes are first: a torch tensor or a numpy array."""
        return "pt" if self.name == "pytorch" else "np"

    def load_module(self) -> None:
        importlib.import_module({"pytorch": "torch", "paddle": "paddle"}.get(self.name, "numpy"))

    def check_device(self, device: Any) -> None:
        if device != "cpu" and self.name not in ("pytorch", "paddle"):
            raise SafetensorError(f"Device {device} is not supported for framework {self.name}")

    def core_ordinal(self, device: Any) -> int | None:
        """The CUDA device that the core loads to by itself; None: tensors get there by way of the host."""
        if self.name != "pytorch" or device == "cpu" or not _cuda.torch_has_cuda():
            return None
        # A bare number is the index of torch's accelerator, which is CUDA then.
        return device if isinstance(device, int) else _cuda.ordinal_of(device)

    def deliver(self, tensor: Any, device: Any) -> Any:
        if self.name == "pytorch":
            return tensor if device == "cpu" else tensor.to(device)
        if self.name == "numpy":
            return tensor
        if self.name == "flax":
            return importlib.import_module("jax.numpy").array(tensor)
        if self.name == "tensorflow":
            return importlib.import_module("tensorflow").convert_to_tensor(tensor)
        if self.name == "mlx":
            return importlib.import_module("mlx.core").array(tensor)
        place = device.replace("cuda", "gpu") if isinstance(device, str) else device
        return importlib.import_module("paddle").to_tensor(tensor, place=place)


def framework_named(name: Any) -> Framework:
    if not isinstance(name, str):
        raise TypeError(f"argument 'framework': '{type(name).__name__}' object cannot be converted to 'str'")
    if name not in _NAMES:
        raise SafetensorError(f"framework {name} is invalid")
    return Framework(_NAMES[name])


def device_named(device: Any) -> Any:
    """ "cpu", "cuda:1", ... as torch takes them, or a number, which torch gives a meaning."""
    if device is None:
        return "cpu"
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if not colon and (kind in ("cpu", "mps") or kind in _INDEXED):
            return kind if kind not in _INDEXED else f"{kind}:0"
        if kind in _INDEXED and number.isdecimal():
            return f"{kind}:{int(number)}"
        if kind in _INDEXED and number.count(":") == 0:
            raise ValueError(f"device {device} is invalid: {number!r} is not a number")
        if kind == "mps":
            if number == "0":
                return "mps"
            raise SafetensorError(f"device {device} is invalid: only mps or mps:0 is supported")
    raise SafetensorError(
        f"device {device!r} is invalid" if not isinstance(device, str) else f"device {device} is invalid"
    )


def own_array(array: Any) -> Any:
    """An array in C order with memory of its own; a number becomes an array without dimensions."""
    numpy = importlib.import_module("numpy")
    return numpy.array(array, order="C", copy=True)
