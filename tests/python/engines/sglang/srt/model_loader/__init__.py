# SPDX-License-Identifier: Apache-2.0
from sglang.srt.model_loader.loader import get_model_loader

__all__ = ["get_model_loader"]
