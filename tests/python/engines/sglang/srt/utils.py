# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


def kill_process_tree(parent_pid: int, include_parent: bool = True) -> None:
    pass
