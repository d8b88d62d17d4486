"""Run the tests of this folder in one environment per vLLM release and speculators, and tabulate.

Runs outside the environments. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environments

CHECKOUT = Path(__file__).parents[2]
WORK = CHECKOUT / ".nox"

QUICK = "not families and not extraction and not patched"
"""The tests that start engines of their own are run, but for those that have a session."""

# What a quiet engine on a small machine without a network needs.
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
# Each of these would change what is tested; without bytecode `import vllm` takes most of a minute.
DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_PRELOAD")
# What vLLM says before logging is set up, and a binding library after pytest's closing line.
NOISE = (
    "Triton is installed, but",
    "nanobind: ",
    " - leaked ",
    " - ... skipped",
    "See https://nanobind",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the tests in one environment."""

    release: str
    speculators: str
    ok: bool
    seconds: int
    closing_line: str
    log: Path | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The run in one line, for whoever watches."""
        error = f"  error {self.report['largest_error']:.1e}" if self.report else ""
        outcome = "ok  " if self.ok else "FAIL"
        name = f"vllm {self.release:8} speculators {self.speculators:8}"
        return f"{outcome} {name}{error}  {self.closing_line}"


def site() -> Path:
    """A folder that holds this checkout, built and installed; a changed source makes a new one."""
    inside = (path for path in (CHECKOUT / "src").rglob("*") if path.suffix in (".py", ".in"))
    sources = [*sorted(inside), CHECKOUT / "pyproject.toml"]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(str(source.relative_to(CHECKOUT)).encode() + source.read_bytes())

    def build(folder: Path) -> None:
        # The name is rebuilt although its version is unchanged.
        options = ("--quiet", "--no-deps", "--reinstall", "--refresh-package", "specvllm-compat")
        environments.uv("pip", "install", *options, "--target", str(folder), str(CHECKOUT))

    return environments.built(WORK / "sites" / digest.hexdigest()[:10], build)


def variables(
    environment: environments.Environment,
    speculators: str | None = None,
    beside: Sequence[Path] = (),
    **more: str,
) -> dict[str, str]:
    """``os.environ`` for a process in an environment, with this checkout on its path."""
    folders = [site(), *beside]
    if speculators is not None:
        folders.append(environments.speculators(speculators))
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    path = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    return kept | VARIABLES | environment.variables | path | more


def stream(
    command: Sequence[str], told: dict[str, str], log: Path, *, quiet: bool = False
) -> tuple[int, list[str]]:
    """Run a command, its output into a log and, but for noise, shown; its status and its output."""
    lines = []
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=told,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for line in process.stdout or ():
            lines.append(line)
            file.write(line)
            if not quiet and not line.startswith(NOISE):
                print(line, end="", flush=True)
        return process.wait(), lines


def pytest(
    release: str,
    speculators: str | None,
    arguments: Sequence[str],
    *,
    quiet: bool = False,
    beside: Sequence[Path] = (),
) -> Run:
    """Run pytest in an environment. ``quiet`` keeps its output in a log instead of showing it.

    ``beside``: folders that go on the path, too.
    """
    started = time.monotonic()
    environment = environments.environment(release)
    stem = WORK / "runs" / f"vllm-{release}-speculators-{speculators}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    report, log = Path(f"{stem}.json"), Path(f"{stem}.log")
    report.unlink(missing_ok=True)
    command = [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    told = variables(environment, speculators, beside, SPECVLLM_MATRIX_REPORT=str(report))
    status, lines = stream(command, told, log, quiet=quiet)
    closing = [line for line in lines if " in " in line and line.strip("= \n")[:1].isdigit()]
    return Run(
        release=release,
        speculators=speculators or "-",
        ok=status == 0,
        seconds=round(time.monotonic() - started),
        closing_line=closing[-1].strip("= \n") if closing else f"pytest ended with {status}",
        log=log,
        report=json.loads(report.read_text()) if report.exists() else {},
    )


def real_vllm(release: str, speculators: str, *arguments: str, quiet: bool = False) -> Run:
    """Run the tests of this folder in one environment."""
    try:
        return pytest(release, speculators, ["tests/real_vllm", *arguments], quiet=quiet)
    except (OSError, subprocess.CalledProcessError) as error:
        closing = f"no environment: {error}"
        return Run(
            release=release, speculators=speculators, ok=False, seconds=0, closing_line=closing
        )


def run_all(releases: Iterable[str], own_engine: Iterable[str]) -> list[Run]:
    """Every release with every speculators, to the end even if some fail; one line per run.

    ``own_engine``: releases that run the tests which start engines of their own, too, with the
    newest speculators.
    """
    runs = []
    for release in releases:
        for speculators in environments.SPECULATORS:
            everything = release in own_engine and speculators == environments.SPECULATORS[-1]
            selected = ["-m", QUICK if everything else "not own_engine"]
            run = real_vllm(release, speculators, "-q", *selected, quiet=True)
            print(run.line(), flush=True)
            if not run.ok and run.log:
                print("".join(run.log.read_text().splitlines(keepends=True)[-40:]), flush=True)
            runs.append(run)
    return runs


def table(runs: Sequence[Run]) -> str:
    """The runs as a page of Markdown."""
    shims: list[str] = list(
        dict.fromkeys(row[0] for run in runs for row in run.report.get("verdicts", []))
    )
    columns = ["vLLM", "speculators", "transformers", "Python", "torch", "wrapt"]
    lines = [
        "# What was run",
        "",
        "Written by `make matrix-all`: tiny random models on real engines on a CPU, in float32.",
        "The error is the largest relative difference from Hugging Face's own hidden states among",
        "all prompts, layers and rows of the run; the tests allow 1e-5.",
        "",
        row([*columns, "prompts", "largest error", "tests", "seconds"]),
        row(["---"] * 10),
    ]
    for run in runs:
        report = run.report
        versions = report.get("versions", {})
        seen = [
            *(versions.get(name.lower(), "") for name in columns[2:]),
            str(report.get("prompts", "")),
            f"{report['largest_error']:.1e}" if report else "",
            run.closing_line.partition(" in ")[0] if run.ok else f"FAILED: {run.closing_line}",
            str(run.seconds),
        ]
        lines.append(row([run.release, run.speculators, *seen]))
    lines += [
        "",
        "## Verdict per shim, and the era that was found",
        "",
        row(["vLLM", "speculators", *shims]),
        row(["---"] * (2 + len(shims))),
    ]
    for run in runs:
        verdicts = {
            name: f"{verdict.lower()} ({era})"
            for name, verdict, era in run.report.get("verdicts", [])
        }
        lines.append(row([run.release, run.speculators, *(verdicts.get(s, "") for s in shims)]))
    return "\n".join(lines) + "\n"


def summary(runs: Sequence[Run]) -> str:
    """The runs in few lines: a release a row, the largest error per speculators."""
    errors = {
        (run.release, run.speculators): f"{run.report['largest_error']:.1e}" if run.ok else "FAILED"
        for run in runs
    }
    lines = [
        row(["vLLM", *(f"speculators {version}" for version in environments.SPECULATORS)]),
        row(["---"] * (1 + len(environments.SPECULATORS))),
    ]
    for release in dict.fromkeys(run.release for run in runs):
        seen = [errors.get((release, version), "") for version in environments.SPECULATORS]
        lines.append(row([release, *seen]))
    return "\n".join(lines) + "\n"


def update_readme(runs: Sequence[Run], readme: Path = CHECKOUT / "README.md") -> None:
    """Put the summary between the two marks in the README."""
    before, mark, rest = readme.read_text().partition("<!-- matrix -->\n")
    _, end, after = rest.partition("<!-- end of matrix -->\n")
    readme.write_text(before + mark + summary(runs) + end + after)


def row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def write(runs: Sequence[Run], page: Path) -> bool:
    """Write the table and show it; tells whether every run was fine."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(table(runs))
    print(page.read_text())
    print(f"{sum(run.ok for run in runs)} of {len(runs)} runs are fine")
    for run in runs:
        if not run.ok:
            print(run.line())
    return all(run.ok for run in runs)
