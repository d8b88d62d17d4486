"""The command: what it prints, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fake_trees import Finished, Tree
from specvllm_compat.cli import main
from specvllm_compat.shims import CATALOG

Trees = Callable[..., Tree]


def command(tree: Tree, *arguments: str) -> Finished:
    return tree.command(
        "-c", "from specvllm_compat.cli import main; raise SystemExit(main())", *arguments
    )


def test_status_lists_every_shim_of_a_vllm_that_works(tree: Trees) -> None:
    finished = command(tree(), "status")
    assert finished.code == 0, finished.err
    head, *rows = finished.out.splitlines()
    assert head.startswith("vllm 0.32.0, speculators 0.4.0.1, transformers 4.57.6, specvllm-compat")
    assert [row.split()[0] for row in rows] == list(CATALOG)
    assert all(row.split()[1] in ("NATIVE", "ADAPTED") for row in rows)
    assert next(row for row in rows if row.split()[0] == "request").split()[1:] == [
        "ADAPTED", "era", "0.17.0"
    ]  # fmt: skip
    assert finished.err == ""


def test_status_as_json_says_the_same(tree: Trees) -> None:
    finished = command(tree(vllm="0.33.0", transformers="5.24.0"), "status", "--json")
    assert finished.code == 0, finished.err
    found = json.loads(finished.out)
    assert found["error"] is None
    assert found["versions"]["vllm"] == "0.33.0"
    assert found["versions"]["transformers"] == "5.24.0"
    assert [row["shim"] for row in found["shims"]] == list(CATALOG)
    rows = {row["shim"]: (row["verdict"], row["era"]) for row in found["shims"]}
    assert rows["kv_planning_names"] == ("ADAPTED", "0.33.0")
    assert rows["attention_mask_module"] == ("ADAPTED", "5.24")
    assert rows["hashing_module"] == ("NATIVE", "0.11.1")


@pytest.mark.parametrize("vllm", ["0.11.0", "0.16.0", "nightly"])
@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_status_is_good_wherever_the_generator_works(
    tree: Trees, vllm: str, speculators: str
) -> None:
    assert command(tree(vllm=vllm, speculators=speculators), "status").code == 0


def test_status_fails_where_a_seam_cannot_work(tree: Trees) -> None:
    finished = command(tree(vllm="future"), "status")
    assert finished.code == 1
    verdicts = dict(line.split()[:2] for line in finished.out.splitlines()[1:])
    assert {s for s, v in verdicts.items() if v == "UNSUPPORTED"} == {"request", "two_phase"}


def test_status_fails_where_the_generator_cannot_be_imported(tree: Trees) -> None:
    finished = command(tree(speculators="0.5.0"), "status")
    assert finished.code == 1
    assert "speculators 0.5.0 has no VllmHiddenStatesGenerator" in finished.err
    found = json.loads(command(tree(speculators="0.5.0"), "status", "--json").out)
    assert "speculators 0.5.0 has no VllmHiddenStatesGenerator" in found["error"]


def test_explain_takes_one_shim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "two_phase"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("two_phase: ")
    assert "State error" in text
    assert "era      vllm 0.11.1 and on: two_phases" in text
    assert CATALOG["two_phase"].upstream.change in text
    assert "delete   when" in text
    assert "kv_planning_names" not in text


def test_explain_of_an_unknown_shim_names_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "two_phases"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no shim 'two_phases'" in captured.err
    assert all(name in captured.err for name in CATALOG)


@pytest.mark.parametrize("arguments", [[], ["no_such_command"], ["status", "--yaml"]])
def test_a_command_that_does_not_exist_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: specvllm-compat" in capsys.readouterr().err


def test_explaining_imports_no_engine(tree: Trees) -> None:
    told = tree().tells("""
        import contextlib, io, sys
        from specvllm_compat.cli import main
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(["explain"])
        tell([status, [n for n in ("vllm", "torch", "speculators", "wrapt") if n in sys.modules]])
    """)
    assert told == [0, []]
