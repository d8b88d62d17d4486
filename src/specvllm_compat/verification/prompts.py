"""The prompts: a handful of lengths, one of them shared in part by others."""

from __future__ import annotations

from typing import Any

_SENTENCES = (
    "A harbour pilot knows every sandbank by the colour of the water above it.",
    "The committee met on Tuesday, agreed on nothing, and published forty pages about it.",
    "Add 17 and 25, multiply by 3, and write the result as a Roman numeral.",
    "def area(width, height):\n    return width * height\n",
    "Most of what the archive holds was copied by hand, by candle light, in cold rooms.",
    "If the tide is late, the boats wait; if the boats are late, nobody waits for the tide.",
    "Question: why is the sky dark at night, although there are stars in every direction?",
)


def handful(tokenizer: Any, longest: int) -> list[list[int]]:
    """Five prompts of one to ``longest`` tokens, each of another text; the longest comes last."""
    lengths = (1, 7, longest // 8, longest // 3, longest)
    return [_text(tokenizer, n, max(1, length)) for n, length in enumerate(lengths)]


def with_shared_prefix(prompts: list[list[int]]) -> tuple[int, list[list[int]]]:
    """How many tokens are shared, and prompts that begin with those of the longest prompt."""
    *others, longest = prompts
    shared = len(longest) // 2
    return shared, [longest[:shared] + other[: len(longest) - shared] for other in others]


def _text(tokenizer: Any, first: int, length: int) -> list[int]:
    """The beginning of the sentences, from one of them on and over again."""
    turned = "\n".join(_SENTENCES[first:] + _SENTENCES[:first]) + "\n"
    ids: list[int] = tokenizer.encode(turned * (1 + length // 60))
    if len(ids) < length:
        raise ValueError(f"the tokenizer makes only {len(ids)} tokens of {len(turned)} characters")
    return ids[:length]
