"""``specvllm-compat patch``: write a series of patches for speculators."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

_NAME = re.compile(r"\d{4}-.+\.patch")


def add_to(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("patch", help="write patches that make the shims unnecessary")
    parser.add_argument("--source", type=Path, metavar="DIR_OR_WHEEL", help="instead of installed")
    parser.add_argument("--output-dir", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--vllm", metavar="RANGE", help="only what these releases need: '>=0.16'")
    parser.set_defaults(run=_patch)


def _patch(options: argparse.Namespace) -> int:
    try:
        import libcst  # noqa: F401
    except ImportError:
        print("patch needs libcst: pip install 'specvllm-compat[patch]'", file=sys.stderr)
        return 2
    from specvllm_compat.upstream_patches.series import NotPossible, series

    folder: Path = options.output_dir
    if not _is_ours(folder):
        print(f"{folder} holds something else: name a new or empty folder", file=sys.stderr)
        return 2
    try:
        _write(series(options.source, options.vllm), folder)
    except (NotPossible, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write(mails: dict[str, str], folder: Path) -> None:
    """Write what differs, remove what an earlier series had more."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in mails:
            old.unlink()
    for name, text in mails.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        print(path)


def _is_ours(folder: Path) -> bool:
    """It is new, empty, or holds a series of ours and nothing else."""
    from specvllm_compat.upstream_patches.mail import AUTHOR

    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    return all(
        path.is_file()
        and _NAME.fullmatch(path.name)
        and f"\nFrom: {AUTHOR}\n" in path.read_text(encoding="utf-8", errors="replace")
        for path in folder.iterdir()
    )
