"""Bars with whiskers, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from specvllm_compat.benchmarking.samples import Spread

_LABEL, _BARS, _ROW, _TOP = 240, 420, 26, 52
_STYLE = (
    "text{font-family:sans-serif;font-size:13px;fill:#444}.title{font-weight:bold}.small{font-size:12px}"
    ".bar{fill:#8fa3b8}.ours{fill:#2f6fb0}.mark{stroke:#222;stroke-width:1.5}"
    ".limit{stroke:#b03030;stroke-dasharray:4 3}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: how long, how far samples spread, and what stands behind it."""

    label: str
    value: Spread
    text: str
    ours: bool = False


def bars(title: str, note: str, shown: Sequence[Bar], limit: float | None = None) -> str:
    """An SVG picture of horizontal bars from 0 on; ``limit`` is drawn as a line across them."""
    scale = _BARS / max([*(bar.value.high for bar in shown), limit or 0])
    height = _TOP + _ROW * len(shown) + 16
    width = _LABEL + _BARS + 190
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
        f'<text class="small" x="12" y="38">{escape(note)}</text>',
    ]
    for index, bar in enumerate(shown):
        top = _TOP + _ROW * index
        middle = top + 9
        long, low, high = (
            scale * value for value in (bar.value.median, bar.value.low, bar.value.high)
        )
        lines += [
            f'<text x="{_LABEL - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{"ours" if bar.ours else "bar"}" x="{_LABEL}" y="{top}" '
            f'width="{long:.1f}" height="18"/>',
            f'<line class="mark" x1="{_LABEL + low:.1f}" x2="{_LABEL + high:.1f}" '
            f'y1="{middle}" y2="{middle}"/>',
            f'<text class="small" x="{_LABEL + _BARS + 8}" y="{middle + 4}">'
            f"{escape(bar.text)}</text>",
        ]
    if limit is not None:
        x = f"{_LABEL + scale * limit:.1f}"
        bottom = _TOP + _ROW * len(shown)
        lines.append(f'<line class="limit" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom}"/>')
    return "\n".join([*lines, "</svg>", ""])
