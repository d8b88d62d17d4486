"""The ``verify`` command."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from specvllm_compat.streams import output_to_stderr


def add_to(commands: Any) -> None:
    """Add ``verify`` to the commands of ``specvllm-compat``."""
    from specvllm_compat.engine_args import add_option

    parser = commands.add_parser(
        "verify", help="start an engine for your model, and check its hidden states"
    )
    parser.add_argument("--model", required=True, help="a folder, or an id on the Hub")
    parser.add_argument("--layer-ids", type=int, nargs="+", metavar="ID", help="of the generator")
    parser.add_argument("--vllm-only", action="store_true", help="leave Hugging Face out")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="of the longest prompt")
    add_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status 0: all agree, 1: states are wrong, 2: bad input, or the engine did not start."""
    from specvllm_compat import engine_args
    from specvllm_compat.verification import verify

    try:
        given = dict(engine_args.parse(text) for text in options.engine_arg)
        with output_to_stderr():  # vLLM and its workers write to stdout
            report = verify(
                options.model,
                layer_ids=options.layer_ids,
                vllm_only=options.vllm_only,
                engine_args=given,
                max_model_len=options.max_model_len,
            )
    except Exception as error:  # noqa: BLE001  # of vLLM, of transformers: all end the command
        print(f"specvllm-compat verify: {error or type(error).__name__}", file=sys.stderr)
        return 2
    print(report.as_json() if options.json else report.as_text())
    return report.exit_status
