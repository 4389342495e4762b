# SPDX-License-Identifier: Apache-2.0
"""INFERCLUSTER_DCP=1: infercluster.dcp.install() as soon as a program imports torch.distributed.checkpoint. Importing
this does not import torch."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_NAME = "torch.distributed.checkpoint"


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            stock = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                stock(module)
                _install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install() -> None:
    importlib.import_module("infercluster.dcp").install()


def arm() -> None:
    if _NAME in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, _Finder())
