"""What pip would break, and what is built or set for something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from specvllm_compat.preflight.environment import environment_facts
from specvllm_compat.shim import Release

VLLM = {"vllm": Release.parse("0.32.0")}


def distribution(folder: Path, name: str, version: str, *needs: str) -> None:
    at = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    at.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (at / "METADATA").write_text("\n".join(lines) + "\n\nA text with Requires-Dist: nothing==9\n")


def facts(folder: Path, releases: dict[str, Release] | None = None, **variables: str) -> list[str]:
    return environment_facts(releases or VLLM, variables, [str(folder), "no/such/folder"])


def test_an_environment_in_which_all_fits_has_nothing_to_say(tmp_path: Path) -> None:
    distribution(tmp_path, "speculators", "0.4.0.1", "torch<=2.10.0,>=2.9.0", 'x; extra == "dev"')
    distribution(tmp_path, "torch", "2.10.0")
    assert facts(tmp_path) == []
    assert facts(tmp_path, VLLM_PLUGINS="mine, specvllm_compat") == []


def test_what_pip_would_take_back_is_told_with_the_command(tmp_path: Path) -> None:
    needs = ("torch<=2.10.0,>=2.9.0", 'vllm<=0.16.0,>=0.12.0; extra == "datagen"', "absent==1")
    distribution(tmp_path, "speculators", "0.4.0.1", *needs)
    distribution(tmp_path, "torch", "2.13.0+cpu")
    distribution(tmp_path, "vllm", "0.32.0")
    (said,) = facts(tmp_path)
    assert said.startswith('pip install "speculators[datagen]==0.4.0.1" would take torch 2.13.0')
    assert "vllm 0.32.0 to <=0.16.0,>=0.12.0" in said
    assert said.endswith("--no-deps")


@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
def test_a_build_for_another_torch_is_told(tmp_path: Path, name: str) -> None:
    distribution(tmp_path, "torch", "2.11.0")
    distribution(tmp_path, name, "0.25.0", "numpy", "torch==2.10.0")
    (said,) = facts(tmp_path)
    assert said.startswith(f"{name} 0.25.0 is built for torch==2.10.0, and torch 2.11.0 is")


def test_transformers_5_with_a_new_pydantic_is_told(tmp_path: Path) -> None:
    distribution(tmp_path, "transformers", "5.1.0")
    distribution(tmp_path, "pydantic", "2.13.0")
    (said,) = facts(tmp_path)
    assert "import specvllm_compat before speculators" in said


@pytest.mark.parametrize("allowed", ["", "mine"])
def test_a_plugin_list_without_us_is_told(tmp_path: Path, allowed: str) -> None:
    (said,) = facts(tmp_path, VLLM_PLUGINS=allowed)
    wanted = "mine,specvllm_compat" if allowed else "specvllm_compat"
    assert f"Set VLLM_PLUGINS={wanted!r}" in said


def test_a_cpu_release_that_needs_a_preload_is_told(tmp_path: Path) -> None:
    releases = {"vllm": Release.parse("0.18.1+cpu")}
    (said,) = facts(tmp_path, releases)
    assert "libtcmalloc in LD_PRELOAD" in said
    assert facts(tmp_path, releases, LD_PRELOAD="/x/libtcmalloc_minimal.so.4") == []
    assert facts(tmp_path, {"vllm": Release.parse("0.19.0+cpu")}) == []
