"""The ``bench`` command without an engine: what it refuses, and how it tells what was measured."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from fake_trees import Tree
from specvllm_compat.benchmarking.carrying import Carrier, Step
from specvllm_compat.benchmarking.outcome import Outcome
from specvllm_compat.benchmarking.picture import Bar, bars
from specvllm_compat.benchmarking.samples import ratio, spread

Trees = Callable[..., Tree]

OUTCOME = Outcome(
    model="a/model",
    layer_ids=[1, 2, 1],
    prompts=10,
    length=100,
    dtype="bfloat16",
    bytes_per_token=10_000,
    vllm="0.32.0",
    machine={"processor": "A & B <x86_64>", "cores": "2"},
    seconds={"prefill": [1.0, 2.0, 1.0], "extraction": [1.25, 2.0, 1.0], "saved": [2.0, 4.0, 2.0]},
    transport=[1.0, 2.0, 3.0],
    copy=[4.0, 4.0, 5.0],
)


def refused(tree: Tree, *arguments: str) -> str:
    """What a refused call says; nothing may have been imported for it."""
    code = """
        import sys
        from specvllm_compat.cli import main
        code = main(sys.argv[1:])
        heavy = [name for name in ("vllm", "torch", "speculators") if name in sys.modules]
        raise SystemExit(f"imported {heavy}" if heavy else code)
    """
    finished = tree.command("-c", textwrap.dedent(code), "bench", *arguments)
    assert finished.code == 2, finished.err
    assert finished.out == ""
    text: str = finished.err
    assert len(text.strip().splitlines()) == 1
    return text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompts", "0"], "prompts must be 1 or more, not 0"),
        (["--length", "-1"], "length must be 1 or more, not -1"),
        (["--engine-arg", "dtype"], "--engine-arg dtype: write NAME=VALUE"),
        (["--engine-arg", "dtipe=float32"], "did you mean dtype"),
        (["--engine-arg", "enforce-eager=false"], "enforce_eager=False is not possible"),
        (["--picture", "no/such/folder/x.svg"], "there is no folder no/such/folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    tree: Trees, arguments: list[str], said: str
) -> None:
    assert said in refused(tree(), "--model", "a/model", *arguments)


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    assert ratio([100.0, 50.0, 90.0], [100.0, 50.0, 100.0]) == spread([1.0, 1.0, 0.9])


def test_the_table_names_rates_ratios_and_the_machine() -> None:
    text = OUTCOME.as_text()
    assert "9.8 KiB of states per token" in text
    assert "1,000 [500, 1,000] tokens/s" in text
    assert "1.000 [0.800, 1.000] of prefill" in text
    assert "A & B <x86_64>" in text
    assert "transport is 0.50 of it" in text


def test_json_holds_the_samples_and_what_follows_from_them() -> None:
    found = json.loads(OUTCOME.as_json())
    assert found["seconds"]["saved"] == [2.0, 4.0, 2.0]
    assert found["ways"]["saved"]["of_prefill"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert found["ways"]["prefill"]["tokens_per_second"]["median"] == 1000.0
    assert found["limit"] == OUTCOME.limit


@pytest.mark.parametrize(
    ("bytes_per_token", "transport", "limit"),
    [
        (10_000, [2.0], "compute: alone, prefill does 1,000 tokens/s, and states of 200,000"),
        (10_000_000, [2.0], "memory bandwidth: "),
        (10_000_000, [0.2], "transport: alone, prefill does 1,000 tokens/s, and states of 20 "),
    ],
)
def test_the_limit_is_the_stage_that_is_slowest_alone(
    bytes_per_token: int, transport: list[float], limit: str
) -> None:
    outcome = dataclasses.replace(OUTCOME, bytes_per_token=bytes_per_token, transport=transport)
    assert outcome.limit.startswith(limit)


def test_the_picture_is_svg_with_a_bar_per_way() -> None:
    picture = ElementTree.fromstring(OUTCOME.as_svg())
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert "model, vLLM 0.32.0: bound by compute" in texts
    assert "10 x 100 tokens, bfloat16, A & B <x86_64>" in texts
    assert [text for text in texts if text and "tokens/s" in text] == [
        "1,000 tokens/s, 1.00",
        "800 tokens/s, 1.00",
        "500 tokens/s, 0.50",
    ]


def test_bars_are_as_long_as_their_values() -> None:
    shown = [Bar("a", spread([1.0]), ""), Bar("b", spread([2.0]), "", ours=True)]
    picture = ElementTree.fromstring(bars("title", "note", shown))
    widths = [float(e.get("width", 0)) for e in picture.iter() if e.get("class") in ("bar", "ours")]
    assert widths[1] == pytest.approx(2 * widths[0])


def test_carrying_takes_steps_from_one_process_to_another() -> None:
    pytest.importorskip("torch")
    step = Step(layers=2, rows=7, hidden=4, dtype="bfloat16", length=3)
    assert step.bytes == 2 * 7 * 4 * 2
    with Carrier(step) as carrier:
        assert carrier.run(3) > 0
