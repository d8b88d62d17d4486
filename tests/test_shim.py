"""Releases, the choice of an era, the sentence of a refusal, and the call recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
import wrapt
from hypothesis import given
from hypothesis import strategies as st
from specvllm_compat.contract import Contract, Shape, has
from specvllm_compat.shim import Era, Release, Shim, Upstream, choose, dropping, installed, refusal

UPSTREAM = Upstream(
    change="https://example.org/change", first_release="2.0.0", delete_when="nobody needs it"
)


class Places:
    """A lens in which exactly these places exist."""

    def __init__(self, *places: str) -> None:
        self._places = places

    def shape(self, place: str) -> Shape | None:
        return Shape() if place in self._places else None


def shim(*eras: tuple[str, Contract]) -> Shim:
    return Shim(
        does="Nothing, in two eras.",
        module="acme",
        provider="acme",
        upstream=UPSTREAM,
        eras=tuple(Era(since=since, probe=probe) for since, probe in eras),
    )


OLD_AND_NEW = shim(("1.0.0", ~has("acme:new")), ("2.0.0", has("acme:new")))
OLD, NEW = Places("acme"), Places("acme", "acme:new")


@pytest.mark.parametrize(
    ("text", "number", "trusted"),
    [
        ("0.32.0", (0, 32, 0), True),
        ("0.11.0.post2", (0, 11, 0), True),
        ("0.32.0+cu129", (0, 32, 0), True),
        ("0.32.0+cpu", (0, 32, 0), True),
        ("0.0.0", (0, 0, 0), True),
        ("0.16.0rc2", (0, 16, 0), False),
        ("0.16.0.dev7", (0, 16, 0), False),
        ("0.16.0rc2.dev12+g48c879369", (0, 16, 0), False),
        ("0.16.0rc2.dev12+g48c879369.cu129", (0, 16, 0), False),
        ("0.16.0+g48c879369", (0, 16, 0), False),
    ],
)
def test_a_version_is_read_with_what_it_is_worth(
    text: str, number: tuple[int, ...], trusted: bool
) -> None:
    assert Release.parse(text) == Release(text, number, trusted)


@pytest.mark.parametrize("text", ["dev", "", "unknown", "not installed", "0.16.x"])
def test_a_version_that_is_none_is_the_newest_and_worth_nothing(text: str) -> None:
    release = Release.parse(text)
    assert release.text == text
    assert release.number > (1000, 0, 0)
    assert not release.trusted


@given(st.text() | st.from_regex(r"[0-9]{1,3}(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.dev[0-9]*)?(\+\w+)?"))
def test_any_string_is_a_release(text: str) -> None:
    assert Release.parse(text).text == text


def test_a_number_too_long_for_python_is_a_release() -> None:
    text = "1" * 5000
    assert Release.parse(text).text == text


def test_two_numbers_name_the_same_release_as_three() -> None:
    assert choose(OLD_AND_NEW, NEW, Release.parse("2.0")) == (OLD_AND_NEW.eras[1], "")


@pytest.mark.parametrize(
    ("lens", "version", "era"),
    [
        (OLD, "1.0.0", "1.0.0"),
        (OLD, "1.9.3", "1.0.0"),
        (NEW, "2.0.0", "2.0.0"),
        (NEW, "9", "2.0.0"),
    ],
)
def test_the_version_and_the_probe_agree(lens: Places, version: str, era: str) -> None:
    chosen, remark = choose(OLD_AND_NEW, lens, Release.parse(version))
    assert chosen is not None
    assert (chosen.since, remark) == (era, "")


@pytest.mark.parametrize("version", ["1.5.0", "1.9.9rc1.dev3+g1234567", "0.1.0"])
def test_the_probe_decides_where_the_version_is_of_another_era(version: str) -> None:
    chosen, remark = choose(OLD_AND_NEW, NEW, Release.parse(version))
    assert chosen is OLD_AND_NEW.eras[1]
    assert version in remark
    assert "2.0.0" in remark


def test_a_version_that_is_none_predicts_the_newest_era() -> None:
    assert choose(OLD_AND_NEW, NEW, Release.parse("dev")) == (OLD_AND_NEW.eras[1], "")


def test_the_predicted_era_wins_where_several_fit() -> None:
    both = shim(("1.0.0", has("acme")), ("2.0.0", has("acme")))
    assert choose(both, NEW, Release.parse("1.4.0")) == (both.eras[0], "")
    assert choose(both, NEW, Release.parse("2.4.0")) == (both.eras[1], "")


def test_no_era_is_guessed_where_none_fits() -> None:
    strict = shim(("1.0.0", has("acme:old")), ("2.0.0", has("acme:new")))
    assert choose(strict, OLD, Release.parse("1.0.0")) == (None, "")
    assert choose(strict, OLD, Release.parse("dev")) == (None, "")


def test_a_refusal_says_what_where_found_and_expected() -> None:
    text = refusal("my_shim", OLD_AND_NEW, OLD, Release.parse("3.0.0"))
    assert text.startswith("my_shim: acme 3.0.0 ")
    assert "as of 2.0.0: acme:new exists, found absent" in text
    assert "as of 1.0.0" not in text, "what fits is left out"


def test_dropping_takes_the_keyword_away_and_nothing_else() -> None:
    seen = []

    def callee(*args: object, **kwargs: object) -> str:
        seen.append((args, kwargs))
        return "built"

    given = {"eos_token_id": 2, "future": 1, "other": None}
    assert wrapt.FunctionWrapper(callee, dropping("eos_token_id"))(1, 2, **given) == "built"
    assert seen == [((1, 2), {"future": 1, "other": None})]
    assert "eos_token_id" in given  # the caller's own dictionary


def test_dropping_a_keyword_that_is_not_given_changes_nothing() -> None:
    assert dropping("a")(lambda **kwargs: kwargs, None, (), {"c": 3}) == {"c": 3}


def test_dropping_leaves_errors_of_the_callee_alone() -> None:
    with pytest.raises(TypeError, match="future"):
        dropping("eos_token_id")(lambda: None, None, (), {"eos_token_id": 2, "future": 1})


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path with one package that says nothing about its version."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text("from .version import __version__\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_package_is_believed_before_its_metadata(packages: Path) -> None:
    distribution(packages, "acme", "0.0.0")
    distribution(packages, "acme-cpu", "0.0.1")
    (packages / "acme" / "_version.py").write_text(
        "__version__: str\n__version_tuple__ = version_tuple = (0, 32, 0)\n"
        "__version__ = version = '0.32.0+cpu'\n"
    )
    assert installed("acme") == Release("0.32.0+cpu", (0, 32, 0), True)


def test_a_fallback_inside_a_function_or_branch_is_not_the_version(packages: Path) -> None:
    distribution(packages, "acme-cpu", "0.31.0")
    (packages / "acme" / "version.py").write_text(
        'try:\n    from ._version import __version__\nexcept Exception:\n    __version__ = "dev"\n'
    )
    assert installed("acme").text == "0.31.0"


def test_a_stub_beside_the_cpu_build_does_not_hide_it(packages: Path) -> None:
    distribution(packages, "acme", "0.0.0")
    distribution(packages, "acme-cpu", "0.32.0")
    assert installed("acme").text == "0.32.0"


def test_metadata_is_the_last_resort(packages: Path) -> None:
    distribution(packages, "acme", "0.30.0")
    assert installed("acme").text == "0.30.0"


def test_a_version_in_the_package_itself_is_found(packages: Path) -> None:
    (packages / "acme" / "__init__.py").write_text('"""Acme."""\n\n__version__ = "5.24.0"\n')
    assert installed("acme").text == "5.24.0"


def test_a_package_that_is_not_there_is_not_installed() -> None:
    assert installed("no_such_package_at_all") == Release("not installed")
