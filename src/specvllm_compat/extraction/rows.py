"""The samples of a job: token ids and loss masks, as an Arrow data set that trainers load.

The file is what ``datasets`` calls a saved data set, written here without its time stamps and
random fingerprints, and read through a memory map.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import replacing, write_whole
from specvllm_compat.extraction.preprocess import BadRow, Sample

ARROW = "data-00000-of-00001.arrow"
SKIPPED = "skipped.jsonl"
_BATCH = 1000


@dataclass
class Counts:
    """What was found in the user's rows; ``digest`` is of all samples in order."""

    rows: int = 0
    samples: int = 0
    tokens: int = 0
    digest: str = ""
    skipped: list[tuple[int, str]] = field(default_factory=list)


class Rows:
    """The samples of a folder; only the pages in use are in memory."""

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa

        with pa.memory_map(str(folder / ARROW)) as file:
            self._table = pa.ipc.open_stream(file).read_all()
        self.lengths = self._table["seq_len"].to_numpy()
        self.numbers = self._table["row"].to_numpy()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        tokens, mask = (
            self._table[name][index].values.to_numpy() for name in ("input_ids", "loss_mask")
        )
        return tokens, mask

    def digest(self) -> str:
        """Of all samples in order, as in ``Counts``."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(identity(self[index]).encode())
        return digest.hexdigest()[:32]


def identity(sample: Sample) -> str:
    """A sample's content hash: of its token ids and loss mask."""
    tokens, mask = sample
    return hashlib.sha256(tokens.tobytes() + mask.tobytes()).hexdigest()[:32]


def write_rows(
    folder: Path, owner: str, samples: Iterable[Sample | BadRow], most: int, frequencies_name: str
) -> Counts:
    """Write the good samples, at most so many, and all that goes with them; list the bad rows."""
    import pyarrow as pa
    import torch

    counts = Counts()
    digest = hashlib.sha256()
    frequencies = np.zeros(0, dtype=np.int64)

    def good() -> Iterator[tuple[int, Sample]]:
        for row, sample in enumerate(samples):
            counts.rows += 1
            if isinstance(sample, BadRow):
                counts.skipped.append((row, str(sample)))
                continue
            yield row, sample
            if counts.samples == most:
                return

    numbers = pa.list_(pa.int64())
    schema = pa.schema(
        {"input_ids": numbers, "loss_mask": numbers, "seq_len": pa.int64(), "row": pa.int64()}
    )
    with replacing(folder / ARROW, owner) as sink, pa.ipc.new_stream(sink, schema) as writer:
        batch: list[tuple[int, Sample]] = []

        def flush() -> None:
            columns = [
                [tokens for _, (tokens, _) in batch],
                [mask for _, (_, mask) in batch],
                [len(tokens) for _, (tokens, _) in batch],
                [row for row, _ in batch],
            ]
            arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            batch.clear()

        for row, sample in good():
            tokens, mask = sample
            counts.samples += 1
            counts.tokens += len(tokens)
            digest.update(identity(sample).encode())
            found = np.bincount(tokens[mask == 1], minlength=len(frequencies))
            found[: len(frequencies)] += frequencies
            frequencies = found
            batch.append((row, sample))
            if len(batch) == _BATCH:
                flush()
        flush()
    counts.digest = digest.hexdigest()[:32]
    with replacing(folder / frequencies_name, owner) as sink:
        torch.save({int(i): int(frequencies[i]) for i in frequencies.nonzero()[0]}, sink)
    _write_beside(folder, owner, counts)
    return counts


def check_skipped(counts: Counts, most: float) -> None:
    """Refuse to go on with more than this share of the rows left out, or with none at all."""
    share = len(counts.skipped) / max(counts.rows, 1)
    if counts.samples and share <= most:
        return
    first = "; ".join(f"row {row}: {reason}" for row, reason in counts.skipped[:3])
    raise BadInput(
        f"{len(counts.skipped)} of {counts.rows} rows can't be used ({first}), more than "
        f"--max-skipped {most} allows"
        if counts.samples
        else f"none of {counts.rows} rows can be used ({first})"
    )


def _write_beside(folder: Path, owner: str, counts: Counts) -> None:

    sequence = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"}
    number = {"dtype": "int64", "_type": "Value"}
    features = {"input_ids": sequence, "loss_mask": sequence, "seq_len": number, "row": number}
    state: dict[str, object] = {
        "_data_files": [{"filename": ARROW}],
        "_fingerprint": counts.digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",  # trainers compare columns with tensors
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    write_whole(folder / "dataset_info.json", json.dumps(info, indent=2), owner)
    lines = [json.dumps({"row": row, "reason": reason}) + "\n" for row, reason in counts.skipped]
    write_whole(folder / SKIPPED, "".join(lines), owner)
    write_whole(folder / "state.json", json.dumps(state, indent=2), owner)
