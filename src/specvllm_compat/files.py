"""The files of a package: in a folder or in a wheel, with their outlines kept between runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from specvllm_compat.outline import FORMAT, Outline, outline

_DEFINED = re.compile(r"^(?:async )?(?:def|class) (\w+)", re.MULTILINE)


class Files:
    """The Python files of one package. Paths are relative to it, with ``/``.

    ``location`` is the package's folder, or a wheel, which holds it under ``package``. ``kept``:
    outlines are kept in the user's cache folder.
    """

    def __init__(self, location: Path, package: str, *, kept: bool = False) -> None:
        self.location, self.package, self._kept = location, package, kept
        self._wheel = zipfile.ZipFile(location) if location.is_file() else None
        self._inside = set(self._wheel.namelist()) if self._wheel else set()
        self._defined: dict[str, frozenset[str]] = {}  # path -> top-level functions and classes

    def has(self, path: str) -> bool:
        """There is such a file."""
        if self._wheel:
            return f"{self.package}/{path}" in self._inside
        return (self.location / path).is_file()

    def text(self, path: str) -> str:
        """The file's text; what is no UTF-8 is replaced."""
        if self._wheel:
            return self._wheel.read(f"{self.package}/{path}").decode(errors="replace")
        return (self.location / path).read_text(encoding="utf-8", errors="replace")

    def paths(self, under: str = "") -> list[str]:
        """Every Python file below a folder, the nearest first."""
        if self._wheel:
            start = f"{self.package}/{under}"
            names = [n for n in self._inside if n.startswith(start) and n.endswith(".py")]
            found = [name[len(self.package) + 1 :] for name in names]
        else:
            found = [
                path.relative_to(self.location).as_posix()
                for path in (self.location / under).rglob("*.py")
            ]
        return sorted(found, key=lambda path: (path.count("/"), path))

    def defining(self, name: str, under: str = "") -> list[str]:
        """The files below a folder that define a top-level function or class."""
        found = []
        for path in self.paths(under):
            if path not in self._defined:
                self._defined[path] = frozenset(_DEFINED.findall(self.text(path)))
            if name in self._defined[path]:
                found.append(path)
        return found

    def outline(self, path: str, module: str) -> Outline:
        """The file's outline. Raises SyntaxError or ValueError if it is not Python."""
        source = self.location if self._wheel else self.location / path
        about = source.stat()
        stamp: list[str | int] = [
            FORMAT,
            str(source),
            path,
            module,
            about.st_size,
            about.st_mtime_ns,
        ]
        kept = _cache(stamp) if self._kept else None
        if kept and kept.exists():
            try:
                known = json.loads(kept.read_text(encoding="utf-8"))
                if known["stamp"] == stamp:
                    found: Outline = known["outline"]
                    return found
            except (OSError, ValueError, KeyError, TypeError):
                kept.unlink(missing_ok=True)
        made = outline(self.text(path), module, package=path.rpartition("/")[2] == "__init__.py")
        if kept:
            _keep(kept, json.dumps({"stamp": stamp, "outline": made}, separators=(",", ":")))
        return made


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Where outlines are kept; None if that can't be written to, or ``SPECVLLM_CACHE=off``."""
    if os.environ.get("SPECVLLM_CACHE", "").lower() in ("off", "0"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "specvllm-compat", "outlines")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _cache(stamp: list[str | int]) -> Path | None:
    folder = cache_folder()
    name = hashlib.sha256("\n".join(map(str, stamp[1:4])).encode()).hexdigest()[:24]
    return folder / f"{name}.json" if folder else None


def _keep(path: Path, text: str) -> None:
    """Write whole or not at all: two checks may run at once."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        cache_folder.cache_clear()  # the disk may be full: a check needs no cache
