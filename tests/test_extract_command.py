"""What ``specvllm-compat extract`` prints, and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import extraction_jobs as jobs
import pytest
from specvllm_compat.cli import main
from specvllm_compat.extraction import engine as real_engine
from specvllm_compat.extraction import extracting, progress

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(extracting, "engine", jobs.stand_in)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    yield
    jobs.stand_in.fails_in = 0


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    model = jobs.make_model(tmp_path / "model")
    data = jobs.write_lines(tmp_path / "rows.jsonl", [{"input_ids": []}, *jobs.rows(30)])
    given = {"--model": model, "--data": data, "--output-dir": tmp_path / "states"}
    return ["extract", *(str(word) for pair in given.items() for word in pair)]


def test_a_run_tells_its_estimate_its_end_and_how_to_train(
    arguments: list[str], capsys: Out
) -> None:
    assert main([*arguments, "--format", "safetensors"]) == 0
    told = capsys.readouterr()
    assert "30 samples, " in told.err
    assert "GB to write" in told.err
    assert "100%, 30/30 samples, " in told.err
    done, skipped, training, command = told.out.splitlines()
    assert done == "30 of 30 samples are done, 30 of them now"
    assert skipped.startswith("1 rows were skipped; ")
    assert training.startswith("Complete. To train, with speculators 0.9:")
    assert "--target-layer-ids 2 4 5 " in command


def test_lines_are_told_now_and_then_where_there_is_no_terminal(
    arguments: list[str], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " tokens/s, " in line]
    assert len(lines) > 20
    assert all("\r" not in line and line.endswith(" left") for line in lines)


def test_a_terminal_gets_one_bar(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(arguments) == 0
    last = terminal.getvalue().rpartition("\r")[2]
    assert last.startswith("100%|")
    assert "30/30 samples, 0.00 GB, queue " in last
    assert "tok/s" in last
    assert "tokens/s" not in terminal.getvalue()


def test_bad_input_is_one_sentence_and_status_2(arguments: list[str], capsys: Out) -> None:
    for wrong in (["--layer-ids", "99", "7"], ["--engine-arg", "quantization"]):
        assert main([*arguments, *wrong]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert len(told.err.splitlines()) == 1


def test_a_run_that_fails_says_that_it_can_go_on_and_status_1(
    arguments: list[str], capsys: Out
) -> None:
    jobs.stand_in.fails_in = 2
    assert main([*arguments, "--batch-tokens", "25"]) == 1
    assert "the same command goes on from there" in capsys.readouterr().err
    jobs.stand_in.fails_in = 0
    assert main([*arguments, "--batch-tokens", "25"]) == 0


def test_a_share_says_that_others_have_not_finished(arguments: list[str], capsys: Out) -> None:
    share = ["--batch-tokens", "25", "--world-size", "2", "--rank"]
    assert main([*arguments, *share, "1"]) == 0
    assert "Other ranks have not finished" in capsys.readouterr().out
    assert main([*arguments, *share, "0"]) == 0
    assert "Complete. To train" in capsys.readouterr().out


def test_engine_arguments_reach_the_engine(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def remember(*given: object) -> object:
        seen.append(given[-1])
        return jobs.stand_in(*given)

    monkeypatch.setattr(extracting, "engine", remember)
    given = ["tensor_parallel_size=2", "quantization=fp8", 'compilation_config={"level": 0}']
    assert main([*arguments, *(word for text in given for word in ("--engine-arg", text))]) == 0
    described = json.loads((Path(arguments[-1]) / "data_config.json").read_text())
    assert """--engine-arg 'compilation_config={"level": 0}'""" in described["command"]
    assert seen == [
        {"tensor_parallel_size": 2, "quantization": "fp8", "compilation_config": {"level": 0}}
    ]


def test_speculators_that_are_missing_are_told(
    arguments: list[str], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extracting, "engine", real_engine.engine)
    assert main(arguments) == 2
    assert "the engine needs speculators, 0.3 or 0.4: " in capsys.readouterr().err
    data = jobs.write_lines(Path(arguments[4]), [{"messages": []}])
    assert main([*arguments[:4], str(data), "--output-dir", arguments[-1] + "-more"]) == 2
    assert "conversations need speculators, 0.3 or 0.4: " in capsys.readouterr().err


def test_other_commands_stay_light() -> None:
    code = (
        "import sys; from specvllm_compat.cli import main; main(['explain', 'request']);"
        "print([n for n in ('numpy', 'torch', 'pyarrow', 'logging.handlers') if n in sys.modules])"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert told.splitlines()[-1] == "[]"
