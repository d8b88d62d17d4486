"""Install on the first import of vllm or speculators, and load nothing before that."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WATCHED = ("vllm", "speculators")


class _Tripwire:
    """A meta-path finder that finds nothing; it only notices who is asking."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname not in WATCHED:
            return
        try:
            sys.meta_path.remove(self)  # atomic: one thread gets past
        except ValueError:
            return
        self._install()  # never raises: that would break the import that set it off


def arm(install: Callable[[], None]) -> None:
    """Call ``install`` now if a watched package is imported already, else when one is."""
    if any(package in sys.modules for package in WATCHED):
        install()
    else:
        sys.meta_path.insert(0, _Tripwire(install))
