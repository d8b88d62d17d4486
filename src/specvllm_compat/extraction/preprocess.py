"""One row of the user's data to token ids and a loss mask, as speculators' trainers expect them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.inputs import MASK, TOKENS, Row

Sample = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]
Preprocess = Callable[[Row], Sample]


class BadRow(ValueError):
    """Why a row is left out."""


def tokenized(row: Row) -> Sample:
    """A row of ``input_ids`` and perhaps a ``loss_mask``; without one, every token counts."""
    if isinstance(row, str):
        raise BadRow(row)
    tokens = _integers(row.get(TOKENS), TOKENS)
    given = row.get(MASK)
    mask = np.ones_like(tokens) if given is None else _integers(given, MASK)
    if len(mask) != len(tokens):
        raise BadRow(f"{len(tokens)} {TOKENS}, but a {MASK} of {len(mask)}")
    if not np.isin(mask, (0, 1)).all():
        raise BadRow(f"{MASK} holds other values than 0 and 1")
    return tokens, mask


def checked(sample: Sample, longest: int, vocabulary: int | None) -> Sample:
    """The sample, unless the engine or a trainer can't use it."""
    tokens, mask = sample
    if len(tokens) > longest:
        raise BadRow(f"too long: {len(tokens)} tokens, --max-model-len is {longest}")
    if len(tokens) and (tokens.min() < 0 or (vocabulary and tokens.max() >= vocabulary)):
        raise BadRow(f"token ids that are not in the model's vocabulary of {vocabulary}")
    if not mask[1:].any():  # trainers predict each token from those before it
        raise BadRow("nothing to train on: the loss mask is all zeros")
    return sample


def conversations(folder: Path, column: str, longest: int, pattern: str | None) -> Preprocess:
    """speculators' own preprocessing, one conversation at a time.

    Raises:
        BadInput: the tokenizer has no chat template, or speculators finds no answers in it.
    """
    import specvllm_compat  # noqa: F401  # before speculators

    try:
        from speculators.data_generation import preprocessing
    except ImportError as error:
        raise BadInput(f"conversations need speculators, 0.3 or 0.4: {error}") from error
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)
    if getattr(tokenizer, "chat_template", None) is None:
        raise BadInput(
            f"the tokenizer in {folder} has no chat template to render conversations with: "
            "give it one, or give rows of input_ids and loss_mask"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    said = _LastWords()
    logger = logging.getLogger(preprocessing.__name__)
    logger.addHandler(said)
    logger.propagate = False
    mapper = _Mapper()
    try:
        preprocessing.build_eagle3_dataset(
            mapper, tokenizer, max_length=longest, assistant_pattern=pattern
        )
    except Exception as error:  # templates raise what they like
        raise BadInput(
            f"speculators finds no answers in the chat template of {folder}: {error}. "
            "Name a pattern of them with --assistant-pattern"
        ) from error

    def preprocess(row: Row) -> Sample:
        if isinstance(row, str):
            raise BadRow(row)
        if column not in row:
            raise BadRow(f"no column {column!r}")
        said.last = "no turns"
        try:
            made = mapper.function({"conversations": [row[column]]})
        except Exception as error:  # noqa: BLE001  # one odd row must not end the run
            raise BadRow(f"{type(error).__name__}: {error}") from None
        if not made[TOKENS]:
            raise BadRow(f"can't be rendered: {said.last}")
        tokens, mask = (np.asarray(made[name][0], dtype=np.int64) for name in (TOKENS, MASK))
        return tokens, mask

    return preprocess


class _Mapper:
    """Stands in for a data set and keeps the function that speculators maps over it.

    The function has what each release prepares for itself: assistant masks, detected patterns.
    """

    column_names = ("conversations",)
    function: Callable[[dict[str, list[Any]]], dict[str, list[Any]]]

    def map(self, function: Any, **_options: Any) -> _Mapper:
        self.function = function
        return self

    def set_format(self, **_options: Any) -> None:
        """Asked for when all is mapped."""


class _LastWords(logging.Handler):
    """Keeps the last warning: speculators says there why it leaves a conversation out."""

    last = ""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        words = str(record.args[-1] if isinstance(record.args, tuple) else record.msg)
        self.last = words.removeprefix("Failed to process conversation 0: ")


def _integers(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in "iub" or not len(array):
        raise BadRow(f"{name} is not a list of integers")
    return array.astype(np.int64)
