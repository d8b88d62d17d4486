"""Releases of speculators as git trees, and the patches that the command makes for them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "real_vllm"))

import environments

TOOLS = environments.patch_tools(sys.executable)
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))

TREES = ("0.3.0", "0.4.0", "0.4.0.1")
# How speculators 0.3 and 0.4 set ruff up; their wheels don't say.
SETTINGS = """\
[tool.ruff]
line-length = 88
exclude = ["version.py"]
[tool.ruff.lint]
select = [
    "A", "ARG", "ASYNC", "B", "BLE", "C", "C4", "C90", "COM", "E", "ERA", "F", "I", "ICN",
    "INP", "ISC", "N", "NPY", "PD", "PGH", "PIE", "PL", "PT", "PTH", "Q", "R", "RSE", "RUF022", "S",
    "SIM", "SLF", "T10", "T20", "TCH", "TID", "UP", "W", "YTT",
]
ignore = [
    "COM812", "ISC001", "PD011", "PLR0913", "PLW1514", "RET505", "RET506", "S311", "TC001", "TC002",
]
[tool.ruff.lint.per-file-ignores]
"src/speculators/convert/**/*.py" = ["BLE001"]
"src/speculators/data_generation/**/*.py" = [
    "BLE001", "C901", "ERA001", "FIX002", "PTH", "S101", "S106", "S110", "S324", "SIM102", "SIM105",
]
[tool.ruff.lint.isort]
known-first-party = ["speculators", "tests"]
"""
GENERATOR = "src/speculators/data_generation/vllm_hidden_states_generator.py"


def wheel_content(version: str) -> Path:
    """The folder with the unpacked wheel of a release."""
    return environments.speculators(version)


def checkout(folder: Path, version: str) -> Path:
    """A clean git tree with the package of a release where its repository has it."""
    inside = folder / "src"
    bytecode = shutil.ignore_patterns("__pycache__")
    for path in wheel_content(version).iterdir():
        if path.name.startswith("speculators"):
            shutil.copytree(path, inside / path.name, ignore=bytecode)
    (folder / ".gitignore").write_text("__pycache__\n*.dist-info\n")
    (folder / "pyproject.toml").write_text(SETTINGS)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "As released")
    git(folder, "tag", "released")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as somebody of whom its configuration need not know."""
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A maintainer"), ("EMAIL", "maintainer@localhost"))
    }
    nowhere = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    finished = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | who | nowhere,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@dataclass(frozen=True)
class Finished:
    """What the command said, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


def patch(source: Path, output: Path, *arguments: str) -> Finished:
    """Run ``specvllm-compat patch``."""
    from specvllm_compat.cli import main

    out, err = io.StringIO(), io.StringIO()
    given = ["patch", "--source", str(source), "--output-dir", str(output), *arguments]
    with redirect_stdout(out), redirect_stderr(err):
        status = main(given)
    return Finished(status, out.getvalue(), err.getvalue())


def series(folder: Path) -> list[Path]:
    """The patches of a series in order, without the cover letter."""
    return sorted(folder.glob("*.patch"))[1:]


def patched(folder: Path, version: str) -> Path:
    """A folder for PYTHONPATH that holds a release with the whole series applied."""
    tree = checkout(folder / "tree", version)
    made = patch(tree, folder / "series")
    assert made.returncode == 0, made.stderr
    git(tree, "am", "--quiet", *map(str, series(folder / "series")))
    return tree / "src"


def findings(tree: Path, files: Sequence[str] = ("src",)) -> str:
    """What ruff says with speculators' settings, its formatter, and ruff without settings."""
    command = str(TOOLS / "bin" / "ruff")
    said = ""
    for how in (["check"], ["format", "--check"], ["check", "--isolated"]):
        asked = [command, *how, "--no-cache", "--quiet", *files]
        finished = subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=False)
        if finished.returncode:
            said += finished.stdout + finished.stderr
    return said
