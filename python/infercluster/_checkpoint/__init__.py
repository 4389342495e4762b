# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved while the program goes on, never half there."""

from .checkpointer import Checkpointer, Save

__all__ = ["Checkpointer", "Save"]
