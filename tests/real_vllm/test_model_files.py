"""Model folders with code of their own, as Kimi-K2's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from speculators.data_generation import vllm_hidden_states_generator as consumer
from transformers import dynamic_module_utils

TOKENIZER = """
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_a_tokenizer_with_code_of_its_own_is_loaded(
    small_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 0)  # asks nobody
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((small_llama / name).read_bytes())
    (folder / "own_tokenizer.py").write_text(TOKENIZER)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["tokenizer_class"] = "OwnTokenizer"
    told["auto_map"] = {"AutoTokenizer": [None, "own_tokenizer.OwnTokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))

    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = consumer.AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer).__name__ == "OwnTokenizer"
    assert tokenizer.encode("A draft model") == transformers.AutoTokenizer.from_pretrained(
        small_llama
    ).encode("A draft model")
