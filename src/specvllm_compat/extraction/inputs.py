"""The user's data, row by row: JSON, JSON lines, Parquet, or a folder that ``datasets`` saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import size_and_sum

TOKENS, MASK = "input_ids", "loss_mask"
CONVERSATIONS = ("conversations", "messages")
_BLOCK = 1 << 20

# A row, or why it can't be read
Row = dict[str, Any] | str


@dataclass(frozen=True)
class Data:
    """``column`` holds the conversations, or ``input_ids`` where rows are token ids already."""

    path: Path
    column: str
    digest: str

    @property
    def tokenized(self) -> bool:
        """Rows are token ids, with or without a loss mask."""
        return self.column == TOKENS

    def rows(self) -> Iterator[Row]:
        """Every row in the file's order, one at a time."""
        return _rows(self.path)


def open_data(name: str, column: str | None) -> Data:
    """Look at the first row of a file or folder, and at all of its bytes.

    Raises:
        BadInput: it is missing, of no known format, unreadable, empty, or has no such column.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise BadInput(f"--data {name}: there is no such file or folder")
    try:
        first = next(iter(_rows(path)), None)
        digest = _digest(path)
    except OSError as error:
        raise BadInput(f"--data {name} can't be read: {error}") from None
    if first is None:
        raise BadInput(f"--data {name} holds no rows")
    if isinstance(first, str):
        raise BadInput(f"--data {name}: the first row can't be read: {first}")
    wanted = [column] if column else [TOKENS, *CONVERSATIONS]
    found = next((name for name in wanted if name in first), None)
    if found is None:
        raise BadInput(
            f"--data {name} has no column {' or '.join(wanted)}; its columns are: "
            f"{', '.join(map(str, first))}. Name the one that holds the conversations with --column"
        )
    return Data(path, found, digest)


def _rows(path: Path) -> Iterator[Row]:
    if path.is_dir():
        return _saved(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        return _json(path)
    raise BadInput(
        f"--data {path}: not a format that is known; there are .json, .jsonl, .parquet, and "
        "folders that datasets' save_to_disk wrote"
    )


def _saved(folder: Path) -> Iterator[Row]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        raise BadInput(f"--data {folder} holds the splits {', '.join(splits)}: name one's folder")
    if not (folder / "state.json").is_file():
        raise BadInput(f"--data {folder}: not a folder that datasets' save_to_disk wrote")
    from datasets import load_from_disk

    try:
        yield from load_from_disk(str(folder)).with_format(None)
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise BadInput(f"--data {folder} can't be read: {error}") from None


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise BadInput(f"--data {path} can't be read as Parquet: {error}") from None


def _json(path: Path) -> Iterator[Row]:
    try:
        with open(path, encoding="utf-8") as file:
            start = file.read(_BLOCK).lstrip()[:1]
            file.seek(0)
            yield from _array(file) if start == "[" else _lines(file)
    except UnicodeDecodeError as error:
        raise BadInput(f"--data {path} is no UTF-8 text: {error}") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"--data {path} is no JSON: {error}") from None


def _lines(file: IO[str]) -> Iterator[Row]:
    for line in file:
        if not line.isspace():
            try:
                yield _object(json.loads(line))
            except json.JSONDecodeError as error:
                yield f"no JSON: {error}"


def _array(file: IO[str]) -> Iterator[Row]:
    """The objects of one large array, without holding more than one of them."""
    decoder = json.JSONDecoder()
    text, more = file.read(_BLOCK).lstrip()[1:], True
    while True:
        text = text.lstrip(", \t\r\n")
        if text.startswith("]"):
            return
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            if not more:
                raise
            added = file.read(max(_BLOCK, len(text)))
            text, more = text + added, bool(added)
            continue
        yield _object(value)
        text = text[end:]


def _object(value: Any) -> Row:
    return value if isinstance(value, dict) else f"not an object but {type(value).__name__}"


def _digest(path: Path) -> str:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(size_and_sum(file)[1])
    return digest.hexdigest()[:32]
