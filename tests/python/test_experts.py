# SPDX-License-Identifier: Apache-2.0
"""experts(): names for expert-parallel ranks."""

from __future__ import annotations

import pathlib

import pytest
from conftest import random_bytes, write_file

import infercluster
from infercluster import experts, experts_of


@pytest.mark.parametrize("placement", ["linear", "round_robin"])
@pytest.mark.parametrize(("world", "count"), [(1, 8), (2, 8), (3, 8), (4, 6), (8, 5), (5, 64), (3, 0)])
def test_every_expert_has_one_rank_and_none_has_two_more_than_another(world: int, count: int, placement: str) -> None:
    parts = [experts_of(rank, world, count, placement) for rank in range(world)]  # type: ignore[arg-type]
    assert sorted(expert for part in parts for expert in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if placement == "linear":
        assert [expert for part in parts for expert in part] == list(range(count))
        assert sorted(map(len, parts), reverse=True) == list(map(len, parts))
    else:
        assert all(expert % world == rank for rank, part in enumerate(parts) for expert in part)


NAMES = [
    "embed",
    "layers.0.mlp.gate.weight",
    *(
        f"layers.{layer}.mlp.experts.{n}.{part}.weight"
        for layer in range(2)
        for n in range(12)
        for part in ("up", "down")
    ),
    "layers.0.mlp.shared_experts.up.weight",
    "norm",
]


def test_names_of_a_rank() -> None:
    mine = experts(NAMES, 1, 3, placement="round_robin")
    assert mine == [name for name in NAMES if ".experts." not in name or int(name.split(".")[4]) % 3 == 1]
    assert "layers.0.mlp.shared_experts.up.weight" in mine and "embed" in mine
    mine = experts(NAMES, 1, 3)
    assert {int(name.split(".")[4]) for name in mine if ".experts." in name} == {4, 5, 6, 7}
    # 12 and 13 are not in the files: the plan is the model's all the same.
    assert {int(name.split(".")[4]) for name in experts(NAMES, 0, 2, num_experts=14) if ".experts." in name} == set(
        range(7)
    )
    other = [name.replace("experts.", "moe_") for name in NAMES]
    assert experts(other, 0, 2, pattern="layers.*.mlp.moe_{n}.*") == [
        name.replace("experts.", "moe_") for name in experts(NAMES, 0, 2)
    ]
    assert experts({"a.experts.3": 1}, 0, 4, pattern="*.experts.{n}") == []


@pytest.mark.parametrize(("options", "message"), [
    ({"rank": 3}, "rank 3"), ({"num_experts": 11}, "expert 11"), ({"pattern": "*.experts.*"}, "one {n}"),
    ({"pattern": "x{n}"}, "no name matches"), ({"placement": "random"}, "placement"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experts(NAMES, **{"rank": 0, "world": 3, **options})  # type: ignore[arg-type]


def test_a_rank_loads_its_experts_only(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, {name: ("U8", [100], random_bytes(100, seed)) for seed, name in enumerate(NAMES)})
    parts = [infercluster.load(path, names=experts(path, rank, 4)) for rank in range(4)]
    whole = infercluster.load(path, framework="np")
    assert {name for part in parts for name in part} == set(NAMES)
    assert all(bytes(part[name].numpy()) == whole[name].tobytes() for part in parts for name in part)
    with infercluster.open(path) as handle:
        assert experts(handle, 2, 4) == list(parts[2])
