# SPDX-License-Identifier: Apache-2.0
"""What `infercluster doctor` says of GPUs and GPUDirect Storage: by the double of the driver, and without one."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOUBLE = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release")) / "testing" / "gpu_double"
GDS = ["GPU 0", "GPU 1", "BAR1", "cuFile", "nvidia-fs", "GDS compatibility mode", "GDS file system"]


@pytest.fixture
def double() -> dict[str, str]:
    return {"INFERCLUSTER_LIBCUDA": str(DOUBLE / "libcuda.so.1"), "INFERCLUSTER_LIBCUFILE": str(DOUBLE / "libcufile.so.0")}


def findings_of(program, *arguments, **options) -> dict[str, dict]:
    return {finding["subject"]: finding for finding in program.json("doctor", *arguments, **options)["findings"]}


def test_every_fact_of_gds_has_its_consequence(program, model, double):
    found = findings_of(program, model, env=double)
    for subject in ["NVIDIA driver", *GDS]:
        assert found[subject]["state"] and found[subject]["consequence"], subject
    assert "2 GPUs" in found["NVIDIA driver"]["state"]
    assert "8.00 GiB" in found["GPU 1"]["state"] and "NUMA" in found["GPU 1"]["state"]
    text = program.run("doctor", model, env=double).stdout
    for subject in GDS:
        assert f"  {subject}: {found[subject]['state']}\n         {found[subject]['consequence']}\n" in text


def test_a_context_that_cannot_be_made_is_not_asked_for(program, model, double):
    """The double counts in its own process; that no call fails says the same from outside."""
    refusing = {**double, "INFERCLUSTER_GPU_DOUBLE": "cuDevicePrimaryCtxRetain:*=CUDA_ERROR_OUT_OF_MEMORY cuFileDriverOpen:*=5001"}
    usual, refused = findings_of(program, model, env=double), findings_of(program, model, env=refusing)
    assert {name: refused[name] for name in GDS} == {name: usual[name] for name in GDS}
    assert program.error("load", model, "--device", "cuda:0", env=refusing)["text"].count("cuDevicePrimaryCtxRetain") == 1


def test_a_configuration_that_forces_compatibility_is_a_warning_with_a_remedy(program, folder, double):
    configuration = folder / "cufile.json"
    configuration.write_text('{"properties": {\n"force_compat_mode": true\n}}')
    found = findings_of(program, env={**double, "CUFILE_ENV_PATH_JSON": str(configuration)})["GDS compatibility mode"]
    assert found["level"] == "warning" and str(configuration) in found["state"] and "force_compat_mode" in found["remedy"]


@pytest.mark.parametrize("library", ["", "/nowhere/libcuda.so.1"])
def test_without_a_driver_one_line_says_so(program, model, library):
    found = findings_of(program, model, env={"INFERCLUSTER_LIBCUDA": library})
    assert not set(GDS) & set(found), found.keys()
    driver = found["NVIDIA driver"]
    assert driver["level"] == "note" and "no NVIDIA driver" in driver["state"] and library in driver["state"]
    assert "host memory" in driver["consequence"] and driver["remedy"]


def test_an_old_driver_is_named_with_what_it_lacks(program, double):
    found = findings_of(program, env={**double, "INFERCLUSTER_GPU_DOUBLE": "driver_version=11040"})
    assert "11.4" in found["NVIDIA driver"]["state"] and "525" in found["NVIDIA driver"]["remedy"]
    assert "GPU 0" not in found
