# SPDX-License-Identifier: Apache-2.0
"""The order of the modules is the law: src/layers.txt says who may include whom, and who may use which library."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)

# The first part of an include path -> the library as src/layers.txt calls it.
LIBRARIES = {
    "fmt": "fmt", "spdlog": "spdlog", "numa.h": "numa", "numaif.h": "numa", "prometheus": "prometheus", "isa-l": "isa-l",
    "isa-l.h": "isa-l", "xxhash.h": "xxhash", "openssl": "openssl", "simdjson.h": "simdjson", "liburing.h": "liburing",
    "CLI": "CLI11", "nlohmann": "nlohmann-json", "nanobind": "nanobind",
}
TEST_LIBRARIES = {"gtest", "gmock"}
# Files that may be longer than 400 lines, each with its reason. The list only shrinks.
LONG_FILES: dict[str, str] = {}
LINES_MAX = 400


def layers() -> dict[str, set[str]]:
    """Module -> the libraries that it alone may use, in order."""
    result = {}
    for line in (SOURCE / "layers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, libraries = line.partition(":")
            result[name.strip()] = set(libraries.split())
    return result


def sources() -> list[pathlib.Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".h", ".cc"))


def is_test_file(path: pathlib.PurePath) -> bool:
    return path.stem.endswith(("_test", "_test_helpers")) or path.stem.startswith("test_")


def violations(path: pathlib.PurePath, text: str, order: dict[str, set[str]], headers_of_ours: set[str]) -> list[str]:
    """What `path` (relative to src/) includes that it may not."""
    names = list(order)
    module = path.parts[0]
    is_test = is_test_file(path)
    found = []
    for bracket, target in INCLUDE.findall(text):
        first = target.split("/")[0]
        if target in headers_of_ours:
            if names.index(first) > names.index(module):
                found.append(f"{path}: includes {target}, which stands below {module}")
            if is_test_file(pathlib.PurePath(target)) and not is_test:
                found.append(f"{path}: production code includes {target}, which is for tests")
        elif first == "infercluster":
            if names.index(module) < names.index("api"):
                found.append(f"{path}: includes the public API from below it")
        elif first == "testing":
            if not is_test:
                found.append(f"{path}: production code includes {target}")
        elif first in LIBRARIES:
            library = LIBRARIES[first]
            if library not in order[module]:
                found.append(f"{path}: {module} may not use {library}")
        elif first in TEST_LIBRARIES:
            if not is_test:
                found.append(f"{path}: production code includes {target}")
        elif bracket == '"':
            found.append(f"{path}: includes {target}, which is no header under src/")
    return found


def test_modules_include_only_what_stands_above_them():
    order = layers()
    headers = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.h")}
    found = []
    for path in sources():
        relative = path.relative_to(SOURCE)
        if relative.parts[0] not in order:
            found.append(f"{relative}: its folder is not in src/layers.txt")
            continue
        found += violations(relative, path.read_text(), order, headers)
    assert not found, "\n".join(found)
    assert len(sources()) > 20


def test_a_violation_is_found():
    order = {"base": {"fmt"}, "os": {"numa"}, "api": set()}
    headers = {"base/a.h", "os/b.h", "os/b_test_helpers.h"}

    def check(path: str, text: str) -> int:
        return len(violations(pathlib.PurePath(path), text, order, headers))

    assert check("os/x.cc", '#include "base/a.h"\n#include <numa.h>\n#include <vector>') == 0
    assert check("base/x.cc", '#include "os/b.h"') == 1
    assert check("base/x.cc", "#include <numa.h>") == 1
    assert check("base/x.cc", '#include "testing/temp_dir.h"') == 1
    assert check("base/x_test.cc", '#include "testing/temp_dir.h"\n#include <gtest/gtest.h>') == 0
    assert check("os/x.cc", '#include "os/b_test_helpers.h"') == 1
    assert check("os/x_test.cc", '#include "os/b_test_helpers.h"') == 0
    assert check("os/x.cc", "#include <infercluster/infercluster.h>") == 1
    assert check("os/x.cc", '#include "nowhere.h"') == 1


def test_public_headers_show_no_third_party_type():
    found = []
    for path in [*SOURCE.rglob("*.h"), *(ROOT / "include").rglob("*.h")]:
        if path.stem.endswith("_internal"):
            continue
        for _, target in INCLUDE.findall(path.read_text()):
            if target.split("/")[0] in LIBRARIES and path.parent.name not in ("cli",):
                found.append(f"{path.relative_to(ROOT)}: shows {target}")
    assert not found, "\n".join(found)


def test_files_are_short():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [ROOT / name for name in listed if name.endswith((".cc", ".h", ".py"))] or sources()
    long = {}
    for path in paths:
        if path.exists():
            lines = path.read_text().count("\n")
            name = str(path.relative_to(ROOT))
            if lines > LINES_MAX and name not in LONG_FILES:
                long[name] = lines
    assert not long, f"over {LINES_MAX} lines: {long}"


def test_every_source_file_names_its_licence():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = []
    for name in listed:
        if name.endswith((".cc", ".h", ".py", ".sh", ".cmake", "CMakeLists.txt", "Makefile")) and (ROOT / name).exists():
            head = (ROOT / name).read_text().splitlines()[:2]
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
                missing.append(name)
    assert not missing, missing
