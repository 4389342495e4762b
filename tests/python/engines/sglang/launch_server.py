# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

__all__ = ["kill_process_tree", "load_plugins", "prepare_server_args", "run_server"]


def run_server(server_args: Any) -> None:
    from sglang.srt.scheduler import run_scheduler_process

    process = multiprocessing.get_context("spawn").Process(target=run_scheduler_process, args=(server_args,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
