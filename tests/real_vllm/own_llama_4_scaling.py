"""A DeepSeek-V3 whose config sets ``llama_4_scaling``, compared with Hugging Face's attention on
queries scaled the same way; then once more with speculators' own forward, which drops the factor.

Arguments: folder for the model, report file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import specvllm_compat
import tiny
import torch
from oracle import TALLY, TOLERANCE, check_results, relative_error
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from specvllm_compat.verification import huggingface, runs
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3 import modeling_deepseek_v3

LAYER_IDS = [3, 1, 0]
SCALING = {"original_max_position_embeddings": 16, "beta": 0.5}
ENGINE_ARGS = {
    "dtype": "float32",
    # The CPU kernel of RMSNorm misreads the strided inputs of this attention.
    "compilation_config": {"custom_ops": ["none"]},
}


def make_deepseek(folder: Path) -> Path:
    """Save a random float32 DeepSeek-V3 of four layers, one dense and three of experts."""
    torch.manual_seed(7)
    config = DeepseekV3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=64,
        q_lora_rank=64,
        qk_rope_head_dim=32,
        qk_nope_head_dim=32,
        v_head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        rope_scaling=None,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        dtype="float32",
    )
    config.llama_4_scaling = SCALING
    DeepseekV3ForCausalLM(config).float().save_pretrained(folder)
    tiny.save_tokenizer(folder, 512)
    return folder


def scale_queries_in_huggingface() -> None:
    """vLLM multiplies a query by 1 + beta * log(1 + position // original length)."""
    attention = modeling_deepseek_v3.eager_attention_forward

    def scaled(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        position = torch.arange(query.shape[-2])
        length, beta = SCALING["original_max_position_embeddings"], SCALING["beta"]
        factor = 1 + beta * torch.log(1 + torch.floor(position / length))
        return attention(module, query * factor[:, None], *args, **kwargs)

    modeling_deepseek_v3.eager_attention_forward = scaled


def use_the_consumers_forward(worker: Any) -> None:
    """In a worker: replace the base model's forward as speculators 0.4 does."""
    import types

    from speculators.data_generation import custom_worker

    model = worker.model_runner.model.model
    model._extension = types.SimpleNamespace(_layer_ids=frozenset())
    model.forward = types.MethodType(custom_worker._patched_forward, model)


def verdicts(generator: Any, model: Path) -> dict[str, str]:
    """What the user's own check says."""
    found = runs.check(generator)
    reference = huggingface.check(str(model), generator.vllm_config.model_config, found)
    return {check.name: check.verdict for check in [*found.checks, *reference]}


def main(model: Path, report: Path) -> None:
    specvllm_compat.configure(engine_args=ENGINE_ARGS)
    make_deepseek(model)
    scale_queries_in_huggingface()
    generator = VllmHiddenStatesGenerator(str(model), layer_ids=LAYER_IDS, max_model_len=256)
    prompts = tiny.prompts(9, 200, seed=31)
    check_results(generator.generate(prompts), prompts, model, LAYER_IDS)
    seen: dict[str, Any] = {"verified": verdicts(generator, model)}

    generator.executor.collective_rpc(use_the_consumers_forward)
    longest = max(prompts, key=len)
    [dropped] = generator.generate([longest])
    expected = tiny.reference(model, longest, LAYER_IDS)
    errors = [
        relative_error(found, wanted)
        for found, wanted in zip(dropped["hidden_states"], expected, strict=True)
    ]
    assert min(errors) > 100 * TOLERANCE, f"the factor makes no difference: {errors}"
    seen |= {"errors_without_us": errors, "verified_without_us": verdicts(generator, model)}
    report.write_text(json.dumps({**TALLY.as_json(), **seen}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
