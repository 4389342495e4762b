# SPDX-License-Identifier: Apache-2.0
"""What a state comes to for the core."""

from __future__ import annotations

import json
from typing import Any

from .. import _core
from . import pages, tensors
from .tree import TREE_KEY, Flat


def taken_apart(state: Any, with_meshes: bool) -> tuple[_core.Tensors, list[tuple[str, str]], list[Any]]:
    """The tensors, the texts that come back with them, and the memory that must live until it is copied."""
    flat = Flat(state)
    listed = _core.Tensors()
    alive = []
    meshes: dict[Any, _core.Mesh] = {}
    for name, tensor in flat.tensors.items():
        described = tensors.describe(name, tensor)
        for part in described.parts:
            memory = part.memory
            if memory is not None and not tensors.core_can_copy(memory, described.dtype):
                memory = tensors.as_plain(memory)
            alive.append(memory)
            tensors.add(listed, name, described.dtype, described.shape, part, memory)
        if with_meshes and described.sharding is not None:
            spread = described.sharding
            key = (spread.mesh_shape, spread.ranks)
            if key not in meshes:
                meshes[key] = _core.mesh(*key)
            listed.shard(meshes[key], spread.cuts)
    for name, its in flat.pages.items():
        pages.add(listed, name, its)
    return listed, [(TREE_KEY, json.dumps(flat.tree, separators=(",", ":")))], alive
