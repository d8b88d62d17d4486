"""Small ``vllm``, ``speculators``, ``transformers`` and ``torch`` that fail as the real ones do.

A tree holds one release of each. Only what the consumer and the shims touch is there, with the
signatures of that release; what would raise in the real package raises here, with its message.
Scripts run in an interpreter of their own, whose first path entry is the tree: packages that are
installed for real are shadowed. ``user.py`` in every tree is what a user's script does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """What one vLLM release looks like to speculators; the defaults are those of 0.32.0."""

    version: str
    two_phases: bool = True
    hashing_module: bool = True
    hash_function: bool = True
    encoder_decoder_field: bool = True
    block_size: bool = True
    eos_token_id: bool = False
    block_hasher: bool = True
    grammar_output: bool = True
    kv_cache_specs: bool = False
    planning_module: bool = False


_SIXTEEN: dict[str, Any] = {"eos_token_id": True}

VLLM: dict[str, Vllm] = {
    "0.10.0": Vllm(
        version="0.10.0",
        two_phases=False,
        hashing_module=False,
        encoder_decoder_field=False,
        block_size=False,
        eos_token_id=True,
        kv_cache_specs=True,
    ),
    "0.11.0": Vllm(
        version="0.11.0",
        two_phases=False,
        hashing_module=False,
        encoder_decoder_field=False,
        block_size=False,
        eos_token_id=True,
        kv_cache_specs=True,
    ),
    "0.16.0": Vllm(version="0.16.0", **_SIXTEEN),
    "0.32.0": Vllm(version="0.32.0"),
    "0.33.0": Vllm(version="0.33.0", planning_module=True),
    # The number of one release, the shapes of the next: eos_token_id went on the way to 0.17.0.
    "nightly": Vllm(version="0.16.0rc2.dev12+g48c879369"),
    # A table that is wrong about a final release.
    "mislabelled": Vllm(version="0.17.0", **_SIXTEEN),
    "versionless": Vllm(version="dev"),
    "tagless": Vllm(version="0.1.dev1+g48c879369"),
    "future": Vllm(version="1.0.0", block_hasher=False, grammar_output=False),
    "hashless": Vllm(version="1.0.0", hash_function=False),
}

ERAS = ("0.11.0", "0.16.0", "0.32.0", "0.33.0")
"""Final releases that have to be right in every respect."""


def version_file(version: str) -> str:
    return f"version: str\n__version__: str\n__version__ = version = {version!r}\n"


def vllm_files(release: Vllm) -> dict[str, str]:
    """The files of ``vllm``, by path."""
    hash_function = dedent("""
        import hashlib

        def get_hash_fn_by_name(hash_fn_name):
            return getattr(hashlib, hash_fn_name)
    """)
    specs = "kv_cache_specs, " if release.kv_cache_specs else ""
    planning = dedent(f"""
        def _get_kv_cache_groups_uniform_spec(kv_cache_specs):
            return [list(kv_cache_specs)]

        def get_kv_cache_config_from_groups(
            vllm_config, kv_cache_groups, {specs}available_memory
        ):
            if available_memory <= 0:
                raise ValueError("No available memory for the cache blocks.")
            return ("planned", kv_cache_groups)

        def unify_hybrid_kv_cache_specs(kv_cache_spec):
            return "unified"
    """)
    hashers = dedent("""
        def init_none_hash(hash_fn):
            pass

        def get_request_block_hasher(block_size, caching_hash_fn):
            return lambda request: []

        def _kv_cache_device_name():
            return "cpu"
    """)
    files = {
        "__init__.py": "from ._version import __version__\n",
        "_version.py": version_file(release.version),
        "config/__init__.py": _CONFIG
        + (_SCHEDULER_CONFIG_0_12 if release.encoder_decoder_field else _SCHEDULER_CONFIG_0_11),
        "distributed/__init__.py": "def get_pp_group(): ...\ndef get_tp_group(): ...\n",
        "engine/__init__.py": "",
        "engine/arg_utils.py": _ARG_UTILS,
        "model_executor/__init__.py": "",
        "model_executor/models/__init__.py": "class ModelRegistry:\n    models = {}\n",
        "model_executor/models/interfaces.py": "def supports_eagle3(model):\n    return True\n",
        "sampling_params.py": _SAMPLING_PARAMS,
        "sequence.py": "class IntermediateTensors:\n    pass\n",
        "usage/__init__.py": "",
        "usage/usage_lib.py": 'class UsageContext:\n    LLM_CLASS = "LLM_CLASS"\n',
        "utils/__init__.py": "" if release.hashing_module else hash_function,
        "v1/__init__.py": "",
        "v1/core/__init__.py": "",
        "v1/core/kv_cache_utils.py": hashers + ("" if release.planning_module else planning),
        "v1/core/sched/__init__.py": "",
        "v1/core/sched/scheduler.py": _scheduler(release),
        "v1/engine/__init__.py": "",
        "v1/engine/core.py": _engine_core(release),
        "v1/executor/__init__.py": "",
        "v1/executor/abstract.py": _ABSTRACT,
        "v1/executor/multiproc_executor.py": _executor(release),
        "v1/request.py": _request(release),
        "v1/structured_output/__init__.py": _STRUCTURED_OUTPUT,
        "v1/worker/__init__.py": "",
        "v1/worker/gpu_worker.py": _WORKER,
    }
    if release.hashing_module:
        files["utils/hashing.py"] = hash_function if release.hash_function else ""
    if release.planning_module:
        # As in vLLM: the new module imports the old one, not the other way round.
        importing = "from vllm.v1.core.kv_cache_utils import _kv_cache_device_name\n"
        files["v1/core/kv_cache_planning.py"] = importing + planning
    return {f"vllm/{path}": text for path, text in files.items()}


_CONFIG = """
from dataclasses import InitVar, dataclass, field


@dataclass
class ModelConfig:
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    model: str = ""
    tokenizer: str = ""
    trust_remote_code: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    enforce_eager: bool = False
    hf_text_config: object = None


@dataclass
class CacheConfig:
    block_size: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    num_gpu_blocks: int | None = None


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    world_size: int = 1
    worker_extension_cls: str = ""


@dataclass
class DeviceConfig:
    device: str = "auto"


@dataclass
class LoadConfig:
    load_format: str = "auto"


@dataclass(kw_only=True)
class VllmConfig:
    model_config: ModelConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    scheduler_config: "SchedulerConfig"
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    load_config: LoadConfig = field(default_factory=LoadConfig)
    engine_args: object = None
"""

_SCHEDULER_CONFIG_0_11 = """

@dataclass
class SchedulerConfig:
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    max_model_len: int = 8192
    async_scheduling: bool = False
"""

_SCHEDULER_CONFIG_0_12 = """

@dataclass(kw_only=True)
class SchedulerConfig:
    max_model_len: InitVar[int]
    is_encoder_decoder: InitVar[bool]
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    async_scheduling: bool | None = None
"""

_ARG_UTILS = """
import inspect
from dataclasses import dataclass, fields

from vllm import config


@dataclass
class EngineArgs:
    model: str = "facebook/opt-125m"
    trust_remote_code: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.92
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    distributed_executor_backend: str | None = None
    worker_extension_cls: str = ""
    speculative_config: dict | None = None
    runner: str = "auto"

    def create_engine_config(self, usage_context=None, headless=False):
        required = inspect.signature(config.SchedulerConfig).parameters
        scheduler = {"max_model_len": self.max_model_len}
        if "is_encoder_decoder" in required:
            scheduler["is_encoder_decoder"] = False
        return config.VllmConfig(
            model_config=config.ModelConfig(model=self.model, max_model_len=self.max_model_len),
            cache_config=config.CacheConfig(enable_prefix_caching=self.enable_prefix_caching),
            parallel_config=config.ParallelConfig(worker_extension_cls=self.worker_extension_cls),
            scheduler_config=config.SchedulerConfig(
                max_num_batched_tokens=self.max_num_batched_tokens,
                async_scheduling=self.async_scheduling,
                **scheduler,
            ),
            engine_args={f.name: getattr(self, f.name) for f in fields(self)},
        )
"""

_SAMPLING_PARAMS = """
class SamplingParams:
    def __init__(self, max_tokens=16, temperature=1.0):
        self.max_tokens = max_tokens
        self.temperature = temperature
"""

_STRUCTURED_OUTPUT = """
class StructuredOutputManager:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
"""

_WORKER = """
class Worker:
    def execute_model(self, scheduler_output):
        raise RuntimeError("no model is loaded")
"""

_ABSTRACT = """
class Executor:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.steps = []
        self.is_failed = False
        self.initialized = 0

    @staticmethod
    def get_class(vllm_config):
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        return MultiprocExecutor

    def initialize_from_config(self, kv_cache_configs):
        if self.initialized:
            raise RuntimeError("KV caches are allocated already")
        self.initialized += 1

    def shutdown(self):
        self.steps.append("shutdown")
"""


def _executor(release: Vllm) -> str:
    whole = """
            def execute_model(self, scheduler_output, non_block=False):
                self.steps.append("execute")
                return ("output of", scheduler_output)
    """
    argument = "grammar_output" if release.grammar_output else "grammar_bitmask"
    split = f"""
            def execute_model(self, scheduler_output, non_block=False):
                if self.state is not None:
                    raise RuntimeError(
                        "State error: sample_tokens() must be called "
                        "after execute_model() returns None."
                    )
                self.steps.append("execute")
                self.state = scheduler_output
                return None

            def sample_tokens(self, {argument}, non_block=False):
                if {argument} is not None:
                    {argument}.grammar_bitmask
                self.steps.append("sample")
                output, self.state = ("output of", self.state), None
                return output
    """
    head = """
        from vllm.v1.executor.abstract import Executor


        class MultiprocExecutor(Executor):
            state = None

            def collective_rpc(
                self, method, timeout=None, args=(), kwargs=None, non_block=False,
                unique_reply_rank=None,
            ):
                replies = [(method, args)]
                return {reply}
    """.replace("{reply}", _reply(release))
    return dedent(head) + dedent(split if release.two_phases else whole).replace("\n", "\n    ")


def _reply(release: Vllm) -> str:
    """One rank's reply: a list of one while there was one phase, since then the value itself."""
    if not release.two_phases:
        return "replies"
    return "replies if unique_reply_rank is None else replies[unique_reply_rank]"


def _scheduler(release: Vllm) -> str:
    block_size = "block_size, hash_block_size=None, " if release.block_size else ""
    return dedent(f"""
        class Scheduler:
            def __init__(
                self, vllm_config, kv_cache_config, structured_output_manager, {block_size}
                log_stats=False,
            ):
                self.vllm_config = vllm_config
                self.kv_cache_config = kv_cache_config
                self.requests = {{}}

            def add_request(self, request):
                self.requests[request.request_id] = request

            def schedule(self):
                raise NotImplementedError

            def update_from_output(self, scheduler_output, model_runner_output):
                raise NotImplementedError

            def finish_requests(self, request_ids, finished_status):
                for request_id in request_ids:
                    del self.requests[request_id]
    """)


def _engine_core(release: Vllm) -> str:
    block_size = "block_size=16, " if release.block_size else ""
    return dedent(f"""
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager


        class EngineCore:
            def __init__(self, vllm_config, executor_class, log_stats, executor_fail_callback=None):
                self.model_executor = executor_class(vllm_config)
                kv_cache_config = ("KV cache config of the engine", 7)
                self.model_executor.initialize_from_config([kv_cache_config])
                self.scheduler = Scheduler(
                    vllm_config=vllm_config,
                    kv_cache_config=kv_cache_config,
                    structured_output_manager=StructuredOutputManager(vllm_config),
                    {block_size}
                )
    """)


def _request(release: Vllm) -> str:
    eos = "eos_token_id: int, " if release.eos_token_id else ""
    hasher = "block_hasher=None, " if release.block_hasher else ""
    return dedent(f"""
        import enum


        class RequestStatus(enum.IntEnum):
            WAITING = 0
            FINISHED_ABORTED = 1


        class Request:
            def __init__(
                self, request_id, prompt_token_ids, sampling_params, pooling_params, {eos}
                client_index=0, arrival_time=None, {hasher}
            ):
                self.request_id = request_id
                self.prompt_token_ids = prompt_token_ids
    """)


def speculators_files(version: str) -> dict[str, str]:
    """The files of ``speculators``; its imports stand where the real package has them."""
    files = {
        "__init__.py": "from .config import SpeculatorModelConfig\nfrom .models import eagle\n",
        "version.py": 'version = "made by its build"\n',
        "_version.py": version_file(version),
        "config.py": _SPECULATORS_CONFIG,
        "models/__init__.py": "",
        "models/eagle.py": "from transformers.modeling_attn_mask_utils import "
        "_prepare_4d_causal_attention_mask\n",
    }
    if version.startswith("0.5"):
        return {f"speculators/{path}": text for path, text in files.items()}
    old = version.startswith("0.3")
    files["data_generation/__init__.py"] = (
        ""
        if old
        else (
            "from speculators.data_generation.vllm_hidden_states_generator import "
            "VllmHiddenStatesGenerator\n"
        )
    )
    files["data_generation/custom_worker.py"] = _worker_extension(old)
    files["data_generation/vllm_hidden_states_generator.py"] = _generator(old)
    if not old:
        files["utils/__init__.py"] = ""
        files["utils/util.py"] = _SPECULATORS_UTIL
    return {f"speculators/{path}": text for path, text in files.items()}


# pydantic evaluates the annotations of every base class when the model is built.
_SPECULATORS_CONFIG = """
from typing import get_type_hints

from transformers import PretrainedConfig


class SpeculatorModelConfig(PretrainedConfig):
    pass


FIELDS = get_type_hints(SpeculatorModelConfig)
"""

_SPECULATORS_UTIL = """
import torch


def mem_get_info():
    return torch.accelerator.mem_get_info(torch.accelerator.current_accelerator())


def empty_cache():
    pass
"""


def _worker_extension(old: bool) -> str:
    supports = "from vllm.model_executor.models.interfaces import supports_eagle3\n" if old else ""
    text = f"""
        import torch
        from vllm.distributed import get_pp_group, get_tp_group
        {supports.strip()}
        from vllm.sequence import IntermediateTensors


        class HiddenStatesWorkerExtension:
            def _store_captured_states(self, aux_hidden_states):
                self._captured_states = aux_hidden_states

            def _setup_hidden_states_capture(self, layer_ids):
                self._layer_ids = frozenset(layer_ids)
                return "upstream's own capture"

            def _reset_capture(self):
                self._captured_states = None

            def _get_captured_states(self):
                return self._captured_states
    """
    by_request = """
            def _set_request_metadata(self, request_metadata):
                self._current_request_metadata = request_metadata
    """
    return dedent(text) + ("" if old else dedent(by_request).replace("\n", "\n    "))


def _generator(old: bool) -> str:
    return f"""
import torch
from transformers import AutoConfig, AutoTokenizer
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
{"" if old else "from vllm.utils.hashing import get_hash_fn_by_name"}
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_groups_uniform_spec,
    get_kv_cache_config_from_groups,
    {"" if old else "get_request_block_hasher, init_none_hash,"}
    unify_hybrid_kv_cache_specs,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
{"" if old else "from speculators.utils.util import empty_cache, mem_get_info"}


class VllmHiddenStatesGenerator:
    def __init__(self, model_path, layer_ids=None, max_model_len=2048,
                 gpu_memory_utilization=0.8, tensor_parallel_size=1):
        self.layer_ids = layer_ids or [2, 5]
        self.vllm_config = self._create_vllm_config(
            model_path=model_path,
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            tensor_parallel_size=tensor_parallel_size,
        )
        self.executor = MultiprocExecutor(vllm_config=self.vllm_config)
        specs = ["spec of layer 0"]
        unify_hybrid_kv_cache_specs(specs)
        groups = _get_kv_cache_groups_uniform_spec(specs)
        free_memory, _ = {"torch.cuda.mem_get_info" if old else "mem_get_info"}()
        kv_cache_config = get_kv_cache_config_from_groups(
            vllm_config=self.vllm_config,
            kv_cache_groups=groups,
            {"kv_cache_specs=specs," if old else ""}
            available_memory=int(free_memory * 0.2),
        )
        self.kv_cache_config = kv_cache_config
        self.scheduler = Scheduler(
            vllm_config=self.vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(vllm_config=self.vllm_config),
            {"" if old else "block_size=16,"}
        )
        self.executor.initialize_from_config([kv_cache_config])

    def _create_vllm_config(self, model_path, max_model_len, gpu_memory_utilization,
                            tensor_parallel_size):
        return VllmConfig(
            model_config=ModelConfig(model=model_path, max_model_len=max_model_len),
            cache_config=CacheConfig(block_size=16),
            parallel_config=ParallelConfig(tensor_parallel_size=tensor_parallel_size),
            scheduler_config=SchedulerConfig(
                max_model_len=max_model_len,
                {"" if old else "is_encoder_decoder=False,"}
            ),
        )

    def _setup_capture(self):
        self.executor.collective_rpc("_setup_hidden_states_capture", args=(self.layer_ids,))

    def generate(self, token_ids):
        request = Request(
            request_id="req_0_0",
            prompt_token_ids=token_ids[0],
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            pooling_params=None,
            eos_token_id=2,
            arrival_time=0.0,
            {"" if old else "block_hasher=None,"}
        )
        self.scheduler.add_request(request)
        return "generated by speculators"
"""


def _auto_class(name: str) -> str:
    """Answers with what it was asked; a path that starts with ``nested`` has a nested config."""
    return f"""
import types

class {name}:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *inputs, **kwargs):
        asked = types.SimpleNamespace(path=pretrained_model_name_or_path, **kwargs)
        if asked.path.startswith("nested"):
            layers = types.SimpleNamespace(num_hidden_layers=28)
            return types.SimpleNamespace(thinker_config=types.SimpleNamespace(text_config=layers))
        return asked
"""


def transformers_files(version: str) -> dict[str, str]:
    """The files of ``transformers``."""
    major, minor = (int(part) for part in version.split(".")[:2])
    files = {
        "__init__.py": f"__version__ = {version!r}\n"
        "from .configuration_utils import PretrainedConfig\n"
        "from .models.auto.configuration_auto import AutoConfig\n"
        "from .models.auto.tokenization_auto import AutoTokenizer\n",
        "models/__init__.py": "",
        "models/auto/__init__.py": "",
        "models/auto/configuration_auto.py": _auto_class("AutoConfig"),
        "models/auto/tokenization_auto.py": _auto_class("AutoTokenizer"),
        "configuration_utils.py": _CONFIGURATION_4 if major < 5 else _CONFIGURATION_5,
    }
    if (major, minor) < (5, 24):
        files["modeling_attn_mask_utils.py"] = (
            "def _prepare_4d_causal_attention_mask(*args, **kwargs):\n    return 'a mask'\n"
        )
    return {f"transformers/{path}": text for path, text in files.items()}


_CONFIGURATION_4 = """
class PretrainedConfig:
    model_type: str = ""
"""

_CONFIGURATION_5 = """
from __future__ import annotations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class PreTrainedConfig:
    model_type: str = ""
    dtype: str | torch.dtype | None = None


PretrainedConfig = PreTrainedConfig
"""

# A build for an accelerator on a machine without its driver.
_TORCH = """
import types


class dtype:
    pass


class Tensor:
    pass


def _no_driver(*_):
    raise RuntimeError("Found no driver for this accelerator")


cuda = types.SimpleNamespace(mem_get_info=_no_driver, empty_cache=lambda: None)
accelerator = types.SimpleNamespace(mem_get_info=_no_driver, current_accelerator=_no_driver)
nn = types.SimpleNamespace(Module=type("Module", (), {}), ModuleList=type("ModuleList", (), {}))
"""

# Each function is one thing a user's script does; `outcome` says what came of it.
_USER = '''
import importlib
import json

NAME = "speculators.data_generation.vllm_hidden_states_generator"


def generator_module():
    return importlib.import_module(NAME)


def worker_module():
    return importlib.import_module("speculators.data_generation.custom_worker")


def request(**more):
    return generator_module().Request(
        request_id="r", prompt_token_ids=[1], sampling_params=None, pooling_params=None,
        eos_token_id=2, arrival_time=0.0, **more)


def executor():
    from vllm.config import ParallelConfig

    config = type("Config", (), {"parallel_config": ParallelConfig()})()
    return generator_module().MultiprocExecutor(vllm_config=config)


def two_steps():
    """As speculators 0.3 does: two steps, never sampled."""
    running = executor()
    running.execute_model("step 1")
    running.execute_model("step 2")
    return running.steps


def sampled_step():
    """As speculators 0.4 does: the output of the step is handed to sample_tokens."""
    running = executor()
    running.sample_tokens(running.execute_model("step 1"))
    return running.steps


def generator():
    return generator_module().VllmHiddenStatesGenerator("model", layer_ids=[1, 0])


def outcome(call):
    try:
        found = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return found if isinstance(found, (list, tuple, str, int)) else type(found).__name__


def tell(value):
    print(json.dumps(value))
'''


@dataclass(frozen=True)
class Finished:
    """What a script left behind."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """What the script told last, through ``user.tell``."""
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1])


@dataclass(frozen=True)
class Tree:
    """A folder of fake packages, and interpreters that see it first."""

    folder: Path

    @property
    def roots(self) -> dict[str, Path]:
        """For a SourceLens."""
        names = ("vllm", "speculators", "transformers")
        return {name: self.folder / name for name in names if (self.folder / name).exists()}

    def command(self, *arguments: str, **variables: str) -> Finished:
        """Run Python with these arguments in a fresh interpreter."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VLLM_", "SPECVLLM_", "PYTHON", "COV_"))
        }
        path = os.pathsep.join([str(self.folder), str(SOURCE)])
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={**kept, "PYTHONPATH": path, **variables},
            timeout=60,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def run(self, script: str, **variables: str) -> Finished:
        """Run a script in a fresh interpreter."""
        return self.command("-c", dedent(script), **variables)

    def tells(self, script: str, **variables: str) -> Any:
        """What a script tells that imports us, the user's functions, and does the rest."""
        prelude = "import specvllm_compat, user\nfrom user import *\n"
        return self.run(prelude + dedent(script), **variables).value

    def tells_without_us(self, script: str) -> Any:
        """The negative control: the same script, and nothing of ours is ever imported."""
        finished = self.run(
            "import sys, user\nfrom user import *\n"
            + dedent(script)
            + "\nassert 'specvllm_compat' not in sys.modules\n"
        )
        return finished.value


def write(
    folder: Path,
    vllm: str | Vllm | None = "0.32.0",
    speculators: str | None = "0.4.0.1",
    transformers: str = "4.57.6",
) -> Tree:
    """Write one release of each package into ``folder``; None leaves a package out."""
    files = {"torch/__init__.py": _TORCH, "user.py": _USER, **transformers_files(transformers)}
    if vllm is not None:
        files |= vllm_files(VLLM[vllm] if isinstance(vllm, str) else vllm)
    if speculators is not None:
        files |= speculators_files(speculators)
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return Tree(folder)
