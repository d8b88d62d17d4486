"""What a place in somebody else's package looks like, and what we require of it.

A *shape* is read through a *lens*: `LiveLens` looks at imported modules, `SourceLens` at their
files, without importing them. A *contract* is a predicate on shapes that prints itself, so the
same object decides at run time, in a check before the run, and in the text of an error.

Places are written ``"module:qualname"``, or ``"module"`` for the module itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

from specvllm_compat.shape import Lens, Shape
from specvllm_compat.source import SourceLens

__all__ = ["Contract", "Lens", "LiveLens", "Shape", "SourceLens", "accepts", "defaults", "has"]


@dataclass(frozen=True)
class Contract:
    """A printable predicate on the shapes at some places. Combine with ``&`` and ``~``."""

    text: str
    places: tuple[str, ...]
    holds: Callable[[Lens], bool]
    conjuncts: tuple[Contract, ...] = ()

    @property
    def parts(self) -> tuple[Contract, ...]:
        """The contracts that ``&`` put together, or this one alone."""
        return self.conjuncts or (self,)

    def __str__(self) -> str:
        return self.text

    def __and__(self, other: Contract) -> Contract:
        return Contract(
            f"{self} and {other}",
            self.places + other.places,
            lambda lens: self.holds(lens) and other.holds(lens),
            self.parts + other.parts,
        )

    def __invert__(self) -> Contract:
        return Contract(f"not ({self})", self.places, lambda lens: not self.holds(lens))


def has(place: str) -> Contract:
    """The place exists."""
    return Contract(f"{place} exists", (place,), lambda lens: lens.shape(place) is not None)


def accepts(place: str, *parameters: str) -> Contract:
    """The callable there names all of these parameters. A bare ``**kwargs`` accepts nothing."""

    def holds(lens: Lens) -> bool:
        shape = lens.shape(place)
        return shape is not None and set(parameters) <= set(shape.parameters or ())

    return Contract(f"{place} accepts {', '.join(map(repr, parameters))}", (place,), holds)


def defaults(place: str, parameter: str, value: object) -> Contract:
    """The callable there gives this parameter this default: some eras differ by nothing else."""

    def holds(lens: Lens) -> bool:
        shape = lens.shape(place)
        return shape is not None and dict(shape.defaults).get(parameter) == repr(value)

    return Contract(f"{place} defaults {parameter!r} to {value!r}", (place,), holds)


class LiveLens:
    """Shapes of what is imported in this process; modules not imported yet are read from source."""

    def __init__(self) -> None:
        self._source = SourceLens()

    def shape(self, place: str) -> Shape | None:
        module_name, _, qualname = place.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            return self._source.shape(place)
        if not qualname:
            return Shape()
        found: object = module
        for name in qualname.split("."):
            # Static: a module's __getattr__, or a lazy attribute, must not make a name exist.
            missing = object()
            found = inspect.getattr_static(found, name, missing)
            if found is missing:
                # Half of a module is there while it is still being imported.
                half = getattr(module.__spec__, "_initializing", False)
                return self._source.shape(place) if half else None
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        return _signature(found) if callable(found) else Shape()


def _signature(target: object) -> Shape:
    try:
        parameters = inspect.signature(target).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return Shape()
    kinds = [p.kind for p in parameters]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Shape(
        parameters=tuple(p.name for p in named),
        defaults=tuple((p.name, repr(p.default)) for p in named if p.default is not p.empty),
        any_keyword=inspect.Parameter.VAR_KEYWORD in kinds,
        any_positional=inspect.Parameter.VAR_POSITIONAL in kinds,
        positional_only=kinds.count(inspect.Parameter.POSITIONAL_ONLY),
        keyword_only=kinds.count(inspect.Parameter.KEYWORD_ONLY),
    )
