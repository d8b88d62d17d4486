"""Shapes of the bindings of an outline, and constructors that are made from fields."""

from __future__ import annotations

from collections.abc import Sequence

from specvllm_compat.outline import Binding
from specvllm_compat.shape import Shape

_DATACLASS = {"dataclass", "config", "define", "frozen", "attrs"}


def shape_of(function: Binding) -> Shape:
    """The shape of a function's binding; a property is only a name."""
    if is_property(function):
        return Shape()
    written = function["shape"]
    return Shape(
        parameters=tuple(written["parameters"]),
        defaults=tuple((name, value) for name, value in written["defaults"]),
        any_keyword=written["any_keyword"],
        any_positional=written["any_positional"],
        positional_only=written["positional_only"],
        keyword_only=written["keyword_only"],
    )


def is_property(function: Binding) -> bool:
    """It is read, not called."""
    return any(d.split(".")[-1].endswith("property") for d in function["decorators"])


def kind_of_method(function: Binding) -> str:
    """``static``, ``class`` or ``instance``."""
    for decorator in function["decorators"]:
        if decorator in ("staticmethod", "classmethod"):
            return str(decorator.removesuffix("method"))
    return "instance"


def makes_a_constructor(body: Binding) -> bool:
    """The class has its constructor written for it, from its fields."""
    decorators = {d.partition("(")[0].split(".")[-1] for d in body["decorators"]}
    return bool(decorators & _DATACLASS) or _has_field_base(body)


def _has_field_base(body: Binding) -> bool:
    bases = {base.partition("[")[0].split(".")[-1] for base in body["bases"]}
    return bool(bases & {"Struct", "NamedTuple", "BaseModel"})


def validates(body: Binding) -> bool:
    """A dataclass whose decorator is pydantic's, or vLLM's ``config``, which is made of that."""
    names = [decorator.partition("(")[0] for decorator in body["decorators"]]
    return any(n.startswith("pydantic.") or n.split(".")[-1] == "config" for n in names)


def is_model(lineage: Sequence[Binding]) -> bool:
    """A pydantic model: keywords only, and by default others are ignored."""
    return any(base.split(".")[-1] == "BaseModel" for body in lineage for base in body["bases"])


def generated_constructor(lineage: Sequence[Binding], first: tuple[str, ...]) -> Shape:
    """The constructor made from the fields of a class and its bases, the class first."""
    known: dict[str, tuple[str | None, bool]] = {}
    inherited = any(_has_field_base(body) for body in lineage)  # then subclasses have fields, too
    for body in reversed(lineage):
        options = [*body["decorators"], *(f"{k}={v}" for k, v in body["keywords"].items())]
        all_keyword_only = any("kw_only=True" in option for option in options)
        for field in body["fields"] if inherited or makes_a_constructor(body) else ():
            if field["init"]:
                keyword_only = all_keyword_only or field["keyword_only"]
                known[field["name"]] = (field["default"], keyword_only)
            else:
                known.pop(field["name"], None)
    positional = [name for name, (_, keyword_only) in known.items() if not keyword_only]
    by_keyword = [name for name, (_, keyword_only) in known.items() if keyword_only]
    model = is_model(lineage)
    return Shape(
        parameters=(*first, *positional, *by_keyword),
        defaults=tuple((n, known[n][0] or "") for n in [*positional, *by_keyword] if known[n][0]),
        any_keyword=model,
        keyword_only=len(known) if model else len(by_keyword),
    )
