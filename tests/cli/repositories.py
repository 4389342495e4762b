# SPDX-License-Identifier: Apache-2.0
"""Small repositories, written without any library, and ways to damage them."""

import hashlib
import json
import pathlib
import random
import struct


def pack(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file: name -> (dtype, shape, bytes), in this order."""
    header: dict = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


def shard_bytes(index: int, mib: int = 1) -> bytes:
    """Two tensors of random BF16, `mib` MiB each, and a scalar."""
    random_bytes = random.Random(index).randbytes
    size = mib * 2**20
    return pack({
        f"layers.{index}.weight": ("BF16", [size // 128, 64], random_bytes(size)),
        f"layers.{index}.other": ("BF16", [size // 128, 64], random_bytes(size)),
        f"layers.{index}.scale": ("F32", [], random_bytes(4)),
    })


def shard_name(index: int, shards: int) -> str:
    return f"model-{index + 1:05}-of-{shards:05}.safetensors"


def index_text(shards: int, mib: int = 1) -> str:
    weight_map = {f"layers.{index}.{tensor}": shard_name(index, shards) for index in range(shards) for tensor in ("weight", "other", "scale")}
    return json.dumps({"metadata": {"total_size": shards * (2 * mib * 2**20 + 4)}, "weight_map": weight_map})


def write_model(path: pathlib.Path, shards: int = 3, mib: int = 1) -> pathlib.Path:
    """A sharded repository with its index."""
    path.mkdir(parents=True)
    for index in range(shards):
        (path / shard_name(index, shards)).write_bytes(shard_bytes(index, mib))
    (path / "model.safetensors.index.json").write_text(index_text(shards, mib))
    return path


def write_hub(hub: pathlib.Path, shards: int = 5, commit: str = "c" * 40) -> pathlib.Path:
    """A Hugging Face cache that holds org/name; returns the snapshot's folder."""
    repository = hub / "models--org--name"
    snapshot = repository / "snapshots" / commit
    for place in (repository / "blobs", repository / "refs", snapshot):
        place.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)

    def add(name: str, content: bytes, blob: str) -> None:
        (repository / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")

    for index in range(shards):
        content = shard_bytes(index)
        add(shard_name(index, shards), content, hashlib.sha256(content).hexdigest())
    text = index_text(shards).encode()
    add("model.safetensors.index.json", text, hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest())
    return snapshot


def shard(model: pathlib.Path, number: int) -> pathlib.Path:
    return sorted(model.glob("*.safetensors"))[number]


def flip(path: pathlib.Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def state_of(path: pathlib.Path) -> dict[str, tuple[int, int, int]]:
    """What must not change: every entry below, with its size, time and inode."""
    return {str(entry.relative_to(path)): (entry.lstat().st_size, entry.lstat().st_mtime_ns, entry.lstat().st_ino) for entry in path.rglob("*")}
