"""Choose an era for each shim, wrap its seams with wrapt, write down what was done, undo it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING
from types import ModuleType
from typing import Any

import wrapt
from specvllm_compat.contract import LiveLens
from specvllm_compat.shim import (
    BROKEN,
    WAITING,
    Adapter,
    Release,
    Shim,
    UnsupportedVllm,
    decide,
    installed,
    log,
)
from specvllm_compat.shims import CATALOG, FLOOR, consumer_gone

Undo = tuple[str, Callable[[], str]]  # the seam, and what puts it back
_REMOVED, _BURIED = "REMOVED", "BURIED"
_MISSING = object()


@dataclass
class Entry:
    """One line of the ledger: what a shim did to its module, and how to undo it."""

    shim: str
    verdict: str
    era: str = ""
    undo: list[Undo] = field(default_factory=list)


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
    waiting = Entry("", WAITING)
    return [(n, done.get(n, waiting).verdict, done.get(n, waiting).era) for n in CATALOG]


def _hook(session: Session, name: str, shim: Shim) -> Callable[[ModuleType], None]:
    def on_import(module: ModuleType) -> None:
        if not session.active:  # wrapt cannot unregister a hook
            return
        with _lock:
            entry = Entry(name, BROKEN)
            session.ledger.append(entry)
            # A hook that raises would make the import fail, and the next one succeed without us.
            try:
                _apply(session, shim, module, entry)
            except Exception as error:  # noqa: BLE001
                log.exception("%s: could not be installed", name)
                entry.verdict = BROKEN
                text = f"{name}: specvllm-compat failed to adapt {shim.module}: {error!r}"
                _refuse(session, shim, module, entry, text)

    return on_import


def _apply(session: Session, shim: Shim, module: ModuleType, entry: Entry) -> None:
    lens = LiveLens()
    release = session.release(shim.provider)
    verdict, era, words = decide(entry.shim, shim, lens, release, FLOOR)
    if era is None:
        entry.verdict = verdict
        log.error("%s", words)
        _refuse(session, shim, module, entry, words)
        return
    if words:
        log.log(WARNING if release.trusted else INFO, "%s: %s", entry.shim, words)
    for qualname, adapter in era.adapt.items():
        if _reachable(module, qualname):  # the releases of the consumer differ in their seams
            entry.undo.append(_wrap(session, module, qualname, adapter))
    for qualname, provider in era.provide.items():
        if _reachable(module, qualname.rpartition(".")[0]):
            entry.undo.append(_put(module, qualname, provider(module)))
    entry.verdict, entry.era = verdict, era.since
    log.log(DEBUG if era.native else INFO, "%s: %s, era %s", entry.shim, entry.verdict, era.since)


def _reachable(module: ModuleType, qualname: str) -> bool:
    found: Any = module
    for attribute in filter(None, qualname.split(".")):
        found = getattr(found, attribute, _MISSING)
    return found is not _MISSING


def _wrap(session: Session, module: ModuleType, qualname: str, adapter: Adapter) -> Undo:
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

    return f"{module.__name__}:{qualname}", undo


def _put(module: ModuleType, qualname: str, value: Any) -> Undo:
    """Set an attribute of a module or a class; a module among modules is also made importable."""
    path, _, attribute = qualname.rpartition(".")
    parent = wrapt.resolve_path(module, path)[2] if path else module
    before = vars(parent).get(attribute, _MISSING)
    setattr(parent, attribute, value)
    dotted = f"{module.__name__}.{qualname}"
    importable = isinstance(value, ModuleType) and value.__name__ == dotted
    if importable:
        sys.modules[dotted] = value

    def undo() -> str:
        if vars(parent).get(attribute) is not value:
            return _BURIED
        if importable:
            sys.modules.pop(dotted, None)
        if before is _MISSING:
            delattr(parent, attribute)
        else:
            setattr(parent, attribute, before)
        return _REMOVED

    return f"{module.__name__}:{qualname}", undo


def _refuse(session: Session, shim: Shim, module: ModuleType, entry: Entry, text: str) -> None:
    """Make every seam of the shim raise when it is used; a name that is absent is put there."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedVllm(text)

    for qualname in shim.names:
        try:
            if "." not in qualname and not hasattr(module, qualname):
                entry.undo.append(_put(module, qualname, refuse))
            elif _reachable(module, qualname):
                entry.undo.append(_wrap(session, module, qualname, refuse))
        except Exception:  # noqa: BLE001
            log.exception("%s: %s cannot even be made to refuse", entry.shim, qualname)


class _MissingConsumer:
    """The last finder asked: says in a sentence that this speculators has no generator."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if text := consumer_gone(fullname):
            raise ModuleNotFoundError(text, name=fullname)


_missing_consumer: Any = _MissingConsumer()
