"""What was found, as data, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

OK, WRONG, NOT_RUN = "OK", "WRONG", "NOT RUN"


@dataclass(frozen=True)
class Check:
    """One comparison. ``error`` is the one nearest to (or furthest beyond) its ``limit``.

    ``remark`` says where a wrong state is and what it looks like, or why nothing was compared.
    """

    name: str
    compared: str
    verdict: str
    error: float | None = None
    limit: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of a model; ``exit_status`` is 1 if one of them is wrong."""

    versions: dict[str, str]
    model: dict[str, str]
    checks: list[Check]

    @property
    def exit_status(self) -> int:
        return int(any(check.verdict == WRONG for check in self.checks))

    def as_json(self) -> str:
        """Everything, for programs."""
        return json.dumps(asdict(self) | {"exit_status": self.exit_status}, indent=2)

    def as_text(self) -> str:
        """A table with a row per check, and what to act on."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield from (f"{name}: {value}" for name, value in self.model.items())
        yield ""
        yield _columns("check", "compared", "largest error", "limit", "verdict")
        for check in self.checks:
            numbers = (_number(check.error), _number(check.limit))
            yield _columns(check.name, check.compared, *numbers, check.verdict)
        remarks = [check for check in self.checks if check.remark]
        if remarks:
            yield ""
        for check in remarks:
            yield f"{check.verdict}: {check.name}: {check.remark}"
        yield ""
        if self.exit_status:
            yield "States are wrong: do not train on them."
        elif any(check.verdict == NOT_RUN for check in self.checks):
            yield "What was compared agrees; see above for what was not."
        else:
            yield "Everything agrees."


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if value else "0"


def _columns(*cells: str) -> str:
    widths = (19, 58, 14, 8)
    *first, last = cells
    return "  " + " ".join(c.ljust(w) for c, w in zip(first, widths, strict=True)) + f" {last}"
