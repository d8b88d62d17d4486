"""Read shapes from source files, importing nothing.

Follows what an import would: re-exports, star imports, inheritance across modules of the package,
lazy attributes, and constructors that dataclasses and their relatives write themselves.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from specvllm_compat.bindings import (
    generated_constructor,
    is_model,
    is_property,
    kind_of_method,
    makes_a_constructor,
    shape_of,
    validates,
)
from specvllm_compat.files import Files
from specvllm_compat.outline import Binding, Outline
from specvllm_compat.shape import ABSENT, ANYTHING, Finding, Shape

# Bases that add no parameters to a constructor and, for what we ask, no attributes.
_PLAIN_BASES = {"object", "ABC", "Protocol", "Generic"}
_OF_ENUMS = {"name", "value", "_name_", "_value_"}
_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


class SourceLens:
    """Shapes read from source files with ``ast``, importing nothing.

    ``roots`` maps a top-level package to its folder (an unpacked wheel, a checkout) or to a wheel;
    packages that are not in it are looked for where Python would import them from. ``kept``: in
    the user's cache folder, for the next process.
    """

    def __init__(self, roots: Mapping[str, Path] | None = None, *, kept: bool = False) -> None:
        self._roots = dict(roots or {})
        self._kept = kept
        self._files: dict[str, Files | None] = {}
        self._outlines: dict[str, Outline | None] = {}
        self._seen: dict[str, Finding] = {}
        self._broken: dict[str, SyntaxError | ValueError] = {}

    def shape(self, place: str) -> Shape | None:
        """The shape at ``place``; None where there is nothing, or only for type checkers.

        Raises SyntaxError or ValueError where the module is not Python.
        """
        found = self.look(place)
        if error := self._broken.get(place.partition(":")[0]):
            raise error
        return None if found.lazy else found.shape

    def look(self, place: str) -> Finding:
        """What is at a place."""
        if place not in self._seen:
            self._seen[place] = ABSENT  # a name that leads back to itself is nothing
            self._seen[place] = self._look(place)
        return self._seen[place]

    def given(self, package: str) -> bool:
        """It is one of ``roots``, whatever is installed here."""
        return package in self._roots

    def files(self, package: str) -> Files | None:
        """The files of a top-level package, found without importing it."""
        if package not in self._files:
            root = self._roots.get(package) or _package_folder(package)
            self._files[package] = Files(root, package, kept=self._kept) if root else None
        return self._files[package]

    def file(self, module: str) -> Path | None:
        """The source file of a module, found without importing its parents."""
        found = self.path(module)
        return found[0].location / found[1] if found else None

    def path(self, module: str) -> tuple[Files, str] | None:
        """The files that hold a module, and its path among them."""
        package, *rest = module.split(".")
        files = self.files(package)
        if files is None:
            return None
        stem = "/".join(rest)
        candidates = [f"{stem}/__init__.py", f"{stem}.py"] if rest else ["__init__.py"]
        return next(((files, path) for path in candidates if files.has(path)), None)

    def outline(self, module: str) -> Outline | None:
        """A module's outline; None if there is no such module, or it can't be parsed."""
        if module not in self._outlines:
            found = self.path(module)
            try:
                made = found[0].outline(found[1], module) if found else None
            except (SyntaxError, ValueError) as error:
                self._broken[module], made = error, None
            self._outlines[module] = made
        return self._outlines[module]

    def homes(self, name: str, near: str) -> list[str]:
        """The modules of ``near``'s package that define a top-level name, the nearest first."""
        package = near.split(".", maxsplit=1)[0]
        files = self.files(package)
        folder = near.replace(".", "/").partition("/")[2].rpartition("/")[0]
        while files is not None:
            if found := files.defining(name, folder):
                modules = [p.removesuffix(".py").removesuffix("/__init__") for p in found]
                return [f"{package}.{m.replace('/', '.')}" for m in modules if m != "__init__"]
            if not folder:
                break
            folder = folder.rpartition("/")[0]
        return []

    def _look(self, place: str) -> Finding:  # noqa: PLR0911
        module, _, qualname = place.partition(":")
        if not qualname:
            return Finding("module", Shape(), module) if self.path(module) else ABSENT
        outline = self.outline(module)
        if outline is None:
            return Finding("unresolved") if self.path(module) else ABSENT
        first, *rest = qualname.split(".")
        binding, lazy = outline["names"].get(first), False
        if binding is None:
            if first.startswith("__") and first.endswith("__"):
                return Finding("value", Shape(), place, lazy=True)  # every module has some
            if starred := self._starred(outline, first):
                return self.look(f"{starred}:{qualname}")
            if self.path(f"{module}.{first}"):
                inner = f"{module}.{first}" + (f":{'.'.join(rest)}" if rest else "")
                return replace(self.look(inner), lazy=True)  # there once it has been imported
            binding, lazy = outline["typing"].get(first), True
            if not outline["lazy"]:
                return ABSENT
        if binding is None:
            return Finding("unresolved", lazy=True)
        found = self._bound(module, first, binding, rest)
        if binding.get("either"):
            return Finding("unresolved", found.shape)
        return replace(found, lazy=True) if lazy else found

    def _starred(
        self, outline: Outline, name: str, seen: frozenset[str] = frozenset()
    ) -> str | None:
        """The module that a name comes from by a star import."""
        for module in reversed(outline["stars"]):
            inner = None if module in seen else self.outline(module)
            if inner is None:
                continue
            public = inner["all"]
            if (name in public) if public is not None else not name.startswith("_"):
                if name in inner["names"]:
                    return str(module)
                if deeper := self._starred(inner, name, seen | {module}):
                    return deeper
        return None

    def _bound(  # noqa: PLR0911
        self, module: str, name: str, binding: Binding, rest: list[str]
    ) -> Finding:
        """What a binding of a module leads to, and what is inside of it."""
        if binding["kind"] == "import":
            return self._imported(module, binding, rest)
        if binding["kind"] == "value":
            alias = binding["alias"]
            if alias and alias.split(".")[0] != name:
                target = self.look(f"{module}:{'.'.join([alias, *rest])}")
                if target.kind not in ("absent", "unresolved"):
                    return target
            gives = self._annotated(module, binding["annotation"])
            if not rest:
                return Finding("value", Shape(), f"{module}:{name}", gives)
            found = self.look(f"{gives}.{'.'.join(rest)}") if gives else ABSENT
            return Finding("unresolved") if found.kind == "absent" else found
        if binding["kind"] == "function":
            if rest:  # a decorator may have given it attributes
                return Finding("unresolved", lazy=True) if binding["decorators"] else ABSENT
            gives = self._annotated(module, binding["returns"])
            return Finding("function", shape_of(binding), f"{module}:{name}", gives)
        return self._in_class(module, name, binding, rest)

    def _imported(self, module: str, binding: Binding, rest: list[str]) -> Finding:
        target, name = binding["module"], binding["name"]
        top = target.partition(".")[0]
        standard = top in sys.stdlib_module_names and self.files(top) is not None
        if top != module.partition(".")[0] and not standard:
            return Finding("unresolved", Shape()) if not rest else Finding("unresolved")
        tail = ".".join([*([name] if name else []), *rest])
        found = self.look(f"{target}:{tail}" if tail else target)
        if found.kind == "absent" and name and self.path(f"{target}.{name}"):
            inner = f"{target}.{name}"
            return self.look(f"{inner}:{'.'.join(rest)}" if rest else inner)
        return replace(found, lazy=False) if found.kind != "absent" else found

    def _in_class(  # noqa: PLR0911
        self, module: str, name: str, binding: Binding, rest: list[str]
    ) -> Finding:
        home = f"{module}:{name}"
        if not rest:
            return self._constructor(module, home, binding)
        first, *deeper = rest
        for owner, at, body in self._lineage(module, home, binding):
            member = body["names"].get(first)
            if member is None:
                field = next((f for f in body["fields"] if f["name"] == first), None)
                if field and (field["default"] is not None or makes_a_constructor(body)):
                    gives = self._annotated(owner, field["annotation"])
                    lazy = field["default"] is None  # instances have it, the class does not
                    return Finding("value", Shape(), f"{at}.{first}", gives, lazy=lazy)
                if first in body["attributes"]:
                    return Finding("value", Shape(), f"{at}.{first}", lazy=True)
                continue
            if member["kind"] == "class":
                return self._in_class(owner, f"{at.partition(':')[2]}.{first}", member, deeper)
            if deeper:
                return ABSENT if member["kind"] == "function" else Finding("unresolved")
            if member["kind"] == "function":
                gives = self._annotated(owner, member["returns"])
                kind = "value" if is_property(member) else "function"
                method = kind_of_method(member)
                return Finding(kind, shape_of(member), f"{at}.{first}", gives, method)
            gives = self._annotated(owner, member.get("annotation"))
            return Finding("value", Shape(), f"{at}.{first}", gives)
        if first == "__init__":
            found = self._constructor(module, home, binding, bound=False)
            return found if found.kind == "function" else Finding("unresolved")
        if first.startswith("__") or (first in _OF_ENUMS and self._is_enum(module, home, binding)):
            return Finding("value", Shape(), f"{home}.{first}", lazy=True)
        return Finding("unresolved", lazy=True) if self._open(module, home, binding) else ABSENT

    def _is_enum(self, module: str, home: str, binding: Binding) -> bool:
        lineage = self._lineage(module, home, binding)
        return any(
            base.split(".")[-1] in _ENUMS for _, _, body in lineage for base in body["bases"]
        )

    def _lineage(
        self, module: str, home: str, binding: Binding
    ) -> Iterator[tuple[str, str, Binding]]:
        """The class and the bases that can be read, depth first: (module, place, binding)."""
        yield module, home, binding
        for base in binding["bases"]:
            if place := self._base(module, base):
                owner, _, qualname = place.partition(":")
                outline = self.outline(owner)
                inner = outline["names"].get(qualname) if outline else None
                if inner and inner["kind"] == "class" and place != home:
                    yield from self._lineage(owner, place, inner)

    def _base(self, module: str, base: str) -> str | None:
        name = base.partition("[")[0]
        found = self.look(f"{module}:{name}")
        return found.home if found.kind == "class" else None

    def _open(self, module: str, home: str, binding: Binding) -> bool:
        """Some base can't be read, or attributes are made up as they are asked for."""
        for owner, _, body in self._lineage(module, home, binding):
            if "__getattr__" in body["names"] or "metaclass" in body["keywords"]:
                return True
            for base in body["bases"]:
                plain = base.partition("[")[0].split(".")[-1]
                if plain not in _PLAIN_BASES | _ENUMS and not self._base(owner, base):
                    return True
        return False

    def _constructor(
        self, module: str, home: str, binding: Binding, *, bound: bool = True
    ) -> Finding:
        kind = "class" if bound else "function"
        lineage = list(self._lineage(module, home, binding))
        if any("TypedDict" in base for _, _, body in lineage for base in body["bases"]):
            return Finding(kind, ANYTHING, home, home)
        generated = pydantic = False
        for index, (_, at, body) in enumerate(lineage):
            own = body["names"].get("__init__")
            if own and own["kind"] == "function":
                if generated:
                    break
                shape = shape_of(own)
                says = f"{at.partition(':')[2]}.__init__"
                shape = shape.without_first() if bound else shape
                return Finding(kind, shape, home, home, says=says)
            made = makes_a_constructor(body)
            if made:
                generated = True
                pydantic = pydantic or validates(body)
            elif index == 0 and not body["bases"]:
                plain = Shape(parameters=() if bound else ("self",))
                return Finding(kind, plain, home, home)
        if not generated:
            is_open = self._open(module, home, binding) or self._is_enum(module, home, binding)
            plain = Shape(parameters=() if bound else ("self",))
            return Finding(kind, Shape() if is_open else plain, home, home)
        bodies = [body for _, _, body in lineage]
        shape = generated_constructor(bodies, first=() if bound else ("self",))
        return Finding(kind, shape, home, home, pydantic=pydantic or is_model(bodies))

    def _annotated(self, module: str, annotation: str | None) -> str:
        """The place of the one class that an annotation names, or nothing."""
        if not annotation:
            return ""
        text = re.sub(r"\s*\|\s*None\b|\bNone\s*\|\s*", "", annotation.strip("'\""))
        match = re.fullmatch(r"(?:(?:typing\.)?Optional\[)?([A-Za-z_][\w.]*)\]?", text)
        if not match:
            return ""
        name = match[1]
        found = self.look(f"{module}:{name}")
        if found.kind == "absent":
            outline = self.outline(module)
            first, *rest = name.split(".")
            hidden = outline["typing"].get(first) if outline else None
            if not hidden:
                return ""
            found = self._bound(module, first, hidden, rest)
        return found.home if found.kind == "class" else ""


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
