"""The table of what happens where, from the catalog and the fossils.

python tests/support_table.py    # rewrites the one in README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "real_vllm")]

import environments  # noqa: E402
from packaging.version import Version  # noqa: E402
from specvllm_compat.preflight.fossil import FossilLens  # noqa: E402
from specvllm_compat.preflight.report import (  # noqa: E402
    consumer_modules,
    first_errors,
    read_uses,
)
from specvllm_compat.shim import choose  # noqa: E402
from specvllm_compat.shims import CATALOG  # noqa: E402
from specvllm_compat.source import SourceLens  # noqa: E402

README = HERE.parent / "README.md"
BEGIN, END = "<!-- written by tests/support_table.py -->", "<!-- end -->"
SPECULATORS = ("0.3.0", "0.4.0.1")


def alone(speculators: str, fossil: FossilLens) -> str:
    """The first error of speculators without us."""
    lens = SourceLens({"speculators": environments.speculators(speculators) / "speculators"})
    found = []
    for module, text in consumer_modules(lens):
        found += read_uses(text, module, fossil, ("vllm",))
    errors = first_errors(found, fossil)
    return f"`{errors[0]}`" if errors else "starts"


def eras(fossil: FossilLens) -> str:
    """The shims whose era is not their first, with that era: what differs between releases."""
    parts = []
    for name, shim in CATALOG.items():
        if shim.provider == "vllm" and len(shim.eras) > 1:
            era, _ = choose(shim, fossil, fossil.release)
            if era is not None and not era.native:
                parts.append(f"{name} {era.since}")
    return ", ".join(parts)


def table() -> str:
    """The table as Markdown: a row per run of releases in which nothing differs."""
    rows: list[tuple[list[str], tuple[str, ...]]] = []
    for path in sorted(HERE.glob("fossils/*.json"), key=lambda path: Version(path.stem)):
        fossil = FossilLens(path)
        cells = (*(alone(version, fossil) for version in SPECULATORS), eras(fossil))
        if rows and rows[-1][1] == cells:
            rows[-1][0].append(fossil.release.text)
        else:
            rows.append(([fossil.release.text], cells))
    head = ["vLLM", *(f"speculators {version} alone" for version in SPECULATORS)]
    lines = [[*head, "shims that differ by release, and their era"], ["---"] * 4]
    for releases, cells in rows:
        span = releases[0] if len(releases) == 1 else f"{releases[0]} … {releases[-1]}"
        lines.append([span, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
