"""What `bench` found: rates, ratios, and what binds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePath

from specvllm_compat.benchmarking.picture import Bar, bars
from specvllm_compat.benchmarking.samples import Spread, rates, ratio, spread

_NAMES = {
    "prefill": "prefill alone",
    "extraction": "extraction",
    "saved": "extraction, saved to disk",
}
_COPYING = 0.5  # of a plain copy: faster than this, memory is what is slow


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Samples, as they were measured: ``seconds`` per way of running all prompts once.

    ``transport`` from worker to driver with nothing else to do, and ``copy`` by one thread, are in
    gigabytes per second.
    """

    model: str
    layer_ids: list[int]
    prompts: int
    length: int
    dtype: str
    bytes_per_token: int
    vllm: str
    machine: dict[str, str]
    seconds: dict[str, list[float]]
    transport: list[float]
    copy: list[float]

    def rates(self, way: str) -> list[float]:
        """Tokens per second."""
        return rates(self.prompts * self.length, self.seconds[way])

    def of_prefill(self, way: str) -> Spread:
        """How many times as fast as prefill alone."""
        return ratio(self.rates(way), self.rates("prefill"))

    @property
    def limit(self) -> str:
        """The stage that would be slowest if each had the machine to itself."""
        prefill = spread(self.rates("prefill")).median
        transport, copy = spread(self.transport).median, spread(self.copy).median
        carried = 1e9 * transport / self.bytes_per_token
        told = (
            f"alone, prefill does {prefill:,.0f} tokens/s, and states of {carried:,.0f} tokens/s "
            "can be carried"
        )
        if prefill <= carried:
            return f"compute: {told}"
        if transport >= _COPYING * copy:
            return f"memory bandwidth: {told}, at {transport:.1f} GB/s"
        return f"transport: {told}"

    def as_json(self) -> str:
        """Everything, samples included."""
        ways = {
            way: {
                "tokens_per_second": asdict(spread(self.rates(way))),
                "of_prefill": asdict(self.of_prefill(way)),
            }
            for way in self.seconds
        }
        return json.dumps(asdict(self) | {"ways": ways, "limit": self.limit}, indent=2)

    def as_text(self) -> str:
        """A table."""
        lines = [
            f"{self.model} in {self.dtype} on vLLM {self.vllm}, layers {self.layer_ids}: "
            f"{self.bytes_per_token / 1024:.1f} KiB of states per token",
            ", ".join(f"{name} {what}" for name, what in self.machine.items()),
            f"{self.prompts} x {self.length} tokens, {len(self.copy)} rounds in turn: "
            "median [lowest, highest]",
            "",
        ]
        for way in self.seconds:
            speed = self.rates(way)
            states = spread(speed).median * self.bytes_per_token / 1e9
            carried = "" if way == "prefill" else f"{states:8.3f} GB/s"
            lines.append(
                f"  {_NAMES[way]:<26} {spread(speed).text(',.0f'):>26} tokens/s {carried:>13}"
                f"   {self.of_prefill(way).text('.3f')} of prefill"
            )
        transport, copy = spread(self.transport), spread(self.copy)
        lines += [
            f"  {'transport alone':<26} {transport.text():>26} GB/s",
            f"  {'a copy by one thread':<26} {copy.text():>26} GB/s"
            f"{'':18}transport is {transport.median / copy.median:.2f} of it",
            "",
            f"Bound by {self.limit}.",
        ]
        return "\n".join(lines)

    def as_svg(self) -> str:
        """Bars of tokens per second."""
        shown = []
        for way in self.seconds:
            speed = spread(self.rates(way))
            text = f"{speed.median:,.0f} tokens/s, {self.of_prefill(way).median:.2f}"
            shown.append(Bar(_NAMES[way], speed, text, ours=way != "prefill"))
        binds = self.limit.partition(":")[0]
        title = f"{PurePath(self.model).name}, vLLM {self.vllm}: bound by {binds}"
        note = f"{self.prompts} x {self.length} tokens, {self.dtype}, {self.machine['processor']}"
        return bars(title, note, shown, limit=spread(self.rates("prefill")).median)
