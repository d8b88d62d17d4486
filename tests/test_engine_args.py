"""configure() and SPECVLLM_ENGINE_ARGS: what is passed on, what is refused, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_trees import Tree
from specvllm_compat.engine_args import _FIXED, parse

Trees = Callable[..., Tree]
VARIABLE = "SPECVLLM_ENGINE_ARGS"

CONFIGURED = "generator().vllm_config.engine_args"


def configured(tree: Tree, arguments: dict[str, Any], **variables: str) -> Any:
    """What ``configure(engine_args=arguments)`` says, and the engine arguments of a generator."""
    return tree.tells(
        f"""
        refused = outcome(lambda: specvllm_compat.configure(engine_args={arguments!r}))
        tell([refused, outcome(lambda: list({CONFIGURED}.items()))])
        """,
        **variables,
    )


def test_an_argument_reaches_the_engine(tree: Trees) -> None:
    arguments = {"pipeline_parallel_size": 2, "dtype": "bfloat16", "max_num_batched_tokens": 64}
    said, found = configured(tree(), arguments)
    assert said == "NoneType"
    engine_args = dict(found)
    assert {name: engine_args[name] for name in arguments} == arguments
    assert engine_args["max_model_len"] == 2048  # the generator's own are kept
    assert engine_args["enforce_eager"] is True


def test_an_argument_may_override_the_generators(tree: Trees) -> None:
    said, found = configured(tree(), {"gpu_memory_utilization": 0.5, "trust_remote_code": False})
    assert said == "NoneType"
    assert dict(found)["gpu_memory_utilization"] == 0.5
    assert dict(found)["trust_remote_code"] is False


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("pipline_parallel_size", "pipeline_parallel_size"),
        ("max_batched_tokens", "max_num_batched_tokens"),
        ("d_type", "dtype"),
    ],
)
def test_a_misspelt_argument_is_refused_with_the_near_misses(
    tree: Trees, name: str, near: str
) -> None:
    said, found = configured(tree(), {"dtype": "bfloat16", name: 2})
    assert said.startswith("ValueError: configure(engine_args=…): vLLM 0.32.0 has no engine arg")
    assert repr(name) in said
    assert near in said.split("did you mean")[1]
    assert dict(found)["dtype"] == "auto"  # nothing of a refused call is kept


def test_an_argument_that_resembles_none_is_refused_without_a_guess(tree: Trees) -> None:
    said, _ = configured(tree(), {"zzz": 1})
    assert said.endswith("has no engine argument 'zzz'")


REFUSED = {
    "model": "other/model",
    "worker_extension_cls": "my.Extension",
    "enforce_eager": False,
    "enable_prefix_caching": True,
    "async_scheduling": True,
    "data_parallel_size": 2,
    "speculative_config": {"method": "eagle3"},
    "runner": "pooling",
}


def test_what_states_depend_on_is_refused_with_the_reason(tree: Trees) -> None:
    assert REFUSED.keys() == _FIXED.keys()
    calls = ", ".join(
        f"outcome(lambda: specvllm_compat.configure(engine_args={{{name!r}: {value!r}}}))"
        for name, value in REFUSED.items()
    )
    told = tree().tells(f"tell([{calls}])")
    for (name, value), text in zip(REFUSED.items(), told, strict=True):
        assert text.startswith("ValueError: configure(engine_args=…): ")
        assert f"{name}={value!r} is not possible: {_FIXED[name][1]}" in text


def test_what_states_depend_on_may_be_said_as_it_is(tree: Trees) -> None:
    said, found = configured(
        tree(),
        {"enforce_eager": True, "enable_prefix_caching": False, "async_scheduling": False,
         "data_parallel_size": 1, "speculative_config": None, "runner": "generate"},
    )  # fmt: skip
    assert said == "NoneType"
    assert dict(found)["runner"] == "generate"


def test_the_variable_reaches_the_engine(tree: Trees) -> None:
    value = json.dumps({"dtype": "float32", "pipeline_parallel_size": 2})
    found = tree().tells(f"tell({CONFIGURED})", **{VARIABLE: value})
    assert (found["dtype"], found["pipeline_parallel_size"]) == ("float32", 2)


def test_a_call_overrides_the_variable_and_an_empty_call_clears_the_call(tree: Trees) -> None:
    value = json.dumps({"dtype": "float32", "pipeline_parallel_size": 2})
    told = tree().tells(
        f"""
        def now():
            found = {CONFIGURED}
            return [found["dtype"], found["pipeline_parallel_size"], found["max_model_len"]]
        told = []
        for arguments in ({{"dtype": "bfloat16"}}, {{"max_model_len": 64}}, {{}}):
            specvllm_compat.configure(engine_args=arguments)
            told.append(now())
        tell(told)
        """,
        **{VARIABLE: value},
    )
    assert told == [["bfloat16", 2, 2048], ["float32", 2, 64], ["float32", 2, 2048]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{dtype: float32}", "SPECVLLM_ENGINE_ARGS is not JSON"),
        ('["dtype"]', "SPECVLLM_ENGINE_ARGS must be a JSON object"),
        ("3", "SPECVLLM_ENGINE_ARGS must be a JSON object"),
        ('{"dtyp": "float32"}', "SPECVLLM_ENGINE_ARGS: vLLM 0.32.0 has no engine argument 'dtyp'"),
        ('{"runner": "pooling"}', "SPECVLLM_ENGINE_ARGS: runner='pooling' is not possible"),
    ],
)
def test_a_variable_that_is_wrong_is_refused_when_a_generator_is_made(
    tree: Trees, value: str, said: str
) -> None:
    told = tree().tells(
        "tell([outcome(generator_module), outcome(generator)])", **{VARIABLE: value}
    )
    assert told[0] == "module"
    assert told[1].startswith(f"ValueError: {said}")


def test_the_model_runner_that_cannot_be_read_is_refused(tree: Trees) -> None:
    told = tree().tells("tell(outcome(generator))", VLLM_USE_V2_MODEL_RUNNER="1")
    assert told.startswith("ValueError: VLLM_USE_V2_MODEL_RUNNER must be unset or 0")
    told = tree().tells("tell(outcome(generator))", VLLM_USE_V2_MODEL_RUNNER="0")
    assert told == "VllmHiddenStatesGenerator"


@pytest.mark.parametrize("value", ["", "  ", "{}"])
def test_an_empty_variable_says_nothing(tree: Trees, value: str) -> None:
    told = tree().tells(f"tell({CONFIGURED}['dtype'])", **{VARIABLE: value})
    assert told == "auto"


def test_the_callers_mapping_is_copied(tree: Trees) -> None:
    told = tree().tells(f"""
        mine = {{"dtype": "float32"}}
        specvllm_compat.configure(engine_args=mine)
        mine["dtype"] = "bfloat16"
        mine["no_such_argument"] = 1
        tell([outcome(lambda: {CONFIGURED}["dtype"]), mine["dtype"]])
    """)
    assert told == ["float32", "bfloat16"]


def test_configuring_imports_no_engine(tree: Trees) -> None:
    told = tree().tells("""
        import sys
        specvllm_compat.configure(engine_args={"dtype": "float32"})
        tell([name in sys.modules for name in ("vllm", "torch", "speculators")])
    """)
    assert told == [False, False, False]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("dtype=float32", ("dtype", "float32")),
        ("max-num-seqs=8", ("max_num_seqs", 8)),
        ('compilation_config={"mode": 0}', ("compilation_config", {"mode": 0})),
        ("--block-size=16", ("block_size", 16)),
        ("load_format=a=b", ("load_format", "a=b")),
    ],
)
def test_engine_arguments_are_json_or_text(text: str, parsed: tuple[str, object]) -> None:
    assert parse(text) == parsed
