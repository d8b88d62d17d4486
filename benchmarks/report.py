"""Tables and pictures of docs/benchmarks.md, from the JSON files in docs/benchmarks.

    python benchmarks/report.py

A table goes between two marks of the page, a picture beside the JSON file. Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT / "src"))

from specvllm_compat.benchmarking.picture import Bar, bars  # noqa: E402
from specvllm_compat.benchmarking.samples import Spread, rates, ratio, spread  # noqa: E402

PAGE = CHECKOUT / "docs" / "benchmarks.md"
FOLDER = CHECKOUT / "docs" / "benchmarks"
LIMIT = "prefill"
NAMES = {
    "prefill": "vLLM, prefill alone",
    "again": "the same in another process",
    "LLM": "`vllm.LLM.generate`",
    "generate": "`generate()`",
    "iter_generate": "`iter_generate()`",
    "upstream": "speculators' own class",
    "upstream_at_once": "speculators' own, limit of requests raised",
    "huggingface": "Hugging Face `output_hidden_states`",
    "native": "vLLM's own `extract_hidden_states`",
    "lens": "vllm-lens",
}
OURS = ("generate", "iter_generate")


def read(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Files of a kind, as (stem, content), older vLLM releases first."""
    for path in sorted(FOLDER.glob(f"{kind}-*.json")):
        yield path.stem, json.loads(path.read_text())


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def speeds(found: dict[str, Any]) -> dict[str, list[float]]:
    """Tokens per second per rival that could run."""
    tokens = found["size"]["prompts"] * found["size"]["length"]
    return {
        name: rates(tokens, [run["seconds"] for run in seen["runs"]])
        for name, seen in found["rivals"].items()
        if "error" not in seen
    }


def extraction() -> str:
    """One table and one picture per model and vLLM release."""
    told = []
    for stem, found in read("extraction"):
        model = stem.removeprefix("extraction-").rpartition("-")[0]
        size, vllm = found["size"], found["versions"]["vllm"]
        seen = speeds(found)
        head = f"{model}, {size['prompts']} x {size['length']} tokens, vLLM {vllm}"
        rows, shown = [], []
        for name, speed in seen.items():
            of_limit = ratio(speed, seen[LIMIT])
            states = spread(speed).median * found["bytes_per_token"] / 1e9
            carried = f"{states:.3f}" if found["rivals"][name]["norms"] else ""
            cells = [NAMES[name], spread(speed).text(",.0f"), carried, of_limit.text(".3f")]
            rows.append([f"**{cell}**" if cell and name in OURS else cell for cell in cells])
            text = f"{spread(speed).median:,.0f} tokens/s, {of_limit.median:.2f}"
            shown.append(Bar(NAMES[name].replace("`", ""), spread(speed), text, name in OURS))
        for name, other in found["rivals"].items():
            if "error" in other:
                rows.append([NAMES[name], "cannot run here", "", other["error"]])
        note = (
            f"{found['dtype']}, {found['machine']['processor']}, {found['machine']['cores']} cores"
        )
        limit = spread(seen[LIMIT]).median
        (FOLDER / f"{stem}.svg").write_text(bars(head, note, shown, limit))
        told.append(f"{head}, {found['bytes_per_token'] // 1024} KiB of states per token:\n")
        told.append(table(["who", "tokens/s", "GB/s", "of prefill"], rows))
        if "upstream" in seen:
            times = ratio(seen["generate"], seen["upstream"]).text()
            told.append(f"`generate()` is {times} times as fast as speculators' own class.\n")
        told.append(f"![{head}](benchmarks/{stem}.svg)\n")
    return "\n".join(told)


def extract() -> str:
    """The whole job against `generate()`."""
    rows = []
    for _, found in read("extract"):
        for model, seen in found["models"].items():
            speed = {way: rates(seen["tokens"], each) for way, each in seen["seconds"].items()}
            each = [spread(speed[way]).text(",.0f") for way in ("generate", "extract")]
            share = ratio(speed["extract"], speed["generate"]).text(".3f")
            per_token = f"{seen['bytes_per_token'] // 1024} KiB"
            rows.append([found["versions"]["vllm"], model, per_token, *each, share])
    head = ["vLLM", "model", "states per token", "`generate()`, tokens/s", "`extract`", "ratio"]
    return table(head, rows)


def transport() -> str:
    """Gigabytes per second."""
    rows = []
    for _, found in read("transport"):
        seen = found["speeds"]
        rows.append(
            [
                found["versions"]["vllm"],
                *(spread(seen[name]).text() for name in ("transport", "pickling", "copy")),
                *(ratio(seen["transport"], seen[name]).text() for name in ("pickling", "copy")),
            ]
        )
    head = ["vLLM", "transport", "pickling RPC", "a copy by one thread", "÷ RPC", "÷ copy"]
    return table(head, rows)


def memory() -> str:
    """MiB at the peak of a call, and what the driver keeps."""
    told = []
    for _, found in read("memory"):
        rows = []
        for prompts, seen in found["prompts"].items():
            states = int(prompts) * found["length"] * found["bytes_per_token"]
            for name, used in seen.items():
                cells = [mebibytes(each) for each in (states, used["worker"], used["driver"])]
                own = seen.get("upstream_at_once")
                share = f"{used['worker'] / own['worker']:.2f}" if own else ""
                rows.append([prompts, NAMES[name], *cells, share])
        told.append(f"vLLM {found['versions']['vllm']}, prompts of {found['length']} tokens:\n")
        head = ["prompts", "who", "states", "worker, for states", "driver, results included"]
        head.append("worker ÷ speculators' own")
        told.append(table(head, rows))
        for name, after in found["driver_after_calls"].items():
            grown = ", ".join(f"{(each - after[0]) / 2**20:+.1f}" for each in after[1:])
            told.append(f"- {NAMES[name]}: MiB of the driver after each further call: {grown}")
        told.append("")
    return "\n".join(told)


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def growth() -> str:
    """A row per point."""
    told = []
    for stem, found in read("growth"):
        rows, shown = [], []
        for point in found["points"]:
            shape, size = point["shape"], point["size"]
            tokens = size["prompts"] * size["length"]
            speed = {name: rates(tokens, each) for name, each in point["seconds"].items()}
            of_prefill = ratio(speed["generate"], speed["prefill"])
            what = [str(each) for each in (shape["layers"], shape["hidden"], *size.values())]
            each = [f"{spread(speed[name]).median:,.0f}" for name in ("prefill", "generate")]
            rows.append([*what, *each, of_prefill.text()])
            label = f"{what[0]} x {what[1]}, {what[2]} x {what[3]} tokens"
            shown.append(Bar(label, of_prefill, f"{of_prefill.median:.2f}", ours=True))
        vllm = found["versions"]["vllm"]
        title = f"generate() as a share of prefill alone, vLLM {vllm}"
        note = f"layers x width, prompts x length; {found['machine']['processor']}"
        (FOLDER / f"{stem}.svg").write_text(bars(title, note, shown, limit=1.0))
        told.append(f"vLLM {vllm}:\n")
        head = ["layers", "width", "prompts", "length", "prefill alone", "`generate()`", "ratio"]
        told.append(table(head, rows))
        told.append(f"![{title}](benchmarks/{stem}.svg)\n")
    return "\n".join(told)


def self_check() -> str:
    """Times with checks and without."""
    rows = []
    for _, found in read("self_check"):
        for model, seconds in found["models"].items():
            share: Spread = ratio(seconds["checked"], seconds["unchecked"])
            each = [spread(seconds[way]).text(".3f") for way in ("checked", "unchecked")]
            rows.append([found["versions"]["vllm"], model, *each, share.text(".3f")])
    return table(["vLLM", "model", "seconds with checks", "without", "ratio"], rows)


def start_up() -> str:
    """Seconds of fresh processes."""
    rows = []
    for _, found in read("start_up"):
        for part in ("constructor", "to first result", "whole process"):
            seen = {name: [run[part] for run in runs] for name, runs in found["starts"].items()}
            each = [spread(seen[name]).text(".1f") for name in ("LLM", "generator")]
            share = ratio(seen["generator"], seen["LLM"]).text()
            rows.append([found["versions"]["vllm"], part, *each, share])
    return table(["vLLM", "seconds", "`vllm.LLM(...)`", "the generator", "ratio"], rows)


def machines() -> str:
    """Where the numbers come from."""
    lines = []
    for path in sorted(FOLDER.glob("*.json")):
        found = json.loads(path.read_text())
        machine = ", ".join(f"{name} {what}" for name, what in found["machine"].items())
        versions = ", ".join(f"{name} {what}" for name, what in found["versions"].items())
        lines.append(f"- `{path.name}`: {found['date']}; {versions}; {machine}")
    return "\n".join(lines) + "\n"


SECTIONS = {
    "extraction": extraction,
    "extract": extract,
    "transport": transport,
    "memory": memory,
    "growth": growth,
    "self_check": self_check,
    "start_up": start_up,
    "machines": machines,
}


def main() -> None:
    text = PAGE.read_text()
    for name, write in SECTIONS.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not mark or not end:
            raise SystemExit(f"{PAGE} has no marks for {name}")
        text = before + mark + write() + end + after
    PAGE.write_text(text)
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
