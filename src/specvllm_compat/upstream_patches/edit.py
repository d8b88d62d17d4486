"""Find named places in a module and put other code there; all else keeps its form."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

Statement = cst.BaseStatement
S = TypeVar("S", bound=Statement)
N = TypeVar("N", cst.FunctionDef, cst.ClassDef, cst.For)
# What replaces a node: nothing removes it
Changes = Mapping[cst.CSTNode, Sequence[cst.CSTNode]]


class MissingAnchor(LookupError):
    """A place that a patch is to change is not there, or is not what we know."""


def template(name: str, **words: str) -> cst.Module:
    """One of our templates, with ``{{NAME}}`` replaced by the words given."""
    text = files(__package__).joinpath("templates", f"{name}.py.in").read_text(encoding="utf-8")
    for word, instead in words.items():
        text = text.replace(f"{{{{{word}}}}}", instead)
    return cst.parse_module(text)


def changed(module: cst.Module, changes: Changes) -> cst.Module:
    """The module with these nodes replaced by others."""

    class Splice(cst.CSTTransformer):
        def on_leave(  # type: ignore[override]
            self, original_node: cst.CSTNode, updated_node: cst.CSTNode
        ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
            new = changes.get(original_node, (updated_node,))
            return new[0] if len(new) == 1 else cst.FlattenSentinel(new)

    return module.visit(Splice())


def the_class(module: cst.Module, name: str) -> cst.ClassDef:
    """A class at the top of a module."""
    for statement in module.body:
        if isinstance(statement, cst.ClassDef) and statement.name.value == name:
            return statement
    raise MissingAnchor(f"class {name}")


def function(module: cst.Module, name: str) -> cst.FunctionDef:
    """A function at the top of a module, or ``Class.method``."""
    owner, _, last = name.rpartition(".")
    statements = the_class(module, owner).body.body if owner else module.body
    for statement in statements:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == last:
            return statement
    raise MissingAnchor(f"function {name}")


def body(node: cst.FunctionDef | cst.ClassDef | cst.For) -> list[Statement]:
    """The statements of a block, without a docstring."""
    if not isinstance(node.body, cst.IndentedBlock):
        raise MissingAnchor("a block with lines of its own")
    documented = not isinstance(node, cst.For) and node.get_docstring() is not None
    return list(node.body.body)[documented:]


def with_body(node: N, statements: Sequence[Statement]) -> N:
    """The same with other statements behind its docstring."""
    above: int = len(node.body.body) - len(body(node))
    whole = [*node.body.body[:above], *statements]
    return node.with_changes(body=node.body.with_changes(body=whole))


def code(node: cst.CSTNode) -> str:
    """A node as text."""
    return cst.Module(body=[]).code_for_node(node)


def one(statements: Sequence[S], wanted: m.BaseMatcherNode, what: str) -> S:
    """The only one of these statements that has the wanted thing in it."""
    found = [statement for statement in statements if m.findall(statement, wanted)]
    if len(found) != 1:
        raise MissingAnchor(f"{what} ({len(found)} times)")
    return found[0]


def call(name: str) -> m.Call:
    """Matches a call of this name, plain or an attribute."""
    return m.Call(func=m.OneOf(m.Name(name), m.Attribute(attr=m.Name(name))))


def assigned(name: str) -> m.Assign:
    """Matches an assignment to a name, or to ``self.name``."""
    target = m.OneOf(m.Name(name), m.Attribute(value=m.Name("self"), attr=m.Name(name)))
    return m.Assign(targets=[m.AssignTarget(target=target)])


def imported(module: cst.Module, source: str) -> cst.SimpleStatementLine | None:
    """The statement ``from source import …`` at the top of a module."""
    for statement in module.body:
        match statement:
            case cst.SimpleStatementLine(body=[cst.ImportFrom(module=node, relative=[])]):
                if node is not None and code(node) == source:
                    return statement
    return None


def without_names(statement: cst.SimpleStatementLine, names: Collection[str]) -> list[Statement]:
    """An import without some of its names; nothing if none is left."""
    line = statement.body[0]
    assert isinstance(line, cst.ImportFrom)
    if isinstance(line.names, cst.ImportStar):
        raise MissingAnchor(f"the names of {code(line).strip()}")
    found = {alias.evaluated_name for alias in line.names}
    if missing := set(names) - found:
        raise MissingAnchor(f"import of {', '.join(sorted(missing))}")
    kept = [alias for alias in line.names if alias.evaluated_name not in names]
    if not kept:
        return []
    if line.lpar is None or line.names[-1].comma is cst.MaybeSentinel.DEFAULT:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    else:
        kept[-1] = kept[-1].with_changes(comma=line.names[-1].comma)
    return [statement.with_changes(body=[line.with_changes(names=kept)])]


def required(statement: cst.SimpleStatementLine | None, what: str) -> cst.SimpleStatementLine:
    """The statement, or MissingAnchor."""
    if statement is None:
        raise MissingAnchor(what)
    return statement


def without_constant(module: cst.Module, name: str) -> dict[cst.CSTNode, list[cst.CSTNode]]:
    """Remove the assignment of a constant at the top of a module, but not what is above it."""
    lines = [s for s in module.body if isinstance(s, cst.SimpleStatementLine)]
    constant = one(lines, assigned(name), f"constant {name}")
    following = lines[lines.index(constant) + 1]
    above = [*constant.leading_lines, *following.leading_lines]
    return {constant: [], following: [following.with_changes(leading_lines=above)]}


class _WithoutComments(cst.CSTTransformer):
    def leave_Comment(self, original_node: cst.Comment, updated_node: cst.Comment) -> cst.Comment:
        return updated_node.with_changes(value="#")


def check_known(nodes: Sequence[cst.CSTNode], digests: Collection[str], what: str) -> None:
    """Refuse to replace code that differs from the releases': the difference would be lost.

    Comments and the form of the code make no difference.
    """
    found = digest(nodes)
    if found not in digests:
        raise MissingAnchor(f"{what} as a release has it (what differs here would be lost)")


def digest(nodes: Sequence[cst.CSTNode]) -> str:
    """A short hash of code, without its comments and its form."""
    text = ""
    for node in nodes:
        plain = node.visit(_WithoutComments())
        assert isinstance(plain, cst.CSTNode)
        text += code(plain)
    return hashlib.sha256(re.sub(r"[\s,#]+", "", text).encode()).hexdigest()[:12]
