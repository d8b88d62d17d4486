"""Per shim: a speculators that is patched does what one does that runs with the shim.

Speculators' real files on fake trees of several vLLM releases. That the states are the same, bit
for bit, is shown on real engines: tests/real_vllm/test_patched.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fake_trees
import patched_trees
import pytest
from fake_trees import Tree
from specvllm_compat.shims import CATALOG

TOY = Path(__file__).with_name("toy_engine.py")
# What stands around the files of the generator, instead of the whole packages
BESIDE = {
    "speculators/__init__.py": "",
    "speculators/utils/__init__.py": "",
    "transformers/utils/__init__.py": "def is_torch_npu_available():\n    return False\n",
}
# The first and the last era of every shim
ERAS = (("0.11.0", "0.3.0"), ("0.33.0", "0.4.0.1"))

# Speculators' own constructor reads the number of blocks of the plan.
PLAN = (
    '("KV cache config of the engine", 7)',
    'type("Plan", (tuple,), {"num_blocks": 7})(["KV cache config of the engine", 7])',
)
# What is seen of a generator, by shim
LOOK = """
import os, types
import transformers

asked = []

class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *inputs, **kwargs):
        asked.append([pretrained_model_name_or_path, kwargs])
        return types.SimpleNamespace(eos_token_id=1)

transformers.AutoTokenizer = AutoTokenizer
module = generator_module()

class Generator(module.VllmHiddenStatesGenerator):
    def _setup_capture(self):
        "There is no worker to set one up in."

def kind(call):
    return outcome(call).partition(":")[0]

class Stop(Exception):
    pass

def requests(generator):
    built = []
    def stop(request):
        built.append(vars(request))
        raise Stop
    generator.scheduler.add_request = stop
    generator.vllm_config.model_config.get_vocab_size = lambda: 100
    return [kind(lambda: generator.generate([[1, 2]])), [one["prompt_token_ids"] for one in built]]

def refusals(generator):
    bad = ([], [[]], [[1] * 5000], [[100]], [["1"]], [1, 2], [[None]])
    kinds = [kind(lambda: generator.generate(prompts)) for prompts in bad]
    return [found in ("ValueError", "TypeError") for found in kinds]

found = Generator("nested")
told = {
    "model_files": [asked, found.layer_ids],
    "config_fields": [
        {k: v for k, v in found.vllm_config.engine_args.items() if k != "model"},
        found.vllm_config.model_config.max_model_len,
        kind(lambda: Generator("nested", layer_ids=[])),
        os.environ["VLLM_USE_V2_MODEL_RUNNER"],
    ],
    "two_phase": [type(found.executor).__name__, found.executor.initialized],
    "kv_cache_config": found.scheduler.kv_cache_config,
    "scheduler": type(found.scheduler).__name__,
    "request": requests(found),
    "generate": refusals(found),
}
ended = told["context_manager"] = []
found.executor.shutdown = lambda: ended.append("shut down")
with found as entered:
    ended.append(entered is found)
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
told["decoder_forward"] = kind(lambda: Generator("nested"))
tell(told)
"""


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``patched("0.4.0.1")``: a folder that holds the patched package."""
    return cache(lambda version: patched_trees.patched(tmp_path_factory.mktemp("patched"), version))


@pytest.fixture(scope="module")
def consumer(
    patched: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Tree]:
    """``consumer("0.16.0", "0.4.0.1", patched=True)``: its generator on a fake vLLM."""

    @cache
    def get(vllm: str, version: str, *, patch: bool) -> Tree:
        folder = tmp_path_factory.mktemp("consumer")
        tree = fake_trees.write(folder, vllm=vllm, speculators=None)
        source = patched(version) if patch else patched_trees.wheel_content(version)
        for path in (source / "speculators").rglob("*.py"):
            name = path.relative_to(source)
            if "data_generation" in name.parts or name.parts[1:] == ("utils", "util.py"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / name)
        for name, text in BESIDE.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        shutil.rmtree(folder / "torch")  # the real one
        engine = folder / "vllm/v1/engine/core.py"
        engine.write_text(engine.read_text().replace(*PLAN))
        return tree

    return get


@pytest.fixture(scope="module")
def told(consumer: Callable[..., Tree]) -> Callable[[str], list[tuple[Any, Any]]]:
    """What the shims and the patches make of it, per era."""

    @cache
    def everything() -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [
            (
                consumer(vllm, version, patch=False).tells(LOOK),
                consumer(vllm, version, patch=True).tells_without_us(LOOK),
            )
            for vllm, version in ERAS
        ]

    return lambda shim: [(ours[shim], theirs[shim]) for ours, theirs in everything()]


def text_of(folder: Path) -> str:
    """The two modules that a generator is made of."""
    inside = folder / "speculators" / "data_generation"
    modules = ("vllm_hidden_states_generator.py", "custom_worker.py")
    return "".join((inside / name).read_text() for name in modules)


# --- shim by shim: what it adapts is gone from the patched tree, or does the same there

IMPORTED = {"attention_mask_module", "annotations", "hashing_module"}
SEEN = {
    "context_manager",
    "model_files",
    "config_fields",
    "two_phase",
    "kv_cache_config",
    "scheduler",
    "request",
}
GONE = {
    "two_phase": r"\.(execute_model|sample_tokens)\(",
    "kv_planning_names": r"_get_kv_cache_groups|get_kv_cache_config_from|unify_hybrid",
    "kv_cache_config": r"get_kv_cache_spec|initialize_from_config",
    "scheduler": r"= Scheduler\(|StructuredOutputManager",
    "device_memory": r"mem_get_info",
    "decoder_forward_driver": r"_set_request_metadata",
    "decoder_forward": r"_patched_forward|MethodType",
}
ON_AN_ENGINE = {"decoder_forward_driver", "decoder_forward", "generate"}


def test_each_shim_is_compared() -> None:
    compared = {*IMPORTED, *SEEN, *GONE, *ON_AN_ENGINE}
    assert compared == set(CATALOG)


@pytest.mark.parametrize("shim", sorted(SEEN | {"decoder_forward", "generate"}))
def test_the_patched_generator_is_seen_as_the_shimmed_one(
    told: Callable[[str], list[tuple[Any, Any]]], shim: str
) -> None:
    for ours, theirs in told(shim):
        assert theirs == ours
        assert ours


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0.1"])
@pytest.mark.parametrize("shim", GONE)
def test_what_a_shim_adapts_is_no_longer_used(
    patched: Callable[[str], Path], shim: str, version: str
) -> None:
    was_there = re.search(GONE[shim], text_of(patched_trees.wheel_content(version)))
    assert was_there or (shim, version) == ("decoder_forward_driver", "0.3.0")
    assert not re.search(GONE[shim], text_of(patched(version)))


def test_the_hash_function_is_found_where_vllm_0_11_0_has_it(consumer: Callable[..., Tree]) -> None:
    script = 'tell(generator_module().get_hash_fn_by_name("md5")().name)'
    ours = consumer("0.11.0", "0.4.0.1", patch=False).tells(script)
    theirs = consumer("0.11.0", "0.4.0.1", patch=True).tells_without_us(script)
    assert theirs == ours == "md5"


@pytest.mark.parametrize(("vllm", "version"), ERAS)
def test_states_of_the_patched_worker_and_loop_are_those_that_are_known(
    consumer: Callable[..., Tree], vllm: str, version: str
) -> None:
    finished = consumer(vllm, version, patch=True).command(str(TOY))
    assert finished.value == []


IMPORT = """
import speculators
from speculators.models import eagle
from speculators.models.eagle3.config import Eagle3SpeculatorConfig as config
print(config.__pydantic_complete__)
try:
    eagle._prepare_4d_causal_attention_mask(1)
except Exception as error:
    print("EAGLE-1" in str(error) and "install" in str(error))
"""


def imported(folder: Path, *, with_us: bool) -> subprocess.CompletedProcess[str]:
    """Import the real speculators with the transformers that is installed."""
    source = [str(fake_trees.SOURCE)] if with_us else []
    return subprocess.run(
        [sys.executable, "-c", ("import specvllm_compat\n" if with_us else "") + IMPORT],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *source])},
    )


def test_the_package_imports_with_the_newest_transformers(
    patched: Callable[[str], Path], tmp_path: Path
) -> None:
    released = patched_trees.wheel_content("0.4.0.1")
    ours = imported(released, with_us=True)
    theirs = imported(patched("0.4.0.1"), with_us=False)
    assert theirs.returncode == 0, theirs.stderr
    assert theirs.stdout == ours.stdout == "True\nTrue\n"
    # With the first patch alone, the second fault shows.
    tree = patched_trees.checkout(tmp_path / "tree", "0.4.0.1")
    assert patched_trees.patch(tree, tmp_path / "series").returncode == 0
    patched_trees.git(tree, "am", "--quiet", str(patched_trees.series(tmp_path / "series")[0]))
    assert "name 'torch' is not defined" in imported(tree / "src", with_us=False).stderr
