"""Patches as mails, in the form that ``git format-patch`` writes and ``git am`` reads."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import specvllm_compat
from specvllm_compat.upstream_patches.diff import FileDiff

# Fixed, so that the same source gives the same patches, byte for byte.
AUTHOR = "specvllm-compat <specvllm-compat@users.noreply.github.com>"
DATE = "Thu, 1 Jan 2026 00:00:00 +0000"
WIDTH = 72
_BAR = 40


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A subject, paragraphs, and the differences."""

    subject: str
    paragraphs: tuple[str, ...]
    diffs: tuple[FileDiff, ...] = ()


def mails(commits: Sequence[Commit], cover: Commit) -> dict[str, str]:
    """The series by file name, the cover letter first."""
    numbered = [cover, *commits]
    return {
        _file_name(number, commit, cover): _mail(number, len(commits), commit)
        for number, commit in enumerate(numbered)
    }


def _file_name(number: int, commit: Commit, cover: Commit) -> str:
    words = "cover-letter"
    if commit is not cover:
        words = re.sub(r"[^\w.]+", "-", commit.subject.replace("'", ""))
    return f"{number:04}-{words.strip('-.')}.patch"


def _mail(number: int, count: int, commit: Commit) -> str:
    body = "\n\n".join(map(_wrapped, commit.paragraphs))
    diff = "".join(diff.text() for diff in commit.diffs)
    content = f"Subject: [PATCH {number}/{count}] {commit.subject}\n\n{body}\n"
    if diff:
        content += f"---\n{_statistics(commit.diffs)}\n{diff}"
    # The line that starts a mail in a mailbox; git takes any number for the commit's.
    mark = hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest()
    return (
        f"From {mark} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\nDate: {DATE}\n{content}"
        f"-- \nspecvllm-compat {specvllm_compat.__version__}\n\n"
    )


def _wrapped(paragraph: str) -> str:
    """Lists keep their lines."""
    lines = paragraph.split("\n")
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent="  " if len(lines) > 1 else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )


def _statistics(diffs: Sequence[FileDiff]) -> str:
    longest = max(len(diff.path) for diff in diffs)
    most = max(diff.added + diff.removed for diff in diffs)
    digits = len(str(most))
    lines = []
    for diff in diffs:
        plus, minus = (
            -(-count * _BAR // most) if most > _BAR else count
            for count in (diff.added, diff.removed)
        )
        total = diff.added + diff.removed
        bar = "+" * plus + "-" * minus
        lines.append(f" {diff.path:<{longest}} | {total:>{digits}} {bar}\n")
    added, removed = (sum(getattr(d, what) for d in diffs) for what in ("added", "removed"))
    summary = f" {len(diffs)} {'file' if len(diffs) == 1 else 'files'} changed"
    summary += f", {added} {'insertion' if added == 1 else 'insertions'}(+)" if added else ""
    summary += f", {removed} {'deletion' if removed == 1 else 'deletions'}(-)" if removed else ""
    return "".join(lines) + summary + "\n"
