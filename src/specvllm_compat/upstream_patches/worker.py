"""Codemods for the module of the worker extension."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m
from specvllm_compat.engine.families import HIDDEN_IS_FULL, UNREADABLE
from specvllm_compat.upstream_patches.edit import (
    S,
    body,
    changed,
    check_known,
    function,
    template,
    the_class,
    with_body,
)

CLASS = "HiddenStatesWorkerExtension"
# Of the driver's protocol in 0.4; it stays until generate() needs it no longer.
_METADATA = m.FunctionDef(name=m.Name("_set_request_metadata"))
_RESET = m.FunctionDef(name=m.Name("_reset_capture"))
_IMPORT = m.SimpleStatementLine(body=[m.OneOf(m.Import(), m.ImportFrom())])
# The code that is replaced, as speculators 0.3.0, and 0.4.0 with 0.4.0.1, have it
_KNOWN = ("b47cfe460469", "2bd0c2256cc8")


def capture_with_hooks(module: cst.Module) -> cst.Module:
    """Hooks on the decoder layers in place of a forward of our own."""
    old, forward = the_class(module, CLASS), function(module, "_patched_forward")
    imports, _ = _parted(module.body, _IMPORT)
    metadata, methods = _parted(body(old), _METADATA)
    check_known([*imports, forward, *methods], _KNOWN, f"{CLASS} and _patched_forward")
    ours = template(
        "custom_worker", HIDDEN_IS_FULL=_lines(HIDDEN_IS_FULL), UNREADABLE=_lines(UNREADABLE)
    )
    (first, *more), (*names, new) = _parted(ours.body, _IMPORT)
    assert isinstance(new, cst.ClassDef)
    assert isinstance(imports[0], cst.SimpleStatementLine)
    our_methods = body(new)
    reset = [m.matches(method, _RESET) for method in our_methods].index(True)
    new = with_body(new, [*our_methods[:reset], *metadata, *our_methods[reset:]])
    first = first.with_changes(leading_lines=imports[0].leading_lines)
    return changed(
        module,
        {
            **{statement: [] for statement in imports},
            imports[0]: [first, *more],
            forward: names,
            old: [new],
        },
    )


def without_request_metadata(module: cst.Module) -> cst.Module:
    """Without the driver's count of tokens, which 0.3.0 does not have."""
    metadata, _ = _parted(body(the_class(module, CLASS)), _METADATA)
    return changed(module, {method: [] for method in metadata})


def _parted(statements: Sequence[S], wanted: m.BaseMatcherNode) -> tuple[list[S], list[S]]:
    """The statements that match, and the others."""
    found = [s for s in statements if m.matches(s, wanted)]
    return found, [s for s in statements if s not in found]


def _lines(names: frozenset[str]) -> str:
    return "\n        ".join(f'"{name}",' for name in sorted(names))
