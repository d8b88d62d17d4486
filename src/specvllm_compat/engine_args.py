"""What the user's settings say: ``configure()``, ``SPECVLLM_ENGINE_ARGS``, ``VLLM_PLUGINS``."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specvllm_compat.contract import SourceLens
from specvllm_compat.shim import installed

if TYPE_CHECKING:
    import argparse

VARIABLE = "SPECVLLM_ENGINE_ARGS"

# What the captured states depend on: (argument, acceptable values or None, why)
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "model": ((), "it is the generator's model_path"),
    "worker_extension_cls": ((), "states are captured through it"),
    "enforce_eager": ((True,), "a compiled forward runs past the hooks that capture states"),
    "enable_prefix_caching": ((False,), "a cached token is not computed, so it has no states"),
    "async_scheduling": ((False,), "a step must end before the next one is scheduled"),
    "data_parallel_size": ((1,), "run one generator per replica instead"),
    "speculative_config": ((None,), "draft tokens add rows that belong to no prompt"),
    "runner": (("auto", "generate"), "a pooling model has no prefill of this kind"),
}

_configured: dict[str, Any] = {}


def configure(engine_args: Mapping[str, Any]) -> None:
    """Remember these for the engines created from now on, or raise ValueError."""
    _check(engine_args, "configure(engine_args=…)")
    _configured.clear()
    _configured.update(engine_args)


@contextlib.contextmanager
def added(engine_args: Mapping[str, Any]) -> Iterator[None]:
    """Add these to what ``configure()`` said, for the engines created inside the block."""
    before = dict(_configured)
    configure({**before, **engine_args})
    try:
        yield
    finally:
        _configured.clear()
        _configured.update(before)


def current() -> dict[str, Any]:
    """The arguments in force: the environment variable's, overridden by ``configure()``'s."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return dict(_configured)
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{VARIABLE} is not JSON ({error}): {text!r}") from None
    if not isinstance(given, dict):
        raise ValueError(f'{VARIABLE} must be a JSON object such as {{"dtype": "bfloat16"}}')
    _check(given, VARIABLE)
    return {**given, **_configured}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine-arg``, whose values `parse` takes apart."""
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of vLLM's engine arguments, such as tensor_parallel_size=4; the value is JSON, "
        "or else text; may be repeated",
    )


def parse(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` of a command line; the value is JSON, or else text.

    Raises:
        ValueError: there is no ``=``.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--engine-arg {text}: write NAME=VALUE")
    name = name.removeprefix("--").replace("-", "_")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _check(given: Mapping[str, Any], origin: str) -> None:
    shape = SourceLens().shape("vllm.engine.arg_utils:EngineArgs")
    if shape is None or not shape.parameters:
        raise ValueError(f"{origin}: no vLLM is installed here to check these arguments against")
    for name, value in given.items():
        if name not in shape.parameters:
            near = difflib.get_close_matches(str(name), shape.parameters, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            release = installed("vllm").text
            raise ValueError(f"{origin}: vLLM {release} has no engine argument {name!r}{hint}")
        allowed, why = _FIXED.get(name, (None, ""))
        if allowed is not None and value not in allowed:
            raise ValueError(f"{origin}: {name}={value!r} is not possible: {why}")


def workers_left_out(variables: Mapping[str, str]) -> str | None:
    """A sentence if ``VLLM_PLUGINS`` keeps vLLM from loading us in its worker processes."""
    allowed = variables.get("VLLM_PLUGINS")
    if allowed is None or "specvllm_compat" in [name.strip() for name in allowed.split(",")]:
        return None
    wanted = ",".join(filter(None, [allowed, "specvllm_compat"]))
    return (
        f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading specvllm_compat in its worker "
        "processes, which would then capture nothing, or wrongly. "
        f"Set VLLM_PLUGINS={wanted!r}, or unset it."
    )
