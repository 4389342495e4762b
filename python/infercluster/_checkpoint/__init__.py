# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved while the program goes on, never half there."""

from .checkpointer import Checkpointer
from .pages import Pages
from .save import Save
from .tensors import Part
from .tiers import Tier

__all__ = ["Checkpointer", "Pages", "Part", "Save", "Tier"]
