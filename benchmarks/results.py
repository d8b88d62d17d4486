"""Results as JSON files in one folder, with the machine and the versions they were taken with."""

from __future__ import annotations

import argparse
import json
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specvllm_compat.benchmarking import machine
from specvllm_compat.shim import installed

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
PACKAGES = ("torch", "transformers", "speculators", "vllm-lens")


def versions() -> dict[str, str]:
    found = {"vllm": installed("vllm").text}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `save` looks at."""
    parser.add_argument("--save", action="store_true", help="the results, as JSON")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (docs/benchmarks)")


def save(name: str, what: dict[str, Any], options: argparse.Namespace) -> None:
    """Write ``what`` to ``NAME-VLLM.json``, if that was asked for."""
    if not options.save:
        return
    folder: Path = options.folder
    told = {"versions": versions(), "machine": machine.describe(), "date": str(date.today())}
    path = folder / f"{name}-{told['versions']['vllm']}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told | what, indent=1) + "\n")
    print(f"written: {path}")
