"""Codemods for names that left the modules that speculators imports them from."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m
from specvllm_compat.upstream_patches.edit import (
    body,
    call,
    changed,
    function,
    imported,
    one,
    required,
    template,
)


def hash_function_from_either_module(module: cst.Module) -> cst.Module:
    """``get_hash_fn_by_name`` from its old home if it has no new one. 0.3.0 doesn't import it."""
    old = imported(module, "vllm.utils.hashing")
    if old is None:
        return module
    return _in_place_of(module, old, template("hashing"))


def attention_mask_if_there_is_one(module: cst.Module) -> cst.Module:
    """A function that refuses in place of the one that transformers removed."""
    name = "transformers.modeling_attn_mask_utils"
    old = required(imported(module, name), f"import from {name}")
    return _in_place_of(module, old, template("attention_mask"), blank_below=2)


def annotations_with_torch(module: cst.Module) -> cst.Module:
    """Pydantic resolves the annotations of transformers' configs, subclasses included."""
    name = "ReloadableBaseModel.reload_schema"
    old = one(body(function(module, name)), call("model_rebuild"), "call of model_rebuild()")
    pydantic = required(imported(module, "pydantic"), "import from pydantic")
    ours = template("annotations")
    torch = next(s for s in ours.body if m.matches(s, m.SimpleStatementLine()))
    assert isinstance(torch, cst.SimpleStatementLine)
    torch = torch.with_changes(leading_lines=pydantic.leading_lines)
    return changed(
        module,
        {
            old: body(function(ours, name)),
            pydantic: [torch, pydantic.with_changes(leading_lines=())],
        },
    )


def _in_place_of(
    module: cst.Module, old: cst.SimpleStatementLine, ours: cst.Module, blank_below: int = 1
) -> cst.Module:
    """A block of ours in place of an import, with blank lines around it."""
    blank = cst.EmptyLine(indent=False)
    [block] = ours.body
    after = module.body[module.body.index(old) + 1]
    below = [*[blank] * blank_below, *after.leading_lines]
    return changed(
        module,
        {
            old: [block.with_changes(leading_lines=[*old.leading_lines, blank])],
            after: [after.with_changes(leading_lines=below)],
        },
    )
