"""Differences as git writes them, such that patches apply alone and one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

WIDEST = 3
# From line to line of the old file, and of the new one
Change = list[int]


class Overlap(ValueError):
    """Two patches change the same lines."""


@dataclass(frozen=True)
class Hunk:
    """Lines of a file with what they become; each line carries its sign."""

    start: int
    new_start: int
    lines: tuple[str, ...]

    @property
    def before(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] in " -"]

    @property
    def after(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] in " +"]

    def text(self) -> str:
        old, new = len(self.before), len(self.after)
        head = f"@@ -{self.start},{old} +{self.new_start},{new} @@\n"
        return head + "".join(self.lines)


@dataclass(frozen=True)
class FileDiff:
    """What a patch changes in one file."""

    path: str
    old: str
    new: str
    hunks: tuple[Hunk, ...]

    @property
    def added(self) -> int:
        return sum(line[0] == "+" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        return sum(line[0] == "-" for hunk in self.hunks for line in hunk.lines)

    def text(self) -> str:
        head = (
            f"diff --git a/{self.path} b/{self.path}\n"
            f"index {_blob(self.old)}..{_blob(self.new)} 100644\n"
            f"--- a/{self.path}\n+++ b/{self.path}\n"
        )
        return head + "".join(hunk.text() for hunk in self.hunks)


def file_diffs(path: str, old: str, variants: Sequence[str]) -> list[FileDiff]:
    """One difference per variant of a file, with as much context as the other variants leave.

    Raises:
        Overlap: they can't be applied one after another.
    """
    changes = [_changes(old, new) for new in variants]
    found = [
        FileDiff(path, old, new, tuple(_hunks(old, new, own, [c for c in changes if c is not own])))
        for new, own in zip(variants, changes, strict=True)
    ]
    in_order(found)
    return found


def in_order(diffs: Sequence[FileDiff]) -> list[str]:
    """The file after each of its differences, applied one after another.

    Raises:
        Overlap: the lines of a hunk are not there once and only once.
    """
    lines = diffs[0].old.splitlines(keepends=True)
    states = []
    for diff in diffs:
        for hunk in diff.hunks:
            lines = _applied(hunk, lines, diff.path)
        states.append("".join(lines))
    return states


def _applied(hunk: Hunk, lines: list[str], path: str) -> list[str]:
    before = hunk.before
    places = [i for i in range(len(lines)) if lines[i : i + len(before)] == before]
    if len(places) != 1:
        raise Overlap(f"{path}: the lines of a hunk at {hunk.start} are there {len(places)} times")
    return [*lines[: places[0]], *hunk.after, *lines[places[0] + len(before) :]]


def _changes(old: str, new: str) -> list[Change]:
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    opcodes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [places for kind, *places in opcodes if kind != "equal"]


def _hunks(old: str, new: str, own: list[Change], others: Sequence[list[Change]]) -> Iterator[Hunk]:
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    taken = [(start, end) for changes in others for start, end, _, _ in changes]

    def free(start: int, end: int) -> bool:
        """These are lines that no other variant changes, or puts lines between."""
        inside = start >= 0 and end <= len(a)
        return inside and not any(first < end and start < last for first, last in taken)

    groups: list[list[Change]] = []
    for change in own:
        before = groups[-1][-1][1] if groups else -len(a)
        if change[0] - before <= 2 * WIDEST and free(before, change[0]):
            groups[-1].append(change)
        else:
            groups.append([change])
    for group in groups:
        start, end = group[0][0], group[-1][1]
        above = max(n for n in range(WIDEST + 1) if free(start - n, start))
        below = max(n for n in range(WIDEST + 1) if free(end, end + n))
        lines: list[str] = []
        at = start - above
        for i1, i2, j1, j2 in group:
            lines += [f" {line}" for line in a[at:i1]]
            lines += [f"-{line}" for line in a[i1:i2]] + [f"+{line}" for line in b[j1:j2]]
            at = i2
        lines += [f" {line}" for line in a[end : end + below]]
        yield Hunk(start - above + 1, group[0][2] - above + 1, tuple(lines))


def _blob(text: str) -> str:
    """The name that git gives to a file of this text."""
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()[:12]
