# SPDX-License-Identifier: Apache-2.0
"""Switches that are read from the environment here; the core reads its own."""

from __future__ import annotations

import os

_OFF = ("", "0", "false", "no", "off")


def switched_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in _OFF


def disabled() -> bool:
    """INFERCLUSTER_DISABLE=1: everything goes through the stock package safetensors."""
    return switched_on("INFERCLUSTER_DISABLE")
