# SPDX-License-Identifier: Apache-2.0
"""Builds and runs every suite, then prints one line: "N passed, M failed, K skipped".

Suites: the release build's ctest (all labels), the Python tests under tests/, and once more under AddressSanitizer and
UndefinedBehaviorSanitizer the tests of the modules that parse what others wrote, and of loads to a GPU (by the driver's double).
--sanitize runs instead all of ctest under these and under ThreadSanitizer. A suite that does not build, dies, or runs no
test counts as a failure.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

# Folders of the build whose tests run under sanitizers, the targets that build these, and which of them (a regular
# expression; empty: all).
SANITIZED = (
    ("src/base", ("base_test",), ""),
    ("src/checksum", ("checksum_test",), ""),
    ("src/safetensors", ("safetensors_test",), ""),
    ("testing/gpu_double", ("gpu_double_test",), ""),
    ("src/gpu", ("gpu_test", "gpu_on_double_test", "gpu_headers_test"), ""),
    ("src/load", ("load_test",), "Device|^Gds"),
)
ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: "Count") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    @property
    def ran(self) -> int:
        return self.passed + self.failed


def count_junit(path: pathlib.Path) -> tuple[Count, list[str]]:
    """Counts a JUnit file of ctest or pytest; returns also the names of what was skipped, with the reason where one is given."""
    count, skipped = Count(), []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") in ("fail", "notrun"):
            # ctest files a test that it skipped under "notrun", with a <skipped> element.
            if case.find("skipped") is None:
                count.failed += 1
                continue
        reason = case.find("skipped")
        if reason is not None or case.get("status") == "disabled":
            count.skipped += 1
            message = "" if reason is None else reason.get("message") or ""
            skipped.append(f"{case.get('name')}: {message}" if message else str(case.get("name")))
        else:
            count.passed += 1
    return count, skipped


def run(command: list[str]) -> int:
    print("+ " + " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def suite(name: str, command: list[str], junit: pathlib.Path) -> Count:
    started = time.monotonic()
    junit.unlink(missing_ok=True)
    status = run(command)
    count, skipped = Count(), []
    if junit.exists():
        try:
            count, skipped = count_junit(junit)
        except ElementTree.ParseError as error:
            print(f"{name}: {junit} cannot be read: {error}")
    if count.ran == 0:
        print(f"{name}: no test ran (exit status {status})")
        count.failed += 1
    elif status != 0 and count.failed == 0:
        print(f"{name}: exit status {status}, though no test failed")
        count.failed += 1
    for line in skipped:
        print(f"{name}: skipped {line}")
    print(f"{name}: {count.passed} passed, {count.failed} failed, {count.skipped} skipped, {time.monotonic() - started:.0f} s", flush=True)
    return count


def ctest(folder: pathlib.Path, pattern: str = "") -> Count:
    """The tests below a folder of a build, all or those of a pattern."""
    junit = folder / "junit.xml"
    command = ["ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=error", "--output-junit", str(junit)]
    if pattern:
        command += ["-R", pattern]
    return suite(f"ctest {folder.relative_to(ROOT)}", command, junit)


def build(preset: str, *targets: str) -> Count | None:
    """None when it built; else the failure to count."""
    if run(["tools/build.sh", preset, *targets]) == 0:
        return None
    print(f"{preset}: the build failed")
    return Count(failed=1)


def tests_of_release() -> Count:
    total = ctest(ROOT / "build" / "release")
    junit = ROOT / "build" / "pytest.xml"
    total.add(suite("pytest", [sys.executable, "-m", "pytest", "-q", "-rs", "tests", f"--junitxml={junit}"], junit))
    return total


class QuietBuild:
    """A build beside the tests of another one: it takes only what processor time these leave, and is silent unless it fails."""

    def __init__(self, preset: str, targets: list[str]) -> None:
        self._preset = preset
        self._log = ROOT / "build" / f"build-{preset}.log"
        command = ["nice", "-n", "19", "tools/build.sh", preset, *targets]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def failure(self) -> Count | None:
        """Waits for its end. None when it built; else the failure to count."""
        if self._process.wait() == 0:
            return None
        print(self._log.read_text(errors="replace"))
        print(f"{self._preset}: the build failed")
        return Count(failed=1)


def sanitized(built: QuietBuild) -> Count:
    broken = built.failure()
    if broken:
        return broken
    total = Count()
    for folder, _, pattern in SANITIZED:
        total.add(ctest(ROOT / "build" / "asan-ubsan" / folder, pattern))
    return total


def everyday(sanitizers: bool) -> Count:
    """The release build's tests; meanwhile the sanitizers' build, and then its tests."""
    broken = build("release")
    if broken:
        return broken
    beside = QuietBuild("asan-ubsan", [target for _, targets, _ in SANITIZED for target in targets]) if sanitizers else None
    total = tests_of_release()
    if beside:
        total.add(sanitized(beside))
    return total


def whole(preset: str) -> Count:
    """All of ctest on one preset."""
    return build(preset) or ctest(ROOT / "build" / preset)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-sanitizers", action="store_true", help="leave the sanitizers' build out")
    parser.add_argument("--sanitize", action="store_true", help="all of ctest under asan-ubsan and tsan, and nothing else")
    arguments = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    total = Count()
    if arguments.sanitize:
        total.add(whole("asan-ubsan"))
        total.add(whole("tsan"))
    else:
        total.add(everyday(sanitizers=not arguments.no_sanitizers))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
