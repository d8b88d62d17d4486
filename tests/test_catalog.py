"""Every shim of the catalog, against every tree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from fake_trees import ERAS, Tree
from packaging.version import Version
from specvllm_compat import shims
from specvllm_compat.cli import explanation, main
from specvllm_compat.contract import SourceLens
from specvllm_compat.shim import Release, choose, installed, refusal
from specvllm_compat.shims import CATALOG, FLOOR

SHIMS = [pytest.param(name, shim, id=name) for name, shim in CATALOG.items()]
FINAL = [
    *({"vllm": version} for version in ERAS),
    {"transformers": "5.0.0"},
    {"transformers": "5.24.0"},
]


def releases(combination: dict[str, str]) -> dict[str, Release]:
    return {
        "vllm": Release.parse(combination.get("vllm", "0.32.0")),
        "transformers": Release.parse(combination.get("transformers", "4.57.6")),
    }


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_eras_ascend(name: str, shim: shims.Shim) -> None:
    starts = [Version(era.since) for era in shim.eras]
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("combination", FINAL, ids=str)
@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_exactly_one_era_fits_a_final_release_and_the_version_predicts_it(
    name: str, shim: shims.Shim, combination: dict[str, str], tree: Callable[..., Tree]
) -> None:
    lens = SourceLens(tree(**combination).roots)
    fitting = [era.since for era in shim.eras if era.probe.holds(lens)]
    assert len(fitting) == 1, {p: str(lens.shape(p)) for e in shim.eras for p in e.probe.places}
    era, remark = choose(shim, lens, releases(combination)[shim.provider])
    assert era is not None
    assert (era.since, remark) == (fitting[0], "")


def test_each_era_is_the_era_of_some_tree(tree: Callable[..., Tree]) -> None:
    seen = {
        (name, era.since)
        for combination in FINAL
        for name, shim in CATALOG.items()
        for era in shim.eras
        if era.probe.holds(SourceLens(tree(**combination).roots))
    }
    assert seen == {(name, era.since) for name, shim in CATALOG.items() for era in shim.eras}


def test_a_nightly_is_of_the_era_that_it_looks_like(tree: Callable[..., Tree]) -> None:
    lens = SourceLens(tree(vllm="nightly").roots)
    nightly = Release.parse("0.16.0rc2.dev12+g48c879369")
    era, remark = choose(CATALOG["request"], lens, nightly)
    assert era is not None
    assert era.since == "0.17.0"
    assert nightly.text in remark
    others = [n for n, s in CATALOG.items() if s.provider == "vllm" and choose(s, lens, nightly)[1]]
    assert others == ["request"]


@pytest.mark.parametrize("name", ["request", "two_phase"])
def test_a_release_of_no_known_shape_is_of_no_era(name: str, tree: Callable[..., Tree]) -> None:
    lens = SourceLens(tree(vllm="future").roots)
    assert choose(CATALOG[name], lens, Release.parse("1.0.0")) == (None, "")


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_no_era_is_dead(name: str, shim: shims.Shim) -> None:
    if shim.provider != "vllm":
        return
    for era, following in pairwise(shim.eras):
        assert Version(following.since).release > FLOOR, (
            f"{name}: remove the era of {era.since}, every supported vLLM is of {following.since}"
        )


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_each_shim_says_why_it_exists_and_when_it_can_go(name: str, shim: shims.Shim) -> None:
    assert re.fullmatch(r"https://github\.com/\S+/\S+", shim.upstream.change)
    assert not Version(shim.upstream.first_release).is_prerelease
    assert len(shim.upstream.delete_when.split()) > 3
    assert re.fullmatch(r"[A-Z][^\n]{10,98}", shim.does)
    assert shim.names, "a shim that never touches anything"


def test_each_shim_module_says_in_its_first_line_what_it_does() -> None:
    for name, module in vars(shims).items():
        if inspect.ismodule(module):
            first = (module.__doc__ or "").splitlines()[0]
            assert first.endswith("."), name
            assert len(first) <= 100, name


def test_each_adapter_is_named_after_what_it_does() -> None:
    for shim in CATALOG.values():
        for era in shim.eras:
            for adapter in era.adapt.values():
                assert not re.match(r"(_|new|my|do|patch)", adapter.__name__), adapter


def test_explain_prints_every_shim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    for name, shim in CATALOG.items():
        assert explanation(name, shim) in text
        assert f"{name}: {shim.does}\n" in text
        assert shim.upstream.change in text
        assert shim.upstream.delete_when in text


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_explain_shows_each_era_with_its_probe(name: str, shim: shims.Shim) -> None:
    text = explanation(name, shim)
    for era in shim.eras:
        assert f"{era.since} and on" in text
        assert str(era.probe) in text
    assert all(seam in text for seam in shim.names)


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_explain_says_what_is_done_in_words(name: str, shim: shims.Shim) -> None:
    text = explanation(name, shim)
    assert "<lambda>" not in text
    assert not re.search(r"and on: adapter$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_a_refusal_says_what_where_found_and_expected(
    name: str, shim: shims.Shim, tree: Callable[..., Tree]
) -> None:
    lens = SourceLens(tree(vllm="future").roots)
    text = refusal(name, shim, lens, Release.parse("1.0.0"))
    assert text.startswith(f"{name}: {shim.provider} 1.0.0 ")
    assert shim.module in text
    assert "Install a release" in text
    for era in shim.eras:
        for part in era.probe.parts:
            found = str(lens.shape(part.places[0]) or "absent")
            said = f"as of {era.since}: {part}, found {found}" in text
            assert said is not part.holds(lens), "what fits is left out, what does not is said"


@pytest.mark.parametrize(
    ("vllm", "changed"),
    [
        ("0.11.0", ("hashing_module", "two_phase")),
        ("0.16.0", ()),
        ("0.33.0", ("kv_planning_names",)),
    ],
)
def test_what_differs_between_the_trees_is_what_differs_between_the_releases(
    vllm: str, changed: tuple[str, ...], tree: Callable[..., Tree]
) -> None:
    """The fakes are told apart by the shims that know of a change, and by no others."""

    def eras(version: str) -> dict[str, str]:
        lens = SourceLens(tree(vllm=version).roots)
        found = {n: choose(s, lens, Release.parse(version))[0] for n, s in CATALOG.items()}
        return {n: era.since for n, era in found.items() if era}

    here, reference = eras(vllm), eras("0.32.0")
    expected = {*changed, *(("request",) if vllm in ("0.11.0", "0.16.0") else ())}
    assert {name for name in CATALOG if here[name] != reference[name]} == expected


def test_the_version_of_this_environment_can_be_read() -> None:
    assert installed("wrapt").text != "not installed"
