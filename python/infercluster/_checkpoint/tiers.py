# SPDX-License-Identifier: Apache-2.0
"""Storage above the root of a checkpointer."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple


class Tier(NamedTuple):
    """Storage above the root of a `Checkpointer`: of this node, such as its NVMe."""

    path: str | os.PathLike[str]
    keep: int = 1  # of the newest checkpoints (0: all); what the root does not have yet stays in any case


def fast_tier(tiers: Sequence[str | os.PathLike[str] | Tier] | None) -> tuple[bytes, int] | None:
    if tiers is None or (not isinstance(tiers, (str, bytes, os.PathLike)) and not list(tiers)):
        return None
    if isinstance(tiers, (str, bytes, os.PathLike)):
        raise ValueError(f"tiers is {tiers!r}; expected a list of one path, or of one Tier")
    if len(tiers) > 1:
        raise ValueError(f"{len(tiers)} tiers are named above the root; one is possible")
    tier = tiers[0] if isinstance(tiers[0], Tier) else Tier(tiers[0])
    if tier.keep < 0:
        raise ValueError(f"keep of the tier is {tier.keep}; expected 0 or more")
    return os.fsencode(os.path.abspath(os.fspath(tier.path))), tier.keep

def is_of_storage(error: Exception) -> bool:
    """It may be better on another tier."""
    if isinstance(error, OSError):
        return error.errno in (errno.EIO, errno.ENOENT)
    return True
