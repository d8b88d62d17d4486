"""``with VllmHiddenStatesGenerator(…) as generator``: the engine ends with the block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_trees import Tree

Trees = Callable[..., Tree]

RAISING = """
    ended = []
    made = generator()
    made.executor.shutdown = lambda: ended.append(True)

    def use():
        with made as inside:
            assert inside is made
            assert not ended
            raise KeyError("of the block")

    tell([outcome(use), len(ended)])
"""


@pytest.mark.parametrize("vllm", ["0.11.0", "0.16.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_an_exception_ends_the_engine_and_is_raised(
    tree: Trees, vllm: str, speculators: str
) -> None:
    told = tree(vllm=vllm, speculators=speculators).tells(RAISING)
    assert told == ["KeyError: 'of the block'", 1]


def test_uninstalling_takes_the_methods_away(tree: Trees) -> None:
    told = tree().tells("""
        import specvllm_compat
        cls = generator_module().VllmHiddenStatesGenerator
        before = hasattr(cls, "__enter__") and hasattr(cls, "__exit__")
        specvllm_compat.uninstall()
        tell([before, hasattr(cls, "__enter__") or hasattr(cls, "__exit__")])
    """)
    assert told == [True, False]


def test_without_us_there_is_no_such_thing(tree: Trees) -> None:
    script = """
        cls = generator_module().VllmHiddenStatesGenerator
        tell([hasattr(cls, "__enter__"), hasattr(cls, "__exit__")])
    """
    assert tree(vllm="0.16.0").tells_without_us(script) == [False, False]
