"""Capture states with hooks that keep the model's own forward.

speculators replaces the base model's ``forward`` by a copy that calls every layer alike. The copy
drops what the model's own passes on (``llama_4_scaling``, deepstack inputs, embedding scales) and
fails for layers of another form. Hooks on the decoder layers change nothing in the model.
"""

from __future__ import annotations

import signal
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Shim, Upstream

_EXTENSION = "HiddenStatesWorkerExtension"
_UPSTREAM = Upstream(
    change="https://github.com/vllm-project/vllm/tree/v0.12.0/vllm/model_executor/models/deepseek_v2.py",
    first_release="0.12.0",
    delete_when="no supported speculators replaces the model's forward",
)
_RUNNER = has("vllm.v1.worker.gpu_worker:Worker.execute_model")


def start_in_the_workers(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    """Start the capture in every worker and verify that each of them is adapted."""
    # Not needed here, but then this process shows, too, what its workers do.
    import speculators.data_generation.custom_worker  # noqa: F401
    from specvllm_compat.engine.assembly import engine_of

    replies = instance.executor.collective_rpc(
        "_setup_hidden_states_capture", args=(list(instance.layer_ids),)
    )
    engine_of(instance.vllm_config).attach(replies)


def start(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """In a worker: put the hooks in place; the reply tells the driver that it is adapted."""
    from specvllm_compat.engine.capture import Capture

    _leave_interrupts_to_the_driver()
    layer_ids = args[0] if args else kwargs["layer_ids"]
    return Capture.start(worker, layer_ids).description


def _leave_interrupts_to_the_driver() -> None:
    """Ctrl-C in a terminal reaches the workers too, and vLLM's own handler would end them."""
    handler = signal.getsignal(signal.SIGINT)
    if getattr(handler, "__module__", "") == "vllm.v1.executor.multiproc_executor":
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def reset(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    """In a worker: drop states that were not taken."""
    from specvllm_compat.engine.capture import Capture

    Capture.of(worker).reset()


def rows_are_labelled_already(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    """The driver's count of tokens per request is not needed: the runner's own is used."""


DRIVER = Shim(
    does="Start the capture in every worker, and refuse workers that are not adapted.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=_UPSTREAM,
    eras=(
        Era(
            since="0.11.0",
            probe=_RUNNER,
            adapt={"VllmHiddenStatesGenerator._setup_capture": start_in_the_workers},
        ),
    ),
)

WORKER = Shim(
    does="Capture with hooks that keep the model's own forward, llama_4_scaling included.",
    module="speculators.data_generation.custom_worker",
    upstream=_UPSTREAM,
    eras=(
        Era(
            since="0.11.0",
            probe=_RUNNER,
            adapt={
                f"{_EXTENSION}._setup_hidden_states_capture": start,
                f"{_EXTENSION}._reset_capture": reset,
                f"{_EXTENSION}._set_request_metadata": rows_are_labelled_already,
            },
        ),
    ),
)
