"""What a user of VllmHiddenStatesGenerator gets, on a real engine, compared with Hugging Face."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import ENGINE_ARGS, LAYER_IDS, MAX_MODEL_LEN
from oracle import TOLERANCE, check_results, check_states, relative_error
from speculators.data_generation import vllm_hidden_states_generator as consumer
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from specvllm_compat.shim import installed

CHUNK = ENGINE_ARGS["max_num_batched_tokens"]
VOCAB = 512
SPECULATORS_03 = importlib.metadata.version("speculators").startswith("0.3")
GOOD = [[7, 8, 9, 10, 11], [300] * 20]


def generate(generator: Any, prompts: list[list[int]], model: Path) -> list[dict[str, Any]]:
    """Generate and compare with Hugging Face."""
    results: list[dict[str, Any]] = generator.generate(prompts)
    check_results(results, prompts, model, LAYER_IDS)
    return results


# --- right results, whatever is in the batch


@pytest.mark.parametrize("count", [1, 11, 40, 130])
def test_any_number_of_prompts_comes_back_complete_and_in_input_order(
    generator: Any, llama: Path, count: int
) -> None:
    prompts = tiny.prompts(count, MAX_MODEL_LEN, seed=count)
    if count > 1:
        assert sum(map(len, prompts)) > 2 * CHUNK
    generate(generator, prompts, llama)


def test_every_length_from_one_token_to_max_model_len_comes_back_whole(
    generator: Any, llama: Path
) -> None:
    lengths = [1, 2, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, MAX_MODEL_LEN - 1, MAX_MODEL_LEN]
    prompts = [[(5 * n + k) % VOCAB for k in range(n)] for n in lengths]
    generate(generator, prompts, llama)
    generate(generator, prompts[::-1], llama)


def test_a_prompt_of_exactly_max_model_len_tokens_alone_comes_back_whole(
    generator: Any, llama: Path
) -> None:
    generate(generator, [[k % VOCAB for k in range(MAX_MODEL_LEN)]], llama)


def test_only_one_token_prompts(generator: Any, llama: Path) -> None:
    generate(generator, [[k] for k in range(40)], llama)


def test_three_calls_whose_prompts_share_a_prefix(generator: Any, llama: Path) -> None:
    prefix = [(11 * k) % VOCAB for k in range(100)]
    for call in range(3):
        generate(generator, [prefix + [call, n] * n for n in range(12)], llama)


def test_a_prompt_repeated_within_a_call_and_across_calls_gives_the_same_states(
    generator: Any, llama: Path
) -> None:
    repeated = [(3 * k) % VOCAB for k in range(90)]
    others = tiny.prompts(6, 150, seed=3)
    batch = [repeated, *others[:3], repeated, *others[3:], repeated]
    states = [
        result["hidden_states"]
        for _ in range(2)
        for result in generate(generator, batch, llama)
        if result["input_ids"].tolist() == repeated
    ]
    assert len(states) == 6
    for other in states[1:]:
        for first, second in zip(states[0], other, strict=True):
            assert relative_error(second, first) <= TOLERANCE


def test_a_prompt_alone_gives_bit_identical_states_each_time(generator: Any, llama: Path) -> None:
    prompt = [(7 * k) % VOCAB for k in range(77)]
    [first], [second] = (generate(generator, [prompt], llama) for _ in range(2))
    for one, two in zip(first["hidden_states"], second["hidden_states"], strict=True):
        assert torch.equal(one, two)


def test_results_of_an_earlier_call_do_not_change_later(generator: Any, llama: Path) -> None:
    prompts = tiny.prompts(5, 60, seed=21)
    earlier = generate(generator, prompts, llama)
    generate(generator, tiny.prompts(5, 60, seed=22), llama)
    check_results(earlier, prompts, llama, LAYER_IDS)


def test_a_layer_asked_for_twice_comes_back_twice_in_the_requested_order(
    generator: Any, llama: Path
) -> None:
    [result] = generate(generator, [GOOD[0]], llama)
    states = result["hidden_states"]
    assert len(states) == len(LAYER_IDS)
    assert torch.equal(states[2], states[3])
    assert not torch.equal(states[0], states[1])
    states[2].zero_()
    assert states[3].abs().sum() > 0, "the two copies share memory"


# --- the forms in which prompts are given


def test_a_tensor_of_batch_by_tokens(generator: Any, llama: Path) -> None:
    prompts = [[(n + 13 * k) % VOCAB for k in range(33)] for n in range(7)]
    check_results(generator.generate(torch.tensor(prompts)), prompts, llama, LAYER_IDS)


def test_a_list_of_tensors(generator: Any, llama: Path) -> None:
    prompts = tiny.prompts(5, 50, seed=5)
    check_results(
        generator.generate([torch.tensor(prompt) for prompt in prompts]), prompts, llama, LAYER_IDS
    )


def test_int32_tensors_give_int64_input_ids(generator: Any, llama: Path) -> None:
    given = torch.tensor(GOOD[1:], dtype=torch.int32)
    check_results(generator.generate(given), GOOD[1:], llama, LAYER_IDS)


def test_the_callers_prompts_are_not_changed(generator: Any, llama: Path) -> None:
    prompts = tiny.prompts(4, 40, seed=9)
    copy = [list(prompt) for prompt in prompts]
    generate(generator, prompts, llama)
    assert prompts == copy


def test_text_through_the_generators_own_tokenizer(generator: Any, llama: Path) -> None:
    prompts = [generator.tokenizer.encode(sentence) for sentence in tiny.SENTENCES]
    generate(generator, prompts, llama)


# --- what is refused; the engine works afterwards

BAD_VALUES: dict[str, Any] = {
    "no prompts at all": [],
    "an empty prompt": [[]],
    "an empty prompt among good ones": [*GOOD, []],
    "a prompt one token too long": [[1] * (MAX_MODEL_LEN + 1)],
    "a too long prompt among good ones": [*GOOD, [1] * (3 * MAX_MODEL_LEN), *GOOD],
    "an id equal to the vocabulary size": [[1, VOCAB]],
    "a negative id": [[1, -1]],
    "a tensor of one dimension": torch.tensor([1, 2, 3]),
    "a tensor with an id out of range": torch.tensor([[1, VOCAB]]),
    "a tensor without rows": torch.zeros((0, 3), dtype=torch.int64),
    "a tensor without columns": torch.zeros((2, 0), dtype=torch.int64),
}
NOT_INTEGERS: dict[str, Any] = {
    "floats": [[1.0, 2.0]],
    "strings": [["1", "2"]],
    "text instead of ids": ["a sentence"],
    "bools": [[True, False]],
    "None among ids": [[1, None]],
    "one flat list of ids": [1, 2, 3],
    "a float tensor": torch.tensor([[1.0, 2.0]]),
    "a bool tensor": torch.tensor([[True, False]]),
}


def refuse(generator: Any, llama: Path, bad: Any, expected: Any) -> None:
    with pytest.raises(expected) as caught:
        generator.generate(bad)
    assert str(caught.value).strip(), "the refusal says nothing"
    assert not generator.scheduler.has_requests()
    generate(generator, GOOD, llama)


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_batch_is_refused_with_a_ValueError_and_the_engine_works_on(
    generator: Any, llama: Path, name: str
) -> None:
    refuse(generator, llama, BAD_VALUES[name], ValueError)


@pytest.mark.parametrize("name", NOT_INTEGERS)
def test_ids_that_are_not_integers_are_refused_and_the_engine_works_on(
    generator: Any, llama: Path, name: str
) -> None:
    refuse(generator, llama, NOT_INTEGERS[name], (TypeError, ValueError))


@pytest.mark.parametrize("layer", [-1, 6])
def test_a_layer_the_model_does_not_have_is_refused(llama: Path, layer: int) -> None:
    with pytest.raises(ValueError, match=str(layer)):
        VllmHiddenStatesGenerator(model_path=str(llama), layer_ids=[0, layer], max_model_len=64)


# --- the class is still upstream's


def test_the_generator_keeps_its_public_attributes(generator: Any, llama: Path) -> None:
    assert isinstance(generator, VllmHiddenStatesGenerator)
    assert generator.model_path == str(llama)
    assert generator.layer_ids == LAYER_IDS
    assert generator.tensor_parallel_size == 1
    assert generator.tokenizer.eos_token_id == 1
    assert generator.vllm_config.model_config.max_model_len >= MAX_MODEL_LEN
    assert callable(generator.executor.collective_rpc)
    assert callable(generator.scheduler.schedule)


def test_the_constructor_shows_the_parameters_of_this_speculators() -> None:
    parameters = set(inspect.signature(VllmHiddenStatesGenerator.__init__).parameters)
    common = {"self", "model_path", "layer_ids", "max_model_len"}
    assert common <= parameters
    assert ("max_num_batched_tokens" in parameters) is not SPECULATORS_03
    assert "token_ids" in inspect.signature(VllmHiddenStatesGenerator.generate).parameters


def test_help_shows_upstreams_docstring() -> None:
    source = ast.parse(Path(consumer.__file__ or "").read_text())
    [upstream] = [
        node
        for node in source.body
        if isinstance(node, ast.ClassDef) and node.name == "VllmHiddenStatesGenerator"
    ]
    assert inspect.getdoc(VllmHiddenStatesGenerator) == ast.get_docstring(upstream)
    assert VllmHiddenStatesGenerator.__name__ == "VllmHiddenStatesGenerator"
    assert VllmHiddenStatesGenerator.__module__ == consumer.__name__


# --- scripts that drive the scheduler and the executor themselves, as upstream's generate() does


def add_request(generator: Any, request_id: str, prompt: list[int], max_tokens: int = 1) -> None:
    """Add a request with the call that this speculators' own generate() makes."""
    arguments: dict[str, Any] = {
        "request_id": request_id,
        "prompt_token_ids": prompt,
        "sampling_params": consumer.SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=max_tokens > 1
        ),
        "pooling_params": None,
        "eos_token_id": generator.tokenizer.eos_token_id,
        "arrival_time": 0.0,
    }
    if not SPECULATORS_03:
        arguments["block_hasher"] = generator.block_hasher
    generator.scheduler.add_request(consumer.Request(**arguments))


def abort(generator: Any, request_ids: list[str]) -> None:
    generator.scheduler.finish_requests(request_ids, consumer.RequestStatus.FINISHED_ABORTED)


def steps(generator: Any, prompts: dict[str, list[int]]) -> int:
    """Prefill the requests in the manner of this speculators; returns the number of steps."""
    scheduler, executor = generator.scheduler, generator.executor
    computed = dict.fromkeys(prompts, 0)
    count = 0
    while (output := scheduler.schedule()).total_num_scheduled_tokens > 0:
        count += 1
        scheduled = output.num_scheduled_tokens
        if SPECULATORS_03:
            executor.execute_model(output)
            for request_id in scheduled:
                abort(generator, [request_id])
            continue
        executor.collective_rpc("_set_request_metadata", args=(dict(scheduled),))
        executor.sample_tokens(executor.execute_model(output))
        for request_id, tokens in scheduled.items():
            computed[request_id] += tokens
        if all(computed[request_id] >= len(ids) for request_id, ids in prompts.items()):
            break
    abort(generator, list(prompts))
    return count


def clean(generator: Any) -> None:
    """Let the workers see that the requests are finished."""
    output = generator.scheduler.schedule()
    assert output.total_num_scheduled_tokens == 0
    generator.executor.execute_model(output)
    assert not generator.scheduler.has_requests()


def test_a_script_that_drives_the_engine_itself_gets_states_in_upstreams_format(
    generator: Any, llama: Path
) -> None:
    distinct = sorted(set(LAYER_IDS))
    longest = 20 if SPECULATORS_03 else 100  # 0.3.0 aborts a prompt after its first chunk
    for turn in range(2):
        ids = tiny.prompts(5, longest, seed=50 + turn)
        prompts = {f"mine_{turn}_{n}": prompt for n, prompt in enumerate(ids)}
        generator.executor.collective_rpc("_reset_capture")
        for request_id, prompt in prompts.items():
            add_request(generator, request_id, prompt)
        assert steps(generator, prompts) >= 1
        reply = generator.executor.collective_rpc("_get_captured_states", unique_reply_rank=0)
        expected = {name: tiny.reference(llama, ids, distinct) for name, ids in prompts.items()}
        if SPECULATORS_03:
            rows = [torch.cat(layer) for layer in zip(*expected.values(), strict=True)]
            check_states(reply[0], rows, f"turn {turn}")
        else:
            assert set(reply) == set(prompts)
            for name, states in reply.items():
                check_states(states, expected[name], name)
        clean(generator)
    generate(generator, GOOD, llama)


@pytest.mark.skipif(SPECULATORS_03, reason="speculators 0.3 does not tell requests apart")
def test_a_step_that_holds_sampled_tokens_and_prompts_is_told_apart(
    generator: Any, llama: Path
) -> None:
    distinct = sorted(set(LAYER_IDS))
    ids = {"samples": [7, 8, 9], "chunked": list(range(250)), "short": [5] * 30}
    generator.executor.collective_rpc("_reset_capture")
    add_request(generator, "samples", ids["samples"], max_tokens=4)
    scheduled = []
    while generator.scheduler.has_requests():
        step = generator.scheduler.schedule()
        output = generator.executor.execute_model(step)
        generator.scheduler.update_from_output(step, output)
        scheduled.append(set(step.num_scheduled_tokens))
        if len(scheduled) == 1:
            add_request(generator, "chunked", ids["chunked"])
            add_request(generator, "short", ids["short"])
    assert {"samples", "chunked"} in scheduled
    reply = generator.executor.collective_rpc("_get_captured_states", unique_reply_rank=0)
    assert {name: len(states[0]) for name, states in reply.items()} == {
        "samples": 3 + 3,  # the last of four is not run through the model
        "chunked": 250,
        "short": 30,
    }
    for name, states in reply.items():
        found = [layer[: len(ids[name])] for layer in states]
        check_states(found, tiny.reference(llama, ids[name], distinct), name)
    generate(generator, GOOD, llama)


# --- engines of their own


@pytest.mark.own_engine
@pytest.mark.parametrize(
    "kind",
    [
        "tensor",
        pytest.param(
            "pipeline",
            marks=pytest.mark.skipif(
                installed("vllm").number >= (0, 27),
                reason="a pipeline stage makes its buffers in the warm-up, which vLLM 0.28.0 and "
                "later skip for eager models on a CPU",
            ),
        ),
    ],
)
def test_two_parallel_ranks_give_the_same_states(run_script: Any, llama: Path, kind: str) -> None:
    seen = run_script("own_two_ranks.py", llama, kind, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert seen["prompts"] >= 20


def test_importing_speculators_leaves_cuda_to_the_workers(run_script: Any) -> None:
    """vLLM forks them, and a forked process cannot use CUDA that its parent has asked."""
    assert run_script("own_cuda_check.py")["asked"] == 0
    control = run_script("own_cuda_check.py", PYTORCH_NVML_BASED_CUDA_CHECK="0")
    assert control["asked"] or installed("speculators").number < (0, 4)  # which asks later


@pytest.mark.own_engine
def test_default_layers_of_a_shallow_model_in_a_subclass_with_fork_and_a_starved_cache(
    run_script: Any, small_llama: Path
) -> None:
    seen = run_script("own_small_model.py", small_llama)
    unknown, executor = seen["refusal"]
    assert "max_num_seqs" in unknown
    assert executor.startswith("ExecutorWithExternalLauncher cannot be asked for captured states")
    assert seen["calls"] == 2
    assert seen["prompts"] == 38
    assert seen["alive after del"] == [False]
