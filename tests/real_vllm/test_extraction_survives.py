"""Real runs of the command are killed, and speculators' own trainers learn from what they leave.

Minutes long: ``nox -s extraction`` runs it.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environments
import matrix
import psutil
import pytest
import tiny
from specvllm_compat.extraction import convert

pytestmark = [pytest.mark.own_engine, pytest.mark.extraction]

HERE = Path(__file__).parent
COMMAND = "from specvllm_compat.cli import main; raise SystemExit(main())"
# speculators, and a vLLM release in whose environment its trainer runs
TRAINERS = {"0.3.0": "0.16.0", "0.4.0.1": "0.16.0", "0.9.0": "0.33.0"}
EPOCHS = 3


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_llama(tmp_path_factory.mktemp("verifier") / "llama", layers=8, hidden=128)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patterns that repeat: a draft can learn them. Many rows for an engine, few for a trainer."""
    draw = random.Random(1)
    rows = []
    for _ in range(300):
        pattern = [draw.randrange(512) for _ in range(6)]
        rows.append({"input_ids": (pattern * 100)[: draw.randint(20, 600)]})
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def start(verifier: Path, data: Path) -> Callable[..., subprocess.Popen[str]]:
    def started(folder: Path, *options: str) -> subprocess.Popen[str]:
        given = {"--model": verifier, "--data": data, "--output-dir": folder}
        words = [str(word) for pair in given.items() for word in pair]
        fixed = ["--max-model-len", "600", "--batch-tokens", "256"]
        command = [sys.executable, "-c", COMMAND, "extract", *words, *fixed, *options]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, text=True, **pipes)

    return started


def end(process: subprocess.Popen[str], status: int = 0) -> str:
    told, _ = process.communicate()
    assert process.returncode == status, told[-4000:]
    return told


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def wait_for(process: subprocess.Popen[str], folder: Path, samples: int) -> None:
    while process.poll() is None and len(list(folder.glob("data_*.pt"))) < samples:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0][-4000:]


def workers(process: subprocess.Popen[str]) -> Iterator[psutil.Process]:
    for child in psutil.Process(process.pid).children(recursive=True):
        if not any("resource_tracker" in word for word in child.cmdline()):
            yield child


def test_killed_runs_end_with_the_files_of_one_that_was_not(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder, draw = tmp_path / "states", random.Random()
    end(start(folder))
    undisturbed = tree(folder)
    assert len(undisturbed) > 300
    shutil.rmtree(folder)

    process = start(folder)
    wait_for(process, folder, draw.randint(1, 100))
    for worker in workers(process):
        worker.kill()
    assert "the same command goes on from there" in end(process, status=1)

    for _ in range(2):
        before = len(list(folder.glob("data_*.pt")))
        process = start(folder)
        wait_for(process, folder, before + draw.randint(1, 60))
        time.sleep(draw.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

    for path in folder.glob("data_*.pt"):
        assert path.read_bytes() == undisturbed[path.name]
    told = end(start(folder))
    assert "Complete. To train" in told
    assert "came out differently" not in told
    assert tree(folder) == undisturbed


def test_two_ranks_at_once_are_a_single_run(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "states"
    few = ("--max-samples", "60", "--format", "safetensors")
    processes = [start(folder, *few, "--world-size", "2", "--rank", str(k)) for k in range(2)]
    told = [end(process) for process in processes]
    assert any("Complete. To train" in text for text in told)
    united = tree(folder)
    shutil.rmtree(folder)
    end(start(folder, *few))
    assert tree(folder) == united


@pytest.fixture(scope="module")
def states(verifier: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Few and short samples, in the formats of all trainers."""
    home = tmp_path_factory.mktemp("states")
    rows = [json.loads(line)["input_ids"][:120] for line in data.read_text().splitlines()[:40]]
    short = home / "short.jsonl"
    short.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    given = {"--model": verifier, "--data": short, "--output-dir": home / "pt"}
    words = [str(word) for pair in given.items() for word in pair]
    subprocess.run([sys.executable, "-c", COMMAND, "extract", *words], check=True)
    for dtype in ("auto", "fp8"):
        convert(source=home / "pt", output_dir=home / dtype, dtype=dtype)
    return {"pt": home / "pt", "safetensors": home / "auto", "fp8": home / "fp8"}


@pytest.mark.parametrize(
    ("speculators", "kind"),
    [("0.3.0", "pt"), ("0.4.0.1", "pt"), ("0.9.0", "safetensors"), ("0.9.0", "fp8")],
)
def test_the_trainers_of_speculators_learn_from_the_files(
    states: dict[str, Path], verifier: Path, tmp_path: Path, speculators: str, kind: str
) -> None:
    environment = environments.environment(TRAINERS[speculators])
    told = matrix.variables(environment, speculators, TORCHDYNAMO_DISABLE="1")
    if kind != "pt":
        connectors = environments.beside("hs-connectors", speculators)
        told["PYTHONPATH"] += os.pathsep + str(connectors)
    report = tmp_path / "report.json"
    arguments = [str(states[kind]), str(verifier), str(EPOCHS), kind, str(report)]
    finished = subprocess.run(
        [str(environment.python), str(HERE / "own_trainer.py"), *arguments],
        env=told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-6000:]
    seen = json.loads(report.read_text())
    losses = seen["losses"]
    assert seen["samples"] == (40 if kind == "pt" else 36)  # the new trainers keep a tenth
    assert len(losses) >= 2 * EPOCHS
    assert all(math.isfinite(loss) for loss in losses)
    third = len(losses) // 3
    assert sum(losses[-third:]) < 0.7 * sum(losses[:third])
