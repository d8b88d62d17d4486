"""``extract`` with real states, and with speculators' own preprocessing of conversations."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import LAYER_IDS
from oracle import check_states
from specvllm_compat.extraction import BadInput, extracting
from specvllm_compat.extraction.engine import producing
from specvllm_compat.extraction.preprocess import BadRow
from test_conditions import set_embedding

ASKED = [0, 1, 3, 5]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>\n{% endfor %}"
    "{% if messages[0]['content'] == 'unrenderable' %}{{ raise_exception('no such turn') }}"
    "{% endif %}"
)


def conversation(number: int, keys: tuple[str, str, str, str]) -> list[dict[str, str]]:
    role, content, user, assistant = keys
    turns = []
    for turn in range(1 + number % 3):
        turns.append({role: user, content: tiny.SENTENCES[(number + turn) % 8]})
        turns.append(
            {role: assistant, content: tiny.SENTENCES[(number * turn + 1) % 8][: 20 + number]}
        )
    return turns


SHARE_GPT = ("from", "value", "human", "gpt")
MESSAGES = ("role", "content", "user", "assistant")


@pytest.fixture(scope="session")
def chatting(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared Llama, with a chat template."""
    folder = tmp_path_factory.mktemp("chatting") / "llama"
    shutil.copytree(llama, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write(path: Path, column: str, keys: tuple[str, str, str, str], more: Any = ()) -> Path:
    rows = [{column: conversation(number, keys)} for number in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    return path


@pytest.fixture
def extract(chatting: Path, generator: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`extract` on the shared generator."""

    @contextlib.contextmanager
    def shared(*_: Any) -> Iterator[Any]:
        def produce(group: list[int], samples: list[Any]) -> Iterator[Any]:
            for at, states in producing(generator)(group, samples):
                bad = isinstance(states, BadRow)
                yield at, states if bad else [states[LAYER_IDS.index(i)] for i in ASKED]

        yield produce

    def run(**options: Any) -> Any:
        monkeypatch.setattr(extracting, "engine", shared)
        fixed = {"model": str(chatting), "layer_ids": ASKED, "max_model_len": 128}
        return extracting.extract(**fixed, batch_tokens=128, **options)

    return run


def upstream(chatting: Path, conversations: list[Any], longest: int) -> list[Any]:
    """What speculators' own function makes of them, as its script calls it."""
    from datasets import Dataset
    from speculators.data_generation.preprocessing import build_eagle3_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chatting)
    data = Dataset.from_list([{"conversations": turns} for turns in conversations])
    made = build_eagle3_dataset(data, tokenizer, max_length=longest, num_proc=1)
    return [(row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in made]


def test_conversations_become_the_samples_that_speculators_makes_of_them(
    extract: Any, chatting: Path, tmp_path: Path
) -> None:
    expected = upstream(chatting, [conversation(n, MESSAGES) for n in range(24)], 128)
    for column, keys, named in (
        ("conversations", SHARE_GPT, None),
        ("messages", MESSAGES, None),
        ("dialog", MESSAGES, "dialog"),
    ):
        data = write(tmp_path / f"{column}.jsonl", column, keys)
        folder = tmp_path / column
        report = extract(data=str(data), output_dir=folder, column=named, max_skipped=0.5)
        skipped = {
            json.loads(line)["row"] for line in (folder / "skipped.jsonl").read_text().splitlines()
        }
        assert report.complete
        kept = [sample for row, sample in enumerate(expected) if row not in skipped]
        assert len(kept) == report.samples > 12
        for index, (tokens, mask) in enumerate(kept):
            saved = torch.load(folder / f"data_{index}.pt", weights_only=True)
            assert saved["input_ids"].tolist() == tokens
            assert saved["loss_mask"].tolist() == mask
        assert all(not any(expected[row][1][1:]) for row in skipped)


def test_states_in_the_files_are_the_models(extract: Any, llama: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", "messages", MESSAGES)
    report = extract(data=str(data), output_dir=tmp_path / "states", max_skipped=0.5)
    for index in range(report.samples):
        saved = torch.load(tmp_path / "states" / f"data_{index}.pt", weights_only=True)
        expected = tiny.reference(llama, saved["input_ids"].tolist(), ASKED)
        check_states(saved["hidden_states"], expected, f"sample {index}")


def test_a_group_of_which_a_sample_is_missing_comes_out_the_same(
    extract: Any, tmp_path: Path
) -> None:
    data = write(tmp_path / "rows.jsonl", "messages", MESSAGES)
    options = {"data": str(data), "output_dir": tmp_path / "states", "max_skipped": 0.5}
    extract(**options)
    before = {path: path.read_bytes() for path in (tmp_path / "states").iterdir()}
    lost = [tmp_path / "states" / f"data_{index}.pt" for index in (0, 5, 11)]
    for path in lost:
        path.unlink()
    report = extract(**options)
    assert (report.written, report.differing) == (3, 0)
    assert {path: path.read_bytes() for path in (tmp_path / "states").iterdir()} == before


def test_a_sample_whose_states_are_no_numbers_is_left_out_and_all_others_are_right(
    extract: Any, generator: Any, llama: Path, tmp_path: Path
) -> None:
    rows = [{"input_ids": prompt} for prompt in tiny.prompts(30, 100, seed=5) if len(prompt) > 1]
    rows = [row for row in rows if 77 not in row["input_ids"]]
    rows.insert(4, {"input_ids": [5, 77, 6]})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [before] = generator.executor.collective_rpc(set_embedding, args=(77, None))
    try:
        data = str(tmp_path / "rows.jsonl")
        report = extract(data=data, output_dir=tmp_path / "states", max_skipped=0.2)
    finally:
        generator.executor.collective_rpc(set_embedding, args=(77, before))
    assert (report.failed, report.complete) == (1, True)
    assert not (tmp_path / "states" / "data_4.pt").exists()
    for index, row in enumerate(rows):
        if index != 4:
            saved = torch.load(tmp_path / "states" / f"data_{index}.pt", weights_only=True)
            expected = tiny.reference(llama, row["input_ids"], ASKED)
            check_states(saved["hidden_states"], expected, f"sample {index}")


def test_conversations_that_cannot_be_used_are_listed_with_speculators_words(
    extract: Any, tmp_path: Path
) -> None:
    bad = [
        {"messages": [{"role": "user", "content": "unrenderable"}]},
        {"messages": []},
        {"messages": [{"role": "user", "content": "no answer"}]},
        {"messages": "text"},
        {"other": 1},
    ]
    data = write(tmp_path / "rows.jsonl", "messages", MESSAGES, bad)
    extract(data=str(data), output_dir=tmp_path / "states", max_skipped=0.9)
    lines = (tmp_path / "states" / "skipped.jsonl").read_text().splitlines()
    listed = {entry["row"]: entry["reason"] for entry in map(json.loads, lines)}
    assert "no such turn" in listed[24]
    assert "no turns" in listed[25]
    assert "nothing to train on" in listed[26]
    assert "no turns" in listed[27]
    assert "no column 'messages'" in listed[28]


def test_a_model_without_a_chat_template_is_told(llama: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", "messages", MESSAGES)
    with pytest.raises(BadInput, match="no chat template"):
        extracting.extract(
            model=str(llama), data=str(data), output_dir=tmp_path / "states", layer_ids=ASKED
        )
