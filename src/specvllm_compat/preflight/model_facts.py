"""What a model's config.json tells before its weights are loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.preflight.locate import CannotTell
from specvllm_compat.source import SourceLens

_NESTED = ("text_config", "thinker_config", "language_config", "llm_config", "language_model")
# Names that transformers maps to num_hidden_layers and hidden_size
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_STATE_SPACE = ("mamba", "ssm", "linear_attention", "hybrid_override_pattern", "linear_num_key")
# These scale embeddings in their own forward, in some release: a copied forward does not.
_SCALED_EMBEDDINGS = ("afmoe", "gemma", "gemma2", "granitemoehybrid", "minimax_text_01")
_ONE_TENSOR = ("falcon_h1", "granite", "granitemoe", "granitemoeshared", "phi", "gpt_neox", "opt")
_REGISTERED = re.compile(r'"(\w+)":\s*\(\s*"([\w.]+)",\s*"(\w+)",?\s*\)')
_V2_RUNNER = has("vllm.config.vllm:VllmConfig.use_v2_model_runner")


def model_facts(
    config: dict[str, Any], lens: SourceLens, layer_ids: Sequence[int] | None, length: int
) -> tuple[dict[str, str], list[str]]:
    """Facts by name, and what cannot work. ``config`` is one that `read_config` gave."""
    architecture = config["architectures"][0]
    text, nested = _text_config(config)
    layers, hidden = dimensions(config)
    names, registered = _families(architecture, lens)
    facts = {
        "architecture": architecture,
        "this vLLM has it": registered
        or "no: it would try its Transformers backend, if transformers has this architecture",
        "decoder layers": f"{layers}{f', by {nested}' if nested else ''}",
        "capture": _capture(names),
    }
    problems = _unreadable(names, architecture)
    ids, wrong = _layer_ids(layers, layer_ids)
    problems += wrong
    facts["layer ids"] = (
        f"{ids} as outputs, as the generator has them; {[i + 1 for i in ids]} as vLLM's "
        "auxiliary ids"
    )
    dtype = str(text.get("dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    width = _BYTES.get(dtype.removeprefix("torch."), 2)
    token = len(ids) * hidden * width
    facts["states"] = (
        f"{token:,} bytes per token in {dtype}; {token * length * 1000 / 1e9:,.1f} GB per 1,000 "
        f"samples of {length} tokens"
    )
    facts |= dict(_traits(config, text, lens))
    if alone := list(_alone(config, text, names, layers, layer_ids)):
        facts["speculators alone"] = "; ".join(alone)
    return facts, problems


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model's folder.

    Raises:
        CannotTell: there is none, or it tells no architecture, number of layers, or width.
    """
    path = folder / "config.json" if folder.is_dir() else folder
    if not path.is_file():
        raise CannotTell(f"{folder} holds no config.json: name the folder of a model")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CannotTell(f"{path} is no JSON: {error}") from None
    found = config.get("architectures") if isinstance(config, dict) else None
    if not (isinstance(found, list) and found and isinstance(found[0], str)):
        raise CannotTell(f"{path} names no architecture")
    try:
        dimensions(config)
    except ValueError as error:
        raise CannotTell(f"{path} {error}") from None
    return config


def dimensions(config: dict[str, Any]) -> tuple[int, int]:
    """The number of decoder layers, and the width of their states."""
    text, _ = _text_config(config)
    return _whole(text, _LAYERS), _whole(text, _WIDTH)


def _text_config(config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The config of the language model, and where it was: "" for the top."""
    where: list[str] = []
    inner = config
    while not any(name in inner for name in _LAYERS):
        nested = next((name for name in _NESTED if isinstance(inner.get(name), dict)), None)
        if nested is None:
            break
        where.append(nested)
        inner = inner[nested]
    return inner, ".".join(where)


def _whole(config: dict[str, Any], names: tuple[str, ...]) -> int:
    value = next((config[name] for name in names if name in config), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"has no {names[0]} that is a number")
    return value


def _families(architecture: str, lens: SourceLens) -> tuple[frozenset[str], str]:
    """The files and folders that define the model, and the place of its class."""
    at = lens.path("vllm.model_executor.models.registry")
    text = at[0].text(at[1]) if at else ""
    table = {m[1]: (m[2], m[3]) for m in _REGISTERED.finditer(text)}
    if architecture not in table:
        return frozenset(), ""
    module, name = table[architecture]
    if not module.startswith("vllm."):
        module = f"vllm.model_executor.models.{module}"
    modules = {module}
    home = lens.look(f"{module}:{name}").home
    if home:
        modules.add(home.partition(":")[0])
    outline = lens.outline(module)
    for bound, binding in (outline["names"] if outline else {}).items():
        if binding["kind"] == "import" and bound.endswith("DecoderLayer"):
            modules.add(binding["module"])
    return frozenset(part for m in modules for part in m.split(".")[1:]), f"{module}:{name}"


def _capture(names: frozenset[str]) -> str:
    from specvllm_compat.engine.families import AUXILIARY, HIDDEN_IS_FULL, UNREADABLE

    if names & UNREADABLE:
        return "not possible"
    if names & AUXILIARY:
        return "vLLM's own auxiliary outputs of the layers"
    if names & HIDDEN_IS_FULL:
        return "hooks on the decoder layers, whose hidden states have the residual already"
    return "hooks on the decoder layers: hidden + residual"


def _unreadable(names: frozenset[str], architecture: str) -> list[str]:
    from specvllm_compat.engine.families import UNREADABLE

    family = names & UNREADABLE
    if not family:
        return []
    return [
        f"{architecture} ({', '.join(sorted(family))}): the outputs of this family's layers are "
        "not its hidden states, and no other source is known for it yet"
    ]


def _layer_ids(layers: int, given: Sequence[int] | None) -> tuple[list[int], list[str]]:
    ids = list(given) if given else [2, layers // 2, layers - 3, layers - 1]
    wrong = [i for i in ids if not 0 <= i < layers]
    if not wrong:
        return ids, []
    whose = "of yours" if given else f"of the defaults {ids}"
    return ids, [f"layer ids {wrong} {whose} are not in [0, {layers - 1}]: pass layer_ids that are"]


def _traits(
    config: dict[str, Any], text: dict[str, Any], lens: SourceLens
) -> Iterator[tuple[str, str]]:
    if text.get("llama_4_scaling"):
        yield "llama_4_scaling", "yes: kept, since the model's own forward runs"
    if _deepstack(config):
        yield "deepstack", "yes: kept, since the model's own forward runs"
    if kinds := _hybrid(text):
        yield "hybrid KV cache", f"yes ({', '.join(kinds)}): planned by vLLM itself"
    if text.get("kv_lora_rank"):
        yield "MLA", "yes"
    if config.get("auto_map"):
        yield "trust_remote_code", "needed: config, tokenizer and engine are loaded with it"
    if _V2_RUNNER.holds(lens):
        yield "model runner", "V1: VLLM_USE_V2_MODEL_RUNNER=0 is set, since V2 keeps no batch order"


def _deepstack(config: dict[str, Any]) -> bool:
    return "deepstack" in json.dumps(config.get("vision_config", config))


def _hybrid(text: dict[str, Any]) -> list[str]:
    """The kinds of layers that need caches of different forms."""
    kinds = sorted(set(map(str, text.get("layer_types") or ())))
    state = [k for k in text if text[k] and any(k.startswith(s) for s in _STATE_SPACE)]
    if len(kinds) > 1:
        return kinds
    return ["attention", "state space"] if state else []


def _alone(
    config: dict[str, Any],
    text: dict[str, Any],
    names: frozenset[str],
    layers: int,
    layer_ids: Sequence[int] | None,
) -> Iterator[str]:
    """What speculators without us would do wrong with this model."""
    from specvllm_compat.engine.families import HIDDEN_IS_FULL

    if config.get("auto_map"):
        yield "loads the tokenizer without trust_remote_code: fails if it has code of its own"
    nested = _text_config(config)[1]
    if nested not in ("", "text_config"):
        yield f"finds no number of layers, which is in {nested}: fails"
    if text.get("llama_4_scaling"):
        yield "drops llama_4_scaling: wrong states at long positions, without an error"
    if _deepstack(config):
        yield "drops deepstack inputs: wrong states of images, without an error"
    if _hybrid(text):
        yield "forces one KV cache group: fails, or wastes memory"
    if names & HIDDEN_IS_FULL:
        yield "adds the residual a second time, without an error"
    if str(text.get("model_type")) in _SCALED_EMBEDDINGS:
        yield "skips the model's own scaling of embeddings where vLLM does it in the forward"
    if str(text.get("model_type")) in _ONE_TENSOR:
        yield "unpacks two outputs from layers that may return one"
    ids = list(layer_ids) if layer_ids else [2, layers // 2, layers - 3, layers - 1]
    if ids != sorted(set(ids)):
        yield f"returns the layers {sorted(set(ids))} for {ids}"
