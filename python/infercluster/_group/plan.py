# SPDX-License-Identifier: Apache-2.0
"""Who of a group reads which bytes, and who then sends which to whom. Pure: every rank computes the same from the
same requests.

What one rank alone wants it reads itself. What several want is read by one of them, its owner: in shares of the bytes
that even out what all ranks read, contiguous in file order. The owner's reads are cut into *buckets*; in *round* k
every owner sends its bucket k. Parts that differ between ranks and lie in each other's pages (columns) are read as
whole rows by an owner that cuts them up.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .boxes import Box, Table, bytes_of, chopped, common, cut_at, hull, sizes_of, volume

# Rows of at least so many bytes are read by each rank alone: what two of them read twice is less than a page at
# either end.
ROW_BYTES_MIN = 64 << 10
# A share may end so far from where it should for the sake of a whole tensor.
_SLACK_BYTES = 1 << 20
_BUCKET_BYTES_MAX = 64 << 20
_LOCAL_BUCKET_BYTES = 256 << 20


@dataclass(frozen=True)
class Piece:
    """What one rank reads at once of one tensor, and which box of it each rank of the group wants (its own among
    them)."""

    tensor: int
    box: Box
    wanted: tuple[tuple[int, Box], ...]  # rank -> box, by rank

    @property
    def is_cut(self) -> bool:
        """Its readers want different parts of it."""
        return any(box != self.box for _, box in self.wanted)

    @property
    def nbytes(self) -> int:
        return bytes_of(self.box)


Bucket = list[Piece]


@dataclass
class Plan:
    world: int
    shared: list[list[Bucket]] = field(default_factory=list)  # by owner: what it reads and sends, by round
    alone: list[list[Bucket]] = field(default_factory=list)  # by rank: what it reads for itself

    @property
    def rounds(self) -> int:
        return max((len(buckets) for buckets in self.shared), default=0)

    def bytes_read(self, rank: int) -> int:
        return sum(piece.nbytes for bucket in self.shared[rank] + self.alone[rank] for piece in bucket)

    def bytes_received(self, rank: int) -> int:
        return sum(
            bytes_of(box)
            for owner, buckets in enumerate(self.shared)
            for bucket in buckets
            for piece in bucket
            for wanting, box in piece.wanted
            if wanting == rank != owner
        )


def make_plan(tables: Sequence[Table], wants: Sequence[Mapping[int, Box]], window: int) -> Plan:
    """`wants`: by rank, which box of which tensor. `window`: bytes that may be on their way at once."""
    world = len(wants)
    alone: list[list[Piece]] = [[] for _ in range(world)]
    groups: dict[tuple[int, ...], list[Piece]] = defaultdict(list)
    for index, table in enumerate(tables):
        wanted = tuple(
            (rank, box) for rank, boxes in enumerate(wants) if (box := boxes.get(index)) is not None and bytes_of(box)
        )
        for piece in _pieces(index, table, wanted):
            if len(piece.wanted) == 1:
                alone[piece.wanted[0][0]].append(piece)
            else:
                groups[tuple(rank for rank, _ in piece.wanted)].append(piece)
    shares = _shares(tables, groups, [sum(piece.nbytes for piece in pieces) for pieces in alone])
    most = max(1 << 20, min(_BUCKET_BYTES_MAX, window // (2 * max(world, 1))))
    return Plan(
        world,
        [_buckets(tables, sorted(share, key=lambda piece: (piece.tensor, piece.box)), most) for share in shares],
        [_buckets(tables, pieces, _LOCAL_BUCKET_BYTES) for pieces in alone],
    )


def _pieces(index: int, table: Table, wanted: tuple[tuple[int, Box], ...]) -> list[Piece]:
    """One tensor's pieces, before they are spread over owners."""
    if not wanted:
        return []
    boxes = [box for _, box in wanted]
    if len(set(boxes)) == 1:
        return [Piece(index, boxes[0], wanted)]
    varying = [sides for sides in range(len(boxes[0])) if len({box[sides] for box in boxes}) > 1]
    if len(varying) == 1:
        dimension = varying[0]
        rows = volume(sizes_of(boxes[0][:dimension]))
        if rows == 1:
            return _intervals(index, wanted, dimension)
        if _are_disjoint({box[dimension] for box in boxes}) and min(_run(table, box) for box in boxes) >= ROW_BYTES_MIN:
            return [
                Piece(index, box, tuple((rank, other) for rank, other in wanted if other == box))
                for box in sorted(set(boxes))
            ]
    return [Piece(index, hull(boxes), wanted)]


def _run(table: Table, box: Box) -> int:
    """Bytes of the box that lie together in the file."""
    run = 1
    for (begin, end), (first, last) in zip(reversed(box), reversed(table.box), strict=True):
        run *= end - begin
        if (begin, end) != (first, last):
            break
    return run


def _are_disjoint(sides: set[tuple[int, int]]) -> bool:
    return all(first[1] <= second[0] for first, second in itertools.pairwise(sorted(sides)))


def _intervals(index: int, wanted: tuple[tuple[int, Box], ...], dimension: int) -> list[Piece]:
    """Boxes that differ in one dimension, and are runs of bytes there: cut wherever one of them begins or ends."""
    bounds = sorted({bound for _, box in wanted for bound in box[dimension]})
    pieces: list[Piece] = []
    for begin, end in itertools.pairwise(bounds):
        ranks = [rank for rank, box in wanted if box[dimension][0] <= begin and end <= box[dimension][1]]
        if not ranks:
            continue
        some = wanted[0][1]
        box = (*some[:dimension], (begin, end), *some[dimension + 1 :])
        pieces.append(Piece(index, box, tuple((rank, box) for rank in ranks)))
    return pieces


def _levels(loads: Sequence[int], amount: int) -> list[int]:
    """How much of `amount` each gets, so that the lowest loads rise to one level."""
    order = sorted(range(len(loads)), key=lambda one: (loads[one], one))
    level, left = 0, amount
    for count, (current, following) in enumerate(itertools.pairwise([*order, -1]), 1):
        level = loads[current]
        room = (loads[following] - level) * count if following >= 0 else left
        if room >= left:
            level += left // count
            left -= left // count * count
            break
        left -= room
    shares = [max(0, level - load) for load in loads]
    shares[order[0]] += amount - sum(shares)
    return shares


def _shares(
    tables: Sequence[Table], groups: Mapping[tuple[int, ...], list[Piece]], loads: list[int]
) -> list[list[Piece]]:
    """By owner: what it reads of what several ranks want. Small groups choose first: they have less choice."""
    result: list[list[Piece]] = [[] for _ in loads]
    for ranks in sorted(groups, key=lambda ranks: (len(ranks), ranks)):
        pieces = groups[ranks]
        targets = _levels([loads[rank] for rank in ranks], sum(piece.nbytes for piece in pieces))
        for rank, share in zip(ranks, _cut(tables, pieces, targets), strict=True):
            result[rank] += share
            loads[rank] += sum(piece.nbytes for piece in share)
    return result


def _part(piece: Piece, box: Box) -> Piece | None:
    """What of a piece lies in a box of it."""
    wanted = tuple((rank, part) for rank, other in piece.wanted if (part := common(other, box)))
    return Piece(piece.tensor, box, wanted) if wanted else None


def _cut(tables: Sequence[Table], pieces: list[Piece], targets: list[int]) -> list[list[Piece]]:
    """The pieces in their order, in shares of about the targets' bytes."""
    shares: list[list[Piece]] = [[] for _ in targets]
    total = sum(targets)
    slack = min(_SLACK_BYTES, total // (64 * len(targets)))
    owner, end, at = 0, targets[0], 0
    pending = list(reversed(pieces))
    while pending:
        piece = pending.pop()
        while owner + 1 < len(targets) and end - at <= slack:
            owner += 1
            end += targets[owner]
        over = at + piece.nbytes - end
        if over > slack and owner + 1 < len(targets):
            halves = cut_at(piece.box, end - at, tables[piece.tensor].unit)
            if halves is not None:
                parts = [part for half in halves if (part := _part(piece, half))]
                if len(parts) == 2 and parts[0].nbytes < piece.nbytes:
                    pending.append(parts[1])
                    piece = parts[0]
            elif over > end - at:  # more of it belongs to the next
                owner += 1
                end += targets[owner]
        shares[owner].append(piece)
        at += piece.nbytes
    return shares


def _buckets(tables: Sequence[Table], pieces: list[Piece], most: int) -> list[Bucket]:
    """The pieces in their order, cut so that buckets are full."""
    buckets: list[Bucket] = []
    room = 0
    pending = list(reversed(pieces))
    while pending:
        piece = pending.pop()
        # What is cut up takes memory beyond the tensors: as read, and as sent.
        weight = 2 if piece.is_cut else 1
        unit = tables[piece.tensor].unit
        boxes: Sequence[Box] = ()
        if piece.nbytes * weight > room:
            if room == most:
                boxes = chopped(piece.box, most // weight, unit)
            elif room > most // 8:
                boxes = cut_at(piece.box, room // weight, unit) or ()
            if len(boxes) < 2 and room < most:
                buckets.append([])
                room = most
                pending.append(piece)
                continue
        if len(boxes) > 1:
            pending += [part for box in reversed(boxes) if (part := _part(piece, box))]
            continue
        buckets[-1].append(piece)
        room -= piece.nbytes * weight
    return [bucket for bucket in buckets if bucket]
