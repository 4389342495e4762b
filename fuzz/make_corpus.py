# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpora of the fuzzers: fuzz/corpus/NAME. They are committed; run it after a change here."""

import json
import pathlib
import shutil
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def entry(name: str, dtype: str, shape: str, offsets: str) -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


HEADERS = {
    "empty": "{}",
    "metadata_only": '{"__metadata__":{"format":"pt","k":""}}',
    "metadata_null": '{"__metadata__":null,' + entry("a", "U8", "[]", "[0,1]") + "}",
    "one": "{" + entry("a", "I32", "[2]", "[0,8]") + "}   ",
    "unordered": "{" + entry("b", "BF16", "[1,3]", "[4,10]") + "," + entry("a", "F32", "[]", "[0,4]") + "}",
    "zero_size": "{" + entry("a", "F32", "[0,4]", "[0,0]") + "," + entry("b", "I8", "[2]", "[0,2]") + "," + entry("c", "C64", "[0]", "[2,2]") + "}",
    "sub_byte": "{" + entry("x", "F4", "[2,8]", "[0,8]") + "," + entry("y", "F6_E2M3", "[4]", "[8,11]") + "}",
    "every_width": "{" + ",".join(entry(d, d, "[1]", f"[{at},{at + size}]") for d, at, size in (
        ("F64", 0, 8), ("C64", 8, 8), ("U32", 16, 4), ("F16", 20, 2), ("F8_E4M3", 22, 1), ("F8_E8M0", 23, 1), ("BOOL", 24, 1))) + "}",
    "escapes": "{" + entry('\\u0061\\ud83d\\ude00\\"\\\\\\/\\n', "I8", "[3]", "[0,3]") + "," + entry("é\\u0000", "BOOL", "[0]", "[3,3]") + "}",
    "extra_fields": '{"a":{"dtype":"U16","x":[1.5,-0,{"b":null,"b":[true]}],"shape":[2],"data_offsets":[0,4],"y-0":18446744073709551616}}',
    "deep": '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":' + "[" * 125 + "1" + "]" * 125 + "}}",
    "huge_shape": "{" + entry("a", "I64", "[0,18446744073709551615]", "[0,0]") + "}",
    "overflow": "{" + entry("a", "I64", "[9223372036854775808,2,0]", "[0,0]") + "}",
    "large_offsets": "{" + entry("a", "U8", "[2305843009213693951]", "[0,2305843009213693951]") + "}",
    "duplicate": "{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("\\u0061", "I8", "[1]", "[0,1]") + "}",
    "duplicate_metadata": '{"__metadata__":{"k":"1","k":"2"}}',
    "array_form": '{"a":["I32",[2],[0,8]],"b":[{"U8":null},[],[8,9]]}',
    "enum_map": '{"a":{"dtype":{"I32":null},"shape":[2],"data_offsets":[0,8]}}',
    "gap": "{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[2,3]") + "}",
    "overlap": "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[2,6]") + "}",
    "lfs_pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "whole_file": "\x03\0\0\0\0\0\0\0{} ",
}

INDEXES = {
    "usual": '{\n  "metadata": {\n    "total_size": 12\n  },\n  "weight_map": {\n    "a": "model-00001-of-00002.safetensors",\n'
             '    "b": "model-00002-of-00002.safetensors"\n  }\n}\n',
    "one_line": '{"weight_map":{"a":"f"}}',
    "float_size": '{"metadata":{"total_size":1.5e9},"weight_map":{"a":"f"}}',
    "odd_size": '{"metadata":{"total_size":"12"},"weight_map":{"a":"f"},"more":[1,-0,18446744073709551616]}',
    "parent": '{"weight_map":{"a":"../x/secret.safetensors"}}',
    "absolute": '{"weight_map":{"a":"\\u002fetc\\/passwd"}}',
    "nul": '{"weight_map":{"a":"f\\u0000"}}',
    "duplicate": '{"weight_map":{"a":"f","\\u0061":"g"}}',
    "empty_map": '{"weight_map":{}}',
    "not_a_map": '{"weight_map":["a"]}',
    "not_a_name": '{"weight_map":{"a":1}}',
}


def crc32c(data: bytes, previous: int = 0) -> int:
    state = previous ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def seal(content: bytes, version: int = 1, size: int | None = None) -> bytes:
    """A seal as src/load/seal.h describes it; `size` and `version` may lie."""
    blocks = [content[at:at + 65536] for at in range(0, len(content), 65536)]
    head = b"ICSEAL\r\n" + struct.pack("<IIQQII", version, 65536, len(content) if size is None else size, len(blocks), crc32c(content), 0)
    table = b"".join(struct.pack("<I", crc32c(block)) for block in blocks)
    return head + struct.pack("<I", crc32c(table, crc32c(head))) + table


SEALS = {
    "empty": seal(b""),
    "short": seal(b"123456789"),
    "one_block": seal(b"a" * 65536),
    "two_blocks": seal(b"ab" * 40000),
    "newer": seal(b"123456789", version=2),
    "wrong_size": seal(b"123456789", size=2**64 - 1),
}


def text(value: str) -> bytes:
    """As src/exchange/wire.h has it."""
    return struct.pack("<Q", len(value)) + value.encode()


def cause(rank: int, message: str, offset: int = 2**64 - 1) -> bytes:
    return struct.pack("<5Q", rank, 4096, 8, 28, offset) + text(message) + text("/ckpt/segment") + text("") + text("Free space") + text("")


MESSAGES = {
    "gather": struct.pack("<Q", 0) + text("roots") + struct.pack("<Q", 7) + text("bytes"),
    "agree": struct.pack("<Q", 1) + text("plan") + struct.pack("<Q", 0) + text(""),
    "cause": cause(3, "rank 3: cannot write"),
    "cause_at": cause(0, "rank 0: cannot write", 65536),
    "agreed": struct.pack("<Q", 1),
    "values": struct.pack("<QQ", 2, 2) + text("a") + text(""),
    "ended": struct.pack("<Q", 3) + struct.pack("<Q", len(cause(1, "x"))) + cause(1, "x"),
}


def stripes(magic: int, size: int, count: int, pool: bytes | None = None) -> bytes:
    """lov_user_md_v1, or _v3 with a pool."""
    return struct.pack("<II16xIHH", magic, 1, size, count, 0xFFFF) + (b"" if pool is None else pool.ljust(16, b"\0"))


def composite(*parts: bytes) -> bytes:
    """lov_comp_md_v1 with a component for each part, of 64 MiB."""
    at = 32 + 48 * len(parts)
    entries = b""
    for i, part in enumerate(parts):
        entries += struct.pack("<IIQQIIIQI", i + 1, 0, i << 26, (i + 1) << 26, at, len(part), 0, 0, 0)
        at += len(part)
    return struct.pack("<IIIHHHBB4xQ", 0x0BD60BD0, at, 1, 0, len(parts), 0, 0, 0, 0) + entries + b"".join(parts)


LAYOUTS = {
    "plain": stripes(0x0BD10BD0, 4 << 20, 8),
    "with_objects": stripes(0x0BD10BD0, 1 << 20, 2) + b"x" * 48,
    "pool": stripes(0x0BD30BD0, 65536, 1, b"flash"),
    "full_pool": stripes(0x0BD30BD0, 65536, 1, b"sixteen-bytes-xx"),
    "progressive": composite(stripes(0x0BD10BD0, 1 << 20, 1), stripes(0x0BD30BD0, 4 << 20, 0xFFFF, b"flash")),
    "foreign": stripes(0x0BD70BD0, 0, 0),
}


def manifest(body: dict, checksum: str | None = None) -> bytes:
    """A document as src/manifest/commit.h describes it; `checksum` may lie."""
    plain = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**body, "crc32c": checksum or f"{crc32c(plain.encode()):08x}"}, separators=(",", ":"), ensure_ascii=False).encode()


COMMIT = {"format": "infercluster.checkpoint", "version": 1, "step": 100, "epoch": 2, "save_id": "0123456789abcdef", "world": 1,
          "plan_hash": "0" * 32, "indexes": [{"name": "node-0.2.index.json", "bytes": 99, "crc32c": "01234567"}]}
CHUNK = {"tensor": "größe", "dtype": "F32", "shape": [10, 4], "offsets": [5, 0], "lengths": [5, 4], "segment": 0, "begin": 64}
SAVED = {"format": "infercluster.checkpoint.index", "version": 1, "step": 7, "epoch": 1, "save_id": "0123456789abcdef", "node": 0,
         "segments": [{"name": "node-0.0.1.safetensors", "bytes": 65537, "crc32c": "0" * 16}], "chunks": [CHUNK],
         "metadata": [["torch", "2"]]}
MANIFESTS = {
    "commit": manifest(COMMIT),
    "commit_newer": manifest({**COMMIT, "version": 2}),
    "commit_wrong": manifest(COMMIT, "00000000"),
    "commit_parent": manifest({**COMMIT, "indexes": [{"name": "../x", "bytes": 1, "crc32c": "01234567"}]}),
    "index": manifest(SAVED),
    "index_empty": manifest({**SAVED, "segments": [], "chunks": [], "metadata": []}),
    "index_outside": manifest({**SAVED, "chunks": [{**CHUNK, "begin": 2**64 - 1}]}),
    "index_huge": manifest({**SAVED, "chunks": [{**CHUNK, "shape": [2**63, 4]}]}),
    "deep": b"[" * 100,
}


def pdu(kind: int, body: bytes, data: bytes = b"", header_digest: bool = False, data_digest: bool = False, flags: int = 0) -> bytes:
    """One PDU of NVMe/TCP, with the digests that it should bear."""
    begin = 8 + len(body) + 4 * header_digest
    length = begin + len(data) + 4 * (data_digest and bool(data))
    flags |= header_digest | (data_digest and bool(data)) << 1
    header = struct.pack("<BBBBI", kind, flags, 8 + len(body), begin if data else 0, length) + body
    out = header + (struct.pack("<I", crc32c(header)) if header_digest else b"") + data
    return out + (struct.pack("<I", crc32c(data)) if data_digest and data else b"")


def command(opcode: int, nsid: int = 0, length: int = 0, *dwords: int) -> bytes:
    """A submission queue entry whose data goes to the host's memory."""
    sgl = struct.pack("<QI3xB", 0, length, 0x5A)
    return struct.pack("<BBHI16x", opcode, 0x40, 7, nsid) + sgl + struct.pack("<6I", *(list(dwords) + [0] * 6)[:6])


def initialize(digests: int) -> bytes:
    return struct.pack("<HBBI112x", 0, 0, digests, 0)


# In front of each: the side that reads, the digests, and the size of the pieces (see pdu_fuzz.cc).
ENABLE = pdu(4, command(0x7F, 0, 0, 0, 0x14, 0x460001))
PDUS = {
    "host_up": b"\xf8" + pdu(0, initialize(0)) + ENABLE + pdu(4, command(0x06, 0, 4096, 1)) + pdu(4, command(0x06, 1, 4096, 3)) +
               pdu(4, command(0x02, 1, 8192, 5, 0, 1)) + pdu(4, command(0x09, 0, 0, 7, 0x30003)),
    "host_log": b"\xf8" + pdu(0, initialize(0)) + ENABLE + pdu(4, command(0x02, 0, 2048, 0x01FF0070)) + pdu(4, command(0x02, 0, 512, 0x007F0002)),
    "host_digests": b"\x0e" + pdu(0, initialize(3)) + pdu(4, command(0x7F, 1, 1024), b"c" * 1024, True, True) +
                    pdu(6, struct.pack("<HHII4x", 7, 1, 0, 100), b"d" * 100, True, True, 4),
    "target_digests": b"\x0f" + pdu(1, initialize(3)) + pdu(7, struct.pack("<HHII4x", 7, 0, 0, 64), b"d" * 64, True, True, 12) +
                      pdu(5, struct.pack("<QHHHH", 0, 1, 0, 7, 0), b"", True) + pdu(9, struct.pack("<HHII4x", 7, 1, 0, 64), b"", True),
    "terminate": b"\x01" + pdu(3, struct.pack("<HI10x", 1, 4)) + b"x" * 20,
    "wrong_digest": b"\x02" + pdu(0, initialize(1)) + pdu(4, command(0x18), b"", True)[:-1] + b"!",
}
ENTRY = struct.pack("<BBBBHHHI18x", 3, 1, 2, 4, 1, 0xFFFF, 32, 0) + b"4420".ljust(224) + b"nqn.2026-01.io.test:a".ljust(256, b"\0") + \
    b"127.0.0.1".ljust(512)
IDENTITIES = {
    "discovery": struct.pack("<QQH1006x", 7, 2, 0) + ENTRY + ENTRY,
    "discovery_short": struct.pack("<QQH1006x", 7, 3, 0) + ENTRY,
    "descriptors": struct.pack("<BBxx8s", 1, 8, b"eui64   ") + struct.pack("<BBxx16s", 3, 16, b"uuiduuiduuiduuid"),
    "namespaces": struct.pack("<4I", 1, 2, 3, 0),
}


def auth(common: bool, identifier: int, transaction: int, rest: bytes) -> bytes:
    return struct.pack("<BBxxH", not common, identifier, transaction) + rest


def piece(choice: int, message: bytes) -> bytes:
    """What auth_fuzz.cc takes apart: whose message, how long it is, and the message."""
    return struct.pack("<BH", choice, len(message)) + message


NEGOTIATE = auth(True, 0, 9, struct.pack("<BBBxBB", 0, 1, 1, 3, 2) + bytes([1, 2, 3]).ljust(30, b"\0") + bytes([0, 1]).ljust(30, b"\0"))
CHALLENGE = auth(False, 1, 77, struct.pack("<BxBBHI", 32, 1, 0, 0, 5) + b"c" * 32)
REPLY = auth(False, 2, 9, struct.pack("<BxBxHI", 32, 1, 0, 5) + b"r" * 32 + b"c" * 32)
SUCCESS1 = auth(False, 3, 77, struct.pack("<BxB7x", 32, 1) + b"r" * 32)
# 0: to the controller; 1: to the host; 2: to the controller comes the right reply, but for these changes.
AUTHENTICATIONS = {
    "right": piece(0, NEGOTIATE) + piece(2, b""),
    "right_and_proof": piece(0, NEGOTIATE) + piece(2, b"\0" * 8 + b"\1") + piece(0, auth(False, 4, 9, bytes(10))),
    "wrong": piece(0, NEGOTIATE) + piece(2, bytes(16) + b"\1"),
    "other": piece(0, NEGOTIATE) + piece(0, REPLY) + piece(0, auth(True, 0xF0, 9, b"\1\1")),
    "again": piece(0, NEGOTIATE) + piece(2, b"") + piece(0, NEGOTIATE) + piece(2, b""),
    "host": piece(1, CHALLENGE) + piece(1, SUCCESS1),
    "host_without_proof": piece(1, CHALLENGE) + piece(1, auth(False, 3, 77, struct.pack("<B9x", 32))),
    "host_refused": piece(1, auth(True, 0xF1, 77, b"\1\1")),
    "group": piece(1, auth(False, 1, 77, struct.pack("<BxBBHI", 32, 1, 1, 256, 5) + b"c" * 288)),
}

# Steps of target_fuzz.cc: each its number, the queue, and what it reads.
UP = bytes([0, 0, 0, 1, 0, 0, 2, 0])  # queue 0 is the admin queue, and enabled
IO = bytes([0, 1, 3, 3, 1, 1, 0])  # queue 1 is I/O queue 1, with both digests
READS = bytes([4, 1, 1, 0, 2, 5, 1, 2, 60, 30, 4, 1, 205, 0, 255, 4, 1, 225, 0, 60, 4, 1, 241, 0, 255, 4, 1, 240, 0, 0])
HOSTS = {
    "reads": bytes([2]) + UP + IO + READS + bytes([8, 1]),
    "reads_plain": bytes([5]) + UP + bytes([0, 1, 0, 3, 1, 1, 1]) + READS,
    "unmapped": bytes([0]) + UP + IO + bytes([13, 2, 4, 1, 2, 0, 9, 14, 2, 14, 3, 4, 1, 2, 0, 70, 13, 3, 4, 1, 3, 0, 0, 8, 1]),
    "unmapped_meanwhile": bytes([1]) + UP + IO + bytes([4, 1, 2, 0, 70] * 6 + [13, 2] + [4, 1, 2, 0, 70] * 3),
    "beyond_the_end": bytes([2]) + UP + IO + bytes([4, 1, 241, 84, 255, 4, 1, 241, 43, 255, 4, 1, 241, 44, 255, 8, 1]),
    "pieces": bytes([0, 15, 0, 6, 15, 1, 14]) + UP + IO + bytes([15, 1, 0, 4, 1, 1, 0, 1, 15, 1, 0, 5, 1, 1, 0, 0, 8, 1]),
    "asks": bytes([0]) + UP + b"".join(bytes([6, 0, what, which]) for what in range(6) for which in (0, 6, 8)) + bytes([8, 0]),
    "discovery": bytes([0, 0, 0, 0, 1, 0, 8, 2, 0, 6, 0, 1, 3, 6, 0, 0, 1, 8, 0]),
    "faults": bytes([0]) + b"".join(bytes([0, 2, 0, 11, 2, kind]) for kind in range(5)) + bytes([11, 3, 4]),
    "damaged": bytes([0, 0, 0, 0]) + b"".join(bytes([10, 0, kind, 0, 0, at, 255, 1, 0, 0, 0]) for kind in range(4) for at in (4, 40)),
    "raw": bytes([0, 9, 0, 8, 0, 0, 0x80, 0, 0x80, 0, 0, 0, 8, 0]),
    "cut": bytes([0]) + UP + IO + bytes([4, 1, 2, 0, 70, 15, 1, 0, 4, 1, 2, 0, 70, 12, 1, 1, 12, 0, 2, 0, 1, 0, 12, 1, 3]),
    "secrets": bytes([8]) + UP + IO + bytes([4, 1, 1, 0, 0, 7, 0, 0x7F, 5, 4, 0, 0, 0, 0, 8, 0]),
    "disabled": bytes([0]) + UP + IO + READS + bytes([7, 0, 0x7F, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 8, 1, 1]),
    "events": bytes([0]) + UP + bytes([6, 0, 4, 0] * 6 + [7, 0, 2, 1, 0x82, 0, 0, 0, 1, 0, 0, 0, 2, 3, 1, 2, 3, 4, 8, 0]),
}


def main() -> None:
    for folder, seeds in (("header", HEADERS), ("index", INDEXES), ("seal", SEALS), ("exchange", MESSAGES), ("lustre", LAYOUTS),
                          ("manifest", MANIFESTS), ("pdu", PDUS), ("identify", IDENTITIES), ("auth", AUTHENTICATIONS),
                          ("target", HOSTS)):
        shutil.rmtree(CORPUS / folder, ignore_errors=True)
        (CORPUS / folder).mkdir(parents=True)
        for name, text in seeds.items():
            (CORPUS / folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


if __name__ == "__main__":
    main()
