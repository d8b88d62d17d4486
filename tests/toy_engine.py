"""A patched speculators on an engine of a hundred lines, whose states are known for each token.

Runs in a fake tree with the real torch. Tells as JSON what went wrong, or an empty list.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import torch
from speculators.data_generation import custom_worker
from speculators.data_generation import vllm_hidden_states_generator as consumer

WIDTH, LAYERS, BUDGET, SEATS, VOCAB, LONGEST = 4, 5, 16, 6, 1000, 64
LAYER_IDS = [4, 0, 2, 2]


class Layer(torch.nn.Module):
    """Adds its number to the residual, and changes what the layer before it returned in place."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        residual.add_(hidden)
        hidden.zero_()
        return torch.full_like(hidden, self.number + 1), residual.clone()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(number) for number in range(LAYERS))

    def forward(self, tokens: list[int]) -> None:
        padded = [*tokens, 0, 0]  # rows of nobody, behind the real ones
        residual = torch.tensor(padded, dtype=torch.float32)[:, None].repeat(1, WIDTH)
        hidden = torch.zeros_like(residual)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)


def expected(tokens: list[int], layer_id: int) -> torch.Tensor:
    """The token's number and the sum of 1 … layer id + 1, in every column."""
    gained = (layer_id + 1) * (layer_id + 2) // 2
    return torch.tensor(tokens, dtype=torch.float32)[:, None].repeat(1, WIDTH) + gained


class Worker(custom_worker.HiddenStatesWorkerExtension):
    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        batch = SimpleNamespace(req_ids=[])
        self.model_runner = SimpleNamespace(model=Model(), input_batch=batch, prompts={})
        self.model_runner.model([7, 8, 9])  # warm-up

    def execute_model(self, step: Any) -> None:
        for new in step.scheduled_new_reqs:
            self.model_runner.prompts[new.req_id] = new.tokens
        # The runner's own order, which nobody else knows, with a seat that is free.
        order = sorted(step.num_scheduled_tokens, key=lambda i: hash(i[::-1]))
        self.model_runner.input_batch.req_ids = [*order, None]
        tokens = []
        for req_id in order:
            start = step.starts[req_id]
            count = step.num_scheduled_tokens[req_id]
            tokens += self.model_runner.prompts[req_id][start : start + count]
        if tokens:
            self.model_runner.model(tokens)


class Engine:
    """Schedules chunks for at most six requests, and takes one request's seat away once."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.computed: dict[str, int] = {}
        self.known: set[str] = set()
        self.ended = False
        self.preempts = True
        self.fails = 0
        dtype = SimpleNamespace(
            dtype=torch.float32,
            hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS),
            get_vocab_size=lambda: VOCAB,
            max_model_len=LONGEST + 1,
        )
        self.config = SimpleNamespace(model_config=dtype)
        self.worker = Worker(self.config)

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(self.worker, method)(*args), None]  # the second rank has nothing

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.computed[request.request_id] = 0

    def has_requests(self) -> bool:
        return bool(self.requests) or self.ended

    def finish_requests(self, request_ids: Any, status: Any) -> None:
        for request_id in list(request_ids):
            del self.requests[request_id]
            self.ended = True

    def step(self) -> tuple[dict[int, Any], bool]:
        if self.fails:
            self.fails -= 1
            raise MemoryError("the device is full")
        counts, left = {}, BUDGET
        for req_id, request in list(self.requests.items())[:SEATS]:
            count = min(left, len(request.prompt_token_ids) - self.computed[req_id])
            if count:
                counts[req_id], left = count, left - count
        new = [req_id for req_id in counts if req_id not in self.known]
        old = [req_id for req_id in counts if req_id in self.known]
        step = SimpleNamespace(
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            starts=dict(self.computed),
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=old, num_computed_tokens=[self.computed[req_id] for req_id in old]
            ),
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=req_id,
                    num_computed_tokens=0,
                    tokens=self.requests[req_id].prompt_token_ids,
                )
                for req_id in new
            ],
        )
        self.known |= counts.keys()
        self.worker.execute_model(step)
        self.ended = False
        for req_id, count in counts.items():
            self.computed[req_id] += count
            if self.computed[req_id] == len(self.requests[req_id].prompt_token_ids):
                del self.requests[req_id]
                self.ended = True
            elif self.preempts:
                self.computed[req_id], self.preempts = 0, False
        return {}, bool(counts)


def make_generator() -> tuple[Any, Engine]:
    engine = Engine()
    generator = object.__new__(consumer.VllmHiddenStatesGenerator)
    generator.engine = generator.executor = generator.scheduler = engine
    engine.shutdown = lambda: None  # type: ignore[attr-defined]
    generator.vllm_config, generator.layer_ids = engine.config, LAYER_IDS
    generator.tokenizer = SimpleNamespace(eos_token_id=1)
    generator.block_hasher, generator._request_counter = None, 0
    custom_worker.get_tp_group = lambda: SimpleNamespace(rank_in_group=0)
    generator._setup_capture()
    return generator, engine


def wrong(generator: Any, prompts: list[list[int]]) -> list[str]:
    """What differs from the known states."""
    results = generator.generate(prompts)
    found = [] if len(results) == len(prompts) else [f"{len(results)} results"]
    for index, (result, prompt) in enumerate(zip(results, prompts, strict=False)):
        states = result["hidden_states"]
        if result["input_ids"].tolist() != prompt or len(states) != len(LAYER_IDS):
            found.append(f"prompt {index} is not in its place")
        for state, layer_id in zip(states, LAYER_IDS, strict=False):
            if not torch.equal(state, expected(prompt, layer_id)):
                found.append(f"prompt {index}, layer {layer_id}")
    return found


def main() -> None:
    draw = random.Random(0)
    generator, engine = make_generator()
    found = []
    for call in range(3):
        lengths = [draw.randint(1, LONGEST) for _ in range(40)]
        prompts = [[draw.randrange(VOCAB) for _ in range(length)] for length in lengths]
        found += [f"call {call}: {what}" for what in wrong(generator, prompts)]
    if engine.preempts:
        found.append("no request lost its seat")
    engine.fails = 1
    try:
        generator.generate([[1, 2, 3], [4]])
        found.append("a failure was hidden")
    except MemoryError:
        found += wrong(generator, [[5, 6], [7]])
    if engine.requests or engine.worker._captured_states:
        found.append("something of a call is left behind")
    engine.worker._store_captured_states = lambda step: None
    try:
        generator.generate([[1, 2, 3]])
        found.append("missing rows were not noticed")
    except RuntimeError as error:
        found += [] if "3 tokens" in str(error) else [f"not a word about rows: {error}"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
