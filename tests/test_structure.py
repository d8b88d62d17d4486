"""The source tree keeps to its own rules."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "specvllm_compat"
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
OWN = "specvllm_compat"
PROVIDERS = {"vllm", "torch", "psutil", "speculators", "transformers"}
LONGEST = 340

# Module -> own modules (and those below them) that it may import at the top, inside functions
RULES: dict[str, tuple[set[str], set[str]]] = {
    "_tripwire": (set(), set()),
    "shape": (set(), set()),
    "outline": (set(), set()),
    "files": ({"outline"}, set()),
    "bindings": ({"outline", "shape"}, set()),
    "source": ({"bindings", "files", "outline", "shape"}, set()),
    "contract": ({"shape", "source"}, set()),
    "shim": ({"contract"}, set()),
    "engine_args": ({"contract", "shim"}, set()),
    "engine": ({"engine"}, {"engine"}),
    "shims": ({"contract", "shim", "engine_args", "shims"}, {"engine"}),
    "installer": ({"contract", "shim", "shims"}, set()),
    "benchmarking": (
        {"benchmarking", "streams"},
        {"benchmarking", "engine", "engine_args", "shim", ""},
    ),
    "preflight": (
        {"contract", "outline", "preflight", "shape", "shim", "engine_args", "shims", "source"},
        {"engine", "preflight"},  # of engine only what loads neither vllm nor torch
    ),
    "hub": ({"preflight"}, set()),
    "verification": (
        {"engine", "hub", "preflight", "shim", "shims", "source", "streams", "verification"},
        {"", "engine_args", "verification"},  # "": the version
    ),
    "extraction": (
        {"", "extraction", "hub"},
        {"", "engine", "engine_args", "extraction", "preflight", "shim", "source"},
    ),
    "upstream_patches": (
        {"engine", "files", "preflight", "shim", "shims", "source", "upstream_patches", ""},
        {"upstream_patches"},  # of engine only the names of families
    ),
}
THIRD_PARTY = {
    "wrapt": {"installer"},
    "packaging": {"preflight", "shim", "upstream_patches"},
    "libcst": {"upstream_patches"},
}
# What vLLM and speculators bring along
BROUGHT = {"numpy", "datasets", "huggingface_hub", "pyarrow", "safetensors", "tqdm"}
THIRD_PARTY |= {name: {"extraction"} for name in BROUGHT} | {"huggingface_hub": {"hub"}}


def parse(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def imports(name: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, inside a function) for each import that runs."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}"
                yield dotted if dotted in FILES else node.module or "", inside
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(parse(name), False)


def part(module: str) -> str:
    """The second component of a module's name: what the rules are about."""
    return [*module.split("."), ""][1]


@pytest.mark.parametrize("name", FILES)
def test_dependencies_point_one_way(name: str) -> None:
    at_top, in_functions = RULES.get(part(name), (set(), set()))
    for module, inside in imports(name):
        if module.split(".")[0] != OWN or name == f"{OWN}.cli":
            continue
        if name == OWN:
            assert inside or part(module) == "_tripwire", module
        else:
            allowed = at_top | in_functions if inside else at_top
            assert part(module) in allowed, f"{module}, {'inside' if inside else 'at the top'}"


@pytest.mark.parametrize("name", FILES)
def test_third_parties_are_imported_where_they_belong(name: str) -> None:
    for module, inside in imports(name):
        top = module.split(".")[0]
        if top in PROVIDERS:
            at_top = part(name) in ("engine", "verification")
            driver = part(name) in ("benchmarking", "extraction", "shims")
            assert at_top or (driver and inside), module
        elif top in THIRD_PARTY:
            assert part(name) in THIRD_PARTY[top], module
        else:
            assert top == OWN or top in sys.stdlib_module_names, module


@pytest.mark.parametrize("name", FILES)
def test_the_facade_and_the_tripwire_import_next_to_nothing(name: str) -> None:
    if part(name) in ("", "_tripwire"):
        at_top = {module for module, inside in imports(name) if not inside}
        assert at_top <= {"__future__", "os", "sys", f"{OWN}._tripwire"}


@pytest.mark.parametrize("name", FILES)
def test_a_module_holds_one_idea(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST
    assert FILES[name].stem not in ("utils", "util", "common", "helpers", "compat", "misc")
    assert ast.get_docstring(parse(name))


@pytest.mark.parametrize("name", FILES)
def test_each_public_function_and_class_says_what_it_is_for(name: str) -> None:
    silent = [
        node.name
        for node in parse(name).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and node.name != "Lens"  # its one method says it
        and not ast.get_docstring(node)
    ]
    assert not silent


@pytest.mark.parametrize("path", [*FILES.values(), *sorted(Path(__file__).parent.glob("*.py"))])
def test_no_path_of_a_machine_is_written_down(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.match(r"/(home|root|Users|work|opt|mnt|usr|tmp|var)(/|$)", node.value)


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_swallowed_and_only_commands_print(name: str) -> None:
    speaks = name == f"{OWN}.cli" or name.endswith(".command")
    for node in ast.walk(parse(name)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except in line {node.lineno}"
            assert not (len(node.body) == 1 and isinstance(node.body[0], ast.Pass)), node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print" or speaks, f"print in line {node.lineno}"


def test_vllm_finds_the_plugin_by_the_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = text.split('[project.entry-points."vllm.general_plugins"]')[1].split("[")[0]
    assert 'specvllm_compat = "specvllm_compat:plugin"' in group
    facade = {n.name for n in parse(OWN).body if isinstance(n, ast.FunctionDef)}
    assert {"plugin", "install", "uninstall", "status", "configure"} <= facade


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    table = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    files = list((ROOT / "tests").rglob("test_*.py"))
    defined = {
        node.name
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = set(re.findall(r"`(test_\w+)`", table))
    assert len(named) > 20
    assert named <= defined
    paths = set(re.findall(r"`(tests/[\w/]+\.py)`", table))
    assert paths <= {path.relative_to(ROOT).as_posix() for path in files}
