"""The outline of a source file: what it binds, as plain data that JSON can hold.

``{"names": …, "typing": …, "stars": […], "lazy": bool, "all": […] | None}``. A binding is a
dictionary with a ``kind``: ``import`` (``module``, ``name``), ``function`` (``shape``, ``returns``,
``decorators``), ``class`` (``bases``, ``decorators``, ``names``, ``fields``, ``attributes``) or
``value`` (``alias``, ``annotation``); ``either`` marks a name that may also be bound to something
else. ``typing`` holds what only type checkers see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

Binding = dict[str, Any]
Outline = dict[str, Any]

_ONLY_CHECKERS = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING")
FORMAT = 1
"""Goes up when the outline of the same file changes."""


def outline(text: str, module: str, *, package: bool) -> Outline:
    """Outline a module's source. Raises SyntaxError or ValueError if it is not Python."""
    body = ast.parse(text).body
    names: dict[str, Binding] = {}
    typing: dict[str, Binding] = {}
    stars: list[str] = []
    exported = None
    for statement, rank in _statements(body, 0):
        into = typing if rank == _TYPING else names
        if rank == _TYPING and isinstance(statement, ast.AnnAssign):  # checkers need no value
            shown = ast.unparse(statement.annotation)
            bound = {"kind": "value", "alias": None, "annotation": shown}
            typing[ast.unparse(statement.target)] = bound
        for name, binding in _bindings(statement, module, package):
            if name == "*":
                stars.append(binding["module"])
            elif rank != _HANDLER or name not in into:  # the handler is what happens otherwise
                into[name] = binding
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            exported = _texts(statement.value)
    for name in _bound_either_way(body, module, package):
        names[name]["either"] = True
    for binding in names.values():
        if binding["kind"] == "class":
            binding["decorators"] = [_in_full(d, names) for d in binding["decorators"]]
    return {
        "names": names,
        "typing": typing,
        "stars": stars,
        "lazy": "__getattr__" in names,
        "all": exported,
    }


def _bound_either_way(body: list[ast.stmt], module: str, package: bool) -> set[str]:
    """Names that an ``if`` and its ``else`` bind to different things: which, only a run tells."""
    found = set()
    for statement, rank in _statements(body, 0):
        if isinstance(statement, ast.If) and not rank and statement.orelse:
            sides = [
                {
                    name: binding
                    for inner, inner_rank in _statements(side, 0)
                    for name, binding in _bindings(inner, module, package)
                    if not inner_rank
                }
                for side in (statement.body, statement.orelse)
            ]
            test = ast.unparse(statement.test).removeprefix("not ")
            for name in sides[0].keys() & sides[1].keys() if test not in _ONLY_CHECKERS else ():
                one, other = sides[0][name], sides[1][name]
                if one != other and {one["kind"], other["kind"]} != {"value"}:
                    found.add(name)
    return found - {"*"}


def _in_full(decorator: str, names: dict[str, Binding]) -> str:
    """With the module that its first name was imported from."""
    first, dot, rest = decorator.partition(".")
    head, parenthesis, arguments = first.partition("(")
    bound = names.get(head)
    if bound is None or bound["kind"] != "import":
        return decorator
    origin = ".".join(filter(None, [bound["module"], bound["name"]]))
    return f"{origin}{parenthesis}{arguments}{dot}{rest}"


_TYPING, _HANDLER = 1, 2


def _statements(body: list[ast.stmt], rank: int) -> Iterator[tuple[ast.stmt, int]]:
    """Statements that run at import, in order: inside ``if``, ``try`` and ``with``."""
    for statement in body:
        yield statement, rank
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            only = test in _ONLY_CHECKERS
            never = test in [f"not {name}" for name in _ONLY_CHECKERS]
            yield from _statements(statement.body, _TYPING if only else rank)
            yield from _statements(statement.orelse, _TYPING if never else rank)
        elif isinstance(statement, ast.Try):
            for block in (statement.body, statement.orelse, statement.finalbody):
                yield from _statements(block, rank)
            for handler in statement.handlers:
                yield from _statements(handler.body, rank or _HANDLER)
        elif isinstance(statement, ast.With):
            yield from _statements(statement.body, rank)


def _bindings(statement: ast.stmt, module: str, package: bool) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name, function(statement)
    elif isinstance(statement, ast.ClassDef):
        yield statement.name, _class(statement, module, package)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            target = alias.name if alias.asname else alias.name.split(".")[0]
            yield alias.asname or target, {"kind": "import", "module": target, "name": None}
    elif isinstance(statement, ast.ImportFrom):
        source = absolute(statement, module, package)
        for alias in statement.names:
            bound = {"kind": "import", "module": source, "name": alias.name}
            yield alias.asname or alias.name, bound
    elif isinstance(statement, ast.Assign):
        alias_of = ast.unparse(statement.value) if _dotted(statement.value) else None
        for into in statement.targets:
            for node in ast.walk(into):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    single = alias_of if node is into else None
                    yield node.id, {"kind": "value", "alias": single, "annotation": None}
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        annotation = ast.unparse(statement.annotation)
        if statement.value is not None:
            yield (
                statement.target.id,
                {"kind": "value", "alias": None, "annotation": annotation},
            )


def absolute(statement: ast.ImportFrom, module: str, package: bool) -> str:
    """The absolute name of the module that is imported from."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + package]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _texts(node: ast.expr) -> list[str] | None:
    """The strings of a literal list of strings."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else None


def function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Binding:
    """The binding of a function or method."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    last = positional[len(positional) - len(arguments.defaults) :]
    filled = [
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {
        "kind": "function",
        "shape": {
            "parameters": [a.arg for a in [*positional, *arguments.kwonlyargs]],
            "defaults": [[a.arg, ast.unparse(d)] for a, d in filled if d is not None],
            "any_keyword": arguments.kwarg is not None,
            "any_positional": arguments.vararg is not None,
            "positional_only": len(arguments.posonlyargs),
            "keyword_only": len(arguments.kwonlyargs),
        },
        "returns": ast.unparse(node.returns) if node.returns else None,
        "decorators": [ast.unparse(d) for d in node.decorator_list],
    }


def _class(node: ast.ClassDef, module: str, package: bool) -> Binding:
    names: dict[str, Binding] = {}
    fields: list[dict[str, Any]] = []
    attributes: set[str] = set()
    keyword_only = False
    for statement, rank in _statements(node.body, 0):
        for name, binding in _bindings(statement, module, package):
            if rank != _HANDLER or name not in names:
                names[name] = binding
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(statement.annotation)
            if annotation.split(".")[-1] == "KW_ONLY":
                keyword_only = True
            elif "ClassVar" not in annotation:
                fields.append(_field(statement, annotation, keyword_only))
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            attributes |= _set_on_self(statement)
    return {
        "kind": "class",
        "bases": [ast.unparse(base) for base in node.bases],
        "decorators": [ast.unparse(d) for d in node.decorator_list],
        "keywords": {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg},
        "names": names,
        "fields": fields,
        "attributes": sorted(attributes - set(names)),
    }


def _field(statement: ast.AnnAssign, annotation: str, keyword_only: bool) -> dict[str, Any]:
    """A field of a dataclass, a Struct or a NamedTuple."""
    value = statement.value
    if isinstance(value, ast.Call) and ast.unparse(value.func).lower().endswith("field"):
        options = {k.arg: ast.unparse(k.value) for k in value.keywords}
        default = options.get("default", options.get("default_factory"))
        if default is None and value.args and ast.unparse(value.args[0]) not in ("...", "Ellipsis"):
            default = ast.unparse(value.args[0])  # pydantic's Field(1, ge=0)
        init = options.get("init") != "False"
        keyword_only = options.get("kw_only", str(keyword_only)) == "True"
    else:
        default, init = ast.unparse(value) if value is not None else None, True
    return {
        "name": ast.unparse(statement.target),
        "annotation": annotation,
        "default": default,
        "init": init,
        "keyword_only": keyword_only,
    }


def _set_on_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
