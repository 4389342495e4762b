# SPDX-License-Identifier: Apache-2.0
"""How tensors of torch's dtypes are stored: those that safetensors files have as they are, others as a view of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from .. import _dtypes

Shape = tuple[int, ...]

# Those that files do not have, or count otherwise: stored dtype, and the dimensions that its view adds.
_VIEWED = {
    "complex128": ("F64", (2,)),
    "complex32": ("F16", (2,)),
    "float4_e2m1fn_x2": ("U8", ()),
    "bits8": ("U8", ()),
}


@dataclass(frozen=True)
class Form:
    dtype: str  # the format's name
    added: Shape  # dimensions behind the tensor's own
    viewed: str | None  # torch's name of the dtype, where the stored one does not tell it

    def shape(self, own: Any) -> Shape:
        return (*own, *self.added)

    def offsets(self, own: Any) -> Shape:
        return (*own, *(0 for _ in self.added))

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory, as it is stored."""
        if self.viewed is None:
            return tensor
        return torch.view_as_real(tensor) if self.added else tensor.view(torch.uint8)


@functools.cache
def _forms() -> dict[torch.dtype, Form]:
    forms = {}
    for dtype, name in _dtypes.TORCH_NAMES.items():
        if hasattr(torch, name) and name not in _VIEWED:
            forms[getattr(torch, name)] = Form(dtype, (), None)
    for name, (dtype, added) in _VIEWED.items():
        if hasattr(torch, name):
            forms[getattr(torch, name)] = Form(dtype, added, name)
    return forms


def form_of(name: str, dtype: torch.dtype) -> Form:
    found = _forms().get(dtype)
    if found is None:
        raise TypeError(
            f'"{name}" has the dtype {dtype}, which cannot be saved. Save a view of it with another dtype, or leave it'
            " out"
        )
    return found


def dtype_of(stored: str, viewed: str | None) -> torch.dtype:
    dtype = getattr(torch, viewed) if viewed is not None else _dtypes.torch_dtype(stored)
    assert isinstance(dtype, torch.dtype)
    return dtype
