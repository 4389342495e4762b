# SPDX-License-Identifier: Apache-2.0
"""Makes python/ importable by the interpreter that runs this, with metadata: an editable install without a second
build.

The extension module is built by CMake and lies in python/infercluster. The metadata come from the build backend
itself (PEP 660), so that `pip list`, entry points and `pip uninstall` work as after `pip install -e .`. Run by CMake;
needs scikit-build-core.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import shutil
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def record_line(site: pathlib.Path, path: pathlib.Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(site).as_posix()},sha256={digest},{path.stat().st_size}\n"


def remove_earlier(site: pathlib.Path) -> None:
    for info in site.glob("infercluster-*.dist-info"):
        for line in (info / "RECORD").read_text().splitlines() if (info / "RECORD").exists() else []:
            path = (site / line.split(",")[0]).resolve()
            if site in path.parents:
                path.unlink(missing_ok=True)
        shutil.rmtree(info, ignore_errors=True)


def main() -> None:
    from scikit_build_core.build import prepare_metadata_for_build_editable

    os.chdir(ROOT)
    site = pathlib.Path(sysconfig.get_paths()["purelib"]).resolve()
    remove_earlier(site)
    with tempfile.TemporaryDirectory() as folder:
        name = prepare_metadata_for_build_editable(folder)
        shutil.copytree(pathlib.Path(folder) / name, site / name)
    info = site / name
    (info / "INSTALLER").write_text("pip\n")
    (info / "direct_url.json").write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": True}}))
    path_file = site / "_infercluster_editable.pth"
    path_file.write_text(f"{ROOT / 'python'}\n")
    patch_file = site / "infercluster_patch.pth"
    shutil.copyfile(ROOT / "python" / "infercluster_patch.pth", patch_file)
    files = sorted(p for p in info.rglob("*") if p.is_file() and p.name != "RECORD")
    lines = [record_line(site, path) for path in [path_file, patch_file, *files]]
    (info / "RECORD").write_text("".join(lines) + f"{name}/RECORD,,\n")


if __name__ == "__main__":
    main()
