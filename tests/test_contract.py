"""Shapes, contracts, and lenses that agree."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from fake_trees import Tree
from hypothesis import given, settings
from hypothesis import strategies as st
from specvllm_compat.contract import (
    Contract,
    LiveLens,
    Shape,
    SourceLens,
    accepts,
    defaults,
    has,
)

PACKAGE = "lens_examples"
_numbers = itertools.count()


class Shapes:
    """A lens over a dictionary."""

    def __init__(self, **shapes: Shape) -> None:
        self._shapes = shapes

    def shape(self, place: str) -> Shape | None:
        return self._shapes.get(place.replace(":", "_"))


LENS = Shapes(
    m=Shape(),
    m_f=Shape(parameters=("a", "b"), defaults=(("b", "1"),)),
    m_loose=Shape(parameters=(), any_keyword=True),
    m_name=Shape(),
)
TRUE, FALSE = has("m"), has("gone")


@pytest.mark.parametrize(
    ("contract", "holds"),
    [
        (has("m"), True),
        (has("m:name"), True),
        (has("m:gone"), False),
        (accepts("m:f", "a"), True),
        (accepts("m:f", "a", "b"), True),
        (accepts("m:f", "a", "c"), False),
        (accepts("m:name", "a"), False),
        (accepts("m:gone", "a"), False),
        (defaults("m:f", "b", 1), True),
        (defaults("m:f", "b", 2), False),
        (defaults("m:f", "a", None), False),
        (defaults("m:gone", "b", 1), False),
    ],
    ids=str,
)
def test_a_contract_says_what_a_place_has(contract: Contract, holds: bool) -> None:
    assert contract.holds(LENS) is holds
    assert (~contract).holds(LENS) is not holds


def test_a_bare_kwargs_accepts_no_name() -> None:
    assert not accepts("m:loose", "anything").holds(LENS)


@pytest.mark.parametrize("left", [TRUE, FALSE], ids=str)
@pytest.mark.parametrize("right", [TRUE, FALSE], ids=str)
def test_contracts_combine_like_booleans(left: Contract, right: Contract) -> None:
    one, other = left.holds(LENS), right.holds(LENS)
    assert (left & right).holds(LENS) == (one and other)
    assert (~(left & ~right)).holds(LENS) == (not (one and not other))


def test_a_contract_prints_what_it_requires() -> None:
    contract = accepts("m:f", "a", "b") & ~has("m:gone") & defaults("m:f", "b", 1)
    assert str(contract) == (
        "m:f accepts 'a', 'b' and not (m:gone exists) and m:f defaults 'b' to 1"
    )


def test_a_contract_names_every_place_it_looks_at() -> None:
    contract = accepts("m:f", "a") & has("m:g") & ~defaults("m:h", "b", 1)
    assert set(contract.places) == {"m:f", "m:g", "m:h"}


def test_a_shape_prints_as_a_signature() -> None:
    assert str(Shape(("a", "b"), (("b", "None"),), any_keyword=True)) == "(a, b=None, **)"
    assert str(Shape()) == "a name"


@pytest.fixture(scope="module")
def package() -> Iterator[Path]:
    """An empty package on sys.path; generated modules are written into it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / PACKAGE
        root.mkdir()
        (root / "__init__.py").touch()
        sys.path.insert(0, folder)
        yield root
        sys.path.remove(folder)
        for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def both(package: Path, text: str, qualname: str) -> tuple[Shape | None, Shape | None]:
    """The shape at a place of a new module, from its file and from the imported module."""
    name = f"m{next(_numbers)}"
    (package / f"{name}.py").write_text(text, encoding="utf-8")
    place = f"{PACKAGE}.{name}:{qualname}"
    source = SourceLens({PACKAGE: package}).shape(place)
    assert f"{PACKAGE}.{name}" not in sys.modules
    importlib.invalidate_caches()
    importlib.import_module(f"{PACKAGE}.{name}")
    return source, LiveLens().shape(place)


LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner),
    max_leaves=3,
)
NAMES = st.lists(
    st.sampled_from(["vllm_config", "block_size", "x", "_y", "größe", "Z9", "log_stats", "n"]),
    unique=True,
    max_size=8,
)


@st.composite
def parameter_lists(draw: st.DrawFn) -> str:
    """Parameters of every kind, with defaults where Python allows them."""
    names = draw(NAMES)
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(names))] * 2)))
    only, plain, keyword = names[: cuts[0]], names[cuts[0] : cuts[1]], names[cuts[1] :]
    first = draw(st.integers(0, len(only) + len(plain)))

    def shown(name: str, with_default: bool) -> str:
        annotation = draw(st.sampled_from(["", ": int", ": 'Unknown | None'"]))
        return f"{name}{annotation}" + (f" = {draw(LITERALS)!r}" if with_default else "")

    positional = [shown(name, n >= first) for n, name in enumerate([*only, *plain])]
    parts = positional[: len(only)] + ["/"] * bool(only) + positional[len(only) :]
    if keyword:
        parts += [draw(st.sampled_from(["*", "*args"]))]
        parts += [shown(name, draw(st.booleans())) for name in keyword]
    return ", ".join(parts + ["**kwargs"] * draw(st.booleans()))


@given(parameters=parameter_lists(), kind=st.sampled_from(["def", "async def"]))
@settings(max_examples=40, deadline=None)
def test_source_and_import_agree_on_every_function(
    package: Path, parameters: str, kind: str
) -> None:
    source, live = both(package, f"{kind} f({parameters}):\n    pass\n", "f")
    assert source == live
    assert live is not None


@given(
    parameters=parameter_lists(), decorator=st.sampled_from(["", "@staticmethod", "@classmethod"])
)
@settings(max_examples=25, deadline=None)
def test_source_and_import_agree_on_every_method(
    package: Path, parameters: str, decorator: str
) -> None:
    text = f"class C:\n    {decorator or '# plain'}\n    def f({parameters}):\n        pass\n"
    source, live = both(package, text, "C.f")
    assert source == live


@given(parameters=parameter_lists().filter(lambda p: "/" not in p))
@settings(max_examples=25, deadline=None)
def test_source_and_import_agree_on_every_constructor(package: Path, parameters: str) -> None:
    text = f"class C:\n    def __init__(self, {parameters}):\n        pass\n"
    source, live = both(package, text, "C")
    assert source == live
    assert live is not None
    assert "self" not in (live.parameters or ())


@st.composite
def dataclasses(draw: st.DrawFn) -> str:
    names = draw(NAMES.filter(bool))
    options = draw(st.sampled_from(["", "(kw_only=True)", "(frozen=True)", "(order=True)"]))
    first = draw(st.integers(0, len(names)))
    lines = ["from dataclasses import InitVar, dataclass", "from typing import ClassVar"]
    lines += [f"@dataclass{options}", "class C:", "    shared: ClassVar[int] = 1"]
    for n, name in enumerate(names):
        annotation = draw(st.sampled_from(["int", "InitVar[int]", "str | None"]))
        default = f" = {draw(LITERALS)!r}" if n >= first else ""
        lines.append(f"    {name}: {annotation}{default}")
    lines += ["    def __post_init__(self, *_):", "        pass"]
    return "\n".join(lines)


@given(text=dataclasses())
@settings(max_examples=30, deadline=None)
def test_source_and_import_agree_on_every_dataclass(package: Path, text: str) -> None:
    source, live = both(package, text, "C")
    assert source == live


AGREEMENTS = [
    ("if True:\n    def f(a): ...", "f"),
    ("if False:\n    pass\nelse:\n    def f(a): ...", "f"),
    ("try:\n    import json as f\nexcept ImportError:\n    f = None", "f"),
    ("try:\n    pass\nfinally:\n    def f(a): ...", "f"),
    ("try:\n    import absent_package\nexcept ImportError:\n    def f(a): ...", "f"),
    ("import contextlib\nwith contextlib.nullcontext():\n    def f(a): ...", "f"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from json import f", "f"),
    ("import typing\nif typing.TYPE_CHECKING:\n    f = 1\nelse:\n    def f(a): ...", "f"),
    ("def f(a): ...\ndef f(b): ...", "f"),
    ("import os.path", "os"),
    ("import os.path", "path"),
    ("from os import path as p", "p"),
    ("x = 1", "x"),
    ("x: int = 1", "x"),
    ("x = y = 1", "y"),
    ("class C:\n    x = 1", "C.x"),
    ("class C:\n    x = 1", "C.y"),
    ("class C:\n    class D:\n        def f(self, a): ...", "C.D.f"),
    ("class C:\n    class D:\n        def __init__(self, a): ...", "C.D"),
    ("class C:\n    def __init__(self, a, *, b=None): ...", "C.__init__"),
    ("class C:\n    if True:\n        def f(self, a): ...", "C.f"),
    ("def f():\n    def g(): ...", "f.g"),
    ("def f():\n    x = 1", "x"),
    ("def __getattr__(name):\n    return name", "lazy"),
    (
        "import functools\ndef d(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n"
        "    return g\n@d\ndef f(a, b=1): ...",
        "f",
    ),
    ("class C:\n    @property\n    def p(self): ...", "C.p"),
    ("class C:\n    pass", "C"),
    ("x: int", "x"),
    ("class C:\n    x: int", "C.x"),
    ("x, y = 1, 2", "y"),
    ("TYPE_CHECKING = False\nif not TYPE_CHECKING:\n    x = 1", "x"),
    (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    x: int\n"
        "    y: int = field(init=False, default=1)",
        "C",
    ),
    (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n"
        "    x: int = field(default=1)",
        "C",
    ),
    ("from dataclasses import dataclass\n@dataclass\nclass C:\n    x: int", "C.__init__"),
    ("def d(c): return c\n@d\nclass C:\n    x: int", "C"),
]


@pytest.mark.parametrize(("text", "qualname"), AGREEMENTS)
def test_source_and_import_agree(package: Path, text: str, qualname: str) -> None:
    source, live = both(package, text, qualname)
    assert source == live


def test_a_lazy_attribute_does_not_exist_until_it_is_there(package: Path) -> None:
    source, live = both(package, "def __getattr__(name):\n    return name\n", "lazy")
    assert source is live is None


@pytest.mark.parametrize(
    "place", ["no_such_package", "no_such_package.sub:f", f"{PACKAGE}.no_such_module:f"]
)
def test_a_module_that_does_not_exist_has_no_shape(package: Path, place: str) -> None:
    assert SourceLens().shape(place) is None
    assert SourceLens({PACKAGE: package}).shape(place) is None
    assert LiveLens().shape(place) is None


def test_a_module_and_a_package_are_places(package: Path) -> None:
    (package / "inner").mkdir()
    (package / "inner" / "__init__.py").write_text("def f(a): ...\n")
    lens = SourceLens({PACKAGE: package})
    assert lens.shape(PACKAGE) == Shape()
    assert lens.shape(f"{PACKAGE}.inner") == Shape()
    assert lens.shape(f"{PACKAGE}.inner:f") == Shape(parameters=("a",))


def test_reading_a_package_that_cannot_be_imported(tmp_path: Path) -> None:
    for path in ("__init__.py", "sub/__init__.py", "sub/deep.py"):
        file = tmp_path / "acme" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            dedent("""
            raise RuntimeError("imported")
            def f(a): ...
        """)
        )
    lens = SourceLens({"acme": tmp_path / "acme"})
    assert lens.shape("acme.sub.deep:f") == Shape(parameters=("a",))


def test_nothing_is_imported_by_reading_source(tree: Callable[..., Tree]) -> None:
    told = tree().tells("""
        import sys
        from specvllm_compat.contract import LiveLens, SourceLens
        from specvllm_compat.shims import CATALOG
        before = set(sys.modules)
        places = [p for shim in CATALOG.values() for era in shim.eras for p in era.probe.places]
        found = [p for p in places if SourceLens().shape(p) and LiveLens().shape(p)]
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        tell([len(found) > 10, sorted(new & {"vllm", "speculators", "transformers", "torch"})])
    """)
    assert told == [True, []]
