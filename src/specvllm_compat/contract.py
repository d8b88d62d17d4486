"""What a place in somebody else's package looks like, and what we require of it.

A *shape* is read through a *lens*: `LiveLens` looks at imported modules, `SourceLens` at their
files, without importing them. A *contract* is a predicate on shapes that prints itself, so the
same object decides at run time, in a check before the run, and in the text of an error.

Places are written ``"module:qualname"``, or ``"module"`` for the module itself. Put them where a
name is defined: source shows no inheritance across modules.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Shape:
    """Parameters of a callable, or None for anything else; ``defaults`` holds reprs."""

    parameters: tuple[str, ...] | None = None
    defaults: tuple[tuple[str, str], ...] = ()
    any_keyword: bool = False

    def __str__(self) -> str:
        if self.parameters is None:
            return "a name"
        shown = dict(self.defaults)
        parts = [f"{name}={shown[name]}" if name in shown else name for name in self.parameters]
        return f"({', '.join([*parts, *(['**'] if self.any_keyword else [])])})"


class Lens(Protocol):
    def shape(self, place: str) -> Shape | None:
        """The shape at ``place``; None where there is nothing."""


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
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Shape(
        parameters=tuple(p.name for p in named),
        defaults=tuple((p.name, repr(p.default)) for p in named if p.default is not p.empty),
        any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


class SourceLens:
    """Shapes read from source files with ``ast``, importing nothing.

    ``roots`` maps a top-level package to its folder (an unpacked wheel, a checkout); packages that
    are not in it are looked for where Python would import them from.
    """

    def __init__(self, roots: dict[str, Path] | None = None) -> None:
        self._roots = roots or {}

    def shape(self, place: str) -> Shape | None:
        module_name, _, qualname = place.partition(":")
        path = self.file(module_name)
        if path is None:
            return None
        if not qualname:
            return Shape()
        body: list[ast.stmt] = _parse(path).body
        node: ast.stmt | None = None
        for name in qualname.split("."):
            owner, node = node, _defined(body, name)
            if node is None:
                if name == "__init__" and isinstance(owner, ast.ClassDef):
                    return _dataclass_init(owner)
                return None
            body = node.body if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.ClassDef):
            init = _defined(node.body, "__init__")
            return _shape_of(init, skip=1) if init else _dataclass_init(node, skip=1)
        return _shape_of(node)

    def file(self, module_name: str) -> Path | None:
        """The source file of a module, found without importing its parents."""
        package, *rest = module_name.split(".")
        root = self._roots.get(package) or _package_folder(package)
        if root is None:
            return None
        folder = root.joinpath(*rest)
        candidates = (
            [folder / "__init__.py", folder.with_suffix(".py")] if rest else [root / "__init__.py"]
        )
        return next((path for path in candidates if path.is_file()), None)


def _package_folder(package: str) -> Path | None:
    """Where a top-level package lies. Only top level: a dotted find_spec imports the parent."""
    module = sys.modules.get(package)
    if module is not None and getattr(module, "__path__", None):
        return Path(next(iter(module.__path__)))
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


@lru_cache(maxsize=8)
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, in order: inside ``if`` and ``try``, not TYPE_CHECKING."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            if test not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                yield from _statements(statement.body)
            if test not in ("not TYPE_CHECKING", "not typing.TYPE_CHECKING"):
                yield from _statements(statement.orelse)
        elif isinstance(statement, ast.Try):
            for block in (statement.body, statement.orelse, statement.finalbody):
                yield from _statements(block)
            for handler in statement.handlers:
                yield from _statements(handler.body)
        elif isinstance(statement, ast.With):
            yield from _statements(statement.body)


def _defined(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """The statement that binds ``name``, preferring the last, as an import would leave it."""
    found: ast.stmt | None = None
    for statement in _statements(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound = [statement.name]
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            bound = [alias.asname or alias.name.split(".")[0] for alias in statement.names]
        elif isinstance(statement, ast.Assign):
            names = [n for target in statement.targets for n in ast.walk(target)]
            bound = [
                n.id for n in names if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            bound = [ast.unparse(statement.target)]
        else:
            continue
        if name in bound:
            found = statement
    return found


def _shape_of(node: ast.AST | None, *, skip: int = 0) -> Shape:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return Shape()
    if any(ast.unparse(d) in ("property", "cached_property") for d in node.decorator_list):
        return Shape()
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    last = positional[len(positional) - len(arguments.defaults) :]
    filled = [
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return Shape(
        parameters=tuple(a.arg for a in [*positional, *arguments.kwonlyargs])[skip:],
        defaults=tuple((a.arg, ast.unparse(d)) for a, d in filled if d is not None),
        any_keyword=arguments.kwarg is not None,
    )


def _dataclass_init(node: ast.ClassDef, *, skip: int = 0) -> Shape:
    """The constructor of a class that defines none: a dataclass's fields, or nothing to pass."""
    decorators = [ast.unparse(d).partition("(")[0].split(".")[-1] for d in node.decorator_list]
    if not set(decorators) & {"dataclass", "config"}:
        return Shape() if node.bases else Shape(parameters=("self",)[skip:])
    names, values = ["self"], {}
    for field in _statements(node.body):
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        name, value = ast.unparse(field.target), field.value
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in (
            "field",
            "Field",
        ):
            options = {k.arg: k.value for k in value.keywords}
            if (init := options.get("init")) is not None and ast.unparse(init) == "False":
                continue
            value = options.get("default", options.get("default_factory"))
        names.append(name)
        if value is not None:
            values[name] = ast.unparse(value)
    return Shape(parameters=tuple(names)[skip:], defaults=tuple(values.items()))
