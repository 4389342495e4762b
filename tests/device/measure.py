# SPDX-License-Identifier: Apache-2.0
"""The figures of the device check: loads to the GPU, cold and warm, and the machine's limits, interleaved in rounds until the
time is over. With the double of the driver one round, of which only is told that it ran."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import page_cache
from budget import Failed, OutOfTime, Skipped

ROUNDS_MAX = 7
RUN_SECONDS_MAX = 60
MARGIN_SECONDS = 5  # beyond what a run took before

Run = Callable[[], dict[str, Any]]


class Contestant:
    def __init__(self, run: Run, states: tuple[str, ...] = ("cold", "warm"), may_refuse: bool = False) -> None:
        self.run, self.states, self.may_refuse = run, states, may_refuse
        self.runs: dict[str, list[dict[str, Any]]] = {state: [] for state in states}
        self.why = ""  # why it takes no part any more


def contestants(check: Any, model: str, files: list[str], size: int) -> dict[str, Contestant]:
    def program(gds: str) -> Run:
        words = ("load", model, "--device", "cuda:0", "--gds", gds, "--json")
        return lambda: check.program("infercluster", *words, most=RUN_SECONDS_MAX)

    def limits(*words: str) -> Run:
        return lambda: check.program("device_limits", *words, most=RUN_SECONDS_MAX)

    def python(name: str) -> Contestant:
        return Contestant(lambda: check.python(name, model, *files, most=RUN_SECONDS_MAX))

    return {
        "program": Contestant(program("never")),
        "python": python("infercluster"),
        "safetensors": python("safetensors"),
        "pinned_loop": Contestant(limits("loop", *files)),
        "limit_disk": Contestant(limits("disk", *files), ("cold",)),
        "limit_pinned": Contestant(limits("pinned", str(size)), ("warm",)),
        "program_gds": Contestant(program("always"), may_refuse=True),
        "python_load_file": python("infercluster_load_file"),
        "fastsafetensors": python("fastsafetensors"),
    }


def run(check: Any, model: str, files: list[str]) -> None:
    """Fills the document's "figures" and "ratios" (with the double: "ran"). A contestant that fails fails the check."""
    size = sum(map(_size, files))
    taking_part = contestants(check, model, files, size)
    if why := _cold_is_refused(files):
        check.skipped.append(f"cold: {why}")
        for one in taking_part.values():
            one.states = tuple(state for state in one.states if state != "cold")
    for number in range(1 if check.double else ROUNDS_MAX):
        try:
            _round(check, taking_part, files)
        except OutOfTime:
            check.skipped.append(f"measure: round {number + 1} and later: the time was over")
            break
    for name, one in taking_part.items():
        if one.why:
            check.skipped.append(f"{name}: {one.why}")
        elif one.states and not any(one.runs.values()):
            check.skipped.append(f"{name}: the time was over before it")
    if check.double:
        check.document["ran"] = sorted(name for name, one in taking_part.items() if any(one.runs.values()))
    else:
        check.document["figures"] = figures(taking_part, size)
        check.document["ratios"] = ratios(taking_part)
        _show(check.document)
    broken = [f"{name}: {one.why}" for name, one in taking_part.items() if one.why.startswith("failed")]
    if broken:
        raise Failed("; ".join(broken))


def _cold_is_refused(files: list[str]) -> str:
    """Why files cannot be put out of the page cache here; empty: they can."""
    try:
        left = page_cache.drop(files)
    except OSError as error:
        return f"the page cache cannot be asked: {error}"
    return f"{left:.0%} of the files stay in the page cache" if left > 0.01 else ""


def _size(path: str) -> int:
    with open(path, "rb") as file:
        return file.seek(0, 2)


def _prepare(state: str, files: list[str]) -> None:
    if state == "cold":
        page_cache.drop(files)
        return
    try:
        page_cache.fill(files)
    except OSError:  # a kernel that does not tell what is there
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while file.read(4 << 20):
                    pass


def _round(check: Any, taking_part: dict[str, Contestant], files: list[str]) -> None:
    for state, (_, one) in itertools.product(("cold", "warm"), taking_part.items()):
        if one.why or state not in one.states:
            continue
        expected = max((run["seconds"] for runs in one.runs.values() for run in runs if "seconds" in run), default=0.0)
        if check.budget.left() < 2 * expected + MARGIN_SECONDS:
            raise OutOfTime
        _prepare(state, files)
        try:
            one.runs[state].append(one.run())
        except Skipped as reason:
            one.why = str(reason)
        except Failed as reason:
            one.why = str(reason) if one.may_refuse else f"failed: {reason}"


def seconds_of(one: Contestant, state: str) -> list[float]:
    return [run["seconds"] for run in one.runs.get(state, []) if "seconds" in run]


def context_seconds(taking_part: dict[str, Contestant]) -> float:
    """What making a CUDA context takes: in the program's time, and not in the others'."""
    found = [run["context_seconds"] for runs in taking_part["pinned_loop"].runs.values() for run in runs]
    return statistics.median(found) if found else 0.0


def figures(taking_part: dict[str, Contestant], size: int) -> list[dict[str, Any]]:
    result = []
    for state, (name, one) in itertools.product(("cold", "warm"), taking_part.items()):
        seconds = seconds_of(one, state)
        if not seconds:
            continue
        median = statistics.median(seconds)
        figure = {
            "contestant": name, "state": state, "bytes": size, "gib_per_s": round(size / median / 2**30, 3),
            "seconds": {"median": median, "min": min(seconds), "max": max(seconds), "runs": seconds},
        }  # fmt: skip
        if name.startswith("program"):
            figure["context_seconds_within"] = context_seconds(taking_part)
            figure["gds_bytes"] = one.runs[state][-1].get("gds_bytes", 0)
        result.append(figure)
    return result


def ratios(taking_part: dict[str, Contestant]) -> dict[str, dict[str, float]]:
    """How many times as fast as each peer, and the share of the limit: the slower of disk (cold) and pinned copies."""
    context = context_seconds(taking_part)
    limits = {
        state: max((statistics.median(found) for name, at in (("limit_disk", "cold"), ("limit_pinned", "warm"))
                    if (found := seconds_of(taking_part[name], at)) and (state == "cold" or name == "limit_pinned")), default=0.0)
        for state in ("cold", "warm")
    }  # fmt: skip
    result: dict[str, dict[str, float]] = {}
    for name, state in itertools.product(("program", "program_gds", "python", "python_load_file"), ("cold", "warm")):
        seconds = seconds_of(taking_part[name], state)
        if not seconds:
            continue
        own = statistics.median(seconds) - (context if name.startswith("program") else 0.0)
        found = result.setdefault(f"{name} {state}", {})
        for peer in ("safetensors", "pinned_loop", "fastsafetensors"):
            if theirs := seconds_of(taking_part[peer], state):
                found[f"times_{peer}"] = round(statistics.median(theirs) / own, 3)
        if limits[state]:
            found["of_limit"] = round(limits[state] / own, 3)
    return result


def _show(document: dict[str, Any]) -> None:
    for figure in document["figures"]:
        runs = len(figure["seconds"]["runs"])
        print(f"  {figure['state']:4}  {figure['contestant']:18} {figure['seconds']['median']:8.3f} s  {figure['gib_per_s']:8.2f} GiB/s  ({runs} runs)")
    for name, found in document["ratios"].items():
        print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
