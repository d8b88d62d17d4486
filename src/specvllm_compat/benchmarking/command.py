"""The ``bench`` command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from specvllm_compat.streams import output_to_stderr


def add_to(commands: Any) -> None:
    """Add ``bench`` to the commands of ``specvllm-compat``."""
    from specvllm_compat.engine_args import add_option

    parser = commands.add_parser(
        "bench", help="what hidden states cost on this machine, beside prefill alone"
    )
    parser.add_argument("--model", required=True, help="a folder, or an id on the Hub")
    parser.add_argument("--prompts", type=int, default=16, metavar="N", help="at a time (16)")
    parser.add_argument("--length", type=int, default=512, metavar="T", help="tokens of each (512)")
    parser.add_argument("--layer-ids", type=int, nargs="+", metavar="ID", help="of the generator")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each way (3)")
    add_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="write a picture, too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status 0: measured, 2: bad input, or the engine did not start."""
    from specvllm_compat import engine_args
    from specvllm_compat.benchmarking.measure import bench

    picture = options.picture
    try:
        if picture is not None and not picture.absolute().parent.is_dir():
            raise ValueError(f"--picture {picture}: there is no folder {picture.parent}")
        given = dict(engine_args.parse(text) for text in options.engine_arg)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        with output_to_stderr():  # vLLM and its workers write to stdout
            outcome = bench(
                options.model,
                prompts=options.prompts,
                length=options.length,
                layer_ids=options.layer_ids,
                engine_args=given,
                rounds=options.rounds,
            )
    except Exception as error:  # noqa: BLE001  # of vLLM, of transformers: all end the command
        print(f"specvllm-compat bench: {error or type(error).__name__}", file=sys.stderr)
        return 2
    if picture is not None:
        picture.write_text(outcome.as_svg(), encoding="utf-8")
    print(outcome.as_json() if options.json else outcome.as_text())
    return 0
