"""What goes wrong although every call fits: behaviour that no signature shows.

A hazard is a contract on the provider, what the consumer does or leaves undone, and what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specvllm_compat.contract import Contract, accepts, has
from specvllm_compat.preflight.call_sites import Use
from specvllm_compat.shape import Reading

_EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """``calls``: the end of the place that is called; ``unless``: of one that prevents it.

    ``raises``: the error, if it is one; else what is silently wrong is in ``words``.
    """

    calls: str
    when: Contract
    words: str
    unless: str = "\0"
    raises: str = ""


HAZARDS = (
    Hazard(
        calls=":get_kv_cache_config_from_groups",
        when=has("vllm.config.cache:CacheConfig.get_resolved_kv_cache_layout"),
        unless=".set_kv_cache_layout",
        raises="ValueError: KV cache layout has not been resolved yet",
        words="the KV cache layout must be resolved before a KV cache config is made",
    ),
    Hazard(
        calls=":MultiprocExecutor.execute_model",
        when=accepts(f"{_EXECUTOR}.sample_tokens", "grammar_output"),
        unless=".sample_tokens",
        raises="RuntimeError: State error: sample_tokens() must be called after execute_model() "
        "returns None.",
        words="a step stays open until sample_tokens() is called: the second one fails",
    ),
    Hazard(
        calls=":Scheduler.schedule",
        when=has("vllm.v1.core.sched.scheduler:Scheduler.update_from_output"),
        unless=".update_from_output",
        words="update_from_output() is never called: slots stay taken, and a call holds as many "
        "prompts as max_num_seqs",
    ),
)

# parameter -> (the values that keep states right, why)
_WATCHED = {
    "async_scheduling": ("False", "a step may start before the one before it has ended"),
    "enable_prefix_caching": ("False", "a cached token is not computed, so it has no states"),
    "enable_chunked_prefill": ("False", "a long prompt takes several steps"),
}


def hazards_of(uses: Sequence[Use], lens: Reading) -> list[tuple[Use, Hazard]]:
    """The hazards of these uses in this provider, in the order in which they show."""
    called = [use for use in uses if use.kind == "call"]
    return [
        (use, hazard)
        for hazard in HAZARDS
        for use in [u for u in called if u.place.endswith(hazard.calls)][:1]
        if not any(u.place.endswith(hazard.unless) for u in called) and hazard.when.holds(lens)
    ]


def defaults_of(use: Use, lens: Reading) -> list[str]:
    """Defaults that the call leaves as they are and that decide whether states are right."""
    shape = lens.look(use.place).shape
    if use.kind != "call" or shape is None or use.call.double_star:
        return []
    name = use.place.partition(":")[2]
    return [
        f"{name} leaves {parameter} at {default}: {why}"
        for parameter, default in shape.defaults
        if parameter in _WATCHED and parameter not in use.call.keywords
        for wanted, why in [_WATCHED[parameter]]
        if default not in (wanted, "None")
        or (parameter == "async_scheduling" and default == "None")
    ]
