# SPDX-License-Identifier: Apache-2.0
"""safetensors.torch: save, save_file, load, load_file, save_model, load_model, of torch tensors."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from .._dtypes import TORCH_NAMES, storage_shape, torch_dtype
from . import TensorSpec, deserialize, safe_open, serialize, serialize_file

Tensors = dict[str, torch.Tensor]

_TYPES = {dtype: getattr(torch, name) for dtype, name in TORCH_NAMES.items() if hasattr(torch, name)}
_SIZE: dict[torch.dtype, int] = {dtype: dtype.itemsize for dtype in _TYPES.values()}


def storage_ptr(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # a tensor without a storage of its own (fake, functional): none
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().nbytes())
    except (AttributeError, NotImplementedError):
        return tensor.nelement() * _SIZE[tensor.dtype]


def _end_ptr(tensor: torch.Tensor) -> int:
    """The address behind the tensor's last element, strides considered."""
    if not tensor.nelement():
        return tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * _SIZE[tensor.dtype]


def _filter_shared_not_shared(tensors: list[set[str]], state_dict: Tensors) -> list[set[str]]:
    """Splits groups of one storage where their memory does not overlap."""
    filtered: list[set[str]] = []
    for shared in tensors:
        if len(shared) < 2:
            filtered.append(shared)
            continue
        areas = sorted((state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in shared)
        last_end = None
        for begin, end, name in areas:
            if last_end is None or begin >= last_end:
                filtered.append({name})
            else:
                filtered[-1].add(name)
            last_end = end
    return filtered


def _find_shared_tensors(state_dict: Tensors) -> list[set[str]]:
    """Names grouped by the memory that they share."""
    groups: dict[tuple[torch.device, int, int], set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device.type != "meta" and storage_ptr(tensor) != 0 and storage_size(tensor) != 0:
            groups[tensor.device, storage_ptr(tensor), storage_size(tensor)].add(name)
    # A stable order, which sorting sets (by inclusion) keeps.
    return _filter_shared_not_shared(sorted(groups.values()), state_dict)


def _is_complete(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() == storage_ptr(tensor) and tensor.nelement() * _SIZE[tensor.dtype] == storage_size(tensor)


def _remove_duplicate_names(
    state_dict: Tensors, *, preferred_names: Iterable[str] | None = None, discard_names: Iterable[str] | None = None
) -> dict[str, list[str]]:
    """Of names that share memory: the one to keep, and those to remove."""
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    to_remove: dict[str, list[str]] = defaultdict(list)
    for shared in _find_shared_tensors(state_dict):
        complete = {name for name in shared if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name to keep"
                f" for saving amongst: {shared}. None is covering the entire storage.Refusing to save/load the model"
                " since you could be storing much more memory than needed. Please refer to"
                " https://huggingface.co/docs/safetensors/torch_shared_tensors for more information. Or open an"
                " issue."
            )
        # Names of a file that is being loaded decide; else names that are not to be discarded.
        kept = min(complete & preferred or complete - discarded or complete)
        for name in sorted(shared - {kept}):
            to_remove[kept].append(name)
    return to_remove


def save_model(
    model: torch.nn.Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Writes a model's state. Of tensors that share memory one is kept; the metadata name it for the others."""
    state_dict: Tensors = dict(model.state_dict())
    for kept, removed in _remove_duplicate_names(state_dict).items():
        for name in removed:
            metadata = {} if metadata is None else metadata
            metadata.setdefault(name, kept)
            del state_dict[name]
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    try:
        save_file(state_dict, filename, metadata=metadata)
    except ValueError as error:
        raise ValueError(
            f"{error} Or use save_model(..., force_contiguous=True), read the docs for potential caveats."
        ) from None


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file into a model; returns the names that were missing and those that were not expected."""
    state_dict = load_file(filename, device=device, backend=backend)
    to_removes = _remove_duplicate_names(dict(model.state_dict()), preferred_names=state_dict.keys())
    missing_keys, unexpected = model.load_state_dict(state_dict, strict=False)
    missing = set(missing_keys)
    for removed in to_removes.values():
        unexpected += [name for name in removed if name not in missing]
        missing -= set(removed)
    if strict and (missing or unexpected):
        error = f"Error(s) in loading state_dict for {model.__class__.__name__}:"
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                error += f"\n    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise RuntimeError(error)
    return missing, unexpected


def save(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors."""
    keep_alive_buffer: list[Any] = []
    return serialize(_flatten_as_ptr(tensors, keep_alive_buffer), metadata=metadata)


def save_file(tensors: Tensors, filename: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
    """Writes these tensors to `filename`, which appears whole or not at all. They must not change meanwhile."""
    keep_alive_buffer: list[Any] = []
    serialize_file(_flatten_as_ptr(tensors, keep_alive_buffer), filename, metadata=metadata)


def load_file(filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap") -> Tensors:
    """The tensors in a safetensors file, on `device`."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as f:
        return f.get_tensors()


def load(data: bytes) -> Tensors:
    """The tensors in the bytes of a safetensors file."""
    return _view2torch(deserialize(data))


def _getdtype(dtype_str: str) -> torch.dtype:
    found: torch.dtype = _TYPES[dtype_str]
    return found


def _view2torch(safeview: list[tuple[str, dict[str, Any]]]) -> Tensors:
    result: Tensors = {}
    for name, view in safeview:
        dtype, shape = torch_dtype(view["dtype"]), storage_shape(view["dtype"], tuple(view["shape"]))
        empty = len(view["data"]) == 0
        result[name] = (
            torch.empty(shape, dtype=dtype, device="cpu")
            if empty
            else torch.frombuffer(view["data"], dtype=dtype).reshape(shape)
        )
    return result


def _evaluate_tensors_for_save(tensors: Tensors) -> None:
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    sparse = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.layout != torch.strided:
            sparse.append(name)
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    failing = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if failing:
        raise RuntimeError(
            f"""
            Some tensors share memory, this will lead to duplicate memory on disk and potential differences \
when loading them again: {failing}.
            A potential way to correctly save your model is to use `save_model`.
            More information at https://huggingface.co/docs/safetensors/torch_shared_tensors
            """
        )


def _flatten_as_ptr(tensors: Tensors, keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    _evaluate_tensors_for_save(tensors)
    flattened = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It either means you"
                " are trying to save tensors which are reference of each other in which case it's recommended to save"
                " only the full tensors, and reslice at load time, or simply call `.contiguous()` on your tensor to"
                " pack it before saving."
            )
        host = tensor if tensor.device.type == "cpu" else tensor.to("cpu")
        keep_alive_buffer.append(host)
        flattened[name] = TensorSpec(
            dtype=str(tensor.dtype).split(".")[-1],
            shape=tensor.shape,
            data_ptr=host.data_ptr(),
            data_len=host.nelement() * _SIZE[tensor.dtype],
        )
    return flattened
