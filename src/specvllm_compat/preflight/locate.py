"""Find the package that a path of the user's holds: a wheel, a checkout, an environment."""

from __future__ import annotations

import zipfile
from pathlib import Path


class CannotTell(ValueError):
    """A question that can't be answered, and why, in one sentence."""


# What tells the folder of a package from any other folder, whatever it is called.
_MARKS = {"vllm": ("config", "config.py"), "speculators": ("models", "data_generation")}


def package_at(path: Path, package: str) -> Path:
    """The package's folder, or the wheel that holds it.

    Raises:
        CannotTell: there is no such package at the path.
    """
    if not path.exists():
        raise CannotTell(f"{path} does not exist")
    if path.is_file():
        return _wheel(path, package)
    inner = [path / package, path / "src" / package]
    inner += sorted(path.glob(f"lib/python3*/site-packages/{package}"))
    for folder in inner:
        if (folder / "__init__.py").is_file():
            return folder
    marked = any((path / mark).exists() for mark in _MARKS[package])
    if (path / "__init__.py").is_file() and (path.resolve().name == package or marked):
        return path
    raise CannotTell(f"{path} holds no {package}: no {package}/__init__.py is in it")


def _wheel(path: Path, package: str) -> Path:
    try:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise CannotTell(f"{path} is no wheel that can be read: {error}") from None
    if f"{package}/__init__.py" not in names:
        raise CannotTell(f"{path} is a wheel of something else: it holds no {package}/__init__.py")
    return path
