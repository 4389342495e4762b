# SPDX-License-Identifier: Apache-2.0
"""What DCP calls metadata: the little of it that the indexes of the ranks do not say, and how it is made of both."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import _core
from .._checkpoint import values
from ._form import dtype_of, form_of

KEY = "infercluster.dcp"  # of the text in the first rank's second index
FILE = ".metadata"  # which stock tools look for
_VERSION = 1


class Locator:
    """Stands where DCP keeps what it calls storage_data: the directory itself says the rest."""

    def __init__(self, save_id: str) -> None:
        self.save_id = save_id

    def __getitem__(self, index: Any) -> NoReturn:
        raise RuntimeError(
            "this checkpoint was saved by infercluster.dcp, and torch's own FileSystemReader cannot read it. Read it with"
            " storage_reader=infercluster.dcp.Reader(path), or set INFERCLUSTER_DCP=1 for programs that build the reader"
            " themselves; `infercluster checkpoint export` writes stock formats"
        )


def text_of(metadata: Metadata) -> str:
    objects, dtypes, requires_grad = [], {}, []
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            objects.append(name)
            continue
        viewed = form_of(name, stored.properties.dtype).viewed
        if viewed is not None:
            dtypes[name] = viewed
        if stored.properties.requires_grad:
            requires_grad.append(name)
    found = {
        "version": _VERSION,
        "objects": objects,
        "dtypes": dtypes,
        "requires_grad": requires_grad,
        "planner_data": values.encode(metadata.planner_data, values.no_leaf),
    }
    return json.dumps(found, separators=(",", ":"))


class Stored:
    """An open checkpoint, as DCP sees it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.checkpoint = _core.open_checkpoint_in(os.fsencode(directory))
        texts = [texts[KEY] for texts in self.checkpoint.metadata() if KEY in texts]
        if len(texts) != 1:
            raise ValueError(
                f"{directory} was not saved through torch.distributed.checkpoint; load it with infercluster.Checkpointer"
            )
        found = json.loads(texts[0])
        if found["version"] > _VERSION:
            raise ValueError(
                f"{directory} was saved by a newer release (version {found['version']} of its metadata, this one knows"
                f" {_VERSION}); read it with that one"
            )
        self.tensors = self.checkpoint.tensors()
        self.objects: set[str] = set(found["objects"])
        self._dtypes: dict[str, str] = found["dtypes"]
        self._requires_grad: set[str] = set(found["requires_grad"])
        self._planner_data = values.decode(found["planner_data"], values.no_stored)

    def dtype(self, name: str) -> torch.dtype:
        return dtype_of(self.tensors[name][0], self._dtypes.get(name))

    def metadata(self) -> Metadata:
        names = [*self._planner_data] if isinstance(self._planner_data, dict) else []
        known = set(names)
        names = [name for name in names if name in self.tensors]
        names += [name for name in self.tensors if name not in known]
        boxes = self.checkpoint.boxes()
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for name in names:
            entries[name] = BytesStorageMetadata() if name in self.objects else self._tensor(name, boxes[name])
        found = Metadata(entries, planner_data=self._planner_data, storage_data=Locator(self.checkpoint.save_id))
        found.storage_meta = StorageMeta(checkpoint_id=self.checkpoint.path, save_id=self.checkpoint.save_id)
        return found

    def _tensor(
        self, name: str, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]
    ) -> TensorStorageMetadata:
        dtype = self.dtype(name)
        _, shape, _ = self.tensors[name]
        size = torch.Size(shape[: len(shape) - len(form_of(name, dtype).added)])
        # Of a tensor without elements no part is stored; it still is one chunk.
        parts = boxes or [((0,) * len(size), size)]
        own = len(size)
        chunks = [ChunkStorageMetadata(torch.Size(at[:own]), torch.Size(lengths[:own])) for at, lengths in parts]
        return TensorStorageMetadata(TensorProperties(dtype, requires_grad=name in self._requires_grad), size, chunks)


def publish(directory: pathlib.Path, metadata: Metadata) -> None:
    """By rename, and durable: there is never a moment without the old one or the new."""
    temporary = directory / (FILE + ".tmp")
    with open(temporary, "wb") as file:
        pickle.dump(metadata, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / FILE)
    sync_directory(directory)


def sync_directory(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(directory: pathlib.Path) -> None:
    """With those above it, each durable in its parent."""
    missing = []
    at = directory
    while not at.exists():
        missing.append(at)
        at = at.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_directory(one.parent)
