"""The ``specvllm-compat`` command: ``check``, ``status``, ``explain`` and ``verify``."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from specvllm_compat.shim import BROKEN, UNSUPPORTED, Shim

# Modules with commands of their own: ``add_to(commands)`` adds a parser whose default ``run`` takes
# the parsed options and returns the exit status.
COMMANDS: tuple[str, ...] = (
    "specvllm_compat.benchmarking.command",
    "specvllm_compat.extraction.command",
    "specvllm_compat.upstream_patches.command",
    "specvllm_compat.verification.command",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a seam cannot work, 2 if that can't be told."""
    parser = argparse.ArgumentParser(prog="specvllm-compat", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="find what does not fit, without importing vLLM")
    check.add_argument("script", nargs="*", type=Path, help="scripts that use vLLM or speculators")
    check.add_argument("--vllm", type=Path, metavar="DIR_OR_WHEEL", help="instead of the installed")
    check.add_argument("--speculators", type=Path, metavar="DIR_OR_WHEEL", help="likewise")
    check.add_argument("--model", type=Path, metavar="DIR", help="a folder with a config.json")
    check.add_argument("--layer-ids", type=int, nargs="+", metavar="ID", help="of the generator")
    check.add_argument("--length", type=int, default=2048, help="tokens per sample, for its size")
    check.add_argument("--json", action="store_true", help="print JSON instead of a table")
    check.set_defaults(run=_check)
    status = commands.add_parser("status", help="import the generator, show what was adapted")
    status.add_argument("--json", action="store_true", help="print JSON instead of a table")
    status.set_defaults(run=_status)
    explain = commands.add_parser("explain", help="why a shim exists, and when it can go")
    explain.add_argument("shim", nargs="?", help="a name from `status`; all of them if left out")
    explain.set_defaults(run=_explain)
    for module in COMMANDS:
        importlib.import_module(module).add_to(commands)
    options = parser.parse_args(arguments)
    exit_status: int = options.run(options)
    return exit_status


def _check(options: argparse.Namespace) -> int:
    from specvllm_compat.preflight import CannotTell, check, text

    try:
        report = check(
            options.script,
            vllm=options.vllm,
            speculators=options.speculators,
            model=options.model,
            layer_ids=options.layer_ids,
            length=options.length,
        )
    except CannotTell as error:
        print(error, file=sys.stderr)
        return 2
    print(text.as_json(report) if options.json else text.as_text(report))
    return report.exit_status


def _status(options: argparse.Namespace) -> int:
    import specvllm_compat
    from specvllm_compat.shim import installed

    specvllm_compat.plugin()  # not install(): SPECVLLM_COMPAT=off holds here too
    error = None
    try:
        for module in ("vllm_hidden_states_generator", "custom_worker"):
            importlib.import_module(f"speculators.data_generation.{module}")
    except Exception as failure:  # noqa: BLE001  # whatever their import raises is the finding
        error = f"{type(failure).__name__}: {failure}"
    rows = specvllm_compat.status()
    versions = {name: installed(name).text for name in ("vllm", "speculators", "transformers")}
    versions["specvllm-compat"] = specvllm_compat.__version__
    if options.json:
        shims = [{"shim": shim, "verdict": verdict, "era": era} for shim, verdict, era in rows]
        print(json.dumps({"versions": versions, "shims": shims, "error": error}, indent=2))
    else:
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        for shim, verdict, era in rows:
            print(f"  {shim:<24} {verdict:<12} {f'era {era}' if era else ''}".rstrip())
        if error:
            print(f"importing the generator failed: {error}", file=sys.stderr)
    failed = error or any(verdict in (UNSUPPORTED, BROKEN) for _, verdict, _ in rows)
    return 1 if failed else 0


def _explain(options: argparse.Namespace) -> int:
    from specvllm_compat.shims import CATALOG

    name = options.shim
    if name is not None and name not in CATALOG:
        print(f"no shim {name!r}; there are: {', '.join(CATALOG)}", file=sys.stderr)
        return 2
    print("\n\n".join(explanation(n, CATALOG[n]) for n in ([name] if name else CATALOG)))
    return 0


def explanation(name: str, shim: Shim) -> str:
    """What the shim does and why, its eras with their probes, and when it can be deleted."""
    lines = [
        f"{name}: {shim.does}",
        "",
        _reason(shim),
        "",
        f"  seams    {shim.module}: {', '.join(shim.names)}",
    ]
    for era in shim.eras:
        adapters = [*era.adapt.values(), *era.provide.values()]
        what = ", ".join(dict.fromkeys(a.__name__ for a in adapters)) if adapters else "native"
        lines.append(f"  era      {shim.provider} {era.since} and on: {what}")
        lines.append(f"           if {era.probe}")
    lines.append(f"  changed  {shim.upstream.first_release}: {shim.upstream.change}")
    lines.append(f"  delete   when {shim.upstream.delete_when}")
    return "\n".join(lines)


def _reason(shim: Shim) -> str:
    """The docstring of the file that defines the shim."""
    from specvllm_compat import shims

    files = [module for module in vars(shims).values() if inspect.ismodule(module)]
    file = next(module for module in files if any(v is shim for v in vars(module).values()))
    return textwrap.indent(inspect.cleandoc(file.__doc__ or ""), "  ")
