# SPDX-License-Identifier: Apache-2.0
"""One rank of a test's group: joins it, then does what its standard input says until that ends. Run by
group_ranks.py."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

import infercluster
from infercluster._group import reader, run


def digest(tensor: Any) -> tuple[str, tuple[int, ...], str]:
    from conftest import bytes_of

    kind = "numpy" if not isinstance(tensor, torch.Tensor) else "torch"
    return f"{kind} {tensor.dtype}", tuple(tensor.shape), hashlib.sha256(bytes_of(tensor)).hexdigest()


def before_reading(action: str, argument: Any) -> Any:
    """What happens on this rank once the source is open and the plan agreed. Returns what undoes it."""
    if action == "truncate":
        path, size = argument
        real_run = run._Session.run

        def cut(self: Any, own_reader: Any) -> None:
            os.truncate(path, size)
            real_run(self, own_reader)

        run._Session.run = cut  # type: ignore[method-assign]
        return lambda: setattr(run._Session, "run", real_run)
    if action == "hang":
        release = threading.Event()
        real_load = reader.load_opened
        reader.load_opened = lambda *_, **__: (release.wait(60), real_load(*_, **__))[1]  # type: ignore[assignment]

        def resume() -> None:
            release.set()
            reader.load_opened = real_load

        threading.Timer(argument, resume).start()
        return resume
    if action == "die":
        real_load, reads = reader.load_opened, itertools.count(1)

        def load_or_die(*values: Any, **options: Any) -> Any:
            if next(reads) >= argument:
                os._exit(9)
            return real_load(*values, **options)

        reader.load_opened = load_or_die
        return lambda: None
    if action == "interrupt":
        real_load, once = reader.load_opened, threading.Lock()

        def interrupt(*values: Any, **options: Any) -> Any:
            if once.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGINT)
            return real_load(*values, **options)

        reader.load_opened = interrupt
        return lambda: setattr(reader, "load_opened", real_load)
    if action == "raise":
        real_load = reader.load_opened

        def fail(*_: Any, **__: Any) -> Any:
            raise getattr(importlib.import_module("builtins"), argument[0])(*argument[1:])

        reader.load_opened = fail
        return lambda: setattr(reader, "load_opened", real_load)
    if action == "nobody":
        os.seteuid(65534)
        return lambda: os.seteuid(0)
    raise ValueError(action)


def load(group: Any, source: str, options: dict[str, Any], hook: tuple[str, Any] | None) -> dict[str, Any]:
    into = {
        name: torch.full(shape, 7).to(getattr(torch, kind)) for name, (kind, shape) in options.pop("into", {}).items()
    }
    undo = before_reading(*hook) if hook else lambda: None
    options.setdefault("group_timeout", 30)
    started = time.monotonic()
    try:
        loaded = infercluster.load(source, group=group, into=into, **options)
    except (Exception, KeyboardInterrupt) as error:
        chain = error.__cause__
        attributes = {name: getattr(error, name, None) for name in ("errno", "filename", "rank", "tensor", "code")}
        return {
            "error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - started,
            "cause": type(chain).__name__, "cause_text": str(chain), **attributes,
        }  # fmt: skip
    finally:
        undo()
    return {
        "tensors": {name: digest(tensor) for name, tensor in loaded.items()},
        "report": loaded.report,
        "metadata": loaded.metadata,
        "in_place": all(loaded[name] is tensor for name, tensor in into.items()),
    }


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    commands, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    groups = {size: dist.new_group(list(range(size))) for size in range(1, world)} | {world: dist.group.WORLD}
    answer(answers, "ready")
    while True:
        try:
            size, arguments = pickle.load(commands)
        except EOFError:
            break
        answer(answers, load(groups[size], *arguments))
    os._exit(0)


def answer(answers: BinaryIO, value: Any) -> None:
    pickle.dump(value, answers)
    answers.flush()


if __name__ == "__main__":
    main()
