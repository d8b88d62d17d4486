"""Install on the first import of vllm or speculators, and load nothing before that."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WATCHED = ("vllm", "speculators")


class _Tripwire:
    """A meta-path finder that lets the others find, and installs before the module runs."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _InstallFirst(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None

    def fire(self) -> None:
        """Install; a thread that comes second waits in there until the first has finished."""
        self._install()
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _InstallFirst:
    """Installs when the module is about to run. Finders are asked under the interpreter's import
    lock, where an import of ours could wait for a thread that waits for that lock."""

    def __init__(self, loader: Any, tripwire: _Tripwire) -> None:
        self._loader = loader
        self._tripwire = tripwire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._tripwire.fire()
        self._loader.exec_module(module)


def arm(install: Callable[[], None]) -> None:
    """Call ``install`` now if a watched package is imported already, else when one is.

    ``install`` must not raise: that would break the import that sets it off.
    """
    if any(package in sys.modules for package in WATCHED):
        install()
    else:
        sys.meta_path.insert(0, _Tripwire(install))
