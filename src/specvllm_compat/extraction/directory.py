"""The output directory: made for one job, refused for any other, described in data_config.json.

The description is what the job's files depend on, and nothing else: no times, no ranks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import write_whole
from specvllm_compat.extraction.formats import FORMATS, Format
from specvllm_compat.extraction.rows import Counts, Rows

log = logging.getLogger("specvllm_compat")

CONFIG = "data_config.json"
MADE_BY = "specvllm-compat"
# What may differ: `name` says what is otherwise told by a digest
_FREE = ("made_by", "command", "samples", "name", "torch", "transformers")


def made_directory(folder: Path) -> None:
    """Make the folder, or find that it can't be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable.tmp"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"--output-dir {folder} can't be written to: {error.strerror}") from None


def described_states(format: str, dtype: str, layer_ids: Sequence[int]) -> dict[str, Any]:
    """The states, with their layers in both conventions."""
    return {
        "format": format,
        "dtype": dtype,
        # outputs of these decoder layers, before the final norm: speculators 0.3 and 0.4
        "layer_ids": list(layer_ids),
        # vLLM's auxiliary ids, of which 0 is the embeddings: speculators 0.5 and later
        "vllm_layer_ids": [i + 1 for i in layer_ids],
    }


def description(folder: Path) -> dict[str, Any] | None:
    """What the folder was made for; None if it holds no samples yet.

    Raises:
        BadInput: something else made it.
    """
    path = folder / CONFIG
    if not path.exists():
        if any(format.indices(folder) for format in FORMATS.values()):
            raise BadInput(
                f"{folder} holds samples that {MADE_BY} did not extract: name another "
                "--output-dir, or take them over with `specvllm-compat convert`"
            )
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        ours = str(found.get("made_by", "")).startswith(MADE_BY)
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise BadInput(f"{path} was not written by {MADE_BY}: name another --output-dir")
    return found


def refuse_another_job(folder: Path, asked: Mapping[str, Any]) -> None:
    """Compare what is asked for with what the folder was made for; name every difference."""
    found = description(folder)
    if found is None:
        return
    before, now = _flat(found), _flat(asked)
    wrong = [
        f"{key} {before.get(key)!r}, not {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not any(part in _FREE for part in key.split("."))
    ]
    if wrong:
        raise BadInput(
            f"{folder} was made with {'; '.join(wrong)}. Go on as it was made, or name another "
            "--output-dir"
        )


def prepared_rows(
    folder: Path,
    asked: Mapping[str, Any],
    format: Format,
    owner: str,
    prepare: Callable[[], Counts],
) -> tuple[Rows, int]:
    """The samples, and how many rows were skipped: those that are there, or newly prepared.

    The description comes last: where it is, all the rest is.
    """
    found = description(folder)
    if found is not None:
        try:
            rows = Rows(folder)
            if rows.digest() == found["samples"]["digest"]:
                return rows, found["samples"]["skipped"]
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            log.warning("the samples in %s are damaged (%s): preparing them again", folder, error)
    counts = prepare()
    if found is not None and found["samples"]["digest"] != counts.digest:
        raise BadInput(
            f"the samples in {folder} are damaged, and preparing them again gives others: the "
            "packages that prepare them have changed. Name another --output-dir"
        )
    rows = Rows(folder)
    format.write_beside(folder, owner, rows.lengths.tolist())
    samples = {
        "rows": counts.rows,
        "samples": counts.samples,
        "tokens": counts.tokens,
        "skipped": len(counts.skipped),
        "digest": counts.digest,
    }
    text = json.dumps({**asked, "samples": samples}, indent=2, ensure_ascii=False)
    write_whole(folder / CONFIG, text + "\n", owner)
    return rows, len(counts.skipped)


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = inner
    return flat
