"""Sessions: lint, ring0, record, demo, vllm(release, speculators), matrix, matrix_all, patched …

The environments are those of tests/real_vllm/environments.toml, cached in the user's cache folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nox

CHECKOUT = Path(__file__).parent
sys.path.insert(0, str(CHECKOUT / "tests" / "real_vllm"))

import environments  # noqa: E402
import families_page  # noqa: E402
import matrix as real  # noqa: E402

# Tests that start engines of their own take minutes; `newest` runs them too.
OWN_ENGINE = ["0.11.0", "0.16.0", "0.20.2", "0.28.0", "0.33.0"]
FAMILY_RELEASES = ["0.12.0", "0.16.0", "0.20.2", "0.26.0", environments.NEWEST]
# What docs/benchmarks.md shows: script, vLLM release, arguments. Each rival where it runs.
MEASURED = [
    (
        "extraction",
        "0.16.0",
        "--models compute-heavy --rivals prefill generate upstream huggingface",
    ),
    (
        "extraction",
        "0.16.0",
        "--models states-heavy --rounds 15 "
        "--rivals prefill generate iter_generate upstream huggingface",
    ),
    ("extraction", "0.32.0", "--models compute-heavy --rivals prefill generate"),
    ("extraction", "0.32.0", "--models states-heavy --rivals prefill generate"),
    ("extraction", "0.30.0", "--models states-heavy --rivals prefill generate lens"),
    ("extract_end_to_end", environments.NEWEST, "--rounds 3"),
    ("transport", "0.16.0", ""),
    ("transport", "0.32.0", ""),
    ("memory", "0.16.0", "--rivals generate iter_generate upstream upstream_at_once"),
    ("self_check", "0.16.0", ""),
    ("self_check", "0.32.0", ""),
    ("start_up", "0.16.0", "--repetitions 3"),
    ("start_up", "0.32.0", "--repetitions 3"),
    ("growth", "0.32.0", ""),
]
LINTERS = ["ruff==0.17.6", "mypy==2.4.1", "wrapt==2.5.2", "packaging", "libcst==1.9.0"]
PAIRS = [
    (release, speculators)
    for release in environments.RELEASES
    for speculators in environments.SPECULATORS
]

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "ring0"]


def linters() -> Path:
    """The folder of a cached environment that holds the linters."""

    def build(folder: Path) -> None:
        environments.uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        python = str(folder / "bin" / "python")
        environments.uv("pip", "install", "--quiet", "--python", python, *LINTERS)

    folder = environments.CACHE / f"lint-{environments.key([LINTERS, sys.version])}"
    return environments.built(folder, build) / "bin"


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and mypy --strict."""
    bin = linters()
    session.run(str(bin / "ruff"), "check", ".", external=True)
    session.run(str(bin / "ruff"), "format", "--check", ".", external=True)
    session.run(str(bin / "mypy"), "--strict", "src", external=True)


@nox.session
def ring0(session: nox.Session) -> None:
    """Everything that needs no engine, in the newest release's environment."""
    arguments = ["tests", "--ignore=tests/real_vllm", *session.posargs]
    run = real.pytest(environments.NEWEST, None, arguments)
    if not run.ok:
        session.error(run.line())


@nox.session
def record(session: nox.Session) -> None:
    """nox -s record -- 0.34.0: the fossils of these versions, wheels or folders; the table."""
    for script, arguments in (("record_fossil", session.posargs), ("support_table", [])):
        session.run(sys.executable, f"tests/{script}.py", *arguments, external=True)


@nox.session
@nox.parametrize("release,speculators", PAIRS)
def vllm(session: nox.Session, release: str, speculators: str) -> None:
    """The tests on a real engine of one release."""
    run = real.real_vllm(release, speculators, *session.posargs)
    print(run.line())
    if not run.ok:
        session.error(run.line())


@nox.session
def newest(session: nox.Session) -> None:
    """The tests on a real engine of the newest release; all of them with the newest speculators."""
    *older, last = environments.SPECULATORS
    selected = "not families and not extraction"
    runs = [real.real_vllm(environments.NEWEST, last, "-m", selected, *session.posargs)]
    for speculators in older:
        arguments = ["-m", "not own_engine", *session.posargs]
        runs.append(real.real_vllm(environments.NEWEST, speculators, *arguments))
    print("\n".join(run.line() for run in runs))
    if not all(run.ok for run in runs):
        session.error("a run failed")


@nox.session
def matrix(session: nox.Session) -> None:
    """The first and last releases of the eras, but for `newest`; the table: .nox/matrix.md."""
    releases = [release for release in environments.CI_RELEASES if release != environments.NEWEST]
    runs = real.run_all(releases, own_engine=OWN_ENGINE[:2])
    if not real.write(runs, real.WORK / "matrix.md"):
        session.error("a run failed")


@nox.session
def matrix_all(session: nox.Session) -> None:
    """Every release; the table goes to docs/matrix.md."""
    runs = real.run_all(environments.RELEASES, own_engine=OWN_ENGINE)
    real.update_readme(runs)
    if not real.write(runs, CHECKOUT / "docs" / "matrix.md"):
        session.error("a run failed")


@nox.session
def families(session: nox.Session) -> None:
    """Every model family on the releases named, or on five, which go to docs/families.md."""
    releases = session.posargs or FAMILY_RELEASES
    arguments = ["tests/real_vllm/test_families.py", "-k", "hugging_face"]
    runs = [
        real.pytest(
            release,
            environments.SPECULATORS[-1],
            arguments,
            beside=[environments.torchvision(release)],
        )
        for release in releases
    ]
    print("\n".join(run.line() for run in runs))
    if releases == FAMILY_RELEASES:
        seen = {run.release: run.report.get("families", {}) for run in runs}
        (CHECKOUT / "docs" / "families.md").write_text(families_page.page(seen))
    if not all(run.ok for run in runs):
        session.error("a run failed")


@nox.session
def extraction(session: nox.Session) -> None:
    """Real runs of `extract` that are killed, and speculators' trainers on what they leave."""
    last = environments.SPECULATORS[-1]
    run = real.real_vllm(environments.NEWEST, last, "-v", "-m", "extraction", *session.posargs)
    if not run.ok:
        session.error(run.line())


@nox.session
def patched(session: nox.Session) -> None:
    """Patched speculators without us, on the releases named, or on six from first to last."""
    older, last = environments.SPECULATORS
    releases = session.posargs or ["0.11.0", "0.12.0", "0.16.0", "0.20.2", "0.28.0", "0.32.0"]
    runs = [
        real.real_vllm(release, older if release == "0.11.0" else last, "-v", "-m", "patched")
        for release in releases
    ]
    print("\n".join(run.line() for run in runs))
    if not all(run.ok for run in runs):
        session.error("a run failed")


@nox.session
def demo(session: nox.Session) -> None:
    """examples/demo.py on the newest release."""
    script(session, "examples/demo.py", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """What the package itself costs, on the newest release; see measure for states."""
    for name in ("import_time", "wrapper_overhead", "check_time", "start_up"):
        script(session, f"benchmarks/{name}.py")


@nox.session
def measure(session: nox.Session) -> None:
    """nox -s measure -- [script [release]]: the runs of MEASURED; docs/benchmarks.md from them."""
    for name, release, arguments in MEASURED:
        if session.posargs == [name, release][: len(session.posargs)]:
            given = [*arguments.split(), "--save"]
            more = {"VLLM_LENS": str(environments.vllm_lens())} if "lens" in given else {}
            script(session, f"benchmarks/{name}.py", *given, release=release, **more)
    session.run(sys.executable, "benchmarks/report.py", external=True)


def script(
    session: nox.Session,
    path: str,
    *arguments: str,
    release: str = environments.NEWEST,
    **more: str,
) -> None:
    """Run a script with one vLLM, and the newest speculators."""
    environment = environments.environment(release)
    session.run(
        str(environment.python),
        path,
        *arguments,
        env=real.variables(environment, environments.SPECULATORS[-1], **more),
        include_outer_env=False,
        external=True,
    )
