"""What a place in somebody else's package looks like, and whether a call fits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Shape:
    """Parameters of a callable, or None for anything else; ``defaults`` holds reprs.

    ``parameters`` are the named ones in order: ``positional_only`` counts those at the front that
    have no keyword, ``keyword_only`` those at the end that have no position.
    """

    parameters: tuple[str, ...] | None = None
    defaults: tuple[tuple[str, str], ...] = ()
    any_keyword: bool = False
    any_positional: bool = False
    positional_only: int = 0
    keyword_only: int = 0

    def __str__(self) -> str:
        if self.parameters is None:
            return "a name"
        shown = dict(self.defaults)
        parts = [f"{name}={shown[name]}" if name in shown else name for name in self.parameters]
        return f"({', '.join([*parts, *(['**'] if self.any_keyword else [])])})"

    def without_first(self) -> Shape:
        """As called on an instance: the first position is taken."""
        if not self.parameters or self.keyword_only == len(self.parameters):
            return self  # *args takes it
        first, *rest = self.parameters
        return Shape(
            parameters=tuple(rest),
            defaults=tuple((name, value) for name, value in self.defaults if name != first),
            any_keyword=self.any_keyword,
            any_positional=self.any_positional,
            positional_only=max(0, self.positional_only - 1),
            keyword_only=self.keyword_only,
        )


ANYTHING = Shape(parameters=(), any_keyword=True, any_positional=True)


@dataclass(frozen=True)
class Call:
    """The arguments of a call as they are written; ``star`` and ``double_star`` hide some."""

    positional: int = 0
    keywords: tuple[str, ...] = ()
    star: bool = False
    double_star: bool = False

    def __str__(self) -> str:
        parts = ["…"] * self.positional + ["*…"] * self.star
        parts += [f"{name}=" for name in self.keywords] + ["**…"] * self.double_star
        return f"({', '.join(parts)})"


NO_ARGUMENTS = Call()


@dataclass(frozen=True)
class Finding:
    """What source shows at a place.

    ``kind``: ``absent``, ``module``, ``class``, ``function``, ``value``, or ``unresolved`` where
    source does not tell. ``home``: the place it is defined at. ``gives``: the place of the class
    that calling it, or reading it, gives an instance of. ``method``: ``instance``, ``class`` or
    ``static``. ``says``: what Python calls it in an error, if that is not its name. ``pydantic``:
    its constructor validates. ``lazy``: not there until it is asked for.
    """

    kind: str
    shape: Shape | None = None
    home: str = ""
    gives: str = ""
    method: str = ""
    says: str = ""
    pydantic: bool = False
    lazy: bool = False


ABSENT = Finding("absent")


class Lens(Protocol):
    """Returns the shape at a dotted place."""

    def shape(self, place: str) -> Shape | None:
        """The shape at ``place``; None where there is nothing."""


class Reading(Lens, Protocol):
    """What a check asks of a lens: source, or what was recorded of it."""

    def look(self, place: str) -> Finding:
        """What is at a place."""

    def homes(self, name: str, near: str) -> list[str]:
        """The modules of ``near``'s package that define a top-level name, the nearest first."""


def misfits(shape: Shape, call: Call, *, implicit: int = 0) -> list[tuple[str, str]]:
    """Why the call does not fit, as Python says it: (what kind, words). Empty: it fits.

    Kinds: ``unexpected``, ``missing``, ``positional``, ``twice``. What ``*`` and ``**`` of the call
    may hold is given the benefit of the doubt. A shape without parameters fits nothing and
    everything: ask before. ``implicit``: how many first arguments, such as self, go without saying.
    """
    names = shape.parameters or ()
    positions = len(names) - shape.keyword_only
    by_keyword = names[shape.positional_only :]
    found: list[tuple[str, str]] = []
    if call.positional > positions and not shape.any_positional:
        found.append(("positional", _too_many(shape, positions, call.positional, implicit)))
    for name in call.keywords:
        if name not in by_keyword:
            if not shape.any_keyword:
                found.append(("unexpected", f"got an unexpected keyword argument {name!r}"))
        elif name in names[: min(call.positional, positions)]:
            found.append(("twice", f"got multiple values for argument {name!r}"))
    filled = {name for name, _ in shape.defaults} | set(by_keyword).intersection(call.keywords)
    missing = [
        name
        for index, name in enumerate(names)
        if name not in filled
        and not (index < positions and (index < call.positional or call.star))
        and not (index >= shape.positional_only and call.double_star)
    ]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        kind = "positional" if names.index(missing[0]) < positions else "keyword-only"
        found.append(
            ("missing", f"missing {len(missing)} required {kind} argument{plural}: {_and(missing)}")
        )
    return found


def _too_many(shape: Shape, positions: int, given: int, implicit: int) -> str:
    optional = {name for name, _ in shape.defaults}
    least = sum(name not in optional for name in (shape.parameters or ())[:positions]) + implicit
    positions, given = positions + implicit, given + implicit
    takes = f"from {least} to {positions}" if least < positions else str(positions)
    return f"takes {takes} positional argument{'s' * (positions != 1)} but {given} were given"


def _and(names: Sequence[str]) -> str:
    *first, last = map(repr, names)
    if not first:
        return last
    return f"{', '.join(first)}{',' * (len(first) > 1)} and {last}"
