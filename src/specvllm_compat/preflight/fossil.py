"""Fossils: what source shows of one vLLM release, at the places that we ask about.

A fossil holds names, parameters and defaults, and none of vLLM's code. It is recorded by running
the questions: every contract of the catalog, and the check of each consumer given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from specvllm_compat.preflight.report import (
    check_consumer,
    consumer_modules,
    read_uses,
    verdicts,
    without_us,
)
from specvllm_compat.shape import Finding, Reading, Shape
from specvllm_compat.shim import Release, installed
from specvllm_compat.shims import CATALOG
from specvllm_compat.source import SourceLens


class FossilLens:
    """The lens on a fossil. Packages other than vLLM are read through ``others``."""

    def __init__(self, path: Path, others: Reading | None = None) -> None:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        self.release = Release.parse(recorded["vllm"])
        self._looks: dict[str, dict[str, Any]] = recorded["looks"]
        self._homes: dict[str, list[str]] = recorded["homes"]
        self._others = others

    def shape(self, place: str) -> Shape | None:
        """The shape at ``place``. Raises LookupError if the recorder did not ask for it."""
        found = self.look(place)
        if place.startswith("vllm") and place not in self._looks:
            raise LookupError(
                f"{place} is not in the fossil of {self.release.text}: record it again"
            )
        return None if found.lazy else found.shape

    def look(self, place: str) -> Finding:
        """What was recorded at a place; unresolved if nobody asked then."""
        if self._others is not None and not place.startswith("vllm"):
            return self._others.look(place)
        recorded = self._looks.get(place)
        return _thawed(recorded) if recorded is not None else Finding("unresolved")

    def homes(self, name: str, near: str) -> list[str]:
        """The recorded modules that define a top-level name."""
        return self._homes.get(name, [])


class _Recorder:
    """Passes questions on to a lens and writes the answers down."""

    def __init__(self, lens: SourceLens) -> None:
        self._lens = lens
        self.looks: dict[str, dict[str, Any]] = {}
        self.found: dict[str, list[str]] = {}

    def shape(self, place: str) -> Shape | None:
        self.look(place)
        return self._lens.shape(place)

    def look(self, place: str) -> Finding:
        found = self._lens.look(place)
        if place.startswith("vllm"):
            self.looks[place] = _frozen(found)
        return found

    def homes(self, name: str, near: str) -> list[str]:
        self.found[name] = self._lens.homes(name, near)
        return self.found[name]


def record(vllm: Path, consumers: Iterable[Path]) -> dict[str, Any]:
    """The fossil of the vLLM at a folder or wheel, as JSON has it.

    ``consumers``: folders or wheels of the speculators releases whose questions are recorded.
    """
    looks: dict[str, Any] = {}
    homes: dict[str, list[str]] = {}
    release = installed("vllm", SourceLens({"vllm": vllm}))
    for consumer in consumers:
        lens = SourceLens({"vllm": vllm, "speculators": consumer})
        asked = _Recorder(lens)
        for shim in CATALOG.values():
            for era in shim.eras if shim.provider == "vllm" else ():
                for place in era.probe.places:
                    asked.shape(place)
        releases = {"vllm": release, "transformers": Release.parse("4.57.6")}
        chosen = verdicts(asked, releases)
        for module, text in consumer_modules(lens):
            found = read_uses(text, module, asked, ("vllm",))
            check_consumer(module, found, asked, [])
            without_us(found, asked, chosen)
        looks |= asked.looks
        homes |= asked.found
    return {
        "vllm": re.sub(r"(\.post\d+)?(\+.*)?$", "", release.text),
        "looks": dict(sorted(looks.items())),
        "homes": dict(sorted(homes.items())),
    }


def _frozen(found: Finding) -> dict[str, Any]:
    """Without what is as by default: most fields are."""
    written = {f.name: getattr(found, f.name) for f in fields(found)}
    kept = {n: v for n, v in written.items() if n == "kind" or v not in ("", False, None)}
    if found.shape is not None:
        plain = asdict(Shape())
        kept["shape"] = {n: v for n, v in asdict(found.shape).items() if v != plain[n]}
    return kept


def _thawed(recorded: dict[str, Any]) -> Finding:
    written = dict(recorded)
    if (shape := written.pop("shape", None)) is not None:
        shape = dict(shape)
        if "parameters" in shape:
            shape["parameters"] = tuple(shape["parameters"])
        if "defaults" in shape:
            shape["defaults"] = tuple((name, value) for name, value in shape["defaults"])
        written["shape"] = Shape(**shape)
    return Finding(**written)
