# SPDX-License-Identifier: Apache-2.0
"""Several ranks load one source together: each byte is read from storage once, the rest comes over the group."""

from .run import load_in_group

__all__ = ["load_in_group"]
