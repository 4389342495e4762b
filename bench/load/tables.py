# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads and ratios of runs: as lines of JSON to keep, and as tables to read."""

import statistics

from load.harness import FIO, LIMIT, Bench, Run

LOAD_FILE = "safetensors-load_file"
_GIB = 2**30


def summary(seconds: list[float]) -> dict:
    """Seconds; the quartiles are those of the runs themselves."""
    ordered = sorted(seconds)
    lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else (ordered[0],) * 3
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1], "iqr": upper - lower, "runs": seconds}


def _median(runs: list[Run], what: str) -> float | None:
    found = [getattr(run, what) for run in runs if getattr(run, what) is not None]
    return statistics.median(found) if found else None


def _ratio(reference: float | None, seconds: float | None) -> float | None:
    """How many times as fast as the reference."""
    return reference / seconds if reference and seconds else None


def records(bench: Bench, common: dict) -> list[dict]:
    """One record for each contestant."""
    limit = _median(bench.runs.get(LIMIT, []), "load_seconds")
    stock = {what: _median(bench.runs.get(LOAD_FILE, []), what) for what in ("load_seconds", "total_seconds")}
    result = []
    for name in bench.contestants:
        runs = bench.runs[name]
        record = {**common, "repository": bench.repository.name, "bytes": bench.repository.bytes, "state": bench.state, "contestant": name,
                  "invalid": bench.invalid[name]}
        if runs:
            load, total = summary([run.load_seconds for run in runs]), [run.total_seconds for run in runs if run.total_seconds is not None]
            record |= {
                "version": runs[-1].version, "maps": runs[-1].maps, "checksum": runs[-1].checksum, "load_s": load,
                "load_checksum_s": summary(total) if total else None,
                "gib_per_s": bench.repository.bytes / load["median"] / _GIB,
                "of_limit": _ratio(limit, load["median"]),
                "of_load_file": _ratio(stock["load_seconds"], load["median"]),
                "checksum_of_load_file": _ratio(stock["total_seconds"], statistics.median(total) if total else None),
                "peak_rss": max((run.peak_rss for run in runs if run.peak_rss is not None), default=None),
                "detail": runs[-1].detail,
            }
        result.append(record)
    return result


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns wide enough for their content: the first and the last to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _note(record: dict) -> str:
    """What kind of result it is: private memory or only a mapping, and what ours chose."""
    detail = record.get("detail", {})
    parts = ["maps: nothing is read before it is used"] if record.get("maps") else []
    if record["contestant"] == FIO:
        parts.append(f"one small buffer, reused ({detail.get('memory')})")
    if "parameters" in detail:
        parts.append(detail["parameters"].replace("--", ""))
    if "backend" in detail:
        parts.append(f"{detail['backend']}, {'+'.join(detail.get('modes', []))}")
    if record["invalid"]:
        parts.append(f"{len(record['invalid'])} invalid")
    return "; ".join(parts)


def _rows(found: list[dict], size: int, key: str, ratios: tuple[str, ...]) -> list[list[str]]:
    rows = []
    for record in sorted((record for record in found if record.get(key)), key=lambda record: record[key]["median"]):
        time = record[key]
        rows.append([record["contestant"], _number(time["median"], 3), f"{time['min']:.3f}..{time['max']:.3f}", _number(time["iqr"], 3),
                     _number(size / time["median"] / _GIB), *[_number(record[ratio]) for ratio in ratios], _note(record)])
    return rows


def render(bench: Bench, found: list[dict]) -> str:
    """The two tables of one repository and state, and who is missing from them."""
    size = bench.repository.bytes
    rounds = max((len(runs) for runs in bench.runs.values()), default=0)
    title = f"{bench.repository.name}, {bench.state}, {size / _GIB:.2f} GiB in {len(bench.repository.files)} file(s), {rounds} round(s)"
    columns = ["contestant", "median s", "min..max", "iqr", "GiB/s"]
    parts = [f"== {title}: load ==",
             table([*columns, "x limit", "x load_file", "note"], _rows(found, size, "load_s", ("of_limit", "of_load_file"))),
             f"== {title}: load, then the consumer's checksum of every byte ==",
             table([*columns, "x load_file", "note"], _rows(found, size, "load_checksum_s", ("checksum_of_load_file",)))]
    parts += [f"skipped {record['contestant']}: {record['invalid'][0]}" for record in found if not record.get("load_s")]
    return "\n".join(parts) + "\n"
