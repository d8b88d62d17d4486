"""The check: a verdict for every seam, from source alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specvllm_compat.preflight.call_sites import Use, uses
from specvllm_compat.preflight.hazards import defaults_of, hazards_of
from specvllm_compat.preflight.locate import CannotTell
from specvllm_compat.preflight.misfits import FITS, MISFIT, Judgement, as_called, judge
from specvllm_compat.shape import Reading
from specvllm_compat.shim import (
    ADAPTED,
    NATIVE,
    UNSUPPORTED,
    Era,
    Release,
    Shim,
    decide,
)
from specvllm_compat.shims import CATALOG, FLOOR, GENERATOR
from specvllm_compat.source import SourceLens

UNRESOLVED = "UNRESOLVED"
_WORKER = f"{GENERATOR.rpartition('.')[0]}.custom_worker"
_WITHOUT = {  # what speculators' own import raises before vLLM is reached
    "attention_mask_module": "ModuleNotFoundError: No module named "
    "'transformers.modeling_attn_mask_utils'",
    "annotations": "PydanticUndefinedAnnotation: name 'torch' is not defined",
}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What `install` will do about a shim here; ``era`` is None if nothing fits."""

    name: str
    shim: Shim
    era: Era | None
    verdict: str
    words: str = ""

    @property
    def since(self) -> str:
        """The era by its first release, as `status` has it."""
        return self.era.since if self.era and self.verdict != UNSUPPORTED else ""


@dataclass(kw_only=True)
class Row:
    """One seam: a name of a provider in a module of a consumer."""

    module: str
    name: str
    asks: list[str] = field(default_factory=list)
    has: str = ""
    verdict: str = NATIVE
    shim: str = ""
    era: str = ""
    do: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Report:
    """Everything `check` found. ``without_us``: what the consumer alone would meet, first first."""

    versions: dict[str, str] = field(default_factory=dict)
    shims: list[Chosen] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    without_us: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0: native or adapted, 1: something cannot work, 2: cannot tell."""
        verdicts = {row.verdict for row in self.rows} | {chosen.verdict for chosen in self.shims}
        if self.problems or UNSUPPORTED in verdicts:
            return 1
        return 2 if UNRESOLVED in verdicts else 0


def verdicts(lens: Reading, releases: dict[str, Release]) -> list[Chosen]:
    """What `install` would do, shim by shim; `status` says the same after the import."""
    return [_chosen(name, shim, lens, releases[shim.provider]) for name, shim in CATALOG.items()]


def _chosen(name: str, shim: Shim, lens: Reading, release: Release) -> Chosen:
    verdict, era, words = decide(name, shim, lens, release, FLOOR)
    return Chosen(name=name, shim=shim, era=era, verdict=verdict, words=words)


def consumer_modules(lens: SourceLens) -> list[tuple[str, str]]:
    """Speculators' modules that use vLLM, with their text: the generator's first.

    Raises:
        CannotTell: they can't be read.
    """
    found = []
    for module in (GENERATOR, _WORKER):
        at = lens.path(module)
        if at is None:
            raise CannotTell(f"this speculators has no {module}")
        found.append((module, at[0].text(at[1])))
    return found


def read_uses(text: str, module: str, lens: Reading, packages: Sequence[str]) -> list[Use]:
    """The uses in a consumer's text.

    Raises:
        CannotTell: it is not Python.
    """
    try:
        return uses(text, module, lens, packages)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        raise CannotTell(f"{module} is not Python{where}: {said}") from None


def first_errors(found: Iterable[Use], lens: Reading) -> list[str]:
    """The errors the consumer alone would meet, in the order of its run; nothing silent."""
    found = list(found)
    dangers = [(use, hazard.raises) for use, hazard in hazards_of(found, lens) if hazard.raises]
    errors = []
    for use in found:
        if not use.guarded and (judgement := judge(use, lens)).outcome == MISFIT:
            errors.append(judgement.error)
        errors += [raised for danger, raised in dangers if danger is use]
    return list(dict.fromkeys(errors))


def check_consumer(module: str, found: list[Use], lens: Reading, chosen: list[Chosen]) -> list[Row]:
    """A row per name that the module takes, with what this provider and our shims make of it."""
    rows: dict[str, Row] = {}
    for use in found:
        row = rows.setdefault(use.name, Row(module=module, name=use.name))
        qualname = use.place.partition(":")[2] or use.place
        asked = f"{qualname}{use.call}" if use.kind == "call" else qualname
        if use.kind != "attribute" and asked not in row.asks:
            row.asks.append(asked)
        if use.kind == "import" or not row.has:
            row.has = _shown(use, lens)
        _judge_row(row, use, lens, chosen)
    ours = [c for c in chosen if c.shim.module == module]
    for one in ours:
        for name in one.shim.names:
            if name not in rows and one.verdict in (ADAPTED, UNSUPPORTED):
                rows[name] = _own_row(module, name, one)
    return list(rows.values())


def _own_row(module: str, name: str, one: Chosen) -> Row:
    """A seam in the consumer's own code, which we answer as a whole."""
    row = Row(module=module, name=name, asks=["its own"], verdict=one.verdict, shim=one.name)
    row.era, row.do = one.since, [one.words] if one.verdict == UNSUPPORTED else []
    return row


def _judge_row(row: Row, use: Use, lens: Reading, chosen: list[Chosen]) -> None:
    answer = _answering(row.module, use, chosen)
    if answer is not None:
        if row.verdict == NATIVE or answer.verdict == UNSUPPORTED:
            row.verdict, row.shim, row.era = answer.verdict, answer.name, answer.since
        if answer.verdict == UNSUPPORTED and answer.words not in row.do:
            row.do.append(answer.words)
        drops = _drops(use, answer)
        judgement = judge(use, lens, drops) if drops else Judgement(FITS)
    else:
        judgement = judge(use, lens)
    if judgement.outcome == FITS or use.guarded:
        return
    said = (
        f"line {use.line}: {judgement.error}; {judgement.do}" if judgement.error else judgement.do
    )
    if said not in row.do:
        row.do.append(said)
    if judgement.outcome == MISFIT:
        row.verdict = UNSUPPORTED
    elif row.verdict != UNSUPPORTED:
        row.verdict = UNRESOLVED


def _answering(module: str, use: Use, chosen: list[Chosen]) -> Chosen | None:
    """The shim that stands between this use and the provider."""
    place_module, _, qualname = use.place.partition(":")
    for one in chosen:
        era, shim = one.era, one.shim
        if one.verdict == NATIVE:
            continue
        names = shim.names if era is None else (*era.adapt, *era.provide)
        if shim.module == module and (
            use.name in names or any(_inside(use.scope, name) for name in names)
        ):
            return one
        put_back = [f"{shim.module}.{name}" for name in names]
        if place_module == shim.module and qualname in names:
            return one
        if place_module in put_back:
            return one
    return None


def _inside(scope: str, name: str) -> bool:
    return "." in name and (scope == name or scope.startswith(f"{name}."))


def _drops(use: Use, answer: Chosen) -> str:
    adapter = answer.era.adapt.get(use.name) if answer.era else None
    return str(getattr(adapter, "drops", ""))


def _shown(use: Use, lens: Reading) -> str:
    found = lens.look(use.place)
    if found.kind == "absent":
        return "absent"
    shape = as_called(found, bound=use.bound)
    if shape is None or shape.parameters is None:
        return found.kind
    return str(shape)


def without_us(found: list[Use], lens: Reading, chosen: list[Chosen]) -> list[str]:
    """What the consumer alone would meet here: errors in order, then what is silently wrong."""
    imports = [_WITHOUT[c.name] for c in chosen if c.name in _WITHOUT and c.verdict == ADAPTED]
    silent = [hazard.words for _, hazard in hazards_of(found, lens) if not hazard.raises]
    silent += [text for use in found for text in defaults_of(use, lens)]
    return list(dict.fromkeys([*imports, *first_errors(found, lens), *silent]))
