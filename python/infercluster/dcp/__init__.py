# SPDX-License-Identifier: Apache-2.0
"""A drop-in for torch.distributed.checkpoint's storage.

    dcp.save(state, storage_writer=infercluster.dcp.Writer("run/step-100"))
    dcp.load(state, storage_reader=infercluster.dcp.Reader("run/step-100"))
    dcp.async_save(state, storage_writer=writer, async_stager=infercluster.dcp.Stager())
    infercluster.dcp.install()       # for programs that build torch's FileSystemWriter themselves; or INFERCLUSTER_DCP=1

A checkpoint is exactly the directory that checkpoint_id names, and is one when it holds COMMIT. Importing this imports
torch.
"""

from __future__ import annotations

from ._install import install, uninstall
from ._reader import Reader
from ._stager import Stager
from ._writer import Writer

__all__ = ["Reader", "Stager", "Writer", "install", "uninstall"]
