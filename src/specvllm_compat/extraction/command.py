"""``specvllm-compat extract`` and ``specvllm-compat convert``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

_DONE, _FAILED, _REFUSED, _INTERRUPTED = 0, 1, 2, 130


def add_to(commands: Any) -> None:
    """Add the parsers of both commands."""
    from specvllm_compat.engine_args import add_option

    extract = commands.add_parser(
        "extract",
        help="hidden states of a whole data set, as speculators trains from them",
        description="Extract the hidden states of a data set into a folder that speculators "
        "trains from. Run it again after anything that went wrong: it goes on.",
    )
    need = {"required": True}
    extract.add_argument("--model", **need, help="a folder, or a name on the hub")
    extract.add_argument(
        "--data", **need, help=".json, .jsonl, .parquet, or a folder that datasets saved"
    )
    extract.add_argument("--output-dir", **need, help="new, or of an earlier run of this job")
    extract.add_argument(
        "--layer-ids",
        type=int,
        nargs="+",
        metavar="ID",
        help="decoder layers whose outputs are kept, the last one last; by default those that "
        "vLLM serves EAGLE-3 with: 1, n/2-1, n-4, n-1",
    )
    extract.add_argument("--max-model-len", type=int, default=2048, help="tokens per sample: 2048")
    extract.add_argument("--batch-tokens", type=int, help="tokens per engine step: 8192")
    extract.add_argument(
        "--format",
        default="pt",
        help="pt, for speculators 0.3 and 0.4 (default), or safetensors, for 0.5 and later",
    )
    extract.add_argument("--column", help="of the conversations: conversations, or messages")
    extract.add_argument("--assistant-pattern", help="of answers in the rendered conversation")
    extract.add_argument("--max-samples", type=int, help="stop after so many good rows")
    extract.add_argument("--world-size", type=int, default=1, help="processes that share the work")
    extract.add_argument("--rank", type=int, default=0, help="of this process, from 0")
    add_option(extract)
    extract.add_argument("--dry-run", action="store_true", help="all but loading the model")
    _add_common(extract)
    extract.set_defaults(run=_extract)
    convert = commands.add_parser(
        "convert",
        help="samples of speculators 0.3 and 0.4 into those of 0.5 and later, and back",
        description="Convert data_*.pt to hs_*.safetensors, or back; what extract wrote as well "
        "as what speculators or vLLM did.",
    )
    convert.add_argument("source", help="a folder with samples")
    convert.add_argument("output_dir", help="new, or of an earlier run of this conversion")
    convert.add_argument(
        "--layer-ids",
        type=int,
        nargs="+",
        metavar="ID",
        help="decoder layers whose outputs the source has, if it does not tell",
    )
    _add_common(convert)
    convert.set_defaults(run=_convert)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        default="auto",
        help="to store: auto (as computed), float32, bfloat16, float16, or fp8, which speculators "
        "0.9 reads",
    )
    parser.add_argument(
        "--max-skipped", type=float, default=0.05, help="share of bad rows to go on with: 0.05"
    )
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="when going on, compare the sizes of files, but not their checksums",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="go on although the disk is too small, or the last layer is not among the states",
    )


def _extract(options: argparse.Namespace) -> int:
    def call() -> Any:
        from specvllm_compat.extraction import extract

        given = {name: value for name, value in vars(options).items() if name not in _OTHER}
        arguments = dict(_argument(text) for text in given.pop("engine_arg"))
        return extract(engine_args=arguments, **given)

    return _run(call, dry=options.dry_run)


def _convert(options: argparse.Namespace) -> int:
    def call() -> Any:
        from specvllm_compat.extraction import convert

        return convert(**{name: v for name, v in vars(options).items() if name not in _OTHER})

    return _run(call)


_OTHER = ("command", "run")


def _argument(text: str) -> tuple[str, Any]:
    from specvllm_compat import engine_args
    from specvllm_compat.extraction import BadInput

    try:
        return engine_args.parse(text)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _run(call: Callable[[], Any], *, dry: bool = False) -> int:
    """Call with everything told on stderr; the summary is the command's output."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # its chatter would break the bar
    log = logging.getLogger("specvllm_compat")
    log.addHandler(handler := logging.StreamHandler())
    log.setLevel(logging.INFO)
    try:
        report = _guarded(call)
    finally:
        log.removeHandler(handler)
    if isinstance(report, int):
        return report
    print(f"{report.done} of {report.samples} samples are done, {report.written} of them now")
    if report.skipped:
        print(f"{report.skipped} rows were skipped; skipped.jsonl says which and why")
    if report.failed:
        print(
            f"{report.failed} samples have states that can't be used, and no file: train with "
            "--on-missing skip"
        )
    if report.differing:
        print(
            f"{report.differing} samples came out differently from before: this engine does not "
            "repeat itself to the bit. Their first states were kept"
        )
    if report.complete:
        print(f"Complete. To train, {report.training}")
    elif not dry:
        print("Other ranks have not finished; the last of them completes the manifest")
    return _DONE


def _guarded(call: Callable[[], Any]) -> Any:
    from specvllm_compat.extraction.errors import BadInput, Incomplete

    try:
        return call()
    except BadInput as error:
        print(error, file=sys.stderr)
        return _REFUSED
    except Incomplete as error:
        print(error, file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("Interrupted. What is there is whole; the same command goes on", file=sys.stderr)
        return _INTERRUPTED
