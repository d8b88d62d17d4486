"""Run speculators' ``VllmHiddenStatesGenerator``, correctly, on whatever vLLM is installed.

    import specvllm_compat  # the only change
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

Importing costs next to nothing: a tripwire waits for the first import of vllm or speculators and
only then installs the shims. Set ``SPECVLLM_COMPAT=off`` to switch the whole package off.
"""

from __future__ import annotations

import os

from specvllm_compat import _tripwire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from specvllm_compat.shim import UnsupportedVllm as UnsupportedVllm

__version__ = "0.1.0"
__all__ = ["UnsupportedVllm", "configure", "install", "plugin", "status", "uninstall"]


_automatic = os.environ.get("SPECVLLM_COMPAT", "").lower() not in ("off", "0", "false")


def install() -> None:
    """Install every shim of the catalog in this process, now or as soon as its module is imported.

    Runs by itself on the first import of vllm or speculators. Calling it again changes nothing.
    """
    global _automatic  # noqa: PLW0603
    from specvllm_compat import installer

    _ask_nvml_for_cuda()
    installer.install()
    _automatic = True


def _ask_nvml_for_cuda() -> None:
    """Let torch answer "is CUDA there?" without CUDA, which no forked worker could use afterwards.

    speculators 0.4 asks as it is imported, scripts do. vLLM says the same, but when it is imported.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def uninstall() -> list[tuple[str, str]]:
    """Undo what was installed in this process; returns ``(seam, "REMOVED" | "BURIED")`` per seam.

    Holds until `install` is called: nothing installs by itself after this. ``BURIED``: somebody
    wrapped the name after us. Our wrapper stays under theirs and passes every call through.
    Generators that already exist keep what they were given.
    """
    global _automatic  # noqa: PLW0603
    from specvllm_compat import installer

    _automatic = False
    return installer.uninstall()


def status() -> list[tuple[str, str, str]]:
    """One ``(shim, verdict, era)`` per shim of the catalog, in this process.

    Verdicts: ``NATIVE`` (the installed vLLM needs nothing), ``ADAPTED``, ``UNSUPPORTED`` (no known
    shape: the seam refuses when it is used), ``BROKEN`` (our fault; it refuses too), ``WAITING``
    (the module is not imported yet). The era is named by its first release.
    """
    from specvllm_compat import installer

    return installer.status()


def configure(*, engine_args: Mapping[str, Any]) -> None:
    """Pass engine arguments that the generator does not expose to the engines created from now on.

    ``engine_args`` are fields of vLLM's ``EngineArgs``: ``pipeline_parallel_size``, ``dtype``,
    ``kv_cache_memory_bytes``, … They replace those of an earlier call; an empty mapping clears
    them. For scripts that cannot be edited, ``SPECVLLM_ENGINE_ARGS`` holds the same as JSON.

    Raises:
        ValueError: the installed vLLM has no such argument (near misses are named), or the argument
            would make the captured states wrong.
    """
    from specvllm_compat import engine_args as settings

    settings.configure(engine_args)


def plugin() -> None:
    """The ``vllm.general_plugins`` entry point: vLLM calls it in every process. Never raises."""
    if not _automatic:
        return
    try:
        install()
    except Exception:  # an import of vllm is under way: it must not fail for our reasons
        import logging

        logging.getLogger("specvllm_compat").exception("could not be installed")


def __getattr__(name: str) -> object:
    if name == "UnsupportedVllm":
        from specvllm_compat.shim import UnsupportedVllm

        return UnsupportedVllm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if _automatic:
    _ask_nvml_for_cuda()
    _tripwire.arm(plugin)
