"""One rival in a process of its own: it loads, says so, and runs when it is told to.

Started by `race`. Reads orders and writes replies as JSON lines; what libraries print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import memory_use

Prompts = list[list[int]]

os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # the same runner for all


class Prefill:
    """vLLM's own prefill on an engine that captures nothing: the limit."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        arguments = EngineArgs(**engine_args(settings), distributed_executor_backend="mp")
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self._count = 0

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        for prompt in prompts:
            self.core.add_request(self._request(prompt))
        while self.core.scheduler.has_requests():
            self.core.step()
        return iter(())

    def _request(self, prompt: list[int]) -> Any:
        import inspect

        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._count += 1
        arguments = {
            "request_id": f"request-{self._count}",
            "prompt_token_ids": prompt,
            "sampling_params": SamplingParams(max_tokens=1, temperature=0.0),
            "pooling_params": None,
        }
        if "eos_token_id" in inspect.signature(Request).parameters:  # up to 0.16
            arguments["eos_token_id"] = None
        return Request(**arguments)


class LLM:
    """``vllm.LLM.generate``, as anyone would call it: nothing is captured."""

    def __init__(self, settings: dict[str, Any], **more: Any) -> None:
        import vllm

        self._parameters = {"max_tokens": 1, "temperature": 0.0}
        self._llm = vllm.LLM(**engine_args(settings), **more)

    def outputs(self, prompts: Prompts) -> list[Any]:
        from vllm import SamplingParams

        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        parameters = SamplingParams(**self._parameters)
        outputs: list[Any] = self._llm.generate(asked, parameters, use_tqdm=False)
        return outputs

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        self.outputs(prompts)
        return iter(())


class Generate:
    """``VllmHiddenStatesGenerator.generate`` with specvllm_compat."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import specvllm_compat

        specvllm_compat.configure(engine_args={"dtype": settings["dtype"]})
        from speculators.data_generation.vllm_hidden_states_generator import (
            VllmHiddenStatesGenerator,
        )

        self.generator = VllmHiddenStatesGenerator(
            model_path=settings["model"],
            layer_ids=settings["layer_ids"],
            max_model_len=settings["max_model_len"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
        )

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        return iter([result["hidden_states"] for result in self.generator.generate(prompts)])


class IterGenerate(Generate):
    """Our ``iter_generate``; each result is dropped when the next one comes."""

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        return (result["hidden_states"] for _, result in self.generator.iter_generate(prompts))


class Upstream:
    """speculators' own class without us. What it asks of CUDA is answered, and the dtype given."""

    batch = 32  # more requests than this never end
    memory = 8 * 2**30

    def __init__(self, settings: dict[str, Any]) -> None:
        from speculators.data_generation import vllm_hidden_states_generator as module

        def model_config(**keywords: Any) -> Any:
            return original(**keywords | {"dtype": settings["dtype"]})

        original = module.ModelConfig
        module.ModelConfig = model_config
        module.mem_get_info = lambda: (self.memory, self.memory)
        module.MAX_NUM_SEQS = self.batch
        self._generator = module.VllmHiddenStatesGenerator(
            model_path=settings["model"],
            layer_ids=settings["layer_ids"],
            max_model_len=settings["max_model_len"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
        )

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        found = []
        for start in range(0, len(prompts), self.batch):
            results = self._generator.generate(prompts[start : start + self.batch])
            found += [result["hidden_states"] for result in results]
        return iter(found)


class UpstreamAtOnce(Upstream):
    """The same with its limit of requests raised, so that one call takes them all."""

    batch = 256
    memory = 16 * 2**30


class HuggingFace:
    """A Hugging Face model with ``output_hidden_states``, four prompts at a time."""

    batch = 4

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModel

        dtype = getattr(torch, settings["dtype"])
        self._layer_ids = settings["layer_ids"]
        self._model = AutoModel.from_pretrained(settings["model"], dtype=dtype).eval()
        last = self._model.layers[-1]  # the last of `hidden_states` is behind the final norm
        last.register_forward_hook(self._keep)

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        self._last = output[0] if isinstance(output, tuple) else output

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        import torch

        found = []
        for start in range(0, len(prompts), self.batch):
            ids = torch.tensor(prompts[start : start + self.batch])
            with torch.inference_mode():
                output = self._model(input_ids=ids, use_cache=False, output_hidden_states=True)
            *states, _ = output.hidden_states[1:]
            states.append(self._last)
            found += [
                [states[layer_id][row].clone() for layer_id in self._layer_ids]
                for row in range(len(ids))
            ]
        return iter(found)


class Native(LLM):
    """vLLM's own extraction: its example connector writes a file per request, which is read."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=settings["scratch"])
        ids = [layer_id + 1 for layer_id in settings["layer_ids"]]
        super().__init__(
            settings,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
            },
            kv_transfer_config={
                "kv_connector": "ExampleHiddenStatesConnector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": self._folder.name},
            },
        )

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        from safetensors.torch import load_file

        found = []
        for output in self.outputs(prompts):
            path = output.kv_transfer_params["hidden_states_path"]
            found.append(list(load_file(path)["hidden_states"].unbind(1)))
            os.unlink(path)
        return iter(found)


class VllmLens(LLM):
    """vllm-lens: a plugin of vLLM that hands activations out with ``generate``'s outputs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._parameters["extra_args"] = {"output_residual_stream": settings["layer_ids"]}

    def run(self, prompts: Prompts) -> Iterator[list[Any]]:
        return iter([list(o.activations["residual_stream"]) for o in self.outputs(prompts)])


RIVALS: dict[str, Any] = {
    "prefill": Prefill,
    "again": Prefill,
    "LLM": LLM,
    "generate": Generate,
    "iter_generate": IterGenerate,
    "upstream": Upstream,
    "upstream_at_once": UpstreamAtOnce,
    "huggingface": HuggingFace,
    "native": Native,
    "lens": VllmLens,
}


def engine_args(settings: dict[str, Any]) -> dict[str, Any]:
    """What all engines are given: the generator's own settings."""
    return {
        "model": settings["model"],
        "dtype": settings["dtype"],
        "max_model_len": settings["max_model_len"] + 1,  # room for the sampled token
        "max_num_batched_tokens": settings["max_num_batched_tokens"],
        "gpu_memory_utilization": 0.8,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> Prompts:
    draw = random.Random(seed)
    return [[draw.randrange(2, vocabulary) for _ in range(length)] for _ in range(count)]


def norms(states: Iterable[list[Any]]) -> list[float]:
    """Per layer the norm of all states: rivals that agree have the same."""
    squares: list[float] = []
    for layers in states:
        each = [float(layer.double().square().sum()) for layer in layers]
        squares = [a + b for a, b in zip(squares or [0.0] * len(each), each, strict=True)]
    return [square**0.5 for square in squares]


def obey(rival: Any, order: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """Run what is asked for once."""
    prompts = random_prompts(order["prompts"], order["length"], vocabulary, order["seed"])
    if order.get("norms"):
        return {"norms": norms(rival.run(prompts))}
    before = memory_use.reset()
    started, computed = time.perf_counter(), time.process_time()
    for _ in rival.run(prompts):
        pass
    seconds, computed = time.perf_counter() - started, time.process_time() - computed
    memory = {"before": before, "peak": memory_use.peak(), "after": memory_use.now()}
    return {"seconds": seconds, "driver_seconds": computed, "memory": memory}


def main(name: str, settings: dict[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(what: dict[str, Any]) -> None:
        replies.write(json.dumps(what) + "\n")
        replies.flush()

    try:
        started = time.perf_counter()
        rival = RIVALS[name](settings)
        reply({"loaded": time.perf_counter() - started})
        for line in sys.stdin:
            reply(obey(rival, json.loads(line), settings["vocabulary"]))
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
