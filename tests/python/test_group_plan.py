# SPDX-License-Identifier: Apache-2.0
"""The plan of a load by a group: pure, so that many groups and requests are tried, and counted byte by byte."""

from __future__ import annotations

import random

import numpy
import pytest

from infercluster._group.boxes import Box, Table, bytes_of, chopped, cut_at, is_contiguous, sizes_of, within
from infercluster._group.plan import ROW_BYTES_MIN, Plan, make_plan

WIDTHS = {"F32": 4, "BF16": 2, "U8": 1, "C64": 8}


def table(name: str, dtype: str, shape: tuple[int, ...]) -> Table:
    return Table(name, dtype, shape, int(numpy.prod(shape, dtype=numpy.int64)) * WIDTHS[dtype])


def random_box(randomly: random.Random, one: Table) -> Box:
    sides = []
    for size in one.shape:
        begin = randomly.choice([0, 0, randomly.randint(0, size)])
        sides.append((begin, randomly.choice([size, size, randomly.randint(begin, size)])))
    return one.in_bytes(tuple(sides))


def random_wants(randomly: random.Random, tables: list[Table], world: int) -> list[dict[int, Box]]:
    wants: list[dict[int, Box]] = [{} for _ in range(world)]
    for index, one in enumerate(tables):
        kind = randomly.choice(["whole", "rows", "columns", "any", "some"])
        for rank in range(world):
            box = one.box
            if kind in ("rows", "columns") and one.shape:
                dim = 0 if kind == "rows" else len(one.shape) - 1
                piece = -(-one.shape[dim] // world)
                begin = min(one.shape[dim], piece * rank)
                side = (begin, min(begin + piece, one.shape[dim]))
                box = one.in_bytes(
                    (*((0, size) for size in one.shape[:dim]), side, *((0, size) for size in one.shape[dim + 1 :]))
                )
            elif kind == "any":
                box = random_box(randomly, one)
            if kind != "some" or randomly.random() < 0.5:
                wants[rank][index] = box
    return wants


def check(tables: list[Table], wants: list[dict[int, Box]], plan: Plan) -> None:
    read = [numpy.zeros(sizes_of(one.box), numpy.int32) for one in tables]
    arrived = [{index: numpy.zeros(sizes_of(box), numpy.int32) for index, box in boxes.items()} for boxes in wants]
    for owner in range(plan.world):
        for bucket in plan.shared[owner] + plan.alone[owner]:
            for piece in bucket:
                where = within(tables[piece.tensor].box, piece.box)
                read[piece.tensor][where] += 1
                for rank, box in piece.wanted:
                    # A message in place of a tensor is one run of bytes of it, unless it is cut up.
                    assert piece.is_cut or is_contiguous(wants[rank][piece.tensor], box)
                    arrived[rank][piece.tensor][within(wants[rank][piece.tensor], box)] += 1
        for bucket in plan.alone[owner]:
            assert all([rank for rank, _ in piece.wanted] == [owner] for piece in bucket)
    for counts in read:
        assert counts.max(initial=0) <= 1, "a byte is read twice"
    for boxes in arrived:
        for index, counts in boxes.items():
            assert (counts == 1).all(), f"{tables[index].name}: a byte is not delivered once"


@pytest.mark.parametrize("seed", range(60))
def test_each_byte_is_read_once_and_delivered_to_whoever_wants_it(seed: int) -> None:
    randomly = random.Random(seed)
    shapes = [(), (0,), (3, 0), (7,), (5000,), (1, 1, 9), (33, 65), (4, 17, 31), (300, 200), (2, 3, 4, 5), (1, 40_000)]
    tables = [
        table(f"t{n}", randomly.choice(list(WIDTHS)), randomly.choice(shapes)) for n in range(randomly.randint(1, 12))
    ]
    world = randomly.randint(1, 6)
    wants = random_wants(randomly, tables, world)
    for window in (0, 1 << 30):
        check(tables, wants, make_plan(tables, wants, window))


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_shares_are_even_and_in_the_order_of_the_files(world: int) -> None:
    parts = {"norm": (4096,), "up": (11008, 4096), "down": (4096, 11008), "bias": (11,)}
    tables = [table(f"{layer}.{part}", "BF16", shape) for layer in range(20) for part, shape in parts.items()]
    tables.append(table("embed", "BF16", (320_000, 4096)))
    plan = make_plan(tables, [{index: one.box for index, one in enumerate(tables)}] * world, 512 << 20)
    total = sum(one.nbytes for one in tables)
    shares = [plan.bytes_read(rank) for rank in range(world)]
    assert sum(shares) == total and max(shares) - min(shares) <= total / world * 0.01 + (2 << 20)
    order = [(piece.tensor, piece.box) for buckets in plan.shared for bucket in buckets for piece in bucket]
    assert order == sorted(order)
    most = (512 << 20) // (2 * world)
    assert all(
        sum(piece.nbytes for piece in bucket) <= min(most, 64 << 20) for buckets in plan.shared for bucket in buckets
    )
    assert [plan.bytes_received(rank) for rank in range(world)] == [total - share for share in shares]
    # One round has a bucket of each rank but in the end, so that all read all the time.
    assert max(map(len, plan.shared)) - min(map(len, plan.shared)) <= 3


def test_what_ranks_read_alone_evens_out_against_what_they_share() -> None:
    tables = [table("mine", "U8", (90 << 20,)), table("ours", "U8", (90 << 20, 1))]
    plan = make_plan(tables, [{0: tables[0].box, 1: tables[1].box}, {1: tables[1].box}, {1: tables[1].box}], 64 << 20)
    assert plan.bytes_read(0) == 90 << 20 and abs(plan.bytes_read(1) - (45 << 20)) <= 1 << 20


def test_wide_columns_are_read_by_their_rank_alone_and_narrow_ones_by_one_owner() -> None:
    wide, narrow = table("wide", "U8", (64, 2 * ROW_BYTES_MIN)), table("narrow", "U8", (4096, 2048))
    halves = [tuple({0: ROW_BYTES_MIN, 1: 1024}[index] for index in (0, 1)) for _ in range(2)]
    wants: list[dict[int, Box]] = [
        {
            0: ((0, 64), (halves[0][0] * rank, halves[0][0] * (rank + 1))),
            1: ((0, 4096), (1024 * rank, 1024 * (rank + 1))),
        }
        for rank in range(2)
    ]
    plan = make_plan([wide, narrow], wants, 8 << 20)
    assert [piece.tensor for buckets in plan.alone for bucket in buckets for piece in bucket] == [0, 0]
    pieces = [piece for buckets in plan.shared for bucket in buckets for piece in bucket]
    assert pieces and all(piece.tensor == 1 and sizes_of(piece.box)[1] == 2048 for piece in pieces)
    assert {plan.bytes_received(rank) for rank in range(2)} == {2048 * 1024}


def test_cutting_boxes() -> None:
    assert cut_at(((0, 10), (0, 8)), 33, 4) == (((0, 4), (0, 8)), ((4, 10), (0, 8)))
    assert cut_at(((0, 1), (0, 1), (0, 100_000)), 5000, 4) == (
        ((0, 1), (0, 1), (0, 4096)), ((0, 1), (0, 1), (4096, 100_000)))  # fmt: skip
    assert cut_at(((0, 10), (0, 8)), 3, 4) is None and cut_at(((0, 1), (0, 4)), 2, 4) is None
    for sizes, most, unit in (((10, 8), 20, 4), ((3, 5, 64), 70, 8), ((100_000,), 9000, 1), ((2, 16), 1, 8)):
        box = tuple((0, size) for size in sizes)
        parts = chopped(box, most, unit)
        assert sum(map(bytes_of, parts)) == bytes_of(box) and all(is_contiguous(box, part) for part in parts)
        assert all(bytes_of(part) <= max(most, unit) and bytes_of(part) % unit == 0 for part in parts)
    assert is_contiguous(((0, 4), (0, 6)), ((1, 3), (0, 6))) and not is_contiguous(((0, 4), (0, 6)), ((1, 3), (0, 5)))
    assert is_contiguous(((0, 4), (0, 6)), ((1, 2), (2, 5)))
