"""A job that is disturbed ends with the files of one that is not."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extraction_jobs as jobs
import pytest
import torch
from specvllm_compat.extraction import BadInput, Incomplete, estimate, formats, job
from specvllm_compat.extraction.formats import FORMATS

Tree = dict[str, bytes]
ROWS = 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield
    jobs.stand_in.delay, jobs.stand_in.fails_in, jobs.stand_in.cannot = 0.0, 0, None


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.make_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.write_lines(tmp_path_factory.mktemp("data") / "rows.jsonl", jobs.rows(ROWS))


@pytest.fixture
def options(model: Path, data: Path, tmp_path: Path) -> dict[str, Any]:
    return {"model": str(model), "data": str(data), "output_dir": tmp_path / "states"}


@pytest.fixture(params=FORMATS)
def undisturbed(request: Any, options: dict[str, Any]) -> Tree:
    """The files of a run that nothing disturbed; ``options`` get its format."""
    options["format"] = request.param
    report = jobs.extract(**options)
    assert report.complete
    made = jobs.tree(options["output_dir"])
    shutil.rmtree(options["output_dir"])
    return made


def samples(folder: Path) -> list[Path]:
    return [format.path(folder, i) for format in FORMATS.values() for i in format.indices(folder)]


def whole(folder: Path, undisturbed: Tree) -> None:
    """Every sample is as it will be at the end."""
    for path in samples(folder):
        assert path.read_bytes() == undisturbed[str(path.relative_to(folder))]


def in_a_process(file: Path, options: dict[str, Any]) -> list[str]:
    """The command that does the job in a process of its own."""
    file.write_text(json.dumps(options, default=str))
    return [sys.executable, str(Path(jobs.__file__)), str(file)]


def test_files_hold_each_samples_tokens_mask_and_states(options: dict[str, Any]) -> None:
    rows = jobs.rows(ROWS)
    jobs.extract(**options, layer_ids=[4, 0, 7])
    folder = options["output_dir"]
    lengths = json.loads((folder / "sample_lengths.json").read_text())
    for index, row in enumerate(rows):
        saved = torch.load(folder / f"data_{index}.pt", weights_only=True)
        assert saved["input_ids"].tolist() == row["input_ids"]
        assert saved["loss_mask"].tolist() == row["loss_mask"]
        assert lengths[str(index)] == len(row["input_ids"])
        expected = jobs.states(saved["input_ids"], [4, 0, 7], "")
        for found, near in zip(saved["hidden_states"], expected, strict=True):
            assert torch.allclose(found, near, atol=0.3)
    described = json.loads((folder / "data_config.json").read_text())
    assert described["hidden_states"]["layer_ids"] == [4, 0, 7]
    assert described["hidden_states"]["vllm_layer_ids"] == [5, 1, 8]
    assert "--layer-ids 4 0 7" in described["command"]


def test_the_default_layers_are_those_that_vllm_serves_drafts_with(options: dict[str, Any]) -> None:
    jobs.extract(**options)
    described = json.loads((options["output_dir"] / "data_config.json").read_text())
    assert described["hidden_states"]["vllm_layer_ids"] == [2, 4, 5, 8]


def test_no_file_but_samples_looks_like_a_sample_to_the_old_trainers(
    options: dict[str, Any],
) -> None:
    jobs.extract(**options)
    found = [path for path in options["output_dir"].rglob("*pt") if path.is_file()]
    assert len(found) == ROWS


def test_kills_at_random_moments_leave_no_trace(options: dict[str, Any], tmp_path: Path) -> None:
    jobs.extract(**options)
    undisturbed = jobs.tree(folder := options["output_dir"])
    shutil.rmtree(folder)
    draw = random.Random()
    command = in_a_process(tmp_path / "options.json", {**options, "delay": 0.01})
    for _ in range(3):
        before = len(samples(folder))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(samples(folder)) <= before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole(folder, undisturbed)
    journal = next(iter(folder.glob("journal-*")), None)
    if journal is not None:  # the disk may have kept less of it than the process wrote
        os.truncate(journal, journal.stat().st_size - draw.randint(1, 200))
    jobs.extract(**options)
    assert jobs.tree(folder) == undisturbed


def test_a_dead_worker_stops_the_run_and_the_next_goes_on(
    undisturbed: Tree, options: dict[str, Any]
) -> None:
    jobs.stand_in.fails_in = 3
    with pytest.raises(Incomplete, match=r"a worker process died.*the same command goes on"):
        jobs.extract(**options)
    whole(options["output_dir"], undisturbed)
    done = len(samples(options["output_dir"]))
    assert 0 < done < ROWS
    jobs.stand_in.fails_in = 0
    assert jobs.extract(**options).written == ROWS - done
    assert jobs.tree(options["output_dir"]) == undisturbed


def test_a_removed_folder_stops_the_run_and_the_next_begins_again(
    undisturbed: Tree, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = job.Manifest.add
    added: list[int] = []

    def remove(self: Any, index: int, *rest: Any) -> None:
        add(self, index, *rest)
        added.append(index)
        if [index] == added[19:20]:
            while Path(options["output_dir"]).exists():  # others write to it meanwhile
                shutil.rmtree(options["output_dir"], ignore_errors=True)

    with monkeypatch.context() as patch:
        patch.setattr(job.Manifest, "add", remove)
        with pytest.raises(Incomplete, match="FileNotFoundError"):
            jobs.extract(**options)
    shutil.rmtree(options["output_dir"], ignore_errors=True)
    jobs.extract(**options)
    assert jobs.tree(options["output_dir"]) == undisturbed


def test_files_that_vanish_while_it_runs_are_not_done(
    undisturbed: Tree, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = job.Manifest.add

    def remove(self: Any, index: int, *rest: Any) -> None:
        add(self, index, *rest)
        if index in (3, 8):
            FORMATS[options["format"]].path(Path(options["output_dir"]), index).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(job.Manifest, "add", remove)
        with pytest.raises(Incomplete, match="2 files that were written are no longer in"):
            jobs.extract(**options)
    assert jobs.extract(**options).written == 2
    assert jobs.tree(options["output_dir"]) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_whole_files_and_room_lets_the_run_end(
    undisturbed: Tree, options: dict[str, Any], small_disk: Path
) -> None:
    options["output_dir"] = small_disk / "states"
    with pytest.raises(BadInput, match=r"is too small: 40 samples.*--force"):
        jobs.extract(**options)
    with pytest.raises(Incomplete, match="No space left"):
        jobs.extract(**options, force=True)
    whole(options["output_dir"], undisturbed)
    assert 0 < len(samples(options["output_dir"])) < ROWS
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    jobs.extract(**options, force=True)
    made = jobs.tree(options["output_dir"])
    assert made.keys() == undisturbed.keys()
    named = "data_config.json"  # which tells the folder's name
    assert {name for name in made if made[name] != undisturbed[name]} == {named}


def test_damaged_and_lost_files_are_done_again_and_others_are_left_alone(
    undisturbed: Tree, options: dict[str, Any]
) -> None:
    jobs.extract(**options)
    folder = options["output_dir"]
    flipped, cut, lost, *others = samples(folder)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    os.truncate(cut, 100)
    lost.unlink()
    before = [path.stat().st_mtime_ns for path in others]
    report = jobs.extract(**options)
    assert (report.written, report.differing) == (3, 0)
    assert [path.stat().st_mtime_ns for path in others] == before
    assert jobs.tree(folder) == undisturbed
    assert jobs.extract(**options).written == 0


def test_files_that_no_run_recorded_are_done_again(
    undisturbed: Tree, options: dict[str, Any]
) -> None:
    jobs.extract(**options)
    folder = options["output_dir"]
    (folder / "manifest.jsonl").unlink()
    assert jobs.extract(**options).written == ROWS
    assert jobs.tree(folder) == undisturbed


def test_without_checksums_only_sizes_are_compared(options: dict[str, Any]) -> None:
    jobs.extract(**options)
    first, second, *_ = samples(options["output_dir"])
    first.write_bytes(bytes(first.stat().st_size))
    os.truncate(second, 10)
    assert jobs.extract(**options, verify=False).written == 1
    assert jobs.extract(**options).written == 1


def test_an_engine_that_does_not_repeat_itself_is_reported(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.extract(**options)
    lost, *others = samples(options["output_dir"])
    lost.unlink()
    kept = [path.read_bytes() for path in others]
    own = jobs.states
    monkeypatch.setattr(jobs, "states", lambda *a: [state + 1 for state in own(*a)])
    report = jobs.extract(**options)
    assert report.written == 1
    assert report.differing > 0
    assert [path.read_bytes() for path in others] == kept


def test_the_union_of_ranks_is_a_single_run(undisturbed: Tree, options: dict[str, Any]) -> None:
    reports = [jobs.extract(**options, world_size=3, rank=rank) for rank in (2, 0, 1)]
    assert [report.complete for report in reports] == [False, False, True]
    assert jobs.tree(options["output_dir"]) == undisturbed


def test_ranks_that_run_at_once_do_not_collide(options: dict[str, Any], tmp_path: Path) -> None:
    jobs.extract(**options)
    alone = jobs.tree(options["output_dir"])
    shutil.rmtree(options["output_dir"])
    processes = []
    for rank in range(3):
        share = {"world_size": 3, "rank": rank, "delay": 0.002}
        command = in_a_process(tmp_path / f"{rank}.json", {**options, **share})
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    ends = [process.communicate()[0] for process in processes]
    assert any("complete=True" in end for end in ends)
    assert jobs.tree(options["output_dir"]) == alone


def test_a_run_goes_on_with_another_number_of_ranks(
    undisturbed: Tree, options: dict[str, Any]
) -> None:
    jobs.extract(**options, world_size=4, rank=2)
    jobs.extract(**options, world_size=2, rank=0)
    assert jobs.extract(**options).complete
    assert jobs.tree(options["output_dir"]) == undisturbed


@pytest.mark.parametrize("seed", range(6))
def test_no_sequence_of_accidents_changes_the_end(
    undisturbed: Tree, options: dict[str, Any], seed: int
) -> None:
    """Failing calls, lost, damaged and left-over files, cut journals, other numbers of ranks."""
    draw = random.Random(seed)
    folder = options["output_dir"]
    for _ in range(5):
        jobs.stand_in.fails_in = draw.randint(1, 6)
        size = draw.randint(1, 3)
        with contextlib.suppress(Incomplete):
            jobs.extract(**options, world_size=size, rank=draw.randrange(size))
        there = samples(folder)
        for path in draw.sample(there, min(3, len(there))):
            accident = draw.choice(["lost", "cut", "flipped", "touched"])
            if accident == "lost":
                path.unlink()
            elif accident == "cut":
                os.truncate(path, draw.randrange(path.stat().st_size))
            elif accident == "flipped":
                content = bytearray(path.read_bytes())
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
                path.write_bytes(content)
            else:
                path.touch()
        for journal in folder.glob("*.jsonl"):
            if draw.random() < 0.5 and journal.name != "skipped.jsonl":
                os.truncate(journal, draw.randint(0, journal.stat().st_size))
        if there:
            there[0].with_name(f".{there[0].name}.0-of-9.tmp").write_bytes(b"half")
    jobs.stand_in.fails_in = 0
    assert jobs.extract(**options).complete
    assert jobs.tree(folder) == undisturbed


def test_a_rank_that_runs_already_is_refused(options: dict[str, Any]) -> None:
    def again(*_: Any) -> Any:
        with pytest.raises(BadInput, match=r"another process writes to .*--rank"):
            jobs.extracting.extract(**options, batch_tokens=25, max_model_len=256)
        return jobs.stand_in(*_)

    jobs.extracting.engine = again
    jobs.extracting.extract(**options, batch_tokens=25, max_model_len=256)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"layer_ids": [0, 7]}, r"hidden_states.layer_ids \[1, 3, 4, 7\], not \[0, 7\]"),
        ({"dtype": "float32"}, "hidden_states.dtype 'auto', not 'float32'"),
        ({"format": "safetensors"}, "hidden_states.format 'pt', not 'safetensors'"),
        ({"max_model_len": 128}, "max_model_len 256, not 128"),
        ({"batch_tokens": 300}, "batch_tokens 25, not 300"),
        ({"max_samples": 3}, "max_samples None, not 3"),
    ],
)
def test_a_folder_of_another_job_is_refused_by_the_difference(
    options: dict[str, Any], changed: dict[str, Any], named: str
) -> None:
    jobs.extract(**options)
    before = jobs.tree(options["output_dir"])
    with pytest.raises(BadInput, match=named):
        jobs.extract(**{**options, **changed})
    assert jobs.tree(options["output_dir"]) == before


def test_another_model_or_other_data_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    jobs.extract(**options)
    other = jobs.make_model(tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"WEIGHTS")  # of the same size
    with pytest.raises(BadInput, match=r"model\.digest"):
        jobs.extract(**{**options, "model": str(other)})
    rows = jobs.write_lines(tmp_path / "rows.jsonl", jobs.rows(ROWS, seed=1))
    with pytest.raises(BadInput, match=r"data\.digest"):
        jobs.extract(**{**options, "data": str(rows)})


def test_a_folder_that_speculators_filled_is_refused(options: dict[str, Any]) -> None:
    options["output_dir"].mkdir()
    (options["output_dir"] / "data_0.pt").touch()
    with pytest.raises(BadInput, match="did not extract"):
        jobs.extract(**options)
    (options["output_dir"] / "data_config.json").write_text('{"version": "2.0"}')
    with pytest.raises(BadInput, match="was not written by specvllm-compat"):
        jobs.extract(**options)


def test_damaged_rows_are_prepared_again(undisturbed: Tree, options: dict[str, Any]) -> None:
    jobs.extract(**options)
    arrow = options["output_dir"] / "data-00000-of-00001.arrow"
    for damage in (b"", arrow.read_bytes()[:3000]):
        arrow.write_bytes(damage)
        assert jobs.extract(**options).written == 0
        assert jobs.tree(options["output_dir"]) == undisturbed


def test_a_dry_run_does_all_but_load_the_model(
    undisturbed: Tree, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    jobs.stand_in.fails_in = 1
    with caplog.at_level("INFO", "specvllm_compat"):
        report = jobs.extract(**options, dry_run=True)
    assert (report.done, report.samples, report.complete) == (0, ROWS, False)
    assert "40 samples, " in caplog.text
    assert not samples(options["output_dir"])
    jobs.stand_in.fails_in = 0
    jobs.extract(**options)
    assert jobs.tree(options["output_dir"]) == undisturbed


def test_what_cannot_fit_is_refused_before_the_model_is_loaded(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.stand_in.fails_in = 1
    usage = shutil.disk_usage(options["output_dir"].parent)._replace(free=1 << 20)
    monkeypatch.setattr(estimate.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BadInput, match=r"is too small: 40 samples, [\d,]+ tokens, .* are free"):
        jobs.extract(**options)
    jobs.stand_in.fails_in = 0
    assert jobs.extract(**options, force=True).complete


@pytest.mark.parametrize(
    ("format", "dtype"), [("pt", "float32"), ("safetensors", "bfloat16"), ("safetensors", "fp8")]
)
def test_the_estimate_covers_what_is_written(
    options: dict[str, Any], format: str, dtype: str
) -> None:
    jobs.extract(**options, format=format, dtype=dtype)
    written = sum(path.stat().st_size for path in samples(options["output_dir"]))
    tokens = sum(len(row["input_ids"]) for row in jobs.rows(ROWS))
    per_token = formats.bytes_per_token(4, jobs.HIDDEN, dtype)
    told = estimate.Estimate.of(options["output_dir"], ROWS, tokens, per_token).bytes
    assert written < told < written + ROWS * 4096 + 24 * tokens


def test_memory_does_not_grow_with_the_number_of_samples(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is slow makes the engine wait."""
    produced: list[int] = []
    written: list[int] = []
    most = 0
    add, own = job.Manifest.add, jobs.states

    def slow(self: Any, index: int, *rest: Any) -> None:
        time.sleep(0.005)
        add(self, index, *rest)
        written.append(index)

    def counted(*arguments: Any) -> Any:
        nonlocal most
        produced.append(1)
        most = max(most, len(produced) - len(written))
        return own(*arguments)

    monkeypatch.setattr(job.Manifest, "add", slow)
    monkeypatch.setattr(jobs, "states", counted)
    jobs.extract(**options)
    assert len(written) == ROWS
    assert most <= 14  # 8 wait, 4 are being written, one is in hand, one was just made


def test_an_interrupt_keeps_what_was_computed(
    undisturbed: Tree, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    own = jobs.states

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 15:
            raise KeyboardInterrupt
        return own(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "states", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jobs.extract(**options)
    assert len(samples(options["output_dir"])) == 14
    whole(options["output_dir"], undisturbed)
    jobs.extract(**options)
    assert jobs.tree(options["output_dir"]) == undisturbed


@pytest.mark.parametrize("format", FORMATS)
def test_a_sample_that_the_engine_cannot_compute_is_left_out(
    options: dict[str, Any], format: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.stand_in.cannot = jobs.rows(ROWS)[7]["input_ids"][0]
    report = jobs.extract(**options, format=format)
    assert (report.failed, report.done, report.complete) == (1, ROWS, True)
    assert "sample 7, row 7: not finite" in caplog.text
    folder = options["output_dir"]
    assert FORMATS[format].indices(folder) == [i for i in range(ROWS) if i != 7]
    undisturbed = jobs.tree(folder)
    assert jobs.extract(**options, format=format).written == 0
    FORMATS[format].path(folder, 8).unlink()
    assert jobs.extract(**options, format=format).failed == 1
    assert jobs.tree(folder) == undisturbed


def test_too_many_such_samples_stop_the_run(options: dict[str, Any]) -> None:
    jobs.stand_in.cannot = jobs.rows(ROWS)[7]["input_ids"][0]
    with pytest.raises(Incomplete, match="not finite"):
        jobs.extract(**options, max_skipped=0.01)
    assert jobs.extract(**options).failed == 1
