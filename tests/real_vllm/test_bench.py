"""``specvllm-compat bench`` on a real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from specvllm_compat.cli import main; raise SystemExit(main())"


@pytest.mark.own_engine
def test_bench_measures_a_model_and_says_what_binds(small_llama: Path, tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    arguments = ["--model", str(small_llama), "--prompts", "6", "--length", "40", "--rounds", "2"]
    more = ["--engine-arg", "dtype=float32", "--json", "--picture", str(picture)]
    finished = subprocess.run(
        [sys.executable, "-c", COMMAND, "bench", *arguments, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    found = json.loads(finished.stdout)
    assert found["bytes_per_token"] == 3 * 256 * 4  # the default ids are [2, 2, 1, 3]
    assert {way: len(seen) for way, seen in found["seconds"].items()} == {
        "prefill": 2,
        "extraction": 2,
        "saved": 2,
    }
    assert all(second > 0 for seen in found["seconds"].values() for second in seen)
    assert found["limit"].partition(":")[0] in ("compute", "transport", "memory bandwidth")
    assert picture.read_text().startswith("<svg")
