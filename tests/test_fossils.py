"""Every shim against every release, and what speculators alone would meet there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "real_vllm"))

import environments
import support_table
from packaging.version import Version
from specvllm_compat.preflight.fossil import FossilLens
from specvllm_compat.preflight.report import (
    Chosen,
    check_consumer,
    consumer_modules,
    first_errors,
    read_uses,
    verdicts,
)
from specvllm_compat.shim import ADAPTED, NATIVE, Release, Shim, choose
from specvllm_compat.shims import CATALOG
from specvllm_compat.source import SourceLens

FOSSILS = sorted(Path(__file__).parent.glob("fossils/*.json"), key=lambda p: Version(p.stem))
RELEASES = [
    "0.11.0",
    "0.11.1",
    "0.11.2",
    "0.12.0",
    "0.13.0",
    "0.14.0",
    "0.14.1",
    "0.15.0",
    "0.15.1",
    "0.16.0",
    "0.17.0",
    "0.17.1",
    "0.18.0",
    "0.18.1",
    "0.19.0",
    "0.19.1",
    "0.20.0",
    "0.20.1",
    "0.20.2",
    "0.21.0",
    "0.22.0",
    "0.22.1",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
]
SHIMS = [
    pytest.param(name, shim, id=name) for name, shim in CATALOG.items() if shim.provider == "vllm"
]
TRANSFORMERS = Release.parse("4.57.6")

# (first release, speculators 0.3.0, speculators 0.4.0.1): what they meet alone, "" if nothing
FIRST_ERRORS = [
    ("0.11.0", "", "ModuleNotFoundError: No module named 'vllm.utils.hashing'"),
    (
        "0.11.1",
        "TypeError: Scheduler.__init__() missing 1 required positional argument: 'block_size'",
        "TypeError: get_kv_cache_config_from_groups() missing 1 required positional argument: "
        "'kv_cache_specs'",
    ),
    ("0.12.0", "ValidationError: SchedulerConfig: is_encoder_decoder: Field required", ""),
    (
        "0.17.0",
        "ValidationError: SchedulerConfig: is_encoder_decoder: Field required",
        "TypeError: Request.__init__() got an unexpected keyword argument 'eos_token_id'",
    ),
    (
        "0.29.0",
        "ValidationError: SchedulerConfig: is_encoder_decoder: Field required",
        "ValueError: KV cache layout has not been resolved yet",
    ),
    (
        "0.33.0",
        "ImportError: cannot import name '_get_kv_cache_groups_uniform_spec' from "
        "'vllm.v1.core.kv_cache_utils'",
        "ImportError: cannot import name '_get_kv_cache_groups_uniform_spec' from "
        "'vllm.v1.core.kv_cache_utils'",
    ),
]


def consumer(speculators: str) -> SourceLens:
    return SourceLens({"speculators": environments.speculators(speculators) / "speculators"})


@pytest.fixture(params=FOSSILS, ids=lambda path: path.stem)
def fossil(request: pytest.FixtureRequest) -> FossilLens:
    return FossilLens(request.param)


def chosen(lens: FossilLens, text: str) -> list[Chosen]:
    releases = {"vllm": Release.parse(text), "transformers": TRANSFORMERS}
    whole = verdicts(Both(lens), releases)
    return [one for one in whole if one.shim.provider == "vllm"]


class Both:
    """A fossil of vLLM, and a transformers that has nothing."""

    def __init__(self, lens: FossilLens) -> None:
        self.look, self.homes, self._lens = lens.look, lens.homes, lens

    def shape(self, place: str) -> object:
        return self._lens.shape(place) if place.startswith("vllm") else None


def test_every_final_release_has_its_fossil() -> None:
    assert [path.stem for path in FOSSILS] == RELEASES
    assert [FossilLens(path).release.text for path in FOSSILS] == RELEASES


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_each_release_is_of_exactly_one_era_and_its_version_predicts_it(
    name: str, shim: Shim, fossil: FossilLens
) -> None:
    fitting = [era.since for era in shim.eras if era.probe.holds(fossil)]
    assert len(fitting) == 1, name
    era, remark = choose(shim, fossil, fossil.release)
    assert era is not None
    assert (era.since, remark) == (fitting[0], "")


@pytest.mark.parametrize(("name", "shim"), SHIMS)
def test_each_era_begins_where_it_says(name: str, shim: Shim) -> None:
    lenses = [FossilLens(path) for path in FOSSILS]
    for era in shim.eras:
        first = next(lens.release for lens in lenses if era.probe.holds(lens))
        assert first.text == era.since, name


@pytest.mark.parametrize(
    "text",
    [
        "0.16.0rc2.dev12+gabc123",
        "0.17.1rc1.dev3+gabcdef0.cu129",
        "dev",
        "0.0.0+gabcdef0",
        "0.33.0",
        "0.1.dev9",
    ],
)
def test_a_wrong_version_changes_nothing_of_what_is_chosen(text: str, fossil: FossilLens) -> None:
    right = {one.name: one.since for one in chosen(fossil, fossil.release.text)}
    assert {one.name: one.since for one in chosen(fossil, text)} == right


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_the_first_error_of_speculators_alone_is_known(
    speculators: str, fossil: FossilLens
) -> None:
    lens = consumer(speculators)
    found = []
    for module, text in consumer_modules(lens):
        found += read_uses(text, module, fossil, ("vllm",))
    expected = [row for row in FIRST_ERRORS if Version(row[0]) <= Version(fossil.release.text)]
    column = 1 if speculators == "0.3.0" else 2
    assert (first_errors(found, fossil) or [""])[0] == expected[-1][column]


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_every_seam_of_every_release_is_native_or_adapted(
    speculators: str, fossil: FossilLens
) -> None:
    lens = consumer(speculators)
    shims = chosen(fossil, fossil.release.text)
    for module, text in consumer_modules(lens):
        found = read_uses(text, module, fossil, ("vllm",))
        rows = check_consumer(module, found, fossil, shims)
        assert {row.name: row.do for row in rows if row.verdict not in (NATIVE, ADAPTED)} == {}
        assert len(rows) > 3


def test_a_fossil_holds_no_code(fossil: FossilLens) -> None:
    path = Path(__file__).parent / "fossils" / f"{fossil.release.text}.json"
    assert not any(
        word in path.read_text(encoding="utf-8") for word in ("return ", "import ", "def ")
    )


def test_a_place_that_was_not_recorded_is_not_passed_as_absent(fossil: FossilLens) -> None:
    with pytest.raises(LookupError, match="record it again"):
        fossil.shape("vllm.somewhere:else")
    assert fossil.look("vllm.somewhere:else").kind == "unresolved"


def test_the_table_in_the_readme_is_that_of_catalog_and_fossils() -> None:
    text = support_table.README.read_text(encoding="utf-8")
    written = text.partition(support_table.BEGIN)[2].partition(support_table.END)[0]
    assert written.strip() == support_table.table(), "run: python tests/support_table.py"
