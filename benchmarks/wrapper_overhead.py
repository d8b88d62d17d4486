"""What a call through a wrapped seam costs, against the same call without us.

Needs speculators and vLLM: it wraps speculators' own ``Request`` name, with the adapter of the
installed vLLM's era.

    python benchmarks/wrapper_overhead.py
"""

from __future__ import annotations

import statistics
import timeit
from types import ModuleType

from specvllm_compat import installer
from specvllm_compat.shims.constructors import REQUEST

CALLS, REPETITIONS = 200_000, 15


def target(**keywords: object) -> None:
    """Stands in for the constructor, so that its own cost does not hide ours."""


def wrapped_module() -> ModuleType:
    module = ModuleType("wrapped")
    vars(module)["Request"] = target
    era = next(era for era in REQUEST.eras if not era.native)
    installer._install_era(installer.Session(), module, era)
    return module


def main() -> None:
    module = wrapped_module()
    keywords = "request_id='r', prompt_token_ids=None, pooling_params=None, eos_token_id=2"
    direct: list[float] = []
    through: list[float] = []
    for _ in range(REPETITIONS):
        for call, seen in (("target", direct), ("module.Request", through)):
            scope = {"target": target, "module": module}
            seconds = timeit.timeit(f"{call}({keywords})", globals=scope, number=CALLS)
            seen.append(seconds / CALLS * 1e6)
    extra = statistics.median(through) - statistics.median(direct)
    print(f"direct call     {statistics.median(direct):.3f} us")
    print(f"through a seam  {statistics.median(through):.3f} us")
    print(f"a seam adds     {extra:.3f} us per call (medians of {REPETITIONS} x {CALLS} calls)")


if __name__ == "__main__":
    main()
