# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re


def compute_local_expert_ids(
    num_experts: int, ep_size: int, ep_rank: int, placement: str = "linear"
) -> set[int] | None:
    raise NotImplementedError


def should_skip_weight(weight_name: str, local_expert_ids: set[int] | None) -> bool:
    found = re.search(r"\.experts\.(\d+)\..*weight$", weight_name)
    return local_expert_ids is not None and found is not None and int(found.group(1)) not in local_expert_ids
