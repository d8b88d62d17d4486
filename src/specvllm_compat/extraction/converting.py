"""``convert``: what the 0.3 and 0.4 trainers load into what the later ones do, and back."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import specvllm_compat
from specvllm_compat.extraction.directory import (
    CONFIG,
    MADE_BY,
    described_states,
    made_directory,
    prepared_rows,
    refuse_another_job,
)
from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import size_and_sum
from specvllm_compat.extraction.formats import FORMATS, Format, bytes_per_token, check_format
from specvllm_compat.extraction.job import Job, Report, owner, run
from specvllm_compat.extraction.manifest import MANIFEST, read_entry
from specvllm_compat.extraction.preprocess import BadRow, Sample
from specvllm_compat.extraction.rows import Counts, check_skipped, write_rows

_GROUP = 16
_UNREADABLE = (OSError, ValueError, RuntimeError, LookupError)


def convert(
    *,
    source: str | Path,
    output_dir: str | Path,
    layer_ids: Sequence[int] | None = None,
    dtype: str = "auto",
    max_skipped: float = 0.05,
    verify: bool = True,
    force: bool = False,
) -> Report:
    """Convert a folder of ``data_{i}.pt``, or a data set with ``hs_{i}.safetensors``, to the other.

    The source may be made by `extract`, by speculators, or by vLLM. Call it again after anything
    that went wrong, as with `extract`.

    Raises:
        BadInput: before anything is written; the text says what is wrong, and what to do.
        Incomplete: something failed on the way. What is there is whole.
    """
    folder, name = Path(output_dir).expanduser(), owner(1, 0)
    origin = _Source.at(Path(source).expanduser())
    target = "pt" if origin.format is FORMATS["safetensors"] else "safetensors"
    check_format(target, dtype)
    format = FORMATS[target]
    ids = origin.layer_ids(layer_ids)
    model = origin.config.get("model", {})
    asked = {
        "version": "2.0",
        "made_by": f"{MADE_BY} {specvllm_compat.__version__}",
        "command": shlex.join([MADE_BY, "convert", str(origin.folder), str(folder)]),
        "model": model,
        "hidden_states": described_states(target, dtype, ids),
        "converted_from": {"name": str(origin.folder), "digest": origin.digest()},
        "made_before": origin.config,
    }
    made_directory(folder)
    refuse_another_job(folder, asked)

    def prepare() -> Counts:
        samples = origin.samples(len(ids), verify)
        counts = write_rows(folder, name, samples, sys.maxsize, format.frequencies)
        check_skipped(counts, max_skipped)
        return counts

    rows, skipped = prepared_rows(folder, asked, format, name, prepare)
    first = origin.states[0]
    stored = str(first.dtype).removeprefix("torch.") if dtype == "auto" else dtype
    verifier = model.get("name") or model.get("target_model_path") or "MODEL"
    job = Job(
        folder=folder,
        rows=rows,
        format=format,
        dtype=dtype,
        per_token=bytes_per_token(len(ids), first.shape[1], stored),
        groups=np.array_split(np.arange(len(rows)), -(-len(rows) // _GROUP)),
        owner=name,
        verify=verify,
        force=force,
        skipped=skipped,
        max_skipped=max_skipped,
        training=format.training(verifier, folder, ids, dtype),
    )

    def produce(group: list[int], _: list[Sample]) -> Iterator[tuple[int, Sequence[Any]]]:
        for at, index in enumerate(group):
            yield at, origin.read(int(rows.numbers[index]))[2]

    return run(job, lambda: produce)


class _Source:
    """A folder of samples in one of the formats; ``states`` are those of its first sample."""

    def __init__(self, folder: Path, format: Format, indices: list[int]) -> None:
        self.folder, self.format, self._indices = folder, format, indices
        path = folder / CONFIG
        try:
            self.config: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
            self.states = self.read(indices[0])[2]
        except _UNREADABLE as error:
            raise BadInput(f"{folder} can't be read: {type(error).__name__}: {error}") from None
        if self._ours and not (folder / MANIFEST).exists():
            raise BadInput(f"{folder} is not complete: run its extraction to the end first")

    @classmethod
    def at(cls, folder: Path) -> _Source:
        """What the folder holds.

        Raises:
            BadInput: no samples, samples of both formats, or an extraction that is not complete.
        """
        found = [(format, format.indices(folder)) for format in FORMATS.values()]
        found = [(format, indices) for format, indices in found if indices]
        if len(found) != 1:
            what = "samples of both formats" if found else "neither data_*.pt nor hs_*.safetensors"
            raise BadInput(f"{folder} holds {what}: name a folder that speculators trains from")
        return cls(folder, *found[0])

    @property
    def _ours(self) -> bool:
        return str(self.config.get("made_by", "")).startswith(MADE_BY)

    def read(self, index: int) -> tuple[Any, Any, list[Any]]:
        """Token ids, loss mask, and states of a sample."""
        return self.format.read(self.format.path(self.folder, index))

    def layer_ids(self, asked: Sequence[int] | None) -> list[int]:
        """Of the states, in their order.

        Raises:
            BadInput: they are not known, or not as many as there are states.
        """
        known = self.config.get("hidden_states", {}).get("layer_ids")
        if known and not self._ours:
            known = sorted(set(known))  # speculators' generator returns them in this order
        ids = list(asked or known or ())
        if len(ids) != len(self.states):
            raise BadInput(
                f"{self.folder} has the states of {len(self.states)} layers, and "
                f"{f'layer ids {ids}' if ids else 'does not tell which'}: name the decoder layers "
                "whose outputs they are with --layer-ids (vLLM's auxiliary ids, less one)"
            )
        return ids

    def digest(self) -> str:
        """Of the names and sizes of all samples."""
        digest = hashlib.sha256()
        for index in self._indices:
            size = self.format.path(self.folder, index).stat().st_size
            digest.update(f"{index} {size}\n".encode())
        return digest.hexdigest()[:32]

    def samples(self, layers: int, verify: bool) -> Iterator[Sample | BadRow]:
        """One for each number up to the last; a hole is a bad row, and so is a damaged file."""
        rows = self._rows()
        sums = self._sums() if verify else {}
        there = set(self._indices)
        for index in range(self._indices[-1] + 1):
            if index not in there:
                yield BadRow("there is no such file")
                continue
            path = self.format.path(self.folder, index)
            try:
                if index in sums and size_and_sum(path)[1] != sums[index]:
                    raise ValueError("the file is damaged: run its extraction again")
                tokens, mask, states = self.read(index)
                if mask is None:
                    mask = rows[index]["loss_mask"]
                    if rows[index]["input_ids"] != tokens.tolist():
                        raise ValueError("the states are of other tokens than the row")
                tokens, mask = (np.asarray(part, dtype=np.int64) for part in (tokens, mask))
                shapes = {tuple(state.shape) for state in states}
                if len(states) != layers or {shape[0] for shape in shapes} != {len(tokens)}:
                    raise ValueError(f"{len(tokens)} tokens, but states {sorted(shapes)}")
                if len(mask) != len(tokens) or len(shapes) != 1:
                    raise ValueError(f"{len(tokens)} tokens, but a loss mask of {len(mask)}")
                yield tokens, mask
            except _UNREADABLE as error:
                yield BadRow(f"{type(error).__name__}: {error}")

    def _sums(self) -> dict[int, bytes]:
        """The checksums of what `extract` or `convert` wrote."""
        path = self.folder / MANIFEST
        entries = map(read_entry, path.read_bytes().splitlines()) if path.exists() else ()
        return {entry.index: entry.sum for entry in entries if entry and entry.sum}

    def _rows(self) -> Any:
        """The rows that go with safetensors."""
        if not (self.folder / "state.json").is_file():
            return {}
        from datasets import load_from_disk

        return load_from_disk(str(self.folder)).with_format(None)
