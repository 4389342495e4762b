# SPDX-License-Identifier: Apache-2.0
"""Loads by several ranks: real processes over gloo, compared bit for bit with what one process loads alone."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import FAILED, random_bytes, write_file
from group_ranks import Ranks
from group_worker import digest

import infercluster
from infercluster import Shard

PAGE = 4096
ALL_DTYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "C64": 8, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def kept_ranks() -> Iterator[list[Ranks]]:
    """Four ranks once started; empty: a test has to start them."""
    kept: list[Ranks] = []
    yield kept
    for started in kept:
        started.close()


@pytest.fixture
def ranks(
    kept_ranks: list[Ranks], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Four ranks, kept from test to test: one that failed takes its own with it."""
    if not kept_ranks:
        kept_ranks.append(Ranks(4, tmp_path_factory.mktemp("ranks") / "store"))
    yield kept_ranks[0]
    if request.node.stash.get(FAILED, False):
        kept_ranks.pop().close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two shards: every dtype, sizes that divide by nothing, empty tensors, scalars, one tensor of half the bytes."""
    folder = tmp_path_factory.mktemp("model")
    small: dict[str, tuple[str, list[int], bytes]] = {}
    for seed, (dtype, width) in enumerate(ALL_DTYPES.items()):
        small[f"dtype.{dtype}"] = (dtype, [37, 11], random_bytes(37 * 11 * width, seed))
        small[f"scalar.{dtype}"] = (dtype, [], random_bytes(width, 100 + seed))
        small[f"empty.{dtype}"] = (dtype, [0, 3], b"")
    small["dtype.BOOL"] = ("BOOL", [1001], bytes(value & 1 for value in random_bytes(1001, 50)))
    small["dtype.F4"] = ("F4", [6, 10], random_bytes(30, 51))
    small["layers.0.up"] = ("BF16", [517, 1030], random_bytes(517 * 1030 * 2, 52))
    small["layers.0.down"] = ("BF16", [1030, 512], random_bytes(1030 * 512 * 2, 53))
    large = {
        "embed": ("F32", [2003, 1024], random_bytes(2003 * 1024 * 4, 54)),
        "layers.1.up": ("F8_E4M3", [700, 999], random_bytes(700 * 999, 55)),
        "flat": ("U8", [1_234_567], random_bytes(1_234_567, 56)),
        "odd": ("F32", [1, 1, 3], random_bytes(12, 57)),
    }
    weight_map = {}
    for name, tensors in (("a.safetensors", small), ("b.safetensors", large)):
        write_file(folder / name, tensors, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def alone(model: pathlib.Path, **options: Any) -> dict[str, Any]:
    options.pop("memory", None)
    return {name: digest(tensor) for name, tensor in infercluster.load(model, **options).items()}


def data_bytes(model: pathlib.Path) -> int:
    with infercluster.open(model) as handle:
        return sum(handle.info(name).nbytes for name in handle)


def check(model: pathlib.Path, options: list[dict[str, Any]], answers: list[Any]) -> list[dict[str, Any]]:
    """Every rank has what a plain load of the same gives, in the same order; returns the reports."""
    for rank, answer in enumerate(answers):
        assert "error" not in answer, answer
        expected = alone(model, **options[rank])
        assert list(answer["tensors"]) == list(expected)
        assert answer["tensors"] == expected, rank
        assert answer["in_place"] and answer["metadata"] == {"format": "pt"}
        group = answer["report"]["group"]
        assert (group["rank"], group["world"]) == (rank, len(answers))
    return [answer["report"] for answer in answers]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_ranks_get_all_and_each_byte_is_read_once(ranks: Ranks, model: pathlib.Path, world: int) -> None:
    options: list[dict[str, Any]] = [{"memory": "4MiB"}] * world
    reports = check(model, options, ranks.load(model, options))
    total = data_bytes(model)
    read = [report["bytes_read"] for report in reports]
    extents = sum(report["requests"] for report in reports)
    assert total <= sum(read) <= total + 2 * PAGE * extents
    assert max(read) - min(read) < total / world * 0.1 + 64 * 1024, read
    for report in reports:
        received = report["group"]["bytes_received"]
        assert report["bytes"] == total
        assert total <= received + report["bytes_read"] <= total + 2 * PAGE * report["requests"]
    if world > 1:
        assert min(report["group"]["rounds"] for report in reports) > 2, "the test must see several rounds"


def test_the_report_says_who_read_which_file(ranks: Ranks, model: pathlib.Path) -> None:
    options: list[dict[str, Any]] = [{}, {}]
    reports = check(model, options, ranks.load(model, options))
    wanted = [[file["bytes"] for file in report["files"]] for report in reports]
    with infercluster.open(model) as handle:
        sizes = {
            path: sum(handle.info(name).nbytes for name in handle if handle.info(name).file == path)
            for path in handle.files
        }
    assert [sum(by_rank) for by_rank in zip(*wanted, strict=True)] == list(sizes.values())
    assert all(report["files"][0]["path"].endswith("a.safetensors") for report in reports)
    assert any(file["mode"] == "none" for report in reports for file in report["files"])


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_memory_of_the_caller_is_filled_in_place(ranks: Ranks, model: pathlib.Path, framework: str) -> None:
    into = {"embed": ("float32", (2003, 1024)), "layers.0.up": ("bfloat16", (517, 1030)), "scalar.I64": ("int64", ()),
            "empty.F16": ("float16", (0, 3)), "dtype.U16": ("uint16", (37, 11))}  # fmt: skip
    options = [{"into": dict(into), "framework": framework}, {"framework": framework}]
    answers = ranks.load(model, options)
    expected = alone(model, framework=framework)
    for answer in answers:
        assert "error" not in answer, answer
        found = answer["tensors"]
        assert {name: one[2] for name, one in found.items()} == {name: one[2] for name, one in expected.items()}
    assert answers[0]["in_place"] and answers[0]["tensors"]["embed"][0] == "torch torch.float32"
    assert answers[1]["tensors"] == expected


def test_four_ranks_with_slices_read_each_byte_once(ranks: Ranks, model: pathlib.Path) -> None:
    """Rows by the rank that wants them; columns by one owner, who cuts whole rows up; the rest is shared."""
    options = [
        {
            "memory": "4MiB",
            "slices": {
                "layers.*.up": Shard(0, rank, 4), "layers.*.down": Shard(1, rank, 4), "embed": Shard(1, rank, 4),
                "flat": Shard(0, rank, 4),
            },
        }
        for rank in range(4)
    ]  # fmt: skip
    answers = ranks.load(model, options)
    reports = check(model, options, answers)
    total = data_bytes(model)
    extents = sum(report["requests"] for report in reports)
    read = sum(report["bytes_read"] for report in reports)
    assert total <= read <= total + 2 * PAGE * extents
    assert read <= total * 1.02
    # Alone, every rank reads the pages of all: a row of 4 KiB is in one.
    plain = [infercluster.load(model, names="embed", slices={"*": Shard(1, rank, 4)}).report for rank in range(4)]
    assert sum(report["bytes_read"] for report in plain) > 3.9 * 2003 * 4096


def test_any_mixture_of_slices_is_right(ranks: Ranks, model: pathlib.Path) -> None:
    """Overlaps, different dimensions, whole tensors beside slices, nothing at all, and groups of some ranks."""
    whole = slice(None)
    slices: list[dict[str, Any]] = [
        {"embed": (slice(0, 900), slice(0, 300)), "layers.0.up": slice(0, 300), "flat": slice(5, 1_000_000)},
        {"embed": (slice(800, 2003), slice(250, 1024)), "layers.0.up": slice(200, 517)},
        {"embed": (whole, slice(1000, 1024)), "layers.0.up": (whole, slice(0, 17)), "dtype.F4": (slice(1, 3), slice(2, 10))},
        {"embed": slice(5, 5), "odd": (whole, whole, slice(1, 2))},
    ]  # fmt: skip
    options: list[dict[str, Any]] = [{"slices": one, "memory": "2MiB"} for one in slices]
    options[3]["names"] = ["embed", "layers.*", "dtype.*", "odd"]
    check(model, options, ranks.load(model, options))
    check(model, options[1:3], ranks.load(model, options[1:3]))


def test_ranks_that_want_different_names(ranks: Ranks, model: pathlib.Path) -> None:
    options: list[dict[str, Any]] = [{"names": ["embed", "flat"]}, {"names": ["embed"]}, {"names": "layers.*"}]
    reports = check(model, options, ranks.load(model, options))
    embed, flat = 2003 * 1024 * 4, 1_234_567
    assert reports[2]["group"]["bytes_received"] == 0 == reports[2]["group"]["bytes_sent"]
    assert reports[0]["group"]["bytes_received"] + reports[1]["group"]["bytes_received"] == embed
    assert sum(report["bytes_read"] for report in reports[:2]) <= embed + flat + PAGE * 8


def test_expert_parallel_ranks_read_their_own_experts_and_share_the_rest(ranks: Ranks, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "moe.safetensors"
    names = [f"layers.0.experts.{n}.up" for n in range(10)]
    tensors = {name: ("U8", [64, 2048], random_bytes(64 * 2048, seed)) for seed, name in enumerate(names)}
    write_file(path, tensors | {"embed": ("F32", [100, 1000], random_bytes(400_000, 99))}, metadata={"format": "pt"})
    options: list[dict[str, Any]] = [
        {"names": infercluster.experts(path, rank, 3, placement="round_robin")} for rank in range(3)
    ]
    reports = check(path, options, ranks.load(path, options))
    total = 10 * 64 * 2048 + 400_000
    assert sum(report["bytes_read"] for report in reports) <= total + 2 * PAGE * sum(
        report["requests"] for report in reports
    )
    assert sum(report["group"]["bytes_received"] for report in reports) == 2 * 400_000


def copies(model: pathlib.Path, folder: pathlib.Path, count: int) -> list[pathlib.Path]:
    paths = [folder / str(rank) for rank in range(count)]
    for path in paths:
        shutil.copytree(model, path)
    return paths


def same_error(answers: list[Any], kind: str, *texts: str) -> None:
    for answer in answers:
        assert answer.get("error") == kind, answer
        for text in texts:
            assert text in answer["text"], answer
    assert len({answer["text"] for answer in answers}) == 1
    assert max(answer["seconds"] for answer in answers) < 20


def test_a_file_that_one_rank_cannot_open_fails_all_with_that_cause(
    ranks: Ranks, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    paths = copies(model, tmp_path, 3)
    (paths[1] / "b.safetensors").unlink()
    answers = ranks.load(paths, [{}] * 3)
    same_error(answers, "FileNotFoundError", "rank 1", "b.safetensors")
    assert [answer["rank"] for answer in answers] == [1, 1, 1] and answers[1]["cause"] == "FileNotFoundError"
    paths[1].chmod(0o700)
    tmp_path.chmod(0o700)
    (paths[1] / "a.safetensors").chmod(0o600)
    answers = ranks.load(paths, [{}] * 3, {2: ("nobody", None)})
    same_error(answers, "FileNotFoundError", "rank 1")
    answers = ranks.load([paths[0], paths[2]], [{}] * 2, {1: ("nobody", None)})
    same_error(answers, "PermissionError", "rank 1")
    assert {answer["errno"] for answer in answers} == {13}
    check(model, [{}] * 3, ranks.load(model, [{}] * 3))  # the group is as good as before


@pytest.mark.parametrize("world", [2, 4])
def test_a_file_that_is_cut_under_one_rank_fails_all_with_that_cause(
    ranks: Ranks, model: pathlib.Path, tmp_path: pathlib.Path, world: int
) -> None:
    paths = copies(model, tmp_path, world)
    victim = world - 1  # it reads the end
    path = paths[victim] / "b.safetensors"
    hook = ("truncate", (str(path), path.stat().st_size - 300_000))
    answers = ranks.load(paths, [{"memory": "2MiB"}] * world, {victim: hook})
    same_error(answers, answers[0]["error"], f"rank {victim}", "b.safetensors")
    assert answers[0]["error"] in ("OSError", "SafetensorError"), answers[0]
    assert {answer["rank"] for answer in answers} == {victim}
    check(model, [{}] * world, ranks.load(model, [{}] * world))


@pytest.mark.parametrize(("raised", "kind"), [
    (("MemoryError", "no more"), "MemoryError"),
    (("OSError", 5, "Input/output error", "/dev/disk"), "OSError"),
    (("ZeroDivisionError", "a fault of ours"), "RuntimeError"),
])  # fmt: skip
def test_every_kind_of_failure_travels(ranks: Ranks, model: pathlib.Path, raised: tuple[Any, ...], kind: str) -> None:
    answers = ranks.load(model, [{}] * 3, {1: ("raise", raised)})
    same_error(answers, kind, "rank 1", str(raised[-2] if len(raised) == 4 else raised[1]))
    assert answers[1]["cause"] == raised[0]


def test_when_several_ranks_fail_all_raise_the_first(ranks: Ranks, model: pathlib.Path) -> None:
    hooks = {rank: ("raise", ("ValueError", f"cause of {rank}")) for rank in (1, 2, 3)}
    same_error(ranks.load(model, [{}] * 4, hooks), "ValueError", "rank 1: cause of 1", "2 more")


def test_ctrl_c_on_one_rank_ends_the_load_of_all(ranks: Ranks, model: pathlib.Path) -> None:
    answers = ranks.load(model, [{"memory": "4MiB"}] * 3, {1: ("interrupt", None)})
    assert answers[1]["error"] == "KeyboardInterrupt"
    same_error([answers[0], answers[2]], "RuntimeError", "rank 1", "KeyboardInterrupt")
    check(model, [{}] * 3, ranks.load(model, [{}] * 3))


def test_what_one_rank_asks_wrong_fails_all(ranks: Ranks, model: pathlib.Path) -> None:
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"names": ["nothing*"]}, "TensorNotFoundError", "nothing*"),
        ({"names": []}, "ValueError", "names is empty"),
        ({"slices": {"nothing": slice(1)}}, "TensorNotFoundError", "nothing"),
        ({"slices": {"scalar.F32": Shard(0, 0, 2)}}, "ValueError", "cannot be cut"),
        ({"slices": {"dtype.F4": (slice(None), slice(0, 1))}}, "ValueError", "several elements"),
        ({"into": {"embed": ("float64", (2003, 1024))}}, "ValueError", "dtype"),
        ({"into": {"embed": ("float32", (2003, 1024))}, "names": "flat"}, "ValueError", "not among"),
        ({"memory": "much"}, "ValueError", "much"),
        ({"group_timeout": -1}, "ValueError", "group_timeout"),
        ({"device": "meta"}, "ValueError", "cannot send meta"),
    ]
    for option, kind, text in wrong:
        answers = ranks.load(model, [{}, dict(option)])
        same_error(answers, kind, "rank 1", text)


def test_ranks_that_see_different_sources_are_told_so(
    ranks: Ranks, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shorter, other = tmp_path / "shorter", tmp_path / "other"
    for path in (shorter, other):
        shutil.copytree(model, path)
    write_file(shorter / "a.safetensors", {"embed": ("U8", [3], b"abc")})
    (shorter / "model.safetensors.index.json").unlink()
    (shorter / "b.safetensors").unlink()
    data = bytearray((other / "b.safetensors").read_bytes())
    at = data.index(b'"flat"')
    data[at : at + 6] = b'"flag"'
    (other / "b.safetensors").write_bytes(data)
    index = (other / "model.safetensors.index.json").read_text().replace('"flat"', '"flag"')
    (other / "model.safetensors.index.json").write_text(index)
    same_error(
        ranks.load([model, shorter], [{}] * 2),
        "ValueError",
        "rank 1 sees another source",
        "b.safetensors",
        "a.safetensors",
    )
    same_error(ranks.load([model, other], [{}] * 2), "ValueError", "names, dtypes or shapes")
    same_error(ranks.load(model, [{}, {"memory": "1MiB"}]), "ValueError", "differ in memory", "on rank 1")
    same_error(ranks.load(model, [{}, {"verify": "never"}]), "ValueError", "differ in verify")


def test_a_rank_whose_storage_hangs_ends_the_load_of_all(ranks: Ranks, model: pathlib.Path) -> None:
    answers = ranks.load(model, [{"group_timeout": 2.0}] * 3, {0: ("hang", 4.0)})
    same_error(answers, "TimeoutError", "rank 0", "reading took longer")
    check(model, [{}] * 3, ranks.load(model, [{}] * 3))


@pytest.mark.parametrize("read", [1, 3])
def test_a_killed_rank_ends_the_load_of_the_others(model: pathlib.Path, tmp_path: pathlib.Path, read: int) -> None:
    with Ranks(3, tmp_path / "store") as fresh:
        answers = fresh.load(model, [{"group_timeout": 5.0, "memory": "4MiB"}] * 3, {1: ("die", read)})
    assert answers[1] is None
    for answer in (answers[0], answers[2]):
        assert answer["error"] in ("ConnectionAbortedError", "TimeoutError"), answer
        assert answer["seconds"] < 15 and "other rank" in answer["text"]


def test_a_rank_that_never_comes_is_waited_for_so_long_and_no_longer(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Ranks(2, tmp_path / "store") as fresh:
        fresh.ask(0, 2, model, {"group_timeout": 1.0})
        answer = fresh.answer(0)
    assert answer["error"] == "TimeoutError" and "waited 1 s for" in answer["text"] and answer["seconds"] < 10


def test_group_must_be_one() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        infercluster.load("anything", group="world")
