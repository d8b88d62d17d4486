"""What a user may give to ``extract``, and what is refused before a model is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extraction_jobs as jobs
import pytest
from specvllm_compat.extraction import BadInput, extracting
from specvllm_compat.extraction.inputs import open_data

ROWS = jobs.rows(12)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> Any:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(extracting, "engine", loaded)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(jobs.make_model(tmp_path / "model")),
        "data": str(jobs.write_lines(tmp_path / "rows.jsonl", ROWS)),
        "output_dir": tmp_path / "states",
        "max_model_len": 256,
        "dry_run": True,
    }


def as_array(path: Path) -> Path:
    path = path.with_suffix(".json")
    path.write_text("\n" + json.dumps(ROWS, indent=2) + "\n")
    return path


def as_parquet(path: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ROWS), path := path.with_suffix(".parquet"))
    return path


def as_saved_folder(path: Path) -> Path:
    from datasets import Dataset

    Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("write", [as_array, as_parquet, as_saved_folder])
def test_every_format_gives_the_same_samples(
    options: dict[str, Any], tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    extracting.extract(**options)
    other = {**options, "data": str(write(tmp_path / "other")), "output_dir": tmp_path / "more"}
    extracting.extract(**other)
    for name in ("data-00000-of-00001.arrow", "sample_lengths.json", "token_freq.pth"):
        assert (options["output_dir"] / name).read_bytes() == (
            tmp_path / "more" / name
        ).read_bytes()


def test_objects_that_are_longer_than_a_block_are_read(tmp_path: Path) -> None:
    rows = [{"messages": ["x" * (3 << 20), "]["]}, {"messages": [1, {"a": 'é, \\ "'}]}]
    (tmp_path / "long.json").write_text(json.dumps(rows))
    assert list(open_data(str(tmp_path / "long.json"), None).rows()) == rows


def test_datasets_loads_the_rows_as_the_trainers_do(options: dict[str, Any]) -> None:
    import torch
    from datasets import load_from_disk

    extracting.extract(**options)
    loaded = load_from_disk(str(options["output_dir"]))
    assert loaded.with_format(None)["seq_len"][:] == [len(row["input_ids"]) for row in ROWS]
    for index, row in enumerate(ROWS):
        assert torch.equal(loaded[index]["input_ids"], torch.tensor(row["input_ids"]))
        assert torch.equal(loaded[index]["loss_mask"], torch.tensor(row["loss_mask"]))


def test_token_frequencies_are_of_the_tokens_that_are_trained_on(options: dict[str, Any]) -> None:
    import torch

    extracting.extract(**options, format="safetensors")
    counted = torch.load(options["output_dir"] / "token_freq.pt", weights_only=True)
    expected: dict[int, int] = {}
    for row in ROWS:
        for token, trained in zip(row["input_ids"], row["loss_mask"], strict=True):
            if trained:
                expected[token] = expected.get(token, 0) + 1
    assert counted == expected


BAD_ROWS = {
    "input_ids is not a list of integers": {"input_ids": "text"},
    "a loss_mask of 2": {"input_ids": [1, 2, 3], "loss_mask": [0, 1]},
    "other values than 0 and 1": {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 5]},
    "too long: 257 tokens, --max-model-len is 256": {"input_ids": [1] * 257},
    "not in the model's vocabulary of 500": {"input_ids": [1, 500]},
    "nothing to train on": {"input_ids": [1, 2, 3], "loss_mask": [1, 0, 0]},
    "not an object but list": [1, 2, 3],
}


def test_bad_rows_are_skipped_and_listed(options: dict[str, Any], tmp_path: Path) -> None:
    lines = [*ROWS[:2], *BAD_ROWS.values(), *ROWS[2:]]
    jobs.write_lines(Path(options["data"]), lines)
    with open(options["data"], "a") as file:
        file.write("{cut\n")
    report = extracting.extract(**options, max_skipped=0.5)
    assert (report.samples, report.skipped) == (len(ROWS), len(BAD_ROWS) + 1)
    text = (options["output_dir"] / "skipped.jsonl").read_text()
    listed = [json.loads(line) for line in text.splitlines()]
    assert [entry["row"] for entry in listed] == [*range(2, 2 + len(BAD_ROWS)), len(lines)]
    for entry, reason in zip(listed, [*BAD_ROWS, "no JSON"], strict=True):
        assert reason in entry["reason"]
    assert extracting.extract(**options, max_skipped=0.5).skipped == report.skipped


def test_too_many_bad_rows_stop_the_run(options: dict[str, Any]) -> None:
    jobs.write_lines(Path(options["data"]), [*ROWS, {"input_ids": []}, {"input_ids": [1]}])
    with pytest.raises(BadInput, match=r"2 of 14 rows can't be used \(row 12: .*--max-skipped"):
        extracting.extract(**options)
    assert extracting.extract(**options, max_skipped=0.2).samples == 12


def test_the_first_good_rows_are_enough(options: dict[str, Any]) -> None:
    jobs.write_lines(Path(options["data"]), [ROWS[0], {"input_ids": []}, *ROWS[1:]])
    report = extracting.extract(**options, max_samples=3, max_skipped=0.5)
    assert (report.samples, report.skipped) == (3, 1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing model": ({"model": "no/such-model"}, "no such folder, and not found on the hub"),
    "missing data": ({"data": "nowhere.jsonl"}, "there is no such file or folder"),
    "no rank": ({"rank": 2, "world_size": 2}, r"--rank 2 is not in \[0, 1\]"),
    "format": ({"format": "csv"}, "there are pt and safetensors"),
    "dtype": ({"dtype": "int8"}, "--dtype int8: there are auto, float32"),
    "fp8 in pt": ({"dtype": "fp8"}, "fp8 goes with --format safetensors"),
    "layers": ({"layer_ids": [2, 8]}, r"layer ids \[8\] are not in \[0, 7\]"),
    "one layer": ({"layer_ids": [7]}, "name two or more"),
    "layer twice": ({"layer_ids": [3, 3, 7]}, "each once"),
    "last layer": ({"layer_ids": [0, 6]}, "which is layer 7 .*--force"),
    "column": ({"column": "chat"}, "no column chat; its columns are: input_ids, loss_mask"),
    "length": ({"max_model_len": 0}, "--max-model-len 0: must be 1 or more"),
    "share": ({"max_skipped": 2}, "--max-skipped 2"),
    "engine argument": ({"engine_args": {"tensor_paralel_size": 2}}, "tensor_parallel_size"),
    "own engine argument": ({"engine_args": {"max_model_len": 9}}, "an option of its own"),
    "fatal engine argument": ({"engine_args": {"enforce_eager": False}}, "is not possible"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_input_is_told_before_anything_is_written(options: dict[str, Any], wrong: str) -> None:
    changed, told = WRONG[wrong]
    with pytest.raises(BadInput, match=told):
        extracting.extract(**{**options, **changed})
    assert not options["output_dir"].exists()


FILES: dict[str, tuple[str, bytes, str]] = {
    "unknown format": ("rows.csv", b"a,b\n", "not a format that is known"),
    "not json": ("rows.json", b'[{"input_ids": [1', "is no JSON"),
    "not text": ("rows.jsonl", b"\xff\xfe\x00", "is no UTF-8"),
    "first line": ("rows.jsonl", b"{oops\n", "the first row can't be read"),
    "not parquet": ("rows.parquet", b"PAR1", "can't be read as Parquet"),
    "empty": ("rows.jsonl", b"\n\n", "holds no rows"),
    "other columns": ("rows.jsonl", b'{"text": "a", "id": 1}\n', "its columns are: text, id"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_cannot_be_used_are_told(
    options: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    name, content, told = FILES[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=told):
        extracting.extract(**{**options, "data": str(tmp_path / name)})


def test_folders_that_are_no_saved_data_set_are_told(
    options: dict[str, Any], tmp_path: Path
) -> None:
    from datasets import Dataset, DatasetDict

    splits = DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS)})
    splits.save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(BadInput, match="the splits test, train: name one's folder"):
        extracting.extract(**{**options, "data": str(tmp_path / "splits")})
    with pytest.raises(BadInput, match="not a folder that datasets"):
        extracting.extract(**{**options, "data": str(tmp_path / "model")})


def test_an_output_folder_that_cannot_be_made_is_told(
    options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="can't be written to"):
        extracting.extract(**{**options, "output_dir": tmp_path / "file" / "states"})


def test_a_model_without_a_readable_config_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({"architectures": ["KimiK3ForCausalLM"], "hidden_size": 8}))
    with pytest.raises(BadInput, match="num_hidden_layers"):
        extracting.extract(**options)
    config.unlink()
    with pytest.raises(BadInput, match=r"holds no config\.json"):
        extracting.extract(**options)


def test_few_layers_need_layer_ids(options: dict[str, Any], tmp_path: Path) -> None:
    jobs.make_model(tmp_path / "model", num_hidden_layers=3)
    with pytest.raises(BadInput, match=r"of the defaults \[1, 0, -1, 2\]"):
        extracting.extract(**options)
    assert extracting.extract(**options, layer_ids=[0, 2]).samples == 12
