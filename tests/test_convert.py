"""Samples of the old trainers for the new ones, and back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import extraction_jobs as jobs
import pytest
import torch
from safetensors.torch import load_file, save_file
from specvllm_compat.cli import main
from specvllm_compat.extraction import BadInput, Incomplete, convert, converting
from specvllm_compat.extraction.formats import FORMATS

ROWS = jobs.rows(20)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One extraction in each format."""
    home = tmp_path_factory.mktemp("extracted")
    model = jobs.make_model(home / "model")
    data = jobs.write_lines(home / "rows.jsonl", ROWS)
    for name in FORMATS:
        jobs.extract(model=str(model), data=str(data), output_dir=home / name, format=name)
    return {name: home / name for name in FORMATS}


def differing(one: Path, other: Path) -> set[str]:
    left, right = jobs.tree(one), jobs.tree(other)
    return {name for name in left | right if left.get(name) != right.get(name)}


@pytest.mark.parametrize(("source", "target"), [("pt", "safetensors"), ("safetensors", "pt")])
def test_a_conversion_equals_an_extraction_and_goes_back(
    extracted: dict[str, Path], tmp_path: Path, source: str, target: str
) -> None:
    convert(source=extracted[source], output_dir=tmp_path / "there")
    assert differing(tmp_path / "there", extracted[target]) == {"data_config.json"}
    convert(source=tmp_path / "there", output_dir=tmp_path / "back")
    assert differing(tmp_path / "back", extracted[source]) == {"data_config.json"}
    described = json.loads((tmp_path / "back" / "data_config.json").read_text())
    assert described["hidden_states"]["layer_ids"] == [1, 3, 4, 7]
    assert described["made_before"]["made_before"]["model"]["decoder_layers"] == jobs.LAYERS


def foreign(folder: Path, holes: tuple[int, ...] = ()) -> Path:
    """As speculators' script leaves it: the description has the layer ids as they were asked."""
    folder.mkdir()
    for index, row in enumerate(ROWS):
        if index in holes:
            continue
        tokens = torch.tensor(row["input_ids"])
        states = [torch.full((len(tokens), 4), float(layer)) for layer in (2, 5, 7)]
        sample = {"input_ids": tokens, "hidden_states": states}
        sample["loss_mask"] = torch.tensor(row["loss_mask"])
        torch.save(sample, folder / f"data_{index}.pt")
    about = {"hidden_states": {"layer_ids": [7, 2, 5, 2]}, "model": {"target_model_path": "m"}}
    (folder / "data_config.json").write_text(json.dumps(about))
    return folder


def test_what_speculators_wrote_is_converted_with_the_order_its_generator_gave(
    tmp_path: Path,
) -> None:
    report = convert(source=foreign(tmp_path / "old"), output_dir=tmp_path / "new")
    assert report.complete
    assert "--target-layer-ids 3 6 " in report.training
    loaded = load_file(tmp_path / "new" / "hidden_states" / "hs_3.safetensors")
    assert loaded["token_ids"].tolist() == ROWS[3]["input_ids"]
    assert loaded["hidden_states"][0, :, 0].tolist() == [2.0, 5.0, 7.0]


def test_holes_and_damaged_files_are_skipped_and_counted(tmp_path: Path) -> None:
    old = foreign(tmp_path / "old", holes=(4,))
    os.truncate(old / "data_9.pt", 500)
    with pytest.raises(BadInput, match=r"2 of 20 rows .*row 4: there is no such file"):
        convert(source=old, output_dir=tmp_path / "new")
    report = convert(source=old, output_dir=tmp_path / "new", max_skipped=0.1)
    assert (report.samples, report.skipped, report.complete) == (18, 2, True)
    loaded = load_file(tmp_path / "new" / "hidden_states" / "hs_4.safetensors")
    assert loaded["token_ids"].tolist() == ROWS[5]["input_ids"]


def test_a_conversion_that_was_stopped_goes_on(
    extracted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source=extracted["pt"], output_dir=tmp_path / "new")
    undisturbed = jobs.tree(tmp_path / "new")
    shutil.rmtree(tmp_path / "new")
    read = converting._Source.read

    def failing(self: Any, index: int) -> Any:
        if index == 17 and (tmp_path / "new" / "data_config.json").exists():
            raise OSError("the share is gone")
        return read(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(converting._Source, "read", failing)
        with pytest.raises(Incomplete, match="the share is gone"):
            convert(source=extracted["pt"], output_dir=tmp_path / "new")
    report = convert(source=extracted["pt"], output_dir=tmp_path / "new")
    assert 0 < report.written < 20
    assert jobs.tree(tmp_path / "new") == undisturbed


def test_fp8_is_read_back_as_the_trainers_read_it(
    extracted: dict[str, Path], tmp_path: Path
) -> None:
    report = convert(source=extracted["pt"], output_dir=tmp_path / "fp8", dtype="fp8")
    assert "--hidden-states-backend fp8" in report.training
    convert(source=tmp_path / "fp8", output_dir=tmp_path / "back")
    exact = torch.load(extracted["pt"] / "data_0.pt", weights_only=True)["hidden_states"]
    near = torch.load(tmp_path / "back" / "data_0.pt", weights_only=True)["hidden_states"]
    for one, other in zip(exact, near, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.07, atol=0.02)
    stored = load_file(tmp_path / "fp8" / "hidden_states" / "hs_0.safetensors")
    assert stored["hidden_states"].dtype == torch.float8_e4m3fn
    assert stored["hidden_states_scales"].shape == (len(ROWS[0]["input_ids"]), 1, 1)


def test_layer_ids_that_nobody_wrote_down_are_asked_for(tmp_path: Path) -> None:
    old = foreign(tmp_path / "old")
    (old / "data_config.json").unlink()
    with pytest.raises(BadInput, match=r"3 layers, and does not tell which: .*--layer-ids"):
        convert(source=old, output_dir=tmp_path / "new")
    with pytest.raises(BadInput, match=r"3 layers, and layer ids \[2, 7\]"):
        convert(source=old, output_dir=tmp_path / "new", layer_ids=[2, 7])
    assert convert(source=old, output_dir=tmp_path / "new", layer_ids=[2, 5, 7]).complete


def test_rows_and_states_of_other_tokens_are_not_put_together(
    extracted: dict[str, Path], tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(extracted["safetensors"], mixed)
    (mixed / "data_config.json").unlink()
    (mixed / "manifest.jsonl").unlink()
    one, other = (mixed / "hidden_states" / f"hs_{i}.safetensors" for i in (1, 2))
    for wrong, told in (
        (load_file(one), "of other tokens than the row"),
        ({**load_file(one), "token_ids": load_file(other)["token_ids"]}, "tokens, but states"),
    ):
        save_file(wrong, other)
        with pytest.raises(BadInput, match=f"row 2: .*{told}"):
            convert(
                source=mixed, output_dir=tmp_path / "new", layer_ids=[1, 3, 4, 7], max_skipped=0
            )


def test_a_flipped_bit_is_not_converted(extracted: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(extracted["pt"], tmp_path / "flipped")
    content = bytearray((tmp_path / "flipped" / "data_3.pt").read_bytes())
    content[-2000] ^= 1
    (tmp_path / "flipped" / "data_3.pt").write_bytes(content)
    with pytest.raises(BadInput, match=r"row 3: .*is damaged: run its extraction again"):
        convert(source=tmp_path / "flipped", output_dir=tmp_path / "new", max_skipped=0.0)


def test_an_extraction_that_is_not_complete_is_not_converted(
    extracted: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(extracted["pt"], tmp_path / "part")
    (tmp_path / "part" / "manifest.jsonl").unlink()
    with pytest.raises(BadInput, match="run its extraction to the end first"):
        convert(source=tmp_path / "part", output_dir=tmp_path / "new")


def test_a_folder_without_samples_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path), str(tmp_path / "new")]) == 2
    assert "neither data_*.pt nor hs_*.safetensors" in capsys.readouterr().err


def test_the_command_converts(
    extracted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(extracted["pt"]), str(tmp_path / "new")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("20 of 20 samples are done, 20 of them now\nComplete. To train, ")
    assert "100%, 20/20 samples" in told.err
