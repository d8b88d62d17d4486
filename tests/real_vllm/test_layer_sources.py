"""What the decoder layers of this release put out, by their source: no kind is read wrongly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vllm
from specvllm_compat.engine.families import (
    AUXILIARY,
    SCALED_IN_FLOAT16,
    UNREADABLE,
    hidden_is_full,
)

ROOT = Path(vllm.__file__).parent
MODELS = [*ROOT.glob("model_executor/models/*.py"), *ROOT.glob("models/**/*.py")]
# Norms that finish an addition over ranks which the layer before them left open.
FINISHING = ("fused_allreduce", "ffn_all_reduce_deferred")


def layers() -> Iterator[tuple[Path, ast.ClassDef, ast.FunctionDef]]:
    """(file, class, its forward) of each decoder layer."""
    for path in MODELS:
        text = path.read_text(encoding="utf-8")
        if "Decoder" not in text and "TransformerBlock" not in text:
            continue
        for node in ast.parse(text).body:
            # Layers of draft models (MTP) are no source of states.
            if not isinstance(node, ast.ClassDef) or "MTP" in node.name:
                continue
            if re.search(r"Decoder\w*Layer$|TransformerBlock$", node.name):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "forward":
                        yield path, node, item


LAYERS = list(layers())


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


def is_not_hooked(path: Path) -> bool:
    """True if the layers of this file are refused, or read from auxiliary outputs."""
    return bool((UNREADABLE | AUXILIARY).intersection(module_of(path).split(".")))


def layer_like(path: Path, node: ast.ClassDef) -> Any:
    """An object whose class has the name and the module of a decoder layer."""
    return type(node.name, (), {"__module__": module_of(path)})()


def test_a_layer_that_inherits_a_forward_which_cannot_be_hooked_is_not_hooked() -> None:
    for path in MODELS:
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in UNREADABLE | AUXILIARY):
            continue  # which is quicker than to parse it
        tree = ast.parse(text)
        origin = {
            alias.asname or alias.name: (node.module or "").split(".")
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("DecoderLayer"):
                bases = {part for base in node.bases for part in origin.get(ast.unparse(base), [])}
                if (UNREADABLE | AUXILIARY).intersection(bases):
                    assert is_not_hooked(path), node.name


def test_layers_that_scale_their_states_in_float16_are_known() -> None:
    for path, _, forward in LAYERS:
        text = ast.unparse(forward)
        if "float16" in text and "routed_scaling_factor" in text and not is_not_hooked(path):
            assert path.stem in SCALED_IN_FLOAT16, path


def returned(forward: ast.FunctionDef) -> list[ast.expr]:
    return [n.value for n in ast.walk(forward) if isinstance(n, ast.Return) and n.value]


def holds_the_residual(forward: ast.FunctionDef) -> bool:
    """True if the first of two outputs was made, at last, by adding the second to something."""
    assignments = [node for node in ast.walk(forward) if isinstance(node, ast.Assign)]
    last = {
        ast.unparse(node.targets[0]): node.value
        for node in sorted(assignments, key=lambda node: node.lineno)
    }
    for output in returned(forward):
        if isinstance(output, ast.Tuple) and len(output.elts) == 2:
            first, second = map(ast.unparse, output.elts)
            sums = [n for n in ast.walk(last.get(first, output.elts[0])) if is_sum(n)]
            if any(second in map(ast.unparse, (n.left, n.right)) for n in sums):
                return True
    return False


def is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def test_layers_were_found() -> None:
    assert len(LAYERS) > 50


def test_a_residual_that_hidden_states_hold_already_is_not_added_again() -> None:
    found = [(path, node) for path, node, forward in LAYERS if holds_the_residual(forward)]
    assert "StablelmDecoderLayer" in [node.name for _, node in found]
    wrong = [node.name for path, node in found if not hidden_is_full(layer_like(path, node))]
    assert not wrong


def test_layers_that_put_out_more_than_states_and_residual_are_not_hooked() -> None:
    wrong = [
        (node.name, ast.unparse(output))
        for path, node, forward in LAYERS
        for output in returned(forward)
        if isinstance(output, ast.Tuple) and len(output.elts) > 2 and not is_not_hooked(path)
    ]
    assert all("kv_states" in text for _, text in wrong), wrong  # HunYuan's third is no tensor


def test_layers_whose_outputs_are_parts_of_a_sum_over_ranks_are_not_hooked() -> None:
    wrong = [
        node.name
        for path, node, _ in LAYERS
        if any(name in path.read_text(encoding="utf-8") for name in FINISHING)
        and not is_not_hooked(path)
    ]
    assert not wrong
