# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of format version 1, written without any code of ours, from what src/manifest says of it."""

import dataclasses
import functools
import itertools
import json
import pathlib
import struct

BLOCK = 64 * 2**10
SIZES = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "U8": 1}


@functools.cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


@functools.lru_cache(maxsize=1024)
def crc32c(content: bytes) -> str:
    table, crc = _table(), 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def sealed(body: dict) -> str:
    """The document with its own checksum as the last member."""
    compact = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**body, "crc32c": crc32c(compact.encode())}, separators=(",", ":"), ensure_ascii=False) + "\n"


@dataclasses.dataclass
class Tensor:
    dtype: str
    shape: list[int]
    content: bytes  # row-major

    def box(self, offsets: list[int], lengths: list[int]) -> bytes:
        width, stride, strides = SIZES[self.dtype], 1, []
        for length in reversed(self.shape):
            strides.insert(0, stride)
            stride *= length
        if not self.shape:
            return self.content
        rows = itertools.product(*(range(o, o + n) for o, n in zip(offsets[:-1], lengths[:-1])))
        begins = [sum(i * s for i, s in zip(row, strides)) + offsets[-1] for row in rows]
        return b"".join(self.content[begin * width:(begin + lengths[-1]) * width] for begin in begins)


def halves(length: int, parts: int, part: int) -> tuple[int, int]:
    begin, end = length * part // parts, length * (part + 1) // parts
    return begin, end - begin


def box_of(shape: list[int], rank: int, mesh: tuple[int, int]) -> tuple[list[int], list[int]] | None:
    """The rank's box on a mesh that cuts the first two dimensions; of what has fewer, rank 0 writes the whole."""
    if len(shape) < 2:
        return ([0] * len(shape), list(shape)) if rank == 0 else None
    row, column = halves(shape[0], mesh[0], rank // mesh[1]), halves(shape[1], mesh[1], rank % mesh[1])
    return [row[0], column[0], *[0] * (len(shape) - 2)], [row[1], column[1], *shape[2:]]


def write_checkpoint(root: pathlib.Path, step: int, tensors: dict[str, Tensor], mesh: tuple[int, int] = (1, 1),
                     metadata: dict[str, str] | None = None, save_id: str | None = None) -> pathlib.Path:
    """Saved by mesh[0] * mesh[1] ranks, each with its box of each tensor."""
    folder = root / f"step-{step}"
    folder.mkdir(parents=True)
    common = {"step": step, "epoch": 1, "save_id": save_id or f"{step:016x}"}
    references = []
    for rank in range(mesh[0] * mesh[1]):
        header, chunks, data = {}, [], b""
        for name, tensor in tensors.items():
            box = box_of(tensor.shape, rank, mesh)
            if box is None:
                continue
            content = tensor.box(*box)
            header[f"{name}{box}"] = {"dtype": tensor.dtype, "shape": box[1], "data_offsets": [len(data), len(data) + len(content)]}
            chunks.append({"tensor": name, "dtype": tensor.dtype, "shape": tensor.shape, "offsets": box[0], "lengths": box[1], "segment": 0,
                           "begin": len(data)})
            data += content
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + data
        for chunk in chunks:
            chunk["begin"] += 8 + len(text)
        name = f"node-{rank}.0.1.safetensors"
        (folder / name).write_bytes(content)
        segment = {"name": name, "bytes": len(content), "crc32c": "".join(crc32c(content[at:at + BLOCK]) for at in range(0, len(content), BLOCK))}
        index = sealed({"format": "infercluster.checkpoint.index", "version": 1, **common, "node": rank, "segments": [segment], "chunks": chunks,
                        "metadata": [list(pair) for pair in (metadata or {}).items()]})
        (folder / f"node-{rank}.1.index.json").write_text(index)
        references.append({"name": f"node-{rank}.1.index.json", "bytes": len(index.encode()), "crc32c": crc32c(index.encode())})
    commit = {"format": "infercluster.checkpoint", "version": 1, **common, "world": mesh[0] * mesh[1], "plan_hash": "0" * 32, "indexes": references}
    (folder / "COMMIT").write_text(sealed(commit))
    return folder


def write_sparse(root: pathlib.Path, step: int, mib: int) -> pathlib.Path:
    """One U8 tensor "big" of zeros, of which nothing is on the disk."""
    folder = write_checkpoint(root, step, {"big": Tensor("U8", [BLOCK], bytes(BLOCK))})
    segment = folder / "node-0.0.1.safetensors"
    size = mib * 2**20
    header = json.dumps({"big": {"dtype": "U8", "shape": [mib, 2**20], "data_offsets": [0, size]}}).encode()
    header += b" " * (BLOCK - 8 - len(header))
    with segment.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(BLOCK + size)
    crcs = crc32c(segment.open("rb").read(BLOCK)) + crc32c(bytes(BLOCK)) * (size // BLOCK)
    index = json.loads((folder / "node-0.1.index.json").read_text())
    del index["crc32c"]
    index["segments"] = [{"name": segment.name, "bytes": BLOCK + size, "crc32c": crcs}]
    index["chunks"][0] |= {"shape": [mib, 2**20], "offsets": [0, 0], "lengths": [mib, 2**20], "begin": BLOCK}
    text = sealed(index)
    (folder / "node-0.1.index.json").write_text(text)
    commit = json.loads((folder / "COMMIT").read_text())
    del commit["crc32c"]
    commit["indexes"][0] |= {"bytes": len(text), "crc32c": crc32c(text.encode())}
    (folder / "COMMIT").write_text(sealed(commit))
    return folder
