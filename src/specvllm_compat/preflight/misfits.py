"""Judge what a consumer does with a name by what source shows there."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from specvllm_compat.preflight.call_sites import Use
from specvllm_compat.shape import Call, Finding, Reading, Shape, misfits

FITS, MISFIT, UNRESOLVED = "fits", "misfit", "unresolved"


@dataclass(frozen=True)
class Judgement:
    """Whether a use fits; if not, the error that Python would raise and what to do about it."""

    outcome: str
    error: str = ""
    do: str = ""


_FITS = Judgement(FITS)

# What these do with keywords that they don't name: they hand them on to another constructor.
_HANDS_ON = {"vllm.entrypoints.llm:LLM": "vllm.engine.arg_utils:EngineArgs"}


def judge(use: Use, lens: Reading, dropped: str = "") -> Judgement:
    """Judge one use. ``dropped``: a keyword that somebody takes away on the way."""
    judgement = _judge(use, lens, dropped)
    if use.declared and judgement.outcome == MISFIT:
        words = f"{judgement.error}, unless it is of a subclass: that can't be told from source"
        return Judgement(UNRESOLVED, do=words)
    return judgement


def _judge(use: Use, lens: Reading, dropped: str) -> Judgement:  # noqa: PLR0911
    found = lens.look(use.place)
    if use.kind != "call":
        if found.kind == "absent":
            return _absent(use, lens)
        if found.kind == "unresolved" and found.shape is None:
            return Judgement(UNRESOLVED, do=f"what {use.place} is can't be told from source")
        return _FITS
    shape = as_called(found, bound=use.bound)
    if found.kind == "absent":
        return _FITS  # said where it is imported or read
    if shape is None or shape.parameters is None or found.kind == "unresolved":
        return Judgement(UNRESOLVED, do=f"the parameters of {use.place} can't be told from source")
    keywords = tuple(name for name in use.call.keywords if name != dropped)
    implicit = int(found.kind == "class" or shape is not found.shape)
    wrong = misfits(shape, replace(use.call, keywords=keywords), implicit=implicit)
    if not wrong and shape.any_keyword and found.home in _HANDS_ON:
        found = lens.look(_HANDS_ON[found.home])
        further = tuple(name for name in keywords if name not in shape.parameters)
        shape = found.shape or shape
        wrong = misfits(shape, Call(keywords=further)) if found.shape else []
    if not wrong:
        return _FITS
    kind, words = wrong[0]
    return Judgement(MISFIT, _error(found, kind, words), _do(kind, words, shape, use.call))


def as_called(found: Finding, *, bound: bool) -> Shape | None:
    """The shape that the arguments of a call meet."""
    if found.shape is None or found.shape.parameters is None:
        return found.shape
    takes_itself = found.method == "class" or (found.method == "instance" and bound)
    return found.shape.without_first() if takes_itself else found.shape


def _absent(use: Use, lens: Reading) -> Judgement:
    module, _, qualname = use.place.partition(":")
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        parent = ".".join(parts[:length])
        if lens.look(parent).kind == "absent":
            return _moved(use, lens, f"ModuleNotFoundError: No module named {parent!r}")
    if "." in qualname:
        owner, _, name = qualname.rpartition(".")
        return Judgement(
            MISFIT,
            f"AttributeError: {owner!r} has no attribute {name!r}",
            f"this version has no {qualname}",
        )
    if use.kind == "import":
        return _moved(use, lens, f"ImportError: cannot import name {qualname!r} from {module!r}")
    words = f"AttributeError: module {module!r} has no attribute {qualname!r}"
    return _moved(use, lens, words)


def _moved(use: Use, lens: Reading, error: str) -> Judgement:
    module, _, qualname = use.place.partition(":")
    homes = lens.homes(qualname, module) if qualname else []
    if homes:
        others = f" (or {', '.join(homes[1:3])})" if len(homes) > 1 else ""
        return Judgement(MISFIT, error, f"it is in {homes[0]}{others}: import it from there")
    return Judgement(MISFIT, error, f"nothing in this version defines {qualname or module}")


def _error(found: Finding, kind: str, words: str) -> str:
    if found.kind != "class":
        return f"TypeError: {found.home.partition(':')[2]}() {words}"
    name = found.home.partition(":")[2]
    if found.pydantic and kind != "positional":
        said = {"missing": "Field required", "unexpected": "Unexpected keyword argument"}
        names = words.partition(": " if kind == "missing" else "argument ")[2].replace("'", "")
        return f"ValidationError: {name}: {names}: {said.get(kind, words)}"
    return f"TypeError: {found.says or f'{name}.__init__'}() {words}"


def _do(kind: str, words: str, shape: Shape, call: Call) -> str:
    if kind == "unexpected":
        name = words.rpartition(" ")[2].strip("'")
        free = [n for n in shape.parameters or () if n not in call.keywords]
        near = difflib.get_close_matches(name, free, n=2)
        return f"leave {name} out" + (f", or pass {' or '.join(near)}" if near else "")
    if kind == "missing":
        return f"pass {words.partition(': ')[2]}"
    return f"it takes {shape}"
