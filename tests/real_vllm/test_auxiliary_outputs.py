"""vLLM's auxiliary outputs, where a model has them, equal what the hooks capture, bit for bit."""

from __future__ import annotations

from typing import Any

import auxiliary_outputs

PROMPT = [(13 * k) % 512 for k in range(90)]


def test_hooks_and_auxiliary_outputs_are_bit_identical(generator: Any) -> None:
    assert auxiliary_outputs.compared(generator, PROMPT)
