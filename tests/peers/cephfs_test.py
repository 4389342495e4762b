# SPDX-License-Identifier: Apache-2.0
"""On a real CephFS of this machine's own, which the script cephfs.sh in the folder INFERCLUSTER_PEERS starts.

Skipped without that folder, or where Ceph's daemons are not installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release"))


@pytest.fixture(scope="module")
def mount():
    script = pathlib.Path(os.environ.get("INFERCLUSTER_PEERS", "")) / "cephfs.sh"
    if "INFERCLUSTER_PEERS" not in os.environ or not script.exists():
        pytest.skip("INFERCLUSTER_PEERS names no folder with cephfs.sh")
    missing = [program for program in ("ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse") if shutil.which(program) is None]
    if missing or not os.path.exists("/dev/fuse"):
        pytest.skip(f"not here: {', '.join(missing) or '/dev/fuse'}")
    folder = tempfile.mkdtemp(prefix="infercluster-ceph-", dir="/var/tmp")
    try:
        started = subprocess.run(["bash", script, "start", folder], capture_output=True, text=True, timeout=180, check=False)
        assert started.returncode == 0, started.stderr
        yield pathlib.Path(folder) / "mnt"
    finally:
        subprocess.run(["bash", script, "stop", folder], capture_output=True, timeout=120, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(program: str, *arguments: str, **environment: str) -> str:
    result = subprocess.run([BUILD / "bin" / program, *arguments], env={**os.environ, **environment}, capture_output=True,
                            text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "[  SKIPPED ]" not in result.stdout
    return result.stdout


def test_layouts_are_set_and_read_back(mount):
    run_tests("pfs_test", "--gtest_filter=CephFs.*", INFERCLUSTER_CEPHFS=str(mount))


def test_ranks_meet_in_a_directory(mount):
    folder = mount / "ranks"
    folder.mkdir()
    run_tests("exchange_test", "--gtest_filter=*/directory:DirectoryStoreTest.*:ProcessTest.*-*AnyCall", TMPDIR=str(folder))


def test_doctor_tells_the_layout(mount):
    folder = mount / "laid-out"
    folder.mkdir()
    os.setxattr(folder, "ceph.dir.layout", b"stripe_unit=1048576 stripe_count=2 object_size=4194304 pool=cephfs_data")
    result = subprocess.run([BUILD / "bin" / "infercluster", "doctor", folder, "--json"], capture_output=True, text=True, timeout=60,
                            check=True)
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["layout"]["state"] == "cephfs, 2 stripes of 1.0 MiB, objects of 4.0 MiB, pool cephfs_data"
    assert found["file system"]["state"].startswith("fuse")


def test_a_checkpoint_is_laid_out_saved_and_restored(mount):
    run_tests("checkpoint_test", "--gtest_filter=SegmentOnCephFs.*", INFERCLUSTER_CEPHFS=str(mount))
