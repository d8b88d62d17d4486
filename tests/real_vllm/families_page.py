"""What was seen of each model family on each release, as a page. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matrix import row

LONGEST = 120
"""Characters of an error."""
Seen = Mapping[str, Mapping[str, dict[str, Any]]]
"""Release -> family -> what `own_families.py` reported."""


def page(seen: Seen) -> str:
    """A table of families and releases, and why a release cannot run a family."""
    families = list(dict.fromkeys(name for found in seen.values() for name in found))
    reasons: dict[str, list[str]] = {}
    rows = []
    for name in families:
        cells = []
        for release, found in seen.items():
            result = found.get(name, {})
            cells.append(cell(result))
            if "reason" in result:
                where = f"{name} on {release}"
                reasons.setdefault(brief(result["reason"]), []).append(where)
        rows.append(row([name, *cells]))
    lines = [
        "# Model families",
        "",
        "Written by `nox -s families`: a tiny random model of each family on a real engine on a",
        "CPU, ten prompts at once, four layers. The number is the largest relative difference",
        "from Hugging Face's own hidden states, in float32 (1e-5 is allowed); *bf16* where the",
        "kernels of that release know the family in bfloat16 only (0.1 is allowed). *aux*: how",
        "many of the four layers vLLM puts out itself, too, as auxiliary outputs; they are the",
        "same bit for bit, in float32 and in bfloat16. *Cannot run*: that release, or its",
        "transformers, cannot run the family on a CPU, for a reason listed below. An empty cell:",
        "not run.",
        "",
        row(["family", *seen]),
        row(["---"] * (1 + len(seen))),
        *rows,
        "",
        "## Where vLLM itself differs",
        "",
        "By more than is allowed here, while hooks and vLLM's auxiliary outputs are the same bit",
        "for bit; why is not known: DeepSeek-V2 on 0.20.2, and, left out of the table, Gemma4",
        "(2e-5, on 0.26.0), Apertus (1e-3, on 0.26.0) and Qwen3-Next, in bfloat16 (0.8, on",
        "0.32.0). Cohere2 is in the table with a window that no prompt fills: from 0.30 on vLLM's",
        "is one token longer than Hugging Face's. Families with experts run on 0.20.2 after a",
        "repair of the tests': on a CPU without AMX that release makes an operator where none can",
        "be made, and `vllm.LLM` ends with the same error.",
        "",
        "## What cannot run, and what is said then",
        "",
        *(f"- {', '.join(where)}: `{reason}`" for reason, where in reasons.items()),
    ]
    return "\n".join(lines) + "\n"


def brief(reason: str) -> str:
    """The sentence that matters of an error: some go on to list every model there is."""
    sentence = " ".join(reason.split()).rpartition("Value error, ")[2].partition(". ")[0]
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}…"


def cell(result: Mapping[str, Any]) -> str:
    """One family on one release."""
    if "error" not in result:
        return "cannot run" if result else ""
    kind = "" if result["dtype"] == "float32" else "bf16 "
    auxiliary = result.get("auxiliary", {})
    compared = f", aux {min(auxiliary.values())}" if auxiliary else ""
    return f"{kind}{result['error']:.1e}{compared}"
