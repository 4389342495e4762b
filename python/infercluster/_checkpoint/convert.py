# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from and to the formats of torch. What `infercluster checkpoint import` and `export --format dcp|torch` run:

    python -m infercluster._checkpoint.convert import SOURCE ROOT --step N
    python -m infercluster._checkpoint.convert export FORMAT PLACE DEST

The whole state passes through host memory. What is written appears under its name only when it is whole and durable.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from .. import _core
from . import pages, tensors, values
from .checkpointer import Checkpointer
from .tree import PAGES, TENSOR, TREE_KEY


def _merged(one: Any, other: Any) -> Any:
    """What ranks saved, in one tree; of what both have, the first's."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _merged(one[key], other[key]) if key in one and key in other else one.get(key, other.get(key))
                for key in [*one, *(key for key in other if key not in one)]}  # fmt: skip
    return one


def read_dcp(reader: Any) -> dict[str, Any]:
    """All of a checkpoint of torch.distributed.checkpoint, nested as it was saved."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return state


def read_own(place: str, step: int | None) -> dict[str, Any]:
    checkpoint = _core.open_checkpoint(os.fsencode(place), step)
    trees = [json.loads(texts[TREE_KEY]) for texts in checkpoint.metadata() if TREE_KEY in texts]
    if not trees:  # saved through torch.distributed.checkpoint, or by the C++ API, which has tensors alone
        if os.path.exists(os.path.join(checkpoint.path, ".metadata")):
            from ..dcp import Reader

            return read_dcp(Reader(checkpoint.path))
        trees = [{"$dict": [[name, {TENSOR: [name, "pt"]}] for name in checkpoint.tensors()]}]
    stored, listed, made = checkpoint.tensors(), _core.Tensors(), {}

    def stored_of(kind: str, content: Any) -> Any:
        if kind == TENSOR:
            return tensor_of(*content)
        if kind != PAGES:
            return values.no_stored(kind, content)
        path, suffixes, _ = content  # page -> pool -> tensor, or page -> tensor where there is one pool without a name
        found = {}
        for identity in pages.ids_of(stored, path, content[1:]):
            names = {suffix[1:]: pages.name_of_page(path, identity) + suffix for suffix in suffixes}
            parts = {pool: tensor_of(name, "pt") for pool, name in names.items()}
            found[identity] = parts.get("", parts)
        return found

    def tensor_of(name: str, framework: str) -> Any:
        if name not in made:
            dtype, shape, _ = stored[name]
            made[name] = tensors.fresh(framework, dtype, shape)
            listed.add(name, dtype, shape, (0,) * len(shape), shape, tensors.address_of(made[name]), [])
        return made[name]

    state: Any = values.decode(trees[0], stored_of)
    for tree in trees[1:]:
        state = _merged(state, values.decode(tree, stored_of))
    checkpoint.restore(listed)
    assert isinstance(state, dict)
    return state


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_existing(destination: pathlib.Path) -> None:
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if os.path.lexists(destination):
        raise FileExistsError(17, "it is there already; choose another name, or remove it first", str(destination))


def write_torch(state: Mapping[str, Any], destination: pathlib.Path) -> None:
    if destination.is_dir():
        raise IsADirectoryError(21, "it is a directory; name the file that torch.load shall read", str(destination))
    part = destination.with_name(f".{destination.name}.part-{os.getpid()}")
    try:
        torch.save(dict(state), part)
        _sync(part)
        os.link(part, destination)  # unlike rename, it never replaces
    finally:
        part.unlink(missing_ok=True)
    _sync(destination.parent)


def write_dcp(state: Mapping[str, Any], destination: pathlib.Path) -> None:
    part = destination.with_name(f".{destination.name}.part-{os.getpid()}")
    try:
        state_dict_saver.save(dict(state), storage_writer=FileSystemWriter(part), no_dist=True)
        for path in [*part.iterdir(), part]:
            _sync(path)
        os.rename(part, destination)  # onto nothing, or an empty directory
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _sync(destination.parent)


def read_source(source: pathlib.Path) -> dict[str, Any]:
    if source.is_dir():
        if any(path.name.startswith("COMMIT") for path in source.iterdir()):
            raise ValueError(f"{source} is a checkpoint of infercluster already")
        if not (source / ".metadata").is_file():
            raise ValueError(f"{source} has no .metadata, so it is no checkpoint of torch.distributed.checkpoint")
        return read_dcp(FileSystemReader(source))
    state = torch.load(source, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(state, Mapping):
        raise ValueError(f"{source} holds a {type(state).__name__}; expected a dict of tensors and values")
    return dict(state)


def _tensors_in(state: Any) -> list[Any]:
    if tensors.is_tensor(state):
        return [state]
    items = state.values() if isinstance(state, Mapping) else state if isinstance(state, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors_in(item)]


def _export(arguments: argparse.Namespace) -> dict[str, Any]:
    destination = pathlib.Path(arguments.destination).absolute()
    _refuse_existing(destination)
    if not destination.parent.is_dir():
        raise FileNotFoundError(2, "there is no such directory; make it first", str(destination.parent))
    state = read_own(arguments.place, arguments.step)
    (write_torch if arguments.format == "torch" else write_dcp)(state, destination)
    found = _tensors_in(state)
    return {"tensors": len(found), "bytes": sum(tensor.nbytes for tensor in found), "path": str(destination)}


def _import(arguments: argparse.Namespace) -> dict[str, Any]:
    state = read_source(pathlib.Path(arguments.source))
    with Checkpointer(arguments.root, keep=0, group="single") as checkpointer:
        save = checkpointer.save(arguments.step, state, wait=True, exists="replace" if arguments.replace else "error")
    found = _tensors_in(state)
    return {"tensors": len(found), "bytes": sum(tensor.nbytes for tensor in found), "path": os.path.join(arguments.root, f"step-{save.step}")}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="infercluster checkpoint")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    commands = parser.add_subparsers(required=True)
    exporting = commands.add_parser("export")
    exporting.add_argument("format", choices=("dcp", "torch"))
    exporting.add_argument("place")
    exporting.add_argument("destination")
    exporting.add_argument("--step", type=int)
    exporting.set_defaults(run=_export, done="exported")
    importing = commands.add_parser("import")
    importing.add_argument("source")
    importing.add_argument("root")
    importing.add_argument("--step", type=int, required=True)
    importing.add_argument("--replace", action="store_true")
    importing.set_defaults(run=_import, done="imported")
    arguments = parser.parse_args(words)
    try:
        report = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # one line, whatever it is
        print("infercluster: error: " + " ".join(f"{error}".split()), file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report))
    elif not arguments.quiet:
        print(f"{arguments.done} {report['tensors']} tensors, {report['bytes']} bytes: {report['path']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
