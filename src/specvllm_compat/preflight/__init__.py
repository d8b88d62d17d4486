"""Find every mismatch between a consumer and a vLLM without importing either."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from specvllm_compat.preflight.locate import CannotTell, package_at
from specvllm_compat.preflight.model_facts import model_facts, read_config
from specvllm_compat.preflight.report import (
    Report,
    check_consumer,
    consumer_modules,
    read_uses,
    verdicts,
    without_us,
)
from specvllm_compat.shim import UNSUPPORTED, installed
from specvllm_compat.shims import GENERATOR, consumer_gone
from specvllm_compat.source import SourceLens

__all__ = ["CannotTell", "check"]


def check(
    scripts: Sequence[Path] = (),
    *,
    vllm: Path | None = None,
    speculators: Path | None = None,
    model: Path | None = None,
    layer_ids: Sequence[int] | None = None,
    length: int = 2048,
) -> Report:
    """Check the given or installed speculators, and scripts, against the given or installed vLLM.

    Raises:
        CannotTell: one of them is missing, or can't be read.
    """
    try:
        return _check(scripts, vllm, speculators, model, layer_ids, length)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CannotTell(f"a file can't be read: {error}") from None
    except RecursionError:
        raise CannotTell("a file of a package is nested too deeply to be read") from None
    except SyntaxError as error:
        raise CannotTell(f"a file of a package is not Python: {error}") from None


def _check(  # noqa: PLR0917
    scripts: Sequence[Path],
    vllm: Path | None,
    speculators: Path | None,
    model: Path | None,
    layer_ids: Sequence[int] | None,
    length: int,
) -> Report:
    texts = [(path, _script(path)) for path in scripts]
    config = read_config(model) if model else None
    given = {"vllm": vllm, "speculators": speculators}
    roots = {name: package_at(path, name) for name, path in given.items() if path}
    lens = SourceLens(roots, kept=True)
    releases = {name: installed(name, lens) for name in ("vllm", "speculators", "transformers")}
    if lens.files("vllm") is None:
        raise CannotTell("vLLM is not installed here: name one with --vllm DIR_OR_WHEEL")
    report = Report(versions={name: release.text for name, release in releases.items()})
    report.shims = verdicts(lens, releases)
    _read_scripts(report, texts, lens)
    if lens.files("speculators") is None:
        if not scripts:
            raise CannotTell("speculators is not installed here: name one with --speculators")
    elif gone := consumer_gone(GENERATOR, lens):
        (report.notes if scripts else report.problems).append(gone)
    else:
        _read_speculators(report, lens)
    if not vllm and not speculators:
        from specvllm_compat.preflight.environment import environment_facts

        report.notes += environment_facts(releases)
    if config is not None:
        report.model, wrong = model_facts(config, lens, layer_ids, length)
        report.problems += wrong
    return report


def _script(path: Path) -> str:
    if not path.is_file():
        raise CannotTell(f"{path} is no file")
    text = path.read_text(encoding="utf-8", errors="replace")
    read_uses(text, path.name, SourceLens(), ())  # before anything else is read
    return text


def _read_scripts(report: Report, texts: Sequence[tuple[Path, str]], lens: SourceLens) -> None:
    import_shims = [c for c in report.shims if not c.shim.module.startswith("speculators.")]
    for path, text in texts:
        found = read_uses(text, path.name, lens, ("vllm", "speculators", "specvllm_compat"))
        order = [use.place.split(".")[0].partition(":")[0] for use in found if use.kind == "import"]
        ours = order.index("specvllm_compat") if "specvllm_compat" in order else len(order)
        if "speculators" in order[:ours] and any(GENERATOR in use.place for use in found):
            report.notes.append(f"{path.name}: import specvllm_compat before speculators")
        theirs = [use for use in found if not use.place.startswith("specvllm_compat")]
        report.rows += check_consumer(path.name, theirs, lens, import_shims)


def _read_speculators(report: Report, lens: SourceLens) -> None:
    everything = []
    for module, text in consumer_modules(lens):
        found = read_uses(text, module, lens, ("vllm",))
        report.rows += check_consumer(module, found, lens, report.shims)
        everything += found
    report.without_us = without_us(everything, lens, report.shims)
    for one in report.shims:
        if one.verdict == UNSUPPORTED and not any(row.shim == one.name for row in report.rows):
            report.problems.append(one.words)
