# SPDX-License-Identifier: Apache-2.0
"""A drop-in for the package safetensors, version 0.8: same names, signatures, exceptions and results.

    import infercluster.safetensors as safetensors            # or, for code that imports the stock package itself:
    with infercluster.safetensors.patch(): ...                 # or INFERCLUSTER_PATCH=1 in the environment

INFERCLUSTER_DISABLE=1 makes all of this the stock package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._environment import disabled as _disabled
from .._errors import SafetensorError

if _disabled() and not TYPE_CHECKING:
    from safetensors import TensorSpec, _safe_open_handle, deserialize, safe_open, serialize, serialize_file
else:
    from ._open import _safe_open_handle as _safe_open_handle
    from ._open import safe_open
    from ._serialize import TensorSpec, deserialize, serialize, serialize_file

from ._patch import patch

__version__ = "0.8.0"  # of the interface

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "__version__",
    "deserialize",
    "patch",
    "safe_open",
    "serialize",
    "serialize_file",
]
