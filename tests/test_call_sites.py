"""Scripts the project has never seen: what they take from a package, and whether it fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specvllm_compat.contract import LiveLens, SourceLens
from specvllm_compat.preflight.call_sites import Use, uses
from specvllm_compat.preflight.misfits import FITS, MISFIT, UNRESOLVED, Judgement, judge
from specvllm_compat.shape import Call, misfits
from test_contract import NAMES, parameter_lists

PACKAGE = {
    "__init__.py": """
        from typing import TYPE_CHECKING
        from .base import *
        from acme.things import Thing as Renamed
        if TYPE_CHECKING:
            from acme.lazy import Late
        else:
            def __getattr__(name):
                raise AttributeError(name)
    """,
    "base.py": """
        __all__ = ["Base", "shared"]
        def shared(a, *, b=1): ...
        def hidden(): ...
        class Base:
            def __init__(self, size, *, mode="x"): self.ready = True
            def run(self, step) -> "Outcome": ...
            @classmethod
            def make(cls, size) -> "Base": ...
            @staticmethod
            def tool(x): ...
            @property
            def name(self): ...
        class Outcome:
            rows: int = 0
            def __init__(self): self.state = None
    """,
    "things.py": """
        import enum
        import msgspec
        from typing import TypedDict
        from dataclasses import dataclass, field, InitVar
        from typing import overload
        from acme.base import Base
        from pydantic.dataclasses import dataclass as validated
        from elsewhere import Foreign
        class Thing(Base):
            def stop(self): ...
        class Odd(Foreign): ...
        @dataclass
        class Fields:
            needed: int
            seed: InitVar[int]
            other: int = 3
            derived: int = field(init=False, default=0)
        @dataclass(kw_only=True)
        class More(Fields):
            extra: list = field(default_factory=list)
        @validated
        class Checked:
            needed: int
        @overload
        def pick(a: int) -> int: ...
        @overload
        def pick(a: str) -> str: ...
        def pick(a, b=None): ...
        class Prompt(TypedDict):
            text: str
        class Event(msgspec.Struct):
            kind: str
        class Stored(Event):
            block: int = 0
        class Colour(enum.Enum):
            RED = 1
        class Wrong(ValueError): ...
        if Colour:
            def either(a): ...
        else:
            def either(a, b): ...
        thing: Thing = Thing(1)
    """,
    "lazy.py": "class Late:\n    def __init__(self, x): ...\n",
    "moved.py": "def wanderer(a): ...\n",
    "one.py": "from .other import *\ndef here(): ...\n",
    "other.py": "from .one import *\n",
}


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> SourceLens:
    folder = tmp_path_factory.mktemp("acme") / "acme"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(dedent(text))
    return SourceLens({"acme": folder})


def judged(script: str, lens: SourceLens) -> list[tuple[Use, Judgement]]:
    return [(use, judge(use, lens)) for use in uses(dedent(script), "s.py", lens, ("acme",))]


def errors(script: str, lens: SourceLens) -> list[str]:
    return [j.error for u, j in judged(script, lens) if j.outcome == MISFIT and not u.guarded]


@pytest.mark.parametrize(
    "script",
    [
        "from acme import Renamed\nRenamed(1, mode='y').run(2)",
        "import acme\nacme.Renamed(1).stop()",
        "import acme.things as t\nt.Fields(1, 2, other=3)",
        "from acme.things import More\nMore(1, seed=2, extra=[])",
        "from acme import shared as s\ns(1, b=2)",
        "from acme.things import pick\npick(1, b=2)",
        "from acme import Late\nLate(1)",
        "from acme import Base\nBase.make(1).run(3).rows\nBase.tool(1)",
        "from acme import Base\nb = Base(1)\nb.ready\nb.name\nb.run(1).state",
        "from acme import Base\ndef f(*a, **k):\n    return Base(*a, **k)",
        "from acme.things import Stored, Wrong\nStored('a', block=1)\nWrong(1)",
        "from acme.things import Prompt\nPrompt(text='')",
        "from acme import things as t\nt.__file__\nt.Fields(1, 2)",
        "import acme\nacme.__version__",
        "from acme.other import here\nhere()",
        "from acme.things import Colour\nColour(1).value\nColour.RED",
        "from acme.things import thing\nthing.run(1)\nthing.__class__",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from acme import Gone",
        "try:\n    from acme.base import Gone\nexcept ImportError:\n    Gone = None",
        "import acme\nif hasattr(acme, 'gone'):\n    acme.base.gone()",
        "from acme import Base\nclass Mine:\n    def __init__(self):\n        self.b = Base(1)\n"
        "    def go(self):\n        self.b.run(1)",
    ],
)
def test_a_script_that_works_is_not_accused(script: str, acme: SourceLens) -> None:
    assert errors(script, acme) == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (
            "from acme import Renamed\nRenamed()",
            "TypeError: Base.__init__() missing 1 required positional argument: 'size'",
        ),
        (
            "from acme import Renamed\nRenamed(1, node=2)",
            "TypeError: Base.__init__() got an unexpected keyword argument 'node'",
        ),
        (
            "from acme import Base\nb = Base(1)\nb.run(1, 2)",
            "TypeError: Base.run() takes 2 positional arguments but 3 were given",
        ),
        ("from acme import Base\nBase(1).gone()", "AttributeError: 'Base' has no attribute 'gone'"),
        (
            "from acme.things import Stored\nStored(1, color=2)",
            "TypeError: Stored.__init__() got an unexpected keyword argument 'color'",
        ),
        (
            "from acme.things import Colour\nColour.RAD",
            "AttributeError: 'Colour' has no attribute 'RAD'",
        ),
        (
            "from acme.base import wanderer",
            "ImportError: cannot import name 'wanderer' from 'acme.base'",
        ),
        (
            "from acme.one import nothing",
            "ImportError: cannot import name 'nothing' from 'acme.one'",
        ),
        ("import acme.nowhere.deep", "ModuleNotFoundError: No module named 'acme.nowhere'"),
        (
            "from acme.nowhere import x",
            "ModuleNotFoundError: No module named 'acme.nowhere'",
        ),
        (
            "import acme.base\nacme.base.gone()",
            "AttributeError: module 'acme.base' has no attribute 'gone'",
        ),
        (
            "from acme.things import Fields\nFields(1)",
            "TypeError: Fields.__init__() missing 1 required positional argument: 'seed'",
        ),
        (
            "from acme.things import Fields\nFields(1, 2, derived=1)",
            "TypeError: Fields.__init__() got an unexpected keyword argument 'derived'",
        ),
        (
            "from acme.things import Checked\nChecked()",
            "ValidationError: Checked: needed: Field required",
        ),
        (
            "from acme.base import Base\nclass M:\n    def __init__(self):\n        self.go()\n"
            "    def go(self):\n        self.b = Base(nothing=1, size=2)",
            "TypeError: Base.__init__() got an unexpected keyword argument 'nothing'",
        ),
        (
            "def late():\n    from acme import shared\n    shared(1, 2)",
            "TypeError: shared() takes 1 positional argument but 2 were given",
        ),
    ],
)
def test_a_script_that_fails_is_told_as_python_would_tell_it(
    script: str, error: str, acme: SourceLens
) -> None:
    assert errors(script, acme)[:1] == [error]


@pytest.mark.parametrize(
    "script",
    [
        "from acme import bogus",
        "from acme.things import Odd\nOdd(1)",
        "from acme.things import Odd\nOdd(1).anything",
        "from acme.things import Foreign\nForeign(1)",
        "from acme import Base\nBase(1).run(2).of_a_subclass",
        "from acme.things import either\neither(1, 2)",
    ],
)
def test_what_source_cannot_tell_is_said_to_be_unresolved(script: str, acme: SourceLens) -> None:
    outcomes = [judgement.outcome for _, judgement in judged(script, acme)]
    assert UNRESOLVED in outcomes
    assert MISFIT not in outcomes


def test_a_name_that_moved_is_found_where_it_is_now(acme: SourceLens) -> None:
    (_, judgement), *_ = judged("from acme.base import wanderer", acme)
    assert judgement.do == "it is in acme.moved: import it from there"


def test_a_misspelt_keyword_is_answered_with_the_near_miss(acme: SourceLens) -> None:
    *_, (_, judgement) = judged("from acme import Base\nBase(1, mod='y')", acme)
    assert judgement.do == "leave mod out, or pass mode"


def test_the_first_error_is_that_of_the_run_not_of_the_page(acme: SourceLens) -> None:
    script = """
        from acme import Base
        class M:
            def __init__(self):
                inner = self.build(Base(1))
                Base(second=1)
            def build(self, base):
                return Base(first=1)
        M()
    """
    found = errors(script, acme)
    assert ["'first'" in found[0], "'second'" in found[1]] == [True, True]


def test_keywords_hidden_in_a_dictionary_are_not_missed(acme: SourceLens) -> None:
    assert errors("from acme import Base\nBase(**{'size': 1})", acme) == []
    assert len(errors("from acme import Base\nBase(nope=1, **k)", acme)) == 1


CALLS = st.builds(Call, st.integers(0, 4), NAMES.map(tuple))


@given(parameters=parameter_lists(), call=CALLS)
@settings(max_examples=300, deadline=None)
def test_our_binding_agrees_with_pythons(parameters: str, call: Call) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({parameters}): ...", space)
    arguments, keywords = range(call.positional), dict.fromkeys(call.keywords, 0)
    wrong = misfits(_live(space["f"]), call)
    assert all(words for _, words in wrong)
    assert (wrong == []) is works(lambda: space["f"](*arguments, **keywords))
    signature = inspect.signature(space["f"])
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if not any(kinds.get(name) is inspect.Parameter.POSITIONAL_ONLY for name in keywords):
        # Until Python 3.13 bind() refuses such a name, even where ** would take it.
        assert (wrong == []) is works(lambda: signature.bind(*arguments, **keywords))


def works(call: Callable[[], object]) -> bool:
    try:
        call()
    except TypeError:
        return False
    return True


def _live(function: Callable[..., Any]) -> Any:
    globals()["_bound_here"] = function
    found = LiveLens().shape(f"{__name__}:_bound_here")
    assert found is not None
    return found


@given(parameters=parameter_lists(), call=CALLS)
@settings(max_examples=150, deadline=None)
def test_a_call_that_python_refuses_is_refused_in_the_same_words(
    parameters: str, call: Call
) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({parameters}): ...", space)
    wrong = misfits(_live(space["f"]), call)
    try:
        space["f"](*range(call.positional), **dict.fromkeys(call.keywords, 0))
    except TypeError as error:
        said = str(error).partition("() ")[2]
        kinds = {kind for kind, _ in wrong}
        assert wrong
        if len(wrong) == 1 and kinds == {"missing"}:
            assert wrong[0][1] == said or "keyword-only" in said or "positional" in said
        if kinds == {"unexpected"} and len(wrong) == 1 and "positional-only" not in said:
            assert said.partition(". Did you mean")[0] == wrong[0][1]
    else:
        assert wrong == []


def test_what_fits_has_nothing_to_say(acme: SourceLens) -> None:
    for _, judgement in judged("from acme import Base\nBase(1)", acme):
        assert judgement == Judgement(FITS)
