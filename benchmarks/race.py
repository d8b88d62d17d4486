"""Rivals side by side in one run: each in a process of its own, one at work at a time.

Those that wait are stopped by a signal, because vLLM's processes wait by spinning.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models

HERE = Path(__file__).parent
AT_ONCE = 2  # processes that load side by side


@dataclass(frozen=True)
class Size:
    """What one run is given."""

    prompts: int
    length: int

    def __str__(self) -> str:
        return f"{self.prompts} x {self.length} tokens"

    @property
    def tokens(self) -> int:
        return self.prompts * self.length


class Rival:
    """A process that runs `rivals`, from its start to its end."""

    def __init__(self, name: str, settings: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.error: str | None = None
        self._log = (settings.parent / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "rivals.py"), name, str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def wait_until_loaded(self) -> None:
        """Until it is, or has said why it can't be (see ``error``)."""
        self._reply()
        self._signal(signal.SIGSTOP)

    def run(self, **order: Any) -> dict[str, Any]:
        """One run of its own, while all others stand still.

        Raises:
            RuntimeError: it failed.
        """
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        reply = self._reply()
        self._signal(signal.SIGSTOP)
        if self.error:
            raise RuntimeError(f"{self.name}: {self.error}")
        return reply

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            end = self._log.read().strip().splitlines()[-1:] or ["it ended without a word"]
            line = json.dumps({"error": end[0]})
        reply: dict[str, Any] = json.loads(line)
        self.error = reply.get("error")
        return reply

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Its workers end with it; what tracks vLLM's shared memory outlives it, and tidies up."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()


@contextmanager
def loaded(
    names: Sequence[str], shape: models.Shape, dtype: str, **settings: Any
) -> Iterator[list[Rival]]:
    """The rivals with a model of this shape, ready to run; those that can't load have an error."""
    rivals: list[Rival] = []
    # Stopped processes would outlive this one: whatever ends it has to end them first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        model = models.make(Path(folder, "model"), shape, dtype)
        told = Path(folder, "settings.json")
        told.write_text(
            json.dumps(
                {
                    "model": str(model),
                    "layer_ids": shape.layer_ids,
                    "dtype": dtype,
                    "max_model_len": 2048,
                    "max_num_batched_tokens": 8192,
                    "vocabulary": models.VOCABULARY,
                    "scratch": folder,
                    **settings,
                }
            )
        )
        try:
            for start in range(0, len(names), AT_ONCE):
                together = [
                    Rival(name, told, environment(name)) for name in names[start : start + AT_ONCE]
                ]
                rivals += together
                for rival in together:
                    rival.wait_until_loaded()
                    print(f"  {rival.name}: {rival.error or 'loaded'}", flush=True)
            yield rivals
        finally:
            for rival in rivals:
                rival.end()


def environment(name: str) -> dict[str, str]:
    """What a rival's process finds in ``os.environ``: specvllm_compat only where it is measured.

    vllm-lens is in the folder that VLLM_LENS names, because installed it is in every vLLM process.
    """
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    # Without our own files in the way, and with bytecode: else an import takes a minute.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    own = {"SPECVLLM_COMPAT": "on" if "generate" in name else "off"}
    if name == "native":  # which keeps states in the KV cache
        own["VLLM_CPU_KVCACHE_SPACE"] = "4"
    if name == "lens":
        own["PYTHONPATH"] = os.pathsep.join([kept["PYTHONPATH"], kept["VLLM_LENS"]])
    return quiet | kept | own


def race(rivals: Sequence[Rival], size: Size, rounds: int) -> dict[str, dict[str, Any]]:
    """Every rival once per round, in turn; per rival its seconds, memory and norms of the states.

    Each begins once: a run that is not measured fills memory and caches, and yields the norms.
    """
    found: dict[str, dict[str, Any]] = {}
    for rival in rivals:
        if rival.error:
            found[rival.name] = {"error": rival.error}
            continue
        order = {"prompts": size.prompts, "length": size.length, "seed": 0}
        found[rival.name] = {"runs": [], **rival.run(norms=True, **order)}
    able = [rival for rival in rivals if not rival.error]
    for number in range(rounds):
        turn = number % len(able)
        for rival in [*able[turn:], *able[:turn]]:  # nobody is always first
            run = rival.run(prompts=size.prompts, length=size.length, seed=number)
            found[rival.name]["runs"].append(run)
    return found
