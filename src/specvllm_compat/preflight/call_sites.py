"""What a consumer's source takes from other packages, in the order in which it would run.

Types are followed as far as names tell: what a constructor gives, what annotations say. A method
of the consumer is read where it is called, so that the first misfit is what Python would raise
first. What stands behind the consumer's own ``except``, ``hasattr`` or version test is marked
``guarded``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specvllm_compat.outline import absolute
from specvllm_compat.shape import NO_ARGUMENTS, Call, Reading

_GUARDS = ("ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "Exception")
_TESTS = ("__version__", "hasattr", "version", "find_spec", "signature")


@dataclass(frozen=True)
class Use:
    """One thing a consumer does with a name of another package.

    ``kind``: ``import``, ``attribute`` or ``call``. ``name``: how the consumer knows what it starts
    from, which is what a shim wraps. ``scope``: the function it is done in, "" at import.
    ``declared``: on an object whose class only an annotation tells: it may be of a subclass.
    """

    kind: str
    place: str
    name: str
    scope: str
    line: int
    call: Call = NO_ARGUMENTS
    guarded: bool = False
    bound: bool = False
    declared: bool = False


@dataclass(frozen=True)
class _Value:
    """What an expression is known to be: a place, or an instance of the class at a place."""

    place: str
    name: str
    instance: bool = False
    bound: bool = False
    declared: bool = False


def uses(text: str, module: str, lens: Reading, packages: Sequence[str]) -> list[Use]:
    """Every use of the packages in a source text. Raises SyntaxError if it is not Python."""
    return _Reader(ast.parse(text), module, lens, packages).read()


class _Reader:
    def __init__(
        self, tree: ast.Module, module: str, lens: Reading, packages: Sequence[str]
    ) -> None:
        self._tree, self._module, self._lens, self._packages = tree, module, lens, packages
        self._found: list[Use] = []
        self._names: dict[str, _Value] = {}
        self._scopes: list[str] = []
        self._attributes: dict[str, dict[str, _Value]] = {}  # class -> what its self has
        self._class: ast.ClassDef | None = None
        self._guarded = 0
        self._done: set[str] = set()
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._classes: dict[str, ast.ClassDef] = {}

    def read(self) -> list[Use]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, node)
                for method in _functions_of(node):
                    self._functions.setdefault(f"{node.name}.{method.name}", method)
        for function in _functions_of(self._tree):
            self._functions.setdefault(function.name, function)
        self._visit_all(self._tree.body)
        for name in list(self._functions):  # what nothing here calls: constructors before others
            owner = name.rpartition(".")[0]
            if f"{owner}.__init__" in self._functions:
                self._enter(f"{owner}.__init__")
            self._enter(name)
        return self._found

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self._visit(node)

    def _visit(self, node: ast.AST) -> _Value | None:  # noqa: PLR0911, PLR0912
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._visit_all(node.decorator_list)
            if self._scopes:  # a function inside a function: as if it ran here
                self._visit_all(node.body)
            return None
        if isinstance(node, ast.ClassDef):
            self._visit_all([*node.bases, *node.decorator_list])
            outer, self._class = self._class, node
            self._visit_all([n for n in node.body if not isinstance(n, _FUNCTION)])
            self._class = outer
            return None
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            if test.split(".")[-1] == "TYPE_CHECKING":
                self._visit_all(node.orelse)
                return None
            self._visit(node.test)
            self._guarded += any(word in test for word in _TESTS)
            self._visit_all([*node.body, *node.orelse])
            self._guarded -= any(word in test for word in _TESTS)
            return None
        if isinstance(node, ast.Try):
            caught = " ".join(ast.unparse(h.type) if h.type else "Exception" for h in node.handlers)
            guards = any(name in caught for name in _GUARDS)
            self._guarded += guards
            self._visit_all(node.body)
            self._visit_all([*node.handlers, *node.orelse])
            self._guarded -= guards
            self._visit_all(node.finalbody)
            return None
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
            return None
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            value = self._visit(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assign(target, value, node.value)
            return value
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Constant):
            return None
        self._visit_all(list(ast.iter_child_nodes(node)))
        return None

    def _assign(self, target: ast.expr, value: _Value | None, given: ast.expr) -> None:
        if isinstance(target, (ast.Name, ast.Attribute)):
            key = _key(target)
            if value is not None:
                self._bind(key, value)
            elif not (isinstance(given, ast.Constant) and given.value is None):
                self._names.pop(key, None)
        else:
            self._visit_all(list(ast.iter_child_nodes(target)))

    def _bind(self, key: str, value: _Value) -> None:
        before = self._names.get(key)
        if before is not None and before.place != value.place:
            value = replace(value, declared=True)  # which of them it is depends on the run
        self._names[key] = value

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                module, place, name = alias.name, alias.name, alias.asname or alias.name
                known = alias.name if alias.asname else alias.name.split(".")[0]
            else:
                module = absolute(node, self._module, False)
                if alias.name == "*":
                    place = known = name = module
                else:
                    place = known = f"{module}:{alias.name}"
                    name = alias.asname or alias.name
            if module.split(".")[0] not in self._packages:
                self._names.pop(name.split(".")[0], None)
                continue
            if alias.name != "*":
                key = name.split(".")[0] if isinstance(node, ast.Import) else name
                found = self._lens.look(known)
                gives = found.gives if found.kind == "value" else ""
                whole = self._given(gives, key, declared=True)
                known = found.home if found.kind == "module" else known
                self._bind(key, whole or _Value(known, key))
            self._add("import", place, name, node)

    def _attribute(self, node: ast.Attribute) -> _Value | None:
        key = _key(node)
        if key in self._names:
            return self._names[key]
        base = self._visit(node.value)
        if base is None or not isinstance(node.ctx, ast.Load):
            return None
        if ":" in base.place or base.instance:
            place = f"{base.place}.{node.attr}"
        elif self._lens.look(f"{base.place}.{node.attr}").kind == "module":
            return _Value(f"{base.place}.{node.attr}", base.name)
        else:
            place = f"{base.place}:{node.attr}"
        found = self._lens.look(place)
        self._add("attribute", place, base.name, node, bound=base)
        if found.kind == "value":
            return self._given(found.gives, base.name, declared=True)
        if found.kind in ("class", "function", "module"):
            method = found.kind == "function" and base.instance
            return _Value(place, base.name, bound=method, declared=base.declared)
        return None

    def _call(self, node: ast.Call) -> _Value | None:
        own = self._own(node.func)
        callee = self._visit(node.func)
        self._visit_all([*node.args, *node.keywords])
        if own:
            return self._enter(own)
        if callee is None or callee.instance:
            return None
        self._add("call", callee.place, callee.name, node, _written(node), bound=callee)
        found = self._lens.look(callee.place)
        return self._given(found.gives, callee.name, declared=found.kind != "class")

    @staticmethod
    def _given(place: str, name: str, *, declared: bool) -> _Value | None:
        return _Value(place, name, instance=True, declared=declared) if place else None

    def _own(self, function: ast.expr) -> str | None:
        """The name of a function or method of this very source that is called."""
        text = ast.unparse(function) if isinstance(function, (ast.Name, ast.Attribute)) else ""
        owner = self._scopes[-1].rpartition(".")[0] if self._scopes else ""
        for name in (text, text.replace("self", owner, 1), f"{text}.__init__"):
            if name in self._functions and not (name == text and text in self._names):
                return name
        return None

    def _enter(self, name: str) -> _Value | None:
        """Read a function of this source, once, where it is first called."""
        function = self._functions[name]
        gives = self._annotated(function.returns)
        if name not in self._done:
            self._done.add(name)
            outer, owner = dict(self._names), name.rpartition(".")[0]
            self._names = {k: v for k, v in outer.items() if not k.startswith("self.")}
            self._names |= self._attributes.get(owner, {})
            for parameter in [*function.args.args, *function.args.kwonlyargs]:
                value = self._annotated(parameter.annotation)
                if value:
                    self._names[parameter.arg] = value
                else:
                    self._names.pop(parameter.arg, None)
            guarded, self._guarded = self._guarded, 0
            self._scopes.append(name)
            self._visit_all(function.body)
            self._scopes.pop()
            self._guarded = guarded
            own = {k: v for k, v in self._names.items() if k.startswith("self.")}
            self._attributes[owner] = own
            same = self._scopes and self._scopes[-1].rpartition(".")[0] == owner
            self._names = outer | own if same else outer
        return gives

    def _annotated(self, annotation: ast.expr | None) -> _Value | None:
        text = ast.unparse(annotation).strip("'\"") if annotation else ""
        text = text.replace(" | None", "").removeprefix("Optional[").removesuffix("]")
        value = self._names.get(text)
        if value is None or self._lens.look(value.place).kind != "class":
            return None
        return self._given(value.place, value.name, declared=True)

    def _add(  # noqa: PLR0917
        self,
        kind: str,
        place: str,
        name: str,
        node: ast.AST,
        call: Call = NO_ARGUMENTS,
        bound: _Value | None = None,
    ) -> None:
        scope = ".".join(self._scopes[-1:])
        line = getattr(node, "lineno", 0)
        guarded = self._guarded > 0
        on = bound is not None and (bound.bound or bound.instance)
        declared = bound is not None and bound.declared
        self._found.append(Use(kind, place, name, scope, line, call, guarded, on, declared))


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _functions_of(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in node.body:
        if isinstance(statement, _FUNCTION):
            yield statement


def _key(node: ast.expr) -> str:
    return ast.unparse(node)


def _written(node: ast.Call) -> Call:
    return Call(
        positional=sum(not isinstance(a, ast.Starred) for a in node.args),
        keywords=tuple(k.arg for k in node.keywords if k.arg),
        star=any(isinstance(a, ast.Starred) for a in node.args),
        double_star=any(k.arg is None for k in node.keywords),
    )
