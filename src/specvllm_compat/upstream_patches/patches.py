"""The series: which shims each patch replaces, why, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import libcst as cst
from specvllm_compat.shims import CATALOG
from specvllm_compat.upstream_patches import generator, imports, worker

GENERATOR = "data_generation/vllm_hidden_states_generator.py"
WORKER = "data_generation/custom_worker.py"

# Raises MissingAnchor; a module that has nothing to change comes back as it is.
Codemod = Callable[[cst.Module], cst.Module]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change of speculators.

    ``shims`` are those it makes unnecessary; they say where and when the provider changed, in the
    texts as ``{shim}``. ``mark`` is code that only a patched tree has.
    """

    subject: str
    shims: tuple[str, ...]
    why: str
    without: str
    codemods: Mapping[str, Codemod]
    mark: str
    needs: tuple[str, ...] = ()

    def paragraphs(self) -> tuple[str, ...]:
        """The body of the commit's message."""
        releases = {name: shim.upstream.first_release for name, shim in CATALOG.items()}
        told = [self.why.format_map(releases), f"Without it: {self.without.format_map(releases)}"]
        if self.needs:
            subjects = " and ".join(f'"{PATCHES[name].subject}"' for name in self.needs)
            told.append(f"To run it needs {subjects}.")
        return (*told, "\n".join(dict.fromkeys(_reference(name) for name in self.shims)))


def _reference(name: str) -> str:
    shim = CATALOG[name]
    if "/speculators/" in shim.upstream.change:
        return f"See {shim.upstream.change}"
    provider = {"vllm": "vLLM"}.get(shim.provider, shim.provider)
    release = f"{provider} {shim.upstream.first_release}"
    return f"Changed in {release}: {shim.upstream.change}"


PATCHES: dict[str, Patch] = {
    "attention_mask": Patch(
        subject="Import without transformers' attention mask utilities",
        shims=("attention_mask_module",),
        why="transformers {attention_mask_module} removed transformers.modeling_attn_mask_utils. "
        "The EAGLE-1 model is the only one that needs it, but the package imports that model. "
        "Where the function is gone, calling it raises and says what to do.",
        without="import speculators raises ModuleNotFoundError: No module named "
        "'transformers.modeling_attn_mask_utils'.",
        codemods={"models/eagle.py": imports.attention_mask_if_there_is_one},
        mark="removed from transformers in 5.24",
    ),
    "annotations": Patch(
        subject="Resolve the annotations of transformers 5 configs",
        shims=("annotations",),
        why="The configs of transformers {annotations} name torch in their annotations and import "
        "it for type checkers only. Give pydantic the name when it rebuilds the models that "
        "derive from them.",
        without="import speculators raises PydanticUndefinedAnnotation: name 'torch' is not "
        "defined.",
        codemods={"utils/pydantic_utils.py": imports.annotations_with_torch},
        mark="_types_namespace",
    ),
    "hashing": Patch(
        subject="Import get_hash_fn_by_name from vLLM 0.11.0, too",
        shims=("hashing_module",),
        why="vLLM {hashing_module} moved the function into the module vllm.utils.hashing. Older "
        "releases have it in vllm.utils.",
        without="importing the generator on vLLM 0.11.0 raises ModuleNotFoundError: No module "
        "named 'vllm.utils.hashing'.",
        codemods={GENERATOR: imports.hash_function_from_either_module},
        mark="from vllm.utils import get_hash_fn_by_name",
    ),
    "assembled_engine": Patch(
        subject="Let vLLM assemble the engine",
        shims=(
            "two_phase",
            "kv_planning_names",
            "kv_cache_config",
            "scheduler",
            "device_memory",
        ),
        why="Executor, KV cache plan and scheduler were put together by hand, from functions that "
        "are not vLLM's interface: the step got a second phase in {two_phase}, Scheduler a block "
        "size in {scheduler}, the planning functions other arguments in {kv_cache_config} and "
        "another module in {kv_planning_names}. EngineCore, which vLLM's own in-process client "
        "builds, does all of it in each release, and plans hybrid KV caches and measures memory "
        "where the workers run. VLLM_BLOCK_SIZE is left to the code that uses it; with the whole "
        "series applied nothing does, and it can go.",
        without='TypeError in Scheduler or in the planning functions, "State error: '
        'sample_tokens() must be called", ImportError at the top, or no memory for the KV '
        "cache where the driver sees no GPU, depending on the release.",
        codemods={GENERATOR: generator.let_vllm_assemble_the_engine},
        mark="EngineCore",
    ),
    "model_files": Patch(
        subject="Load tokenizers with code of their own and nested configs",
        shims=("model_files",),
        why="The config and the engine trust a model's own code, the tokenizer did not. Some "
        "multimodal configs hold the number of layers below thinker_config, language_config or "
        "llm_config.",
        without="Kimi-K2 and others stop with a question about trust_remote_code, Qwen3-Omni with "
        '"Cannot determine num_layers from config".',
        codemods={GENERATOR: generator.load_every_model_file},
        mark="thinker_config",
    ),
    "config_fields": Patch(
        subject="Build the vLLM config from EngineArgs",
        shims=("config_fields",),
        why="vLLM's config classes change their required fields and their defaults, in "
        "{config_fields} those of SchedulerConfig; EngineArgs knows those of its own release. "
        "Prefix caching and asynchronous scheduling are off, since both make states wrong. The "
        "block size and the number of sequences are left to vLLM. max_model_len tokens now fit "
        "into a prompt: the token that vLLM samples is counted on top.",
        without="the constructor fails on some releases (ValidationError: is_encoder_decoder), "
        "and attention backends that need another block size refuse to start.",
        codemods={GENERATOR: generator.build_the_config_as_vllm_does},
        mark="EngineArgs",
    ),
    "request": Patch(
        subject="Pass eos_token_id only where Request takes it",
        shims=("request",),
        why="Request lost the parameter in vLLM {request}, and in nightlies before it, so the "
        "signature decides and not the version. With max_tokens=1 nothing depends on it.",
        without="generate() raises TypeError: Request.__init__() got an unexpected keyword "
        "argument 'eos_token_id'.",
        codemods={GENERATOR: generator.build_requests_as_vllm_wants_them},
        mark="Request.__init__.__annotations__",
    ),
    "forward_hooks": Patch(
        subject="Capture hidden states with forward hooks",
        shims=("decoder_forward_driver", "decoder_forward"),
        why="The worker replaced the model's forward by a copy that calls every layer alike. Hooks "
        "on the decoder layers leave the model's own forward as it is, and so what it passes on: "
        "llama_4_scaling (vLLM {decoder_forward}), deepstack inputs, embedding scales. Layers "
        "with other outputs are known or refused. Rows are attributed by the model runner's own "
        "batch order, per step, whatever else is in the batch, and states are handed over by "
        "request, as 0.4 has it; generate() of 0.3.0 needs the next patch for that.",
        without="states of such models are wrong without a word, or the forward fails (Granite, "
        "Gemma2, Mistral-Large-3, Qwen3-VL); decode rows and padding shift the rows of others.",
        codemods={
            WORKER: worker.capture_with_hooks,
            GENERATOR: generator.describe_the_capture,
        },
        mark="register_forward_hook",
    ),
    "generate": Patch(
        subject="Return every sequence's states in input order",
        shims=("generate",),
        why="generate() runs the engine until it is empty and updates the scheduler after each "
        "step, so that any number of sequences fits. A sequence's states are taken as soon as it "
        "is finished, and are as many as its tokens and finite, or an error says so. Results are "
        "in input order, with one tensor per requested layer, repeated ones included. Sequences "
        "that are empty, too long or not of token ids are refused before anything is scheduled; "
        "too long ones were cut silently.",
        without="more than ten sequences come back in another order, more than 32 fail, layers "
        "come back sorted and without repetitions, and a failed call breaks the next one; in "
        "0.3.0 long sequences lose their ends.",
        codemods={
            GENERATOR: generator.run_the_schedulers_loop,
            WORKER: worker.without_request_metadata,
        },
        mark="_take_states",
        needs=("assembled_engine", "forward_hooks"),
    ),
    "context_manager": Patch(
        subject="Let with end the worker processes",
        shims=("context_manager",),
        why="__del__ runs when the last reference is gone, and an exception's traceback holds one; "
        "at the interpreter's exit it may not run at all.",
        without="worker processes, and the memory of their device, stay after a script has failed.",
        codemods={GENERATOR: generator.let_with_end_the_workers},
        mark="def __exit__",
    ),
}
