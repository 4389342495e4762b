# SPDX-License-Identifier: Apache-2.0
"""The model of bench/scale: where one thing is the limit, its answer is that thing's."""

import copy
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from scale import check, model  # noqa: E402

CLUSTER = ROOT / "bench" / "scale" / "cluster.json"
FAST = 1e18


def spec(**changes: float) -> model.Spec:
    """Everything without limit and without delay, but for what is named."""
    values = {
        "name": "test",
        "node": {"ranks": 4, "cores": 64, "copy_bandwidth": FAST, "checksum_bandwidth": FAST, "nic_bandwidth": FAST, "nic_latency_s": 0},
        "storage": {"targets": 8, "write_bandwidth": FAST, "read_bandwidth": FAST, "write_latency_s": 0, "read_latency_s": 0, "stripes": 1,
                    "sync_s": 0, "small_file_s": 0},
        "exchange": {"round_s": 0, "round_s_per_rank": 0, "index_parse_bandwidth": FAST},
    }
    for name, value in changes.items():
        (part,) = [part for part in ("node", "storage", "exchange") if name in values[part]]
        values[part][name] = value
    return model.parse_spec(values)


def test_a_save_is_as_fast_as_its_narrowest_part():
    size = 64e9
    assert model.predict_save(spec(nic_bandwidth=1e9), 16, size).seconds == pytest.approx(64 / 4, rel=0.01)  # 4 nodes
    assert model.predict_save(spec(write_bandwidth=1e9), 16, size).seconds == pytest.approx(64 / 8, rel=0.01)  # 8 targets
    assert model.predict_save(spec(write_bandwidth=1e9), 2, size).seconds == pytest.approx(64 / 2, rel=0.01)  # 2 files on 2 of them
    # Two threads of a rank keep two of its four stripes busy.
    assert model.predict_save(spec(write_bandwidth=1e9, stripes=4), 2, size).seconds == pytest.approx(64 / 4, rel=0.02)
    assert model.predict_save(spec(checksum_bandwidth=1e9), 16, size).seconds == pytest.approx(64 / 32, rel=0.02)  # two threads a rank
    assert model.predict_save(spec(checksum_bandwidth=1e9, cores=4), 16, size).seconds == pytest.approx(64 / 16, rel=0.02)
    both = model.predict_save(spec(nic_bandwidth=1e9, write_bandwidth=1e9), 16, size)
    assert both.seconds == pytest.approx(64 / 4, rel=0.05)
    assert both.busiest == "network"
    assert both.utilization > 0.95


def test_what_the_caller_waits_for_is_the_agreement_and_the_copy():
    save = model.predict_save(spec(copy_bandwidth=10e9, round_s=0.5, round_s_per_rank=0.01), 8, 40e9)
    assert save.stall_s == pytest.approx(0.5 + 8 * 0.01 + 20 / 10)
    assert save.seconds == pytest.approx(save.stall_s + 2 * (0.5 + 8 * 0.01), rel=0.01)


def test_latency_counts_once_per_request_in_flight():
    size = 64 * model.WRITE_REQUEST
    assert model.predict_save(spec(write_latency_s=0.01), 1, size).seconds == pytest.approx(64 / model.WRITERS * 0.01, rel=0.01)


def test_a_restore_reads_the_indexes_first():
    restore = model.predict_restore(spec(index_parse_bandwidth=1e6, read_bandwidth=1e9), 8, 64e9)
    assert restore.stall_s == pytest.approx(64e9 / 65536 * 8 / 1e6)
    assert restore.seconds == pytest.approx(restore.stall_s + 64 / 8, rel=0.05)
    many = model.predict_restore(spec(index_parse_bandwidth=1e6, read_bandwidth=1e9), 32, 64e9)
    assert many.stall_s == pytest.approx(64e9 / 65536 * 8 / 1e6 / 16)  # by as many threads as a rank has cores


def test_more_of_anything_makes_nothing_slower():
    base = json.loads(CLUSTER.read_text(encoding="utf-8"))
    before = [model.predict_save(model.parse_spec(base), 64, 912e9).seconds, model.predict_restore(model.parse_spec(base), 64, 912e9).seconds]
    for part in ("node", "storage"):
        for name in base[part]:
            if name in ("ranks", "stripes"):
                continue
            better = copy.deepcopy(base)
            better[part][name] = base[part][name] / 2 if name.endswith("_s") else base[part][name] * 2
            after = model.parse_spec(better)
            assert model.predict_save(after, 64, 912e9).seconds <= before[0] * 1.001, name
            assert model.predict_restore(after, 64, 912e9).seconds <= before[1] * 1.001, name


@pytest.mark.parametrize("change", [{"name": 3}, {"node": {}}, {"more": 1}, {"storage": None}])
def test_a_spec_that_is_none_is_refused_by_name(change):
    values = json.loads(CLUSTER.read_text(encoding="utf-8")) | change
    with pytest.raises(model.SpecError):
        model.parse_spec(values)


@pytest.mark.parametrize(("part", "name", "value"), [("node", "cores", 0), ("node", "nic_bandwidth", "fast"), ("storage", "targets", True),
                                                     ("storage", "stripes", 1000), ("exchange", "round_s", -1), ("exchange", "round_s", float("nan"))])
def test_odd_numbers_are_refused(part, name, value):
    values = json.loads(CLUSTER.read_text(encoding="utf-8"))
    values[part][name] = value
    with pytest.raises(model.SpecError, match=name):
        model.parse_spec(values)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "spec.json").write_text("{")
    for name in ("spec.json", "none.json"):
        with pytest.raises(model.SpecError, match=name):
            model.read_spec(tmp_path / name)


def test_latency_is_what_one_request_takes_beyond_its_share():
    assert check.latency(one=1e6, many=2e6, request=1_000_000) == pytest.approx(0.5)
    assert check.latency(one=2e6, many=1e6, request=1_000_000) == 0.0


def test_the_slowest_rank_of_the_fastest_repetition_counts():
    assert check.measured({"of_ranks": [{"x": [1.0, 5.0]}, {"x": [3.0, 4.0]}]}, "x") == 3.0


def test_real_runs_are_compared(tmp_path):
    found, runs = check.compare(tmp_path, [2], 16, 60e6)
    assert [c.what for c in found] == ["save", "stall", "restore"]
    assert all(c.predicted_s > 0 and c.measured_s > 0 for c in found)
    assert runs[0]["run"]["bytes"] == 16 << 20
    assert list(tmp_path.iterdir()) == []
