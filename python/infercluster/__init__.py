# SPDX-License-Identifier: Apache-2.0
"""InferCluster loads model weights at the speed of the storage.

    tensors = infercluster.load("model.safetensors")           # a Mapping: name -> tensor, sharing the loaded memory
    for name, tensor in infercluster.stream("repository/"): ... # each as soon as its bytes are there
    infercluster.Checkpointer(root).save(step, state)           # returns at once; durable while the program goes on
    infercluster.safetensors                                    # a drop-in for the package safetensors

Importing starts no thread and touches no device. INFERCLUSTER_DISABLE=1 takes the stock package safetensors for
everything.
"""

from __future__ import annotations

from . import _core, safetensors
from ._checkpoint import Checkpointer, Pages, Part, Save, Tier
from ._device import DeviceTensor
from ._errors import SafetensorError, TensorNotFoundError
from ._experts import experts, experts_of
from ._handle import Handle, open
from ._jobs import wait_for_page_cache
from ._load import Loaded, load
from ._stream import Stream, stream
from ._types import FileReport, GroupReport, LoadReport, Report, SaveReport, Shard, TensorInfo, Waited

__version__ = _core.version()

__all__ = [
    "Checkpointer",
    "DeviceTensor",
    "FileReport",
    "GroupReport",
    "Handle",
    "LoadReport",
    "Loaded",
    "Pages",
    "Part",
    "Report",
    "SafetensorError",
    "Save",
    "SaveReport",
    "Shard",
    "Stream",
    "TensorInfo",
    "TensorNotFoundError",
    "Tier",
    "Waited",
    "experts",
    "experts_of",
    "load",
    "open",
    "safetensors",
    "stream",
    "wait_for_page_cache",
]
