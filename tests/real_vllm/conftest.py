"""One generator on a real engine serves all cases; a report is written at the session's end."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("oracle")

# Code of models goes here instead of the user's cache; transformers reads it when it is imported.
MODULES = tempfile.TemporaryDirectory()
os.environ["HF_MODULES_CACHE"] = MODULES.name

MISSING = [name for name in ("vllm", "speculators") if importlib.util.find_spec(name) is None]
if MISSING:
    collect_ignore_glob = ["test_*.py"]
else:
    import specvllm_compat  # before speculators
    import tiny
    from oracle import TALLY

HERE = Path(__file__).parent
LAYER_IDS = [5, 0, 3, 3, 1]
MAX_MODEL_LEN = 256
ENGINE_ARGS = {"dtype": "float32", "max_num_batched_tokens": 128}
STARTED = time.monotonic()
OUTCOMES = {"passed": 0, "failed": 0, "skipped": 0}
SHARED: list[Any] = []
FAMILIES_SEEN: dict[str, Any] = {}


def pytest_report_header() -> str:
    return (
        f"real engine: not run, {MISSING} not installed" if MISSING else "real engine: on the CPU"
    )


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with six layers."""
    return tiny.make_llama(tmp_path_factory.mktemp("llama-6"), layers=6)


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with four layers: the default layer ids are [2, 2, 1, 3]."""
    return tiny.make_llama(tmp_path_factory.mktemp("llama-4"), layers=4, seed=4)


@pytest.fixture(scope="session")
def generator(llama: Path) -> Iterator[Any]:
    """The generator that all cases share: chunks of at most 128 tokens, float32."""
    specvllm_compat.configure(engine_args=ENGINE_ARGS)
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    made = VllmHiddenStatesGenerator(
        model_path=str(llama), layer_ids=list(LAYER_IDS), max_model_len=MAX_MODEL_LEN
    )
    SHARED.append(made)
    yield made
    SHARED.clear()
    made.executor.shutdown()


@pytest.fixture(autouse=True)
def shared_workers_asleep(request: pytest.FixtureRequest) -> Iterator[None]:
    """Idle workers keep a core busy: those of the shared generator sleep in tests without it."""
    used = "generator" in request.fixturenames
    workers = [h.proc.pid for made in SHARED if not used for h in made.executor.workers]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    yield
    for worker in workers:
        os.kill(worker, signal.SIGCONT)


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run one of the scripts beside this file in a fresh process; returns what it reports.

    ``status`` is the exit status that it should have.
    """

    def run(script: str, *arguments: object, status: int = 0, **variables: str) -> dict[str, Any]:
        report = tmp_path / "report.json"
        finished = subprocess.run(
            [sys.executable, str(HERE / script), *map(str, arguments), str(report)],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == status, finished.stdout[-2000:] + finished.stderr[-6000:]
        seen: dict[str, Any] = json.loads(report.read_text())
        TALLY.add(seen["prompts"], seen["largest_error"])
        return seen

    return run


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.outcome] += 1


def pytest_sessionfinish(exitstatus: int) -> None:
    """Write what was seen to the file named by SPECVLLM_MATRIX_REPORT."""
    path = os.environ.get("SPECVLLM_MATRIX_REPORT")
    if MISSING or not path:
        return
    import vllm

    versions = {
        name: importlib.metadata.version(name)
        for name in ("speculators", "transformers", "torch", "wrapt")
    }
    Path(path).write_text(
        json.dumps(
            {
                "versions": {
                    "vllm": vllm.__version__,
                    "python": "{}.{}.{}".format(*sys.version_info[:3]),
                    **versions,
                },
                "verdicts": [[str(part) for part in row] for row in specvllm_compat.status()],
                **TALLY.as_json(),
                **OUTCOMES,
                "families": FAMILIES_SEEN,
                "exit_status": int(exitstatus),
                "seconds": round(time.monotonic() - STARTED),
            },
            indent=1,
        )
    )
