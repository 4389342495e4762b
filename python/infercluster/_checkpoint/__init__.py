# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved while the program goes on, never half there."""

from .checkpointer import Checkpointer, Save
from .pages import Pages
from .tensors import Part

__all__ = ["Checkpointer", "Pages", "Part", "Save"]
