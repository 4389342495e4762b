# SPDX-License-Identifier: Apache-2.0
"""The bench itself: that it controls the page cache, notices wrong bytes and missing contestants, and runs from end to end."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from load import data, harness, page_cache, tables  # noqa: E402
from load.keeper import Keeper  # noqa: E402


@pytest.fixture
def on_disk(tmp_path_factory):
    """A file of 8 MiB in the build folder: a temporary folder may be a tmpfs, which is never out of memory."""
    path = ROOT / "build" / f"page-cache-{os.getpid()}"
    path.write_bytes(os.urandom(8 << 20))
    yield str(path)
    path.unlink()


def test_what_is_dropped_is_not_resident_and_what_is_filled_is(on_disk):
    assert page_cache.drop([on_disk]) == 0.0
    assert page_cache.residency([on_disk]) == 0.0
    assert page_cache.fill([on_disk]) == 1.0
    assert page_cache.residency([on_disk]) == 1.0


def test_residency_without_cachestat_agrees(on_disk, monkeypatch):
    monkeypatch.setattr(page_cache, "_cachestat", lambda descriptor: None)
    page_cache.drop([on_disk])
    assert page_cache.residency([on_disk]) <= harness.COLD_AT_MOST
    with open(on_disk, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    assert page_cache.residency([on_disk]) >= harness.WARM_AT_LEAST


def bench_of(names: list[str]) -> harness.Bench:
    return harness.Bench(data.Repository("none", pathlib.Path("/nonexistent")), "cold", names, Keeper(0), seed=1)


def test_a_contestant_whose_bytes_differ_is_named():
    bench = bench_of(["infercluster-uring", "safetensors-pread", "fastsafetensors"])
    for name, checksum in (("infercluster-uring", "a"), ("safetensors-pread", "a"), ("fastsafetensors", "b")):
        bench.runs[name].append(harness.Run(1.0, 1, 1.0, checksum))
    assert bench.disagreements() == ["fastsafetensors"]


def test_a_peer_may_be_missing_and_we_may_not():
    bench = bench_of(["infercluster-uring", "fastsafetensors", "limit"])
    for name in bench.contestants:
        bench.invalid[name].append("not installed")
    assert bench.failures() == ["infercluster-uring: not installed", "limit: not installed"]


def test_records_hold_medians_spread_and_ratios():
    bench = bench_of(["limit", "infercluster-uring", tables.LOAD_FILE])
    for name, seconds in (("limit", (1.0, 3.0, 2.0)), ("infercluster-uring", (4.0, 4.0, 5.0)), (tables.LOAD_FILE, (8.0, 8.0, 8.0))):
        bench.runs[name] = [harness.Run(one, 1, None if name == "limit" else 1.0) for one in seconds]
    limit, ours, stock = tables.records(bench, {"commit": "c"})
    assert limit["load_s"] == {"median": 2.0, "min": 1.0, "max": 3.0, "iqr": 1.0, "runs": [1.0, 3.0, 2.0]}
    assert (ours["of_limit"], ours["of_load_file"], ours["checksum_of_load_file"]) == (0.5, 2.0, 9.0 / 5.0)
    assert limit["load_checksum_s"] is None and stock["commit"] == "c"


def test_a_run_that_did_not_happen_is_an_error_and_not_a_figure(tmp_path):
    with pytest.raises(harness.InvalidRun, match="exit status 3"):
        harness.execute([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ), Keeper(0))
    with pytest.raises(harness.InvalidRun, match="no JSON"):
        harness.execute([sys.executable, "-c", "print('fast!')"], dict(os.environ), Keeper(0))
    with pytest.raises(harness.InvalidRun, match="No such file"):
        harness.execute([str(tmp_path / "missing")], dict(os.environ), Keeper(0))


def test_quick_bench_runs_from_end_to_end(tmp_path):
    output = tmp_path / "load.jsonl"
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--quick", "--output", str(output), "--data", str(ROOT / "build" / "bench-quick")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    ran = {(record["contestant"], record["state"]) for record in records if record.get("load_s")}
    for name in ("limit", "infercluster-uring", "infercluster-threads", "infercluster-cli-uring", "safetensors-load_file"):
        assert {(name, "cold"), (name, "warm")} <= ran
    assert len({record["checksum"] for record in records if record.get("checksum")}) == 1
    backends = {record["contestant"]: record["detail"].get("backend") for record in records if record.get("detail")}
    assert backends["infercluster-threads"] == "threads"


def test_quick_checkpoint_bench_runs_from_end_to_end(tmp_path):
    output = tmp_path / "checkpoint.jsonl"
    command = [sys.executable, str(ROOT / "bench" / "run_checkpoint.py"), "--quick", "--output", str(output), "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["contestant"]: record for record in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    for name in ("infercluster", "dcp.async_save", "torch.save"):
        assert records[name]["stall_s"]["median"] > 0 and records[name]["durable_s"]["median"] > records[name]["stall_s"]["median"] / 2
    assert records["infercluster"]["stall_of_memcpy"] > 0 and "WRONG" not in done.stderr
    assert records["reshard 4 to 3"]["bytes_read_per_byte"] < 1.1


def test_quick_interference_bench_runs_from_end_to_end(tmp_path):
    output = tmp_path / "interference.jsonl"
    folder = ROOT / "build" / f"interference-{os.getpid()}"  # a temporary folder may be a tmpfs, which has no direct reads
    command = [sys.executable, str(ROOT / "bench" / "run_interference.py"), "--quick", "--output", str(output), "--data", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "drain, governed" in done.stdout and "of the best fixed rate" in done.stdout
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    found = {record["how"]: record for record in records if record["how"] != "fixed"}
    assert set(found) == {"alone", "free", "governed"} and any(record["how"] == "fixed" for record in records)
    assert "rate" not in found["alone"] and found["free"]["rate"]["median"] > 0 and found["governed"]["rate"]["median"] > 0
    assert len({record["target_s"] for record in records}) == 1 and records[0]["target_s"] > 0


def test_quick_nvme_bench_runs_from_end_to_end(tmp_path):
    output = tmp_path / "nvme.jsonl"
    command = [sys.executable, str(ROOT / "bench" / "run_nvme.py"), "--quick", "--output", str(output), "--tmpfs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the bare latency" in done.stdout and "of the bare stream" in done.stdout
    records = {record["case"]: record for record in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    assert records["4KiB memory none"]["runs"][0]["p50_us"] > 0 and records["1MiB bare x16"]["runs"][0]["gib_per_s"] > 0
    served = records["target's counters"]["served"]
    by_digest = 200 + 64  # reads of each kind
    assert served["digests_combined"] == 2 * by_digest and served["blocks_corrupt"] == 0
    # The object in sealed memory is looked at once, for hosts without data digests; the file is read by one with them.
    assert served["blocks_verified"] == records["1MiB memory x1 none"]["bytes"] // 4096


def test_a_search_ends_at_the_highest_rate_that_meets_the_target():
    import run_interference

    class Simulated:
        target_us = 5000

        def beside(self, how, rate=0):
            return {"p50_s": 0.001, "p99_s": 1e-5 * rate / run_interference.MIB, "rate": rate or 1000 * run_interference.MIB}

    runs = run_interference.Runs(Simulated())
    runs.add("free")
    best = run_interference.search(runs, argparse.Namespace(steps=12, probes=2))
    assert 0.99 * 500 < best / run_interference.MIB <= 500  # where the latency is the target
    assert len(runs.found["governed", 0]) == 12
