"""The series of patches: that git takes it, what it says, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import patched_trees
import pytest
from patched_trees import GENERATOR, TREES, checkout, findings, git, patch, series
from specvllm_compat.cli import main
from specvllm_compat.shims import CATALOG

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """``made("0.4.0.1")``: a clean git tree of a release, and the series made from it."""
    known: dict[str, tuple[Path, Path]] = {}

    def get(version: str) -> tuple[Path, Path]:
        if version not in known:
            folder = tmp_path_factory.mktemp("speculators")
            tree = checkout(folder / "tree", version)
            finished = patch(tree, folder / "series")
            assert finished.returncode == 0, finished.stderr
            known[version] = tree, folder / "series"
        tree, mails = known[version]
        git(tree, "reset", "--quiet", "--hard", "released")
        return tree, mails

    return get


Made = Callable[[str], tuple[Path, Path]]


def check_change(tree: Path, what: str) -> None:
    """What differs from the release compiles, and ruff has nothing to say about it."""
    files = git(tree, "diff", "--name-only", "released").splitlines()
    for file in files:
        compile((tree / file).read_text(), file, "exec")
    assert findings(tree, files) == "", what


@pytest.mark.parametrize("version", TREES)
def test_git_am_takes_each_patch_alone_and_all_in_order(made: Made, version: str) -> None:
    tree, mails = made(version)
    patches = series(mails)
    assert len(patches) == (9 if version == "0.3.0" else 10)
    assert findings(tree) == "", "as released"
    for mail in patches:
        git(tree, "am", "--quiet", str(mail))
        check_change(tree, f"{mail.name} alone")
        git(tree, "reset", "--quiet", "--hard", "released")
    for mail in patches:
        git(tree, "am", "--quiet", str(mail))
        check_change(tree, f"{mail.name} in order")
    subjects = git(tree, "log", "--reverse", "--format=%s %an %ad", "released..").splitlines()
    assert len(subjects) == len(patches)
    assert all("specvllm-compat Thu Jan 1" in subject for subject in subjects)
    assert git(tree, "status", "--porcelain") == ""


def test_the_patches_of_one_wheel_fit_its_neighbour(made: Made) -> None:
    _, older = made("0.4.0")
    tree, newer = made("0.4.0.1")
    for one, other in zip(series(older), series(newer), strict=True):
        assert one.read_text() == other.read_text()
    git(tree, "am", "--quiet", *map(str, series(older)))


def test_making_the_series_again_changes_nothing(made: Made) -> None:
    tree, mails = made("0.4.0.1")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in mails.iterdir()}
    assert patch(tree, mails).returncode == 0
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in mails.iterdir()}
    assert after == before


def test_a_wheel_and_an_installed_package_give_the_series_of_the_checkout(
    made: Made, tmp_path: Path
) -> None:
    _, mails = made("0.4.0.1")
    content = patched_trees.wheel_content("0.4.0.1")
    wheel = tmp_path / "speculators-0.4.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path in (content / "speculators").rglob("*.py"):
            packed.write(path, path.relative_to(content))
    for source in (wheel, content, content / "speculators"):
        shutil.rmtree(tmp_path / "series", ignore_errors=True)
        assert patch(source, tmp_path / "series").returncode == 0
        for path in mails.iterdir():
            assert (tmp_path / "series" / path.name).read_bytes() == path.read_bytes()


def test_each_patch_says_what_changed_where_and_what_is_seen_without_it(made: Made) -> None:
    from specvllm_compat.upstream_patches.patches import PATCHES

    _, mails = made("0.4.0.1")
    for mail, one in zip(series(mails), PATCHES.values(), strict=True):
        message = mail.read_text().partition("\n---\n")[0]
        unwrapped = re.sub(r"\s+", " ", message)
        assert f"] {one.subject} " in unwrapped
        assert "Without it: " in unwrapped
        for name in one.shims:
            assert CATALOG[name].upstream.change in unwrapped
        assert all(len(line) <= 72 or "http" in line for line in message.splitlines()[4:])
    cover = (mails / "0000-cover-letter.patch").read_text()
    assert all(patch.subject in cover for patch in PATCHES.values())


def test_the_page_in_docs_shows_the_series(made: Made) -> None:
    _, mails = made("0.4.0.1")
    page = (ROOT / "docs" / "patches.md").read_text()
    for mail in [mails / "0000-cover-letter.patch", *series(mails)]:
        text = mail.read_text().split("\nSubject: ")[1]
        message = re.split(r"\n---\n|-- \n", text)[0].rstrip()
        assert message in page, f"{mail.name}: run `python tests/patches_page.py`"


def test_a_shim_without_a_patch_or_a_patch_without_a_shim_is_a_failure() -> None:
    from specvllm_compat.upstream_patches.patches import PATCHES

    replaced = [shim for patch in PATCHES.values() for shim in patch.shims]
    assert sorted(replaced) == sorted(CATALOG)
    assert all(patch.shims for patch in PATCHES.values())
    assert all(name in PATCHES for patch in PATCHES.values() for name in patch.needs)


# --- ranges of vLLM


@pytest.mark.parametrize(
    ("releases", "left_out"),
    [
        (">=0.11", set()),
        (">=0.16,<0.21", {"hashing"}),
        ("==0.11.0", {"request"}),
        ("<0.17", {"request"}),
        (">0.17.0,<0.17.2", {"hashing"}),
        ("~=0.12.0", {"hashing", "request"}),
        ("==0.32.*", {"hashing"}),
    ],
)
def test_patches_that_no_release_in_the_range_needs_are_left_out(
    releases: str, left_out: set[str]
) -> None:
    from specvllm_compat.upstream_patches.patches import PATCHES
    from specvllm_compat.upstream_patches.series import _for_releases

    assert set(PATCHES) - set(_for_releases(releases)) == left_out


def test_a_series_for_a_range_applies_and_replaces_the_one_before(
    made: Made, tmp_path: Path
) -> None:
    tree, _ = made("0.4.0.1")
    assert patch(tree, tmp_path / "series").returncode == 0
    assert patch(tree, tmp_path / "series", "--vllm", ">=0.12,<0.17").returncode == 0
    patches = series(tmp_path / "series")
    assert len(patches) == 8
    git(tree, "am", "--quiet", *map(str, patches))


@pytest.mark.parametrize("releases", ["newest", "<0.11", ">=0.20,<0.12"])
def test_a_range_that_means_nothing_is_refused(made: Made, tmp_path: Path, releases: str) -> None:
    tree, _ = made("0.4.0.1")
    refused(tree, tmp_path, "--vllm", "--vllm", releases)


# --- what is refused, with nothing written


def refused(source: Path, folder: Path, expected: str, *arguments: str) -> None:
    finished = patch(source, folder / "out", *arguments)
    assert finished.returncode == 2, finished.stdout + finished.stderr
    assert expected in finished.stderr
    assert len(finished.stderr.splitlines()) == 1, "more than a sentence"
    assert not (folder / "out").exists()


def test_a_patched_tree_is_refused(made: Made, tmp_path: Path) -> None:
    tree, mails = made("0.4.0.1")
    for mail in series(mails):
        git(tree, "am", "--quiet", str(mail))
        refused(tree, tmp_path, "is patched already, by")
        git(tree, "reset", "--quiet", "--hard", "released")


def test_a_tree_with_changes_is_refused(made: Made, tmp_path: Path) -> None:
    tree, _ = made("0.4.0.1")
    for changed in ("src/speculators/config.py", "pyproject.toml"):
        path = tree / changed
        path.write_text(path.read_text() + "\n# a change\n")
        refused(tree, tmp_path, "changes that are not committed")
        git(tree, "reset", "--quiet", "--hard", "released")


def test_what_is_not_speculators_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path, "holds no speculators")
    refused(tmp_path / "nowhere", tmp_path, "does not exist")
    broken = tmp_path / "broken.whl"
    broken.write_text("not a wheel")
    refused(broken, tmp_path, "is no wheel")


def test_a_release_without_the_class_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "speculators"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models").mkdir()
    refused(package, tmp_path, "has no VllmHiddenStatesGenerator")


UNKNOWN = {
    "self.executor = MultiprocExecutor(": ("self.pool = MultiprocExecutor(", "self.executor"),
    "def generate(": ("def produce(", "VllmHiddenStatesGenerator.generate"),
    "MAX_NUM_SEQS = 32": ("SEQUENCES = 32", "constant MAX_NUM_SEQS"),
    "all_prefill_complete = False": ("all_prefill_complete = None", "generate as a release"),
    "from vllm.v1.structured_output import": ("from vllm.v1.structured import", "Structured"),
    "enable_prefix_caching=False": ("enable_prefix_caching=True", "_create_vllm_config as a"),
    "class VllmHiddenStatesGenerator": ("class HiddenStates", "class VllmHiddenStatesGenerator"),
}


@pytest.mark.parametrize("known", UNKNOWN)
def test_a_tree_that_is_unknown_is_refused_by_the_place_that_is_missing(
    made: Made, tmp_path: Path, known: str
) -> None:
    tree, _ = made("0.4.0.1")
    instead, named = UNKNOWN[known]
    source = shutil.copytree(tree / "src" / "speculators", tmp_path / "fork" / "speculators")
    path = source / Path(GENERATOR).relative_to("src/speculators")
    text = path.read_text()
    assert text.count(known) == 1
    path.write_text(text.replace(known, instead))
    refused(source, tmp_path, named)


def test_what_a_fork_adds_elsewhere_is_kept(made: Made, tmp_path: Path) -> None:
    tree, _ = made("0.4.0.1")
    path = tree / GENERATOR
    own = "\n    def describe(self):\n        # ours   alone\n        return {  'a':1 }\n"
    text = path.read_text().replace("# Constants\n", "# Constants\nOWN = 'a'   # kept\n")
    path.write_text(text.replace("\n    def __del__", f"{own}\n    def __del__"))
    git(tree, "commit", "--quiet", "--all", "--message", "A fork's own")
    finished = patch(tree, tmp_path / "series")
    assert finished.returncode == 0, finished.stderr
    git(tree, "am", "--quiet", *map(str, series(tmp_path / "series")))
    assert own in path.read_text()
    assert "OWN = 'a'   # kept\n" in path.read_text()


def test_a_folder_with_anything_else_in_it_is_not_written_to(made: Made, tmp_path: Path) -> None:
    tree, _ = made("0.4.0.1")
    kept = tmp_path / "0001-somebody-elses.patch"
    kept.write_text("From: somebody else\n")
    finished = patch(tree, tmp_path)
    assert finished.returncode == 2
    assert "holds something else" in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_without_libcst_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["patch", "--output-dir", str(tmp_path / "out")]) == 2
    assert "pip install 'specvllm-compat[patch]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_repository_holds_no_source_of_speculators() -> None:
    """No line of a template is a line of a release, but for names that both must use."""
    ours = {
        line.strip()
        for path in (ROOT / "src/specvllm_compat/upstream_patches/templates").iterdir()
        for line in path.read_text().splitlines()
    }
    theirs = {
        line.strip()
        for version in TREES
        for path in patched_trees.wheel_content(version).rglob("data_generation/*.py")
        for line in path.read_text().splitlines()
    }
    shared = {line for line in ours & theirs if len(line) > 40}
    assert shared <= SHARED, json.dumps(sorted(shared - SHARED), indent=1)


# Names of speculators and of vLLM, and the words of an error that callers know.
SHARED = {
    "def _setup_hidden_states_capture(self, layer_ids: list[int]):",
    "from vllm.utils.hashing import get_hash_fn_by_name",
    "gpu_memory_utilization=gpu_memory_utilization,",
    'raise ValueError("token_ids cannot be empty")',
    'self.executor.collective_rpc("_reset_capture")',
    "tensor_parallel_size=tensor_parallel_size,",
    'worker_extension_cls="speculators.data_generation.custom_worker.HiddenStatesWorkerExtension",',
}
