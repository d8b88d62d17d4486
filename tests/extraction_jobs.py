"""Jobs without an engine: a folder that looks like a model, data, and states that are computed.

The stand-in's states depend on what else is in a call, as an engine's do.

    python tests/extraction_jobs.py OPTIONS.json    # one extraction, in a process to be killed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from specvllm_compat.extraction import engine as real_engine
from specvllm_compat.extraction import extracting
from specvllm_compat.extraction.job import Report
from specvllm_compat.extraction.preprocess import BadRow

LAYERS, HIDDEN, VOCABULARY = 8, 16, 500


def make_model(folder: Path, **different: Any) -> Path:
    """A folder with a config and something like weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "dtype": "bfloat16",
        **different,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def rows(count: int, *, longest: int = 200, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of token ids with a loss mask, the first half of which is zeros."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        length = draw.randint(2, longest)
        tokens = [draw.randrange(VOCABULARY) for _ in range(length)]
        made.append(
            {"input_ids": tokens, "loss_mask": [int(i > length // 2 - 1) for i in range(length)]}
        )
    return made


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def states(tokens: torch.Tensor, layer_ids: Sequence[int], batch: str) -> list[torch.Tensor]:
    """Of one sample in a call of which ``batch`` is a hash."""
    made = []
    for layer in layer_ids:
        noise = int(hashlib.sha256(f"{batch} {layer}".encode()).hexdigest()[:4], 16) / 2**20
        column = tokens.float().unsqueeze(1) * (layer + 1) / VOCABULARY + noise
        made.append((column + torch.arange(HIDDEN) / HIDDEN).to(torch.bfloat16))
    return made


@contextlib.contextmanager
def stand_in(
    _model: str, layer_ids: Sequence[int], _longest: int, _tokens: int, _arguments: Any
) -> Iterator[Any]:
    """In place of `engine`: as slow as ``delay`` says, failing in the call ``fails_in``.

    Samples that begin with the token ``cannot`` have no states.
    """
    calls = 0

    def produce(_: list[int], samples: list[Any]) -> Iterator[tuple[int, list[torch.Tensor]]]:
        nonlocal calls
        calls += 1
        if calls == stand_in.fails_in:
            raise RuntimeError("a worker process died")
        batch = hashlib.sha256(b"".join(tokens.tobytes() for tokens, _ in samples)).hexdigest()
        for at in reversed(range(len(samples))):
            time.sleep(stand_in.delay)
            tokens = torch.tensor(samples[at][0])
            bad = stand_in.cannot is not None and int(tokens[0]) == stand_in.cannot
            yield at, BadRow("not finite") if bad else states(tokens, layer_ids, batch)

    yield produce


stand_in.delay = 0.0
stand_in.fails_in = 0
stand_in.cannot = None


def extract(**options: Any) -> Report:
    """`extract` on the stand-in; groups of about 800 tokens unless told otherwise."""
    extracting.engine = stand_in
    return extracting.extract(**{"batch_tokens": 25, "max_model_len": 256, **options})


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    assert real_engine.engine is extracting.engine
    given = json.loads(Path(sys.argv[1]).read_text())
    stand_in.delay = given.pop("delay", 0.0)
    print(extract(**given))
