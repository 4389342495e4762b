# SPDX-License-Identifier: Apache-2.0
"""experts: which tensors one rank of an expert-parallel group needs, by the names alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Literal

from . import _options

PATTERN = "*.experts.{n}.*"

Placement = Literal["linear", "round_robin"]


def experts_of(rank: int, world: int, num_experts: int, placement: Placement = "linear") -> range:
    """
    The experts of one rank. "linear": consecutive ones, of which the first ranks get one more when they do not divide
    evenly; "round_robin": every world-th. Both are vLLM's placements of these names.
    """
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks")
    if num_experts < 0:
        raise ValueError(f"num_experts is {num_experts}; expected 0 or more")
    if placement == "round_robin":
        return range(rank, num_experts, world)
    if placement != "linear":
        raise ValueError(f'placement is "{placement}"; expected "linear" or "round_robin"')
    each, more = divmod(num_experts, world)
    begin = each * rank + min(rank, more)
    return range(begin, begin + each + (rank < more))


def experts(
    source: str | os.PathLike[str] | Iterable[str],
    rank: int,
    world: int,
    *,
    num_experts: int | None = None,
    pattern: str = PATTERN,
    placement: Placement = "linear",
) -> list[str]:
    """
    The names that one rank of `world` expert-parallel ranks needs: all that belong to no expert, and those of its own
    experts. For `load(names=...)`, also with `group=`: then what all need is read once and what one needs by it alone.

    Args:
        source: a file, folder or repository id as `load` takes it, or names (a `Handle` has them). num_experts: when
        left out, one more than the highest number among the names. pattern: a name with `{n}` where the expert's number
        stands; `*` is any text. placement: see `experts_of`; "linear" or "round_robin".

    Raises:
        ValueError: no name has an expert's number, or one is beyond num_experts; or rank, world or pattern cannot be.
    """
    if isinstance(source, (str, os.PathLike)):
        names = _options.open_repository(source, None).names()
    else:
        names = list(source)
    numbered = _numbers(names, pattern)
    found = max(numbered.values(), default=-1)
    if found < 0:
        raise ValueError(f'no name matches the pattern "{pattern}"; the model has no experts, or names them otherwise')
    if num_experts is not None and found >= num_experts:
        name = next(name for name, number in numbered.items() if number == found)
        raise ValueError(f'"{name}" is of expert {found}, and num_experts is {num_experts}')
    mine = experts_of(rank, world, found + 1 if num_experts is None else num_experts, placement)
    return [name for name in names if name not in numbered or numbered[name] in mine]


def _numbers(names: list[str], pattern: str) -> dict[str, int]:
    """The expert's number of every name that has one."""
    if pattern.count("{n}") != 1:
        raise ValueError(f'pattern is "{pattern}"; expected a name with one {{n}} in it, such as "{PATTERN}"')
    before, after = (".*".join(map(re.escape, part.split("*"))) for part in pattern.split("{n}"))
    expression = re.compile(f"{before}([0-9]+){after}", re.DOTALL)
    matched = ((name, expression.fullmatch(name)) for name in names)
    return {name: int(found.group(1)) for name, found in matched if found}
