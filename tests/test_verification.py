"""``verify``, as far as it goes without an engine: what it refuses, and when states agree."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_trees import Finished, Tree
from specvllm_compat import engine_args
from specvllm_compat.verification import prompts
from specvllm_compat.verification.agreement import GROSS, Limits, compare, errors
from specvllm_compat.verification.report import NOT_RUN, OK, WRONG, Check, Report

Trees = Callable[..., Tree]
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 4}
FLOAT32 = Limits(torch.float32, 256, has_experts=False)
BFLOAT16 = Limits(torch.bfloat16, 256, has_experts=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").touch()
    return folder


def verify(tree: Tree, *arguments: object) -> Finished:
    """The command; whatever is loaded of torch and vLLM is told on stdout."""
    script = (
        "import sys\nfrom specvllm_compat.cli import main\nstatus = main()\n"
        "print([name for name in ('torch', 'vllm.config') if name in sys.modules])\n"
        "raise SystemExit(status)"
    )
    return tree.command("-c", script, "verify", *map(str, arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layer-ids", "0", "4"], ["[4]", "[0, 3]"]),
        (["--layer-ids", "-1"], ["[-1]", "[0, 3]"]),
        (["--max-model-len", "3"], ["3 tokens", "16"]),
        (["--engine-arg", "max_num_seq=4"], ["no engine argument 'max_num_seq'"]),
        (["--engine-arg", "enable_prefix_caching=true"], ["is not possible"]),
        (["--engine-arg", "dtype"], ["NAME=VALUE"]),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_loaded(
    tree: Trees, model: Path, arguments: list[str], words: list[str]
) -> None:
    finished = verify(tree(), "--model", model, *arguments)
    assert (finished.code, finished.out) == (2, "[]\n"), finished.err
    assert all(word in finished.err for word in words), finished.err
    assert finished.err.count("\n") == 1


def test_a_model_that_is_not_there_is_refused(tree: Trees, model: Path, tmp_path: Path) -> None:
    finished = verify(tree(), "--model", tmp_path / "nowhere")
    assert (finished.code, finished.out) == (2, "[]\n")
    assert "nowhere: no such folder" in finished.err
    (model / "model.safetensors").unlink()
    assert "holds no weights" in verify(tree(), "--model", model).err
    (model / "model.safetensors").touch()
    (model / "config.json").unlink()
    assert "holds no config.json" in verify(tree(), "--model", model).err


def test_a_speculators_without_the_generator_is_refused(tree: Trees, model: Path) -> None:
    finished = verify(tree(speculators="0.5.0"), "--model", model)
    assert finished.code == 2
    assert "speculators 0.5.0 has no VllmHiddenStatesGenerator" in finished.err


def test_an_engine_that_does_not_start_is_no_verdict(tree: Trees, model: Path) -> None:
    finished = verify(tree(), "--model", model, "--vllm-only")
    assert finished.code == 2
    assert finished.err.startswith("specvllm-compat verify: ")


def test_engine_arguments_are_added_for_the_time_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_args, "_check", lambda *_: None)
    monkeypatch.setattr(engine_args, "_configured", {"dtype": "float32"})
    with contextlib.suppress(KeyError), engine_args.added({"seed": 3}):
        assert engine_args.current() == {"dtype": "float32", "seed": 3}
        raise KeyError
    assert engine_args.current() == {"dtype": "float32"}


# --- when states agree


def states(rows: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed))


def compared(found: torch.Tensor, expected: torch.Tensor, limits: Limits = FLOAT32) -> Check:
    return compare("a", "b", [("prompt 1", [3], [found], [expected])], limits.at)


def test_the_error_of_a_row_is_relative_to_its_largest_entry() -> None:
    expected = torch.tensor([[1.0, -8.0], [0.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    found = torch.tensor([[1.0, -6.0], [0.0, 0.0], [math.nan, 0.0], [0.0, 1.0]])
    assert errors(found, expected).tolist() == [0.25, 0.0, math.inf, math.inf]


def test_rounding_agrees_and_more_than_rounding_does_not() -> None:
    expected = states()
    rounded = expected.bfloat16().float()
    assert compared(expected, expected).error == 0.0
    assert compared(rounded, expected).verdict == WRONG
    assert compared(rounded, expected, BFLOAT16).verdict == OK
    noise = 1 + 1e-6 * states(seed=1)
    assert compared(expected * noise, expected).verdict == OK


@pytest.mark.parametrize("limits", [FLOAT32, BFLOAT16])
def test_two_rows_that_changed_places_are_wrong_and_named(limits: Limits) -> None:
    expected = states()
    found = expected[[0, 1, 5, 3, 4, 2, 6, 7, 8]]
    check = compared(found, expected, limits)
    assert check.verdict == WRONG
    assert check.remark in (
        "prompt 1, layer 3, row 2 holds the state of row 5",
        "prompt 1, layer 3, row 5 holds the state of row 2",
    )


def test_a_missing_row_and_a_value_that_is_no_number_are_wrong() -> None:
    expected = states()
    assert compared(expected[:-1], expected).remark.startswith("prompt 1, layer 3: [8, 256] for")
    found = expected.clone()
    found[4, 7] = math.nan
    check = compared(found, expected)
    assert (check.verdict, check.error) == (WRONG, math.inf)
    assert "row 4" in check.remark


def test_limits_grow_with_depth_and_with_the_rounding_step() -> None:
    assert 1e-6 < FLOAT32.at(0) < FLOAT32.at(31) < 1e-3
    assert FLOAT32.at(31) < BFLOAT16.at(0) < BFLOAT16.at(31) < GROSS
    experts = Limits(torch.bfloat16, 256, has_experts=True)
    assert experts.at(0) == GROSS  # another expert's output is no rounding error
    assert Limits(torch.float32, 256, has_experts=True).at(0) == FLOAT32.at(0)
    assert BFLOAT16.exact(31) == 0.0


# --- the prompts


class Bytes:
    """A tokenizer of bytes."""

    def encode(self, text: str) -> list[int]:
        return [999, *text.encode()]


@pytest.mark.parametrize("longest", [16, 100, 4096])
def test_the_prompts_differ_and_reach_the_longest_length(longest: int) -> None:
    made = prompts.handful(Bytes(), longest)
    assert len(made[0]) == 1
    assert len(made[-1]) == longest == max(map(len, made))
    assert len({tuple(prompt) for prompt in made}) == len(made)
    shared, batch = prompts.with_shared_prefix(made)
    assert {tuple(prompt[:shared]) for prompt in batch} == {tuple(made[-1][:shared])}
    assert len({tuple(prompt) for prompt in batch}) == len(batch)
    assert shared < min(map(len, batch))
    assert max(map(len, batch)) <= longest


# --- the report


def test_a_report_is_wrong_if_one_check_is_and_says_why_in_a_line() -> None:
    checks: list[Any] = [
        Check("batched", "these", OK, 1e-6, 1e-5),
        Check("auxiliary", "those", NOT_RUN, remark="there are none"),
    ]
    report = Report({"vllm": "0.32.0"}, {"model": "m"}, checks)
    assert report.exit_status == 0
    assert report.as_text().endswith("What was compared agrees; see above for what was not.")
    assert "NOT RUN: auxiliary: there are none" in report.as_text()
    checks.append(Check("again", "them", WRONG, 0.5, 0.0, "prompt 1, layer 3, row 2"))
    assert report.exit_status == 1
    assert "WRONG: again: prompt 1, layer 3, row 2" in report.as_text()
    told = json.loads(report.as_json())
    assert told["exit_status"] == 1
    assert told["checks"][2]["limit"] == 0.0
