"""``extract``: conversations or token ids in, hidden states for speculators' trainers out."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specvllm_compat.extraction.directory import (
    MADE_BY,
    described_states,
    made_directory,
    prepared_rows,
    refuse_another_job,
)
from specvllm_compat.extraction.engine import engine, engine_arguments
from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.formats import FORMATS, bytes_per_token, check_format
from specvllm_compat.extraction.inputs import Data, open_data
from specvllm_compat.extraction.job import Job, Report, owner, run
from specvllm_compat.extraction.model import Model, read_model
from specvllm_compat.extraction.preprocess import (
    BadRow,
    Preprocess,
    Sample,
    checked,
    conversations,
    tokenized,
)
from specvllm_compat.extraction.rows import Counts, check_skipped, write_rows
from specvllm_compat.extraction.schedule import groups

log = logging.getLogger("specvllm_compat")


def extract(
    *,
    model: str,
    data: str,
    output_dir: str | Path,
    layer_ids: Sequence[int] | None = None,
    max_model_len: int = 2048,
    batch_tokens: int | None = None,
    format: str = "pt",
    dtype: str = "auto",
    column: str | None = None,
    assistant_pattern: str | None = None,
    max_samples: int | None = None,
    max_skipped: float = 0.05,
    world_size: int = 1,
    rank: int = 0,
    engine_args: Mapping[str, Any] | None = None,
    verify: bool = True,
    force: bool = False,
    dry_run: bool = False,
) -> Report:
    """Extract the states of every row of ``data`` into ``output_dir``, or of this rank's share.

    Call it again after anything that went wrong: it goes on with what is missing or damaged. The
    options mean what ``specvllm-compat extract --help`` says.

    Raises:
        BadInput: before the model is loaded; the text says what is wrong, and what to do.
        Incomplete: something failed on the way. What is there is whole.
    """
    folder, us = Path(output_dir).expanduser(), owner(world_size, rank)
    batch = batch_tokens or max(8192, max_model_len)
    _check_numbers(max_model_len, batch, max_samples, max_skipped)
    check_format(format, dtype)
    arguments = engine_arguments(engine_args or {})
    target = read_model(model, arguments.get("dtype"))
    ids = target.check_layer_ids(layer_ids)
    if ids[-1] != target.layers - 1 and not force:
        raise BadInput(
            f"layer ids {ids}: trainers take the last one for the verifier's output, which is "
            f"layer {target.layers - 1} of {target.name}. Put it last, or go on with --force"
        )
    rows_of = open_data(data, column)
    made_directory(folder)
    asked = {
        **_described(target, rows_of),
        "hidden_states": described_states(format, dtype, ids),
        "max_model_len": max_model_len,
        "batch_tokens": batch,
        "max_samples": max_samples,
        "assistant_pattern": assistant_pattern,
        "engine_args": {
            k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()
        },
    }
    asked["command"] = _command(asked, str(rows_of.path), str(folder))
    refuse_another_job(folder, asked)

    def prepare() -> Counts:
        log.info("preparing samples from %s", rows_of.path)
        samples = _samples(rows_of, target, max_model_len, assistant_pattern)
        counts = write_rows(
            folder, us, samples, max_samples or sys.maxsize, FORMATS[format].frequencies
        )
        check_skipped(counts, max_skipped)
        return counts

    rows, skipped = prepared_rows(folder, asked, FORMATS[format], us, prepare)
    stored = target.dtype if dtype == "auto" else dtype
    job = Job(
        folder=folder,
        rows=rows,
        format=FORMATS[format],
        dtype=dtype,
        per_token=bytes_per_token(len(ids), target.hidden, stored),
        groups=groups(rows.lengths, batch),
        world_size=world_size,
        rank=rank,
        owner=us,
        verify=verify,
        force=force,
        skipped=skipped,
        max_skipped=max_skipped,
        training=FORMATS[format].training(target.name, folder, ids, dtype),
    )
    with contextlib.ExitStack() as stack:
        loading: Callable[[], Any] = lambda: stack.enter_context(  # noqa: E731
            engine(target.name, ids, max_model_len, batch, arguments)
        )
        return run(job, None if dry_run else loading)


def _described(target: Model, data: Data) -> dict[str, Any]:
    import specvllm_compat
    from specvllm_compat.shim import installed

    packages = ("vllm", "speculators", "torch", "transformers")
    return {
        "version": "2.0",
        "made_by": f"{MADE_BY} {specvllm_compat.__version__}",
        "command": "",
        "packages": {name: installed(name).text for name in packages},
        "model": {
            "name": target.name,
            "digest": target.digest,
            "decoder_layers": target.layers,
            "hidden_size": target.hidden,
        },
        "data": {"name": data.path.name, "digest": data.digest, "column": data.column},
    }


def _command(asked: Mapping[str, Any], data: str, folder: str) -> str:
    """The command that asks for the same files, from wherever it was asked."""
    states = asked["hidden_states"]
    options: dict[str, Any] = {
        "model": asked["model"]["name"],
        "data": data,
        "output_dir": folder,
        "layer_ids": states["layer_ids"],
        "format": states["format"],
        "dtype": states["dtype"],
        "column": asked["data"]["column"],
    }
    for name in ("max_model_len", "batch_tokens", "max_samples", "assistant_pattern"):
        if asked[name] is not None:
            options[name] = asked[name]
    words = [MADE_BY, "extract"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"]
        words += map(str, value if isinstance(value, list) else [value])
    for name, text in asked["engine_args"].items():
        words += ["--engine-arg", f"{name}={text}"]
    return shlex.join(words)


def _check_numbers(
    max_model_len: int, batch_tokens: int, max_samples: int | None, max_skipped: float
) -> None:
    for option, number in (
        ("--max-model-len", max_model_len),
        ("--batch-tokens", batch_tokens),
        ("--max-samples", max_samples),
    ):
        if number is not None and number < 1:
            raise BadInput(f"{option} {number}: must be 1 or more")
    if not 0 <= max_skipped <= 1:
        raise BadInput(f"--max-skipped {max_skipped}: must be a share from 0 to 1")


def _samples(
    data: Data, model: Model, longest: int, pattern: str | None
) -> Iterator[Sample | BadRow]:
    preprocess: Preprocess = (
        tokenized if data.tokenized else conversations(model.folder, data.column, longest, pattern)
    )
    for row in data.rows():
        try:
            yield checked(preprocess(row), longest, model.vocabulary)
        except BadRow as error:
            yield error
