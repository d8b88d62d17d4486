"""A report as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from specvllm_compat.preflight.report import Report, Row
from specvllm_compat.shim import ADAPTED, NATIVE

_WIDTHS = (33, 35, 26)


def as_json(report: Report) -> str:
    """Everything, for programs; ``shims`` is what ``status --json`` has after the import."""
    shims = [{"shim": c.name, "verdict": c.verdict, "era": c.since} for c in report.shims]
    return json.dumps(
        {
            "versions": report.versions,
            "exit_status": report.exit_status,
            "shims": shims,
            "seams": [asdict(row) for row in report.rows],
            "without_us": report.without_us,
            "model": report.model,
            "problems": report.problems,
            "notes": report.notes,
        },
        indent=2,
    )


def as_text(report: Report) -> str:
    """One table with a row per seam, and below it what to act on."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield ", ".join(f"{name} {version}" for name, version in report.versions.items())
    module = ""
    for row in report.rows:
        if row.module != module:
            module = row.module
            yield ""
            yield module
            yield _columns("seam", "asks", "this vLLM has", "verdict")
        yield _columns(row.name.rpartition(".")[2], _asks(row), row.has, _verdict(row))
    elsewhere = [c for c in report.shims if not c.shim.module.startswith("speculators.")]
    changed = [c for c in elsewhere if c.verdict != NATIVE]
    if changed:
        yield ""
        yield "names that are put back"
        for one in changed:
            what = f"{one.verdict}  {one.name}" + (f", era {one.since}" if one.since else "")
            yield _columns(one.shim.module, ", ".join(one.shim.names), "", what)
    bad = [row for row in report.rows if row.verdict not in (NATIVE, ADAPTED)]
    yield from _section("To act on", [*report.problems, *(_sentence(row) for row in bad)])
    yield from _section("Without us", report.without_us)
    yield from _section("Model", [f"{key}: {value}" for key, value in report.model.items()])
    yield from _section("Notes", report.notes)
    yield ""
    yield _VERDICTS[report.exit_status]


_VERDICTS = {
    0: "Everything fits, or is adapted.",
    1: "Something cannot work: see above.",
    2: "Something could not be told from source: see above.",
}


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        for line in lines:
            yield f"  {line}"


def _columns(*cells: str) -> str:
    *first, last = cells
    shown = [_cut(cell, width).ljust(width) for cell, width in zip(first, _WIDTHS, strict=True)]
    return f"  {' '.join(shown)} {last}".rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _asks(row: Row) -> str:
    calls = [asked for asked in row.asks if "(" in asked]
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    asked = (calls or row.asks or [""])[0]
    return _cut(asked, _WIDTHS[1] - len(more)) + more


def _verdict(row: Row) -> str:
    by = f"  {row.shim}" if row.shim else ""
    return f"{row.verdict}{by}" + (f", era {row.era}" if row.era else "")


def _sentence(row: Row) -> str:
    return f"{row.module}: {row.name}: {'; '.join(row.do)}"
