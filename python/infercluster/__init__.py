# SPDX-License-Identifier: Apache-2.0
"""InferCluster loads model weights at the speed of the storage.

    tensors = infercluster.load("model.safetensors")           # a Mapping: name -> tensor, sharing the loaded memory
    for name, tensor in infercluster.stream("repository/"): ... # each as soon as its bytes are there
    infercluster.safetensors                                    # a drop-in for the package safetensors

Importing starts no thread and touches no device. INFERCLUSTER_DISABLE=1 takes the stock package safetensors for
everything.
"""

from __future__ import annotations

from . import _core, safetensors
from ._device import DeviceTensor
from ._errors import SafetensorError, TensorNotFoundError
from ._experts import experts, experts_of
from ._handle import Handle, open
from ._jobs import wait_for_page_cache
from ._load import Loaded, load
from ._stream import Stream, stream
from ._types import FileReport, GroupReport, Report, Shard, TensorInfo, Waited

__version__ = _core.version()

__all__ = [
    "DeviceTensor",
    "FileReport",
    "GroupReport",
    "Handle",
    "Loaded",
    "Report",
    "SafetensorError",
    "Shard",
    "Stream",
    "TensorInfo",
    "TensorNotFoundError",
    "Waited",
    "experts",
    "experts_of",
    "load",
    "open",
    "safetensors",
    "stream",
    "wait_for_page_cache",
]
