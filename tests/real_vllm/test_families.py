"""Model families: who is read, and who is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import FAMILIES_SEEN, HERE
from families import FAMILIES, release
from oracle import TALLY, TOLERANCE
from specvllm_compat.engine.capture import Capture
from specvllm_compat.engine.families import (
    CaptureError,
    decoder_layers,
    refuse_architecture,
    refuse_layer,
    summands,
)
from specvllm_compat.engine.sources import watch
from torch import nn
from vllm.model_executor.models import ModelRegistry

UNREADABLE = ("InklingForCausalLM", "KimiK3ForConditionalGeneration", "DeepseekV32ForCausalLM")
# Of bfloat16, which keeps 8 bits, after four layers. States that were wrong differed by 1 or more.
BFLOAT16_TOLERANCE = 1e-1
# Without its own kernels for MLA, which a CPU hasn't, and without compiling single operators.
VARIABLES = {"VLLM_MLA_DISABLE": "1", "TORCH_COMPILE_DISABLE": "1"}
# One of each kind; the others take minutes.
QUICK = ("cohere", "granite", "gemma3", "transformers_backend")


def named(name: str) -> Any:
    marks = [pytest.mark.own_engine, *([] if name in QUICK else [pytest.mark.families])]
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What was seen of each selected family: in one process, and in a new one after a crash."""
    items = [item for item in request.session.items if "seen" in getattr(item, "fixturenames", ())]
    names = [item.callspec.params["name"] for item in items]  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("families")
    report = folder / "report.json"
    found: dict[str, Any] = {}
    while left := [name for name in names if name not in found]:
        report.write_text("{}")
        script = [sys.executable, str(HERE / "own_families.py"), str(folder), str(report), *left]
        ended = subprocess.run(script, env=os.environ | VARIABLES, check=False)
        found |= json.loads(report.read_text())
        if ended.returncode:
            fatal = next(name for name in left if name not in found)
            found[fatal] = {"reason": f"the process ended with {ended.returncode}"}
    FAMILIES_SEEN.update(found)
    return found


@pytest.mark.parametrize("name", map(named, FAMILIES))
def test_the_states_of_a_family_are_those_of_hugging_face(seen: Any, name: str) -> None:
    """And, where the model has auxiliary outputs, bit for bit those of vLLM itself."""
    found = seen[name]
    if reason := FAMILIES[name].fails.get(release()):
        assert reason in found.get("reason", "it runs now"), found
        return
    assert "reason" not in found, found["reason"]
    if limit := FAMILIES[name].differs.get(release()):
        assert found["auxiliary"]
        assert TOLERANCE < found["error"] <= limit
    elif found["dtype"] == "float32":
        TALLY.add(found["prompts"], found["error"])
        assert found["error"] <= TOLERANCE
    else:
        assert found["error"] <= BFLOAT16_TOLERANCE


def test_a_family_that_nobody_can_read_is_refused_by_name_before_its_weights_are_loaded() -> None:
    for architecture in UNREADABLE:
        entry = ModelRegistry.models.get(architecture)
        # V3.2 began as a V2, whose layers can be read.
        if entry is not None and not entry.module_name.endswith(".deepseek_v2"):
            with pytest.raises(CaptureError, match=architecture):
                refuse_architecture(SimpleNamespace(architectures=[architecture]))
    refuse_architecture(
        SimpleNamespace(architectures=["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
    )
    refuse_architecture(SimpleNamespace(architectures=["ModelOfAnotherPackage"]))


def test_a_family_that_scales_its_states_in_float16_is_refused_there() -> None:
    module = "vllm.model_executor.models.deepseek_v2"
    kind = type("DeepseekV2DecoderLayer", (nn.Module,), {"__module__": module})
    layer = kind()
    layer.routed_scaling_factor = 2.5
    refuse_layer(layer, torch.bfloat16)
    with pytest.raises(CaptureError, match="Set dtype to bfloat16"):
        refuse_layer(layer, torch.float16)
    layer.routed_scaling_factor = 1.0
    refuse_layer(layer, torch.float16)


def modules(**children: nn.Module) -> nn.Module:
    """A module with these children."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def four() -> nn.ModuleList:
    return nn.ModuleList(nn.Identity() for _ in range(4))


FOUR_LAYERS = SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=4))


def kimi_k2_5(language_model: nn.Module) -> Iterator[nn.Module]:
    """This release's Kimi-K2.5, if it has one, around a language model and a tower as deep."""
    if "KimiK25ForConditionalGeneration" not in ModelRegistry.models:
        return
    from vllm.model_executor.models.kimi_k25 import KimiK25ForConditionalGeneration

    model = KimiK25ForConditionalGeneration.__new__(KimiK25ForConditionalGeneration)
    nn.Module.__init__(model)
    model.vision_tower = modules(blocks=four())
    model.language_model = language_model
    model._language_model_names = ["language_model"]  # what building it writes down
    yield model


def test_the_backbone_of_kimi_k2_5_is_found_with_and_without_a_head_around_it() -> None:
    decoder = modules(layers=four())
    decoder.embed_input_ids = lambda ids: ids  # type: ignore[assignment]
    headed = modules(model=decoder, lm_head=nn.Identity())
    headed.embed_input_ids = decoder.embed_input_ids
    for language_model in (decoder, headed):
        for model in kimi_k2_5(language_model):
            assert decoder_layers(model, FOUR_LAYERS) is decoder.layers


def test_two_lists_that_could_be_the_decoder_layers_are_refused() -> None:
    with pytest.raises(CaptureError, match="several lists of 4 modules"):
        decoder_layers(modules(tower=four(), layers=four()), FOUR_LAYERS)
    with pytest.raises(CaptureError, match="no list of 4 modules"):
        decoder_layers(modules(layers=nn.ModuleList()), FOUR_LAYERS)


class Streams(nn.Module):
    """A layer of two streams, which the layer after it is to finish."""

    def forward(self, hidden: torch.Tensor, streams: torch.Tensor) -> Any:
        return hidden + 1, streams + hidden[:, None], hidden, hidden


Streams.__module__ = "vllm.models.deepseek_v4.nvidia.model"


def of_streams() -> nn.Module:
    """A model with this release's way to put out what its layers leave open, if it has one."""
    from vllm.model_executor.models import interfaces

    class Model(nn.Module, getattr(interfaces, "EagleModelMixin", object)):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Streams() for _ in range(4))

        def forward(self, hidden: torch.Tensor) -> Any:
            streams, auxiliary = hidden.new_zeros(len(hidden), 2, hidden.shape[1]), []
            for index, layer in enumerate(self.layers):
                hidden, streams, _, _ = layer(hidden, streams)
                if hasattr(self, "_maybe_add_hidden_state"):
                    self._maybe_add_hidden_state(auxiliary, index + 1, streams.mean(dim=1), None)
            return (hidden, auxiliary) if auxiliary else hidden

    return modules(model=Model())


def test_states_that_layers_leave_open_come_from_auxiliary_outputs_or_are_refused() -> None:
    top = of_streams()
    model = top.model
    seen: dict[int, torch.Tensor] = {}

    def recorder(index: int, layer: nn.Module) -> Any:
        return lambda module, args, output: seen.update({index: summands(output, full=False)[0]})

    if not hasattr(model, "aux_hidden_state_layers"):
        with pytest.raises(CaptureError, match="no auxiliary outputs in this vLLM"):
            watch(top, model.layers, [1, 3], recorder)
        return
    watched = watch(top, model.layers, [1, 3], recorder)
    given = torch.ones(5, 8)
    assert isinstance(model(given), torch.Tensor), "the model's caller sees nothing of it"
    assert torch.equal(seen[0], given * 3)  # 1 + 2
    assert torch.equal(seen[1], given * 10)  # 1 + 2 + 3 + 4
    for handle in watched:
        handle.remove()
    seen.clear()
    model(given)
    assert not seen


def test_outputs_of_a_form_that_is_not_known_are_refused() -> None:
    hidden = torch.ones(5, 8)
    assert summands(hidden, full=False) == (hidden, None)
    assert summands((hidden, hidden), full=True) == (hidden, None)
    assert summands((hidden, None), full=False) == (hidden, None)
    assert summands((hidden, hidden, (1, 2)), full=False) == (hidden, hidden)  # HunYuan
    for output in ((hidden, hidden[:, None]), (hidden, hidden, hidden), SimpleNamespace()):
        with pytest.raises(CaptureError, match="no form that is known"):
            summands(output, full=False)


def test_the_runner_that_keeps_no_batch_order_is_refused_and_told_how_to_be_left_out() -> None:
    """V2's own batches are sorted by length, which is not the order of its requests."""
    from vllm.v1.worker import gpu_worker

    if "v1.worker.gpu." not in Path(gpu_worker.__file__).read_text():
        return  # there is no second runner yet
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    runner = GPUModelRunner.__new__(GPUModelRunner)
    with pytest.raises(CaptureError, match="Set VLLM_USE_V2_MODEL_RUNNER=0"):
        Capture(SimpleNamespace(model_runner=runner), [0])
    source = Path(sys.modules[GPUModelRunner.__module__].__file__ or "").read_text()
    assert "self.input_batch" not in source, "what V1 is known by"
