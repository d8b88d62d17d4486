"""Choose an era for each shim, wrap its seams with wrapt, write down what was done, undo it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import wrapt
from specvllm_compat.contract import LiveLens
from specvllm_compat.shim import (
    ADAPTED,
    BROKEN,
    NATIVE,
    UNSUPPORTED,
    WAITING,
    Adapter,
    Era,
    Release,
    Shim,
    UnsupportedVllm,
    choose,
    installed,
    log,
    refusal,
)
from specvllm_compat.shims import CATALOG, FLOOR, consumer_gone

_REMOVED, _BURIED = "REMOVED", "BURIED"
_MISSING = object()


@dataclass
class Entry:
    """One line of the ledger: what a shim did to its module, and how to undo it."""

    shim: str
    verdict: str
    era: str
    undo: list[tuple[str, Callable[[], str]]] = field(default_factory=list)


class Session:
    """From one ``install()`` to the next ``uninstall()``. ``active`` gates every wrapper."""

    def __init__(self) -> None:
        self.active = True
        self.ledger: list[Entry] = []
        self.releases: dict[str, Release] = {}

    def release(self, package: str) -> Release:
        if package not in self.releases:
            self.releases[package] = installed(package)
        return self.releases[package]


_session: Session | None = None
_lock = threading.RLock()


def install() -> None:
    """Register every shim for its module; modules imported already are adapted at once."""
    global _session  # noqa: PLW0603
    with _lock:
        if _session is not None:
            return
        session = _session = Session()
        sys.meta_path.append(_missing_consumer)
        for name, shim in CATALOG.items():
            wrapt.register_post_import_hook(_hook(session, name, shim), shim.module)
    if (text := workers_left_out()) is not None:
        log.warning("%s", text)


def uninstall() -> list[tuple[str, str]]:
    """Undo the ledger backwards."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is None:
            return []
        # Two steps: the gate reaches wrappers that somebody copied, the ledger restores the names.
        session.active = False
        sys.meta_path.remove(_missing_consumer)
        return [
            (seam, undo())
            for entry in reversed(session.ledger)
            for seam, undo in reversed(entry.undo)
        ]


def status() -> list[tuple[str, str, str]]:
    """``(shim, verdict, era)`` for the whole catalog."""
    done = {entry.shim: entry for entry in (_session.ledger if _session else [])}
    waiting = Entry("", WAITING, "")
    return [(n, done.get(n, waiting).verdict, done.get(n, waiting).era) for n in CATALOG]


def _hook(session: Session, name: str, shim: Shim) -> Callable[[ModuleType], None]:
    def on_import(module: ModuleType) -> None:
        if not session.active:  # wrapt cannot unregister a hook
            return
        with _lock:
            # A hook that raises would make the import fail, and the next one succeed without us.
            try:
                session.ledger.append(_apply(session, name, shim, module))
            except Exception as error:  # noqa: BLE001
                log.exception("%s: could not be installed", name)
                text = f"{name}: specvllm-compat failed to adapt {shim.module}: {error!r}"
                session.ledger.append(_refuse(session, name, shim, module, text))

    return on_import


def _apply(session: Session, name: str, shim: Shim, module: ModuleType) -> Entry:
    lens = LiveLens()
    release = session.release(shim.provider)
    era, remark = choose(shim, lens, release)
    if shim.provider == "vllm" and release.number < FLOOR:
        era = None
    if era is None:
        text = refusal(name, shim, lens, release)
        log.error("%s", text)
        return replace(_refuse(session, name, shim, module, text), verdict=UNSUPPORTED)
    if remark:
        log.log(30 if release.trusted else 20, "%s: %s", name, remark)
    verdict = NATIVE if era.native else ADAPTED
    log.log(10 if era.native else 20, "%s: %s, era %s", name, verdict, era.since)
    return Entry(name, verdict, era.since, _install_era(session, module, era))


def _install_era(
    session: Session, module: ModuleType, era: Era
) -> list[tuple[str, Callable[[], str]]]:
    undo: list[tuple[str, Callable[[], str]]] = []
    for qualname, adapter in era.adapt.items():
        seam = f"{module.__name__}:{qualname}"
        if _reachable(module, qualname):  # the releases of the consumer differ in their seams
            undo.append((seam, _wrap(session, module, qualname, adapter)))
    for attribute, provider in era.provide.items():
        seam = f"{module.__name__}:{attribute}"
        undo.append((seam, _put(module, attribute, provider(module))))
    return undo


def _reachable(module: ModuleType, qualname: str) -> bool:
    found: Any = module
    for attribute in qualname.split("."):
        found = getattr(found, attribute, _MISSING)
    return found is not _MISSING


def _wrap(
    session: Session, module: ModuleType, qualname: str, adapter: Adapter
) -> Callable[[], str]:
    parent, attribute, original = wrapt.resolve_path(module, qualname)
    inherited = attribute not in vars(parent)
    wrapper = wrapt.FunctionWrapper(original, adapter, enabled=lambda: session.active)
    wrapt.apply_patch(parent, attribute, wrapper)

    def undo() -> str:
        if vars(parent).get(attribute) is not wrapper:
            return _BURIED
        if inherited:
            delattr(parent, attribute)  # setattr would leave a copy of the inherited one behind
        else:
            setattr(parent, attribute, original)
        return _REMOVED

    return undo


def _put(module: ModuleType, attribute: str, value: Any) -> Callable[[], str]:
    """Set a module's attribute; a module among modules is also made importable."""
    before = vars(module).get(attribute, _MISSING)
    setattr(module, attribute, value)
    dotted = f"{module.__name__}.{attribute}"
    importable = isinstance(value, ModuleType) and value.__name__ == dotted
    if importable:
        sys.modules[dotted] = value

    def undo() -> str:
        if vars(module).get(attribute) is not value:
            return _BURIED
        if importable:
            sys.modules.pop(dotted, None)
        if before is _MISSING:
            delattr(module, attribute)
        else:
            setattr(module, attribute, before)
        return _REMOVED

    return undo


def _refuse(session: Session, name: str, shim: Shim, module: ModuleType, text: str) -> Entry:
    """Make every seam of the shim raise when it is used; a name that is absent is put there."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedVllm(text)

    undo: list[tuple[str, Callable[[], str]]] = []
    for qualname in shim.names:
        seam = f"{module.__name__}:{qualname}"
        if "." not in qualname and not hasattr(module, qualname):
            undo.append((seam, _put(module, qualname, refuse)))
        elif _reachable(module, qualname):
            undo.append((seam, _wrap(session, module, qualname, refuse)))
    return Entry(name, BROKEN, "", undo)


class _MissingConsumer:
    """The last finder asked: says in a sentence that this speculators has no generator."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if text := consumer_gone(fullname):
            raise ModuleNotFoundError(text, name=fullname)


_missing_consumer: Any = _MissingConsumer()


def workers_left_out() -> str | None:
    """A sentence if ``VLLM_PLUGINS`` keeps vLLM from loading us in its worker processes."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None or "specvllm_compat" in [name.strip() for name in allowed.split(",")]:
        return None
    wanted = ",".join(filter(None, [allowed, "specvllm_compat"]))
    return (
        f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading specvllm_compat in its worker "
        "processes, which would then capture nothing, or wrongly. "
        f"Set VLLM_PLUGINS={wanted!r}, or unset it."
    )
