"""Install, uninstall, refuse: asserted by what a call does, each time in a fresh interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_trees
import pytest
from fake_trees import ERAS, Tree

Trees = Callable[..., Tree]

# What the user's calls do without us and with us; each of them needs another shim.
CALLS = "[outcome(request), outcome(two_steps), outcome(generator)]"
ADAPTED = ["Request", ["execute", "sample"] * 2, "VllmHiddenStatesGenerator"]
OWN_FAILURES = [
    "TypeError: Request.__init__() got an unexpected keyword argument 'eos_token_id'",
    "RuntimeError: State error: sample_tokens() must be called after execute_model() returns None.",
    "RuntimeError: Found no driver for this accelerator",
]

STEPS = {
    "import": "generator_module()",
    "install": "specvllm_compat.install()",
    "uninstall": "specvllm_compat.uninstall()",
}
ORDERS = sorted(
    set(itertools.permutations(["import", "install", "install", "uninstall", "uninstall"]))
)


def last_word(order: tuple[str, ...]) -> str:
    """Whichever of install and uninstall came last; nothing is installed at first."""
    words = [step for step in order if step != "import"]
    return words[-1] if words else "uninstall"


def test_the_last_of_install_and_uninstall_decides_in_every_order(tree: Trees) -> None:
    """Off, so that only the calls install; imports come before, between and after them."""

    def end_of(order: tuple[str, ...]) -> list[Any]:
        lines = [STEPS[step] for step in order]
        told: list[Any] = tree().tells("\n".join([*lines, f"tell({CALLS})"]), SPECVLLM_COMPAT="off")
        return told

    with ThreadPoolExecutor(2) as pool:
        ends = dict(zip(ORDERS, pool.map(end_of, ORDERS), strict=True))
    expected = {"install": ADAPTED, "uninstall": OWN_FAILURES}
    assert len(ends) == 30
    assert {o: end for o, end in ends.items() if end != expected[last_word(o)]} == {}


def test_an_import_is_enough(tree: Trees) -> None:
    assert tree().tells(f"tell({CALLS})") == ADAPTED


def test_without_us_the_same_calls_fail(tree: Trees) -> None:
    assert tree().tells_without_us(f"tell({CALLS})") == OWN_FAILURES


@pytest.mark.parametrize("vllm", ERAS)
@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_speculators_own_constructor_runs_on_every_era(
    tree: Trees, vllm: str, speculators: str
) -> None:
    told = tree(vllm=vllm, speculators=speculators).tells("""
        found = generator()
        tell([
            outcome(request), outcome(two_steps), outcome(sampled_step),
            found.kv_cache_config, found.kv_cache_config is found.scheduler.kv_cache_config,
            found.executor.initialized, found.vllm_config.engine_args,
        ])
    """)
    once = ["execute"] if vllm == "0.11.0" else ["execute", "sample"]
    assert told[:3] == ["Request", once * 2, once]
    assert told[3:6] == [["KV cache config of the engine", 7], True, 1]
    engine_args = told[6]
    assert engine_args["max_num_batched_tokens"] == 8192
    assert engine_args["enable_prefix_caching"] is False
    assert engine_args["async_scheduling"] is False
    assert engine_args["enforce_eager"] is True


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
@pytest.mark.parametrize("vllm", ERAS)
def test_without_us_the_constructor_runs_on_no_era(
    tree: Trees, vllm: str, speculators: str
) -> None:
    told = tree(vllm=vllm, speculators=speculators).tells_without_us("tell(outcome(generator))")
    expected = {
        ("0.11.0", "0.3.0"): "no driver",
        ("0.11.0", "0.4.0.1"): "No module named 'vllm.utils.hashing'",
        ("0.16.0", "0.3.0"): "is_encoder_decoder",
        ("0.16.0", "0.4.0.1"): "no driver",
        ("0.32.0", "0.3.0"): "is_encoder_decoder",
        ("0.32.0", "0.4.0.1"): "no driver",
        ("0.33.0", "0.3.0"): "cannot import name '_get_kv_cache_groups_uniform_spec'",
        ("0.33.0", "0.4.0.1"): "cannot import name '_get_kv_cache_groups_uniform_spec'",
    }
    assert expected[vllm, speculators] in told


def test_installing_twice_changes_nothing(tree: Trees) -> None:
    told = tree().tells("""
        module = generator_module()
        first = dict(vars(module)), specvllm_compat.status()
        specvllm_compat.install()
        specvllm_compat.plugin()
        same = all(vars(module)[name] is value for name, value in first[0].items())
        same = same and specvllm_compat.status() == first[1]
        undone = specvllm_compat.uninstall()
        tell([same, len(undone) == len(set(undone)), specvllm_compat.uninstall()])
    """)
    assert told == [True, True, []]


def test_uninstall_puts_every_original_back(tree: Trees) -> None:
    told = tree(vllm="0.33.0", transformers="5.24.0").tells("""
        import sys
        modules = {}
        def snapshot():
            found = {}
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] in ("vllm", "speculators", "transformers"):
                    for key, value in vars(module).items():
                        if not key.startswith("__"):
                            found[name, key] = value
                            if isinstance(value, type) and value.__module__ == name:
                                found |= {(name, key, k): v for k, v in vars(value).items()}
            return found
        generator_module(), worker_module()
        specvllm_compat.uninstall()
        originals = snapshot()
        specvllm_compat.install()
        adapted = snapshot()
        undone = specvllm_compat.uninstall()
        after = snapshot()
        changed = [k for k in adapted if adapted[k] is not originals.get(k)]
        tell([
            len(changed) > 12,
            originals.keys() == after.keys(),
            [k for k in after if after[k] is not originals.get(k)],
            sorted({verdict for _, verdict in undone}),
            sorted(seam for seam, _ in undone)[:3],
            "transformers.modeling_attn_mask_utils" in sys.modules,
            [row for row in specvllm_compat.status() if row[1] != "WAITING"],
        ])
    """)
    assert told[:4] == [True, True, [], ["REMOVED"]]
    assert told[4][0].startswith("speculators.data_generation.custom_worker:Hidden")
    assert told[5:] == [False, []]


def test_status_waits_for_the_imports(tree: Trees) -> None:
    told = tree().tells("""
        before = specvllm_compat.status()
        import speculators
        between = {shim: verdict for shim, verdict, _ in specvllm_compat.status()}
        generator_module(), worker_module()
        tell([{row[1:] for row in before} == {("WAITING", "")}, between["annotations"],
              between["request"], [row for row in specvllm_compat.status() if row[1] == "WAITING"]])
    """)
    assert told == [True, "NATIVE", "WAITING", []]


def test_uninstalling_what_was_never_installed_does_nothing(tree: Trees) -> None:
    assert tree().tells("tell(specvllm_compat.uninstall())", SPECVLLM_COMPAT="off") == []


def test_somebody_who_wrapped_after_us_keeps_their_wrapper(tree: Trees) -> None:
    told = tree().tells("""
        module = generator_module()
        ours, seen = module.Request, []
        def theirs(*args, **kwargs):
            seen.append(sorted(kwargs))
            return ours(*args, **kwargs)
        module.Request = theirs
        undone = dict(specvllm_compat.uninstall())
        buried = [seam for seam, verdict in undone.items() if verdict == "BURIED"]
        after = [module.Request is theirs, outcome(request), len(seen)]
        specvllm_compat.install()
        tell([buried, after, outcome(request), len(seen)])
    """)
    seam = "speculators.data_generation.vllm_hidden_states_generator:Request"
    assert told == [[seam], [True, OWN_FAILURES[0], 1], "Request", 2]


def test_a_name_that_somebody_copied_passes_through_after_uninstall(tree: Trees) -> None:
    told = tree().tells("""
        Request = generator_module().Request
        def copied(**more):
            return Request(request_id="r", prompt_token_ids=[1], sampling_params=None,
                           pooling_params=None, arrival_time=0.0, **more)
        before = outcome(lambda: copied(eos_token_id=2))
        specvllm_compat.uninstall()
        tell([before, outcome(lambda: copied(eos_token_id=2)), outcome(copied)])
    """)
    assert told == ["Request", OWN_FAILURES[0], "Request"]


def test_an_unknown_keyword_reaches_vllm(tree: Trees) -> None:
    told = tree().tells("tell([outcome(lambda: request(future=1)), outcome(request)])")
    assert told == [
        "TypeError: Request.__init__() got an unexpected keyword argument 'future'",
        "Request",
    ]


def test_an_unknown_keyword_reaches_the_executor(tree: Trees) -> None:
    told = tree().tells("""
        tell([outcome(lambda: executor().execute_model("step", non_block=False)),
              outcome(lambda: executor().execute_model("step", future=1))])
    """)
    assert told == [
        ["output of", "step"],
        "TypeError: MultiprocExecutor.execute_model() got an unexpected keyword argument 'future'",
    ]


def test_wrapped_classes_stay_classes_for_their_users(tree: Trees) -> None:
    told = tree().tells("""
        from vllm.v1.request import Request as own
        from vllm.v1.core.sched.scheduler import Scheduler as own_scheduler
        module = generator_module()
        class Mine(module.Request):
            kind = "mine"
        mine = Mine("r", [1], None, None)
        class Generator(module.VllmHiddenStatesGenerator):
            pass
        tell([
            isinstance(request(), own), isinstance(request(), module.Request),
            isinstance(mine, own), mine.kind, issubclass(Mine, own),
            issubclass(own_scheduler, module.Scheduler),
            module.Request.__name__, module.Request.__module__,
            outcome(lambda: Generator("model").executor.execute_model("step")),
        ])
    """)
    assert told == [True, True, True, "mine", True, True, "Request", "vllm.v1.request",
                    ["output of", "step"]]  # fmt: skip


def test_vllm_itself_is_left_alone(tree: Trees) -> None:
    told = tree().tells("""
        generator_module()
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor
        from vllm.v1.request import Request
        own = MultiprocExecutor(None)
        tell([type(Request) is type, own.execute_model("step"), own.steps,
              outcome(lambda: Request("r", [1], None, None, eos_token_id=2))])
    """)
    assert told == [True, None, ["execute"], OWN_FAILURES[0]]


# A consumer and a provider with one class each, and what a shim for them may do.
ACME = """
class Base:
    def run(self):
        return "original"


class Tool(Base):
    pass


def build():
    return "built"


Text = str
"""
SHIM = """
import logging
from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Shim, Upstream
from specvllm_compat.shims import CATALOG

def use(eras, module="acme"):
    CATALOG.clear()
    CATALOG["acme_shim"] = Shim(
        does="Whatever a test needs.", module=module, eras=eras,
        upstream=Upstream(change="", first_release="0.11.0", delete_when=""),
    )

def ours(wrapped, instance, args, kwargs):
    return "ours after " + wrapped(*args, **kwargs)

def broken(*_):
    raise ZeroDivisionError("our own fault")
"""


@pytest.fixture
def acme(tmp_path: Path) -> Tree:
    """A tree with a module ``acme`` to adapt, and a vLLM whose version is known."""
    tree = fake_trees.write(tmp_path)
    (tmp_path / "acme.py").write_text(ACME)
    (tmp_path / "shims_for_acme.py").write_text(SHIM)
    return tree


def test_an_inherited_method_leaves_no_copy_behind(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        use((Era(since="0.11.0", probe=has("acme:Tool"), adapt={"Tool.run": ours}),))
        specvllm_compat.install()
        import acme
        adapted = acme.Tool().run(), acme.Base().run()
        undone = specvllm_compat.uninstall()
        tell([adapted, undone, "run" in vars(acme.Tool), acme.Tool().run()])
    """)
    assert told == [
        ["ours after original", "original"], [["acme:Tool.run", "REMOVED"]], False, "original"
    ]  # fmt: skip


def test_a_method_that_the_class_lacks_is_added_and_taken_away(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        def added(module):
            return lambda self: "added to " + type(self).__name__
        use((Era(since="0.11.0", probe=has("acme:Tool"),
                 provide={"Tool.more": added, "Absent.more": added}),))
        specvllm_compat.install()
        import acme
        more = acme.Tool().more()
        undone = specvllm_compat.uninstall()
        tell([more, undone, hasattr(acme.Tool, "more"), hasattr(acme, "Absent")])
    """)
    assert told == ["added to Tool", [["acme:Tool.more", "REMOVED"]], False, False]


def test_our_own_fault_breaks_no_import_and_is_named_when_used(acme: Tree) -> None:
    finished = acme.run("""
        import specvllm_compat
        from user import outcome, tell
        from shims_for_acme import *
        use((Era(since="0.11.0", probe=has("acme"), adapt={"Tool.run": ours},
                 provide={"build": broken, "absent": broken}),))
        specvllm_compat.install()
        import acme
        tell([
            specvllm_compat.status(), outcome(acme.build), outcome(acme.Tool().run),
            outcome(acme.absent), acme.Base().run(),
            isinstance(specvllm_compat.UnsupportedVllm(), RuntimeError),
        ])
    """)
    status, *used, base, is_error = finished.value
    assert status == [["acme_shim", "BROKEN", ""]]
    for text in used:
        assert text.startswith("UnsupportedVllm: acme_shim: ")
        assert "acme" in text
        assert "our own fault" in text
    assert (base, is_error) == ("original", True)
    assert "Traceback" in finished.err
    assert "ZeroDivisionError: our own fault" in finished.err


def test_a_probe_that_fails_breaks_no_import(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        import pathlib
        pathlib.Path("unreadable").mkdir()
        pathlib.Path("unreadable/__init__.py").write_text("def (: # of a later Python")
        use((Era(since="0.11.0", probe=has("unreadable:place"), adapt={"build": ours}),))
        specvllm_compat.install()
        import acme
        tell([specvllm_compat.status()[0][1], outcome(acme.build)[:26]])
    """)
    assert told == ["BROKEN", "UnsupportedVllm: acme_shim"]


def test_uninstall_undoes_a_shim_that_broke_half_way(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        use((Era(since="0.11.0", probe=has("acme"), adapt={"build": ours},
                 provide={"absent": broken}),))
        specvllm_compat.install()
        import acme, types
        specvllm_compat.uninstall()
        tell([acme.build(), type(acme.build) is types.FunctionType])
    """)
    assert told == ["built", True]


def test_a_name_that_cannot_be_wrapped_breaks_no_import(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        use((Era(since="0.11.0", probe=has("acme"), adapt={"Text.upper": ours}),))
        specvllm_compat.install()
        import acme
        tell([acme.build(), specvllm_compat.status()[0][1]])
    """)
    assert told == ["built", "BROKEN"]


def test_two_eras_are_told_apart_by_what_is_there(acme: Tree) -> None:
    told = acme.tells("""
        from shims_for_acme import *
        use((Era(since="0.11.0", probe=has("acme:gone"), adapt={"build": broken}),
             Era(since="0.30.0", probe=~has("acme:gone"), adapt={"build": ours})))
        specvllm_compat.install()
        import acme
        tell([acme.build(), specvllm_compat.status()])
    """)
    assert told == ["ours after built", [["acme_shim", "ADAPTED", "0.30.0"]]]


def test_a_vllm_of_no_known_shape_can_be_imported_and_refuses_when_used(tree: Trees) -> None:
    finished = tree(vllm="future").run("""
        import specvllm_compat
        from user import *
        module = generator_module()
        verdicts = {shim: verdict for shim, verdict, _ in specvllm_compat.status()}
        caught = []
        for call in (request, two_steps, generator):
            try:
                call()
            except specvllm_compat.UnsupportedVllm as error:
                caught.append(str(error))
        tell([verdicts["request"], verdicts["two_phase"], verdicts["scheduler"], caught])
    """)
    request, two_phase, scheduler, caught = finished.value
    assert (request, two_phase, scheduler) == ("UNSUPPORTED", "UNSUPPORTED", "ADAPTED")
    assert [text.split(":")[0] for text in caught] == ["request", "two_phase", "two_phase"]
    for text in caught:
        assert "vllm 1.0.0 has no known shape" in text
        assert "vllm_hidden_states_generator" in text
    assert ", found (self, request_id, prompt_token_ids" in caught[0]
    assert "Request.__init__ accepts" in caught[0]
    assert "'block_hasher'" in caught[0]
    assert ", found (self, grammar_bitmask" in caught[1]
    assert "sample_tokens accepts 'grammar_output'" in caught[1]
    assert caught[0] in finished.err  # logged when found, not only when used


def test_a_vllm_without_the_hash_function_is_named_before_the_import_fails(tree: Trees) -> None:
    finished = tree(vllm="hashless").run("""
        import specvllm_compat
        from user import *
        tell(outcome(generator_module))
    """)
    assert finished.value.startswith("ImportError: cannot import name 'get_hash_fn_by_name'")
    assert "hashing_module: vllm 1.0.0 has no known shape for vllm.utils" in finished.err


def test_a_vllm_below_the_floor_is_refused(tree: Trees) -> None:
    told = tree(vllm="0.10.0", speculators="0.3.0").tells("""
        found = [outcome(generator_module), outcome(request), outcome(two_steps)]
        verdicts = {v for shim, v, _ in specvllm_compat.status() if shim != "model_files"}
        tell([*found, verdicts <= {"WAITING", "UNSUPPORTED", "NATIVE"}])
    """)
    assert told[0] == "module"
    assert told[1].startswith("UnsupportedVllm: request: vllm 0.10.0 ")
    assert told[2].startswith("UnsupportedVllm: two_phase: vllm 0.10.0 ")
    assert told[3] is True


def test_a_vllm_of_no_version_is_taken_for_what_it_looks_like(tree: Trees) -> None:
    assert tree(vllm="versionless").tells(f"tell({CALLS})") == ADAPTED


def test_a_vllm_built_from_a_clone_without_tags_is_taken_for_what_it_looks_like(
    tree: Trees,
) -> None:
    """setuptools_scm calls such a build 0.1.dev1+g<sha>, whatever release it is of."""
    assert tree(vllm="tagless").tells(f"tell({CALLS})") == ADAPTED


def test_the_refusal_of_a_vllm_below_the_floor_names_the_floor(tree: Trees) -> None:
    told = tree(vllm="0.10.0", speculators="0.3.0").tells("tell(outcome(request))")
    assert "0.11" in told.split("Expected")[0]


def test_a_nightly_of_another_era_works_and_says_so_quietly(tree: Trees) -> None:
    script = """
        import logging
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
        import specvllm_compat
        from user import *
        tell([outcome(request), outcome(generator)])
    """
    nightly = tree(vllm="nightly").run(script)
    assert nightly.value == ["Request", "VllmHiddenStatesGenerator"]
    remarks = [line for line in nightly.err.splitlines() if "should be of era" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("INFO specvllm_compat request: vllm 0.16.0rc2.dev12+g48c879369")
    assert "WARNING" not in nightly.err
    mislabelled = tree(vllm="mislabelled").run(script)
    assert mislabelled.value == ["Request", "VllmHiddenStatesGenerator"]
    remarks = [line for line in mislabelled.err.splitlines() if "should be of era" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("WARNING specvllm_compat request: vllm 0.17.0 should be of era")


def test_a_final_release_is_adapted_without_a_word(tree: Trees) -> None:
    finished = tree().run("import specvllm_compat\nfrom user import *\ntell(outcome(generator))")
    assert finished.value == "VllmHiddenStatesGenerator"
    assert finished.err == ""


def test_a_speculators_without_the_class_says_which_has_it(tree: Trees) -> None:
    told = tree(speculators="0.5.0").tells("""
        def other_import():
            import speculators
            return speculators.SpeculatorModelConfig().model_type or "speculators itself works"
        def absent():
            import speculators.no_such_module
        tell([outcome(other_import), outcome(generator_module), outcome(worker_module),
              outcome(absent)])
    """)
    assert told[0] == "speculators itself works"
    for text in told[1:3]:
        assert text.startswith("ModuleNotFoundError: speculators 0.5.0 has no VllmHidden")
        assert "pip install --no-deps speculators==0.4.0.1" in text
    assert told[3] == "ModuleNotFoundError: No module named 'speculators.no_such_module'"
    assert "No module named" in tree(speculators="0.5.0").tells_without_us(
        "tell(outcome(generator_module))"
    )


def test_asking_whether_the_module_exists_is_answered_as_for_a_missing_parent(tree: Trees) -> None:
    told = tree(speculators="0.5.0").tells("""
        import importlib.util, speculators
        name = "speculators.data_generation"
        tell(outcome(lambda: str(importlib.util.find_spec(name))))
    """)
    assert told.startswith("ModuleNotFoundError: speculators 0.5.0 has no VllmHiddenStates")


def test_after_uninstall_a_speculators_without_the_class_fails_in_its_own_words(
    tree: Trees,
) -> None:
    told = tree(speculators="0.5.0").tells("""
        import speculators
        specvllm_compat.uninstall()
        tell(outcome(generator_module))
    """)
    assert told == "ModuleNotFoundError: No module named 'speculators.data_generation'"


@pytest.mark.parametrize("value", ["lora_filesystem_resolver", "", "a, b"])
def test_an_allow_list_of_plugins_without_us_is_refused_before_the_engine_starts(
    tree: Trees, value: str
) -> None:
    told = tree().tells("tell(outcome(generator))", VLLM_PLUGINS=value)
    wanted = f"{value},specvllm_compat" if value else "specvllm_compat"
    assert told.startswith(f"ValueError: VLLM_PLUGINS={value!r} keeps vLLM from loading")
    assert f"Set VLLM_PLUGINS={wanted!r}" in told
    for allowed in (wanted, "other, specvllm_compat"):
        told = tree().tells("tell(outcome(generator))", VLLM_PLUGINS=allowed)
        assert told == "VllmHiddenStatesGenerator"


def test_off_means_that_nothing_is_installed(tree: Trees) -> None:
    for value in ("off", "OFF", "0", "false"):
        told = tree().tells(
            f"specvllm_compat.plugin()\ntell([{CALLS}, 'wrapt' in __import__('sys').modules])",
            SPECVLLM_COMPAT=value,
        )
        assert told == [OWN_FAILURES, False]


def test_the_planning_names_are_found_where_they_went(tree: Trees) -> None:
    told = tree(vllm="0.33.0").tells("""
        import vllm.v1.core.kv_cache_utils as old
        import vllm.v1.core.kv_cache_planning as new
        new.unify_hybrid_kv_cache_specs = lambda *a, **k: [a, k]
        tell([
            old.unify_hybrid_kv_cache_specs("specs", future=1),
            old._get_kv_cache_groups_uniform_spec(["a"]),
            outcome(lambda: old.get_kv_cache_config_from_groups("c", [], 0)),
            outcome(generator_module),
            [verdict for _, verdict, _ in specvllm_compat.status()][3],
        ])
    """)
    assert told == [
        [["specs"], {"future": 1}],
        [["a"]],
        "ValueError: No available memory for the cache blocks.",
        "module",
        "ADAPTED",
    ]


def test_the_planning_names_are_found_if_their_new_module_comes_first(tree: Trees) -> None:
    told = tree(vllm="0.33.0").tells("""
        import vllm.v1.core.kv_cache_planning
        import vllm.v1.core.kv_cache_utils as old
        tell([outcome(lambda: old.unify_hybrid_kv_cache_specs("specs")), outcome(generator),
              [verdict for _, verdict, _ in specvllm_compat.status()][3]])
    """)
    assert told == ["unified", "VllmHiddenStatesGenerator", "ADAPTED"]


def test_the_hashing_module_is_made_where_it_was_not_yet(tree: Trees) -> None:
    told = tree(vllm="0.11.0").tells("""
        import sys, vllm.utils
        from vllm.utils.hashing import get_hash_fn_by_name
        made = vllm.utils.hashing is sys.modules["vllm.utils.hashing"]
        same = get_hash_fn_by_name is vllm.utils.get_hash_fn_by_name
        specvllm_compat.uninstall()
        tell([made, same, "vllm.utils.hashing" in sys.modules, hasattr(vllm.utils, "hashing")])
    """)
    assert told == [True, True, False, False]


def test_the_hashing_module_of_vllm_is_kept_where_it_is(tree: Trees) -> None:
    told = tree().tells("""
        import vllm.utils.hashing
        tell([vllm.utils.hashing.__file__ is not None, specvllm_compat.uninstall()])
    """)
    assert told == [True, []]


def test_the_attention_mask_that_is_gone_refuses_when_it_is_called(tree: Trees) -> None:
    script = """
        import importlib
        def mask():
            module = importlib.import_module("transformers.modeling_attn_mask_utils")
            return module._prepare_4d_causal_attention_mask(1, future=2)
        tell([outcome(generator_module), outcome(mask)])
    """
    gone, there = tree(transformers="5.24.0"), tree(transformers="4.57.6")
    imported, called = gone.tells(script)
    assert imported == "module"
    assert called.startswith("UnsupportedVllm: _prepare_4d_causal_attention_mask was removed")
    assert "install a transformers that has it" in called
    assert there.tells(script) == ["module", "a mask"]
    assert gone.tells_without_us(script)[1] == (
        "ModuleNotFoundError: No module named 'transformers.modeling_attn_mask_utils'"
    )


def test_annotations_of_transformers_can_be_evaluated(tree: Trees) -> None:
    modern = tree(transformers="5.0.0")
    assert modern.tells("tell(outcome(generator))") == "VllmHiddenStatesGenerator"
    assert modern.tells_without_us("tell(outcome(generator_module))") == (
        "NameError: name 'torch' is not defined"
    )


def test_transformers_may_be_imported_before_us(tree: Trees) -> None:
    finished = tree(transformers="5.24.0").run("""
        import transformers, transformers.configuration_utils
        import specvllm_compat
        from user import *
        tell([outcome(generator_module), outcome(request)])
    """)
    assert finished.value == ["module", "Request"]


def test_the_worker_extension_is_adapted_method_by_method(tree: Trees) -> None:
    """vLLM adds the class to the bases of its worker, which takes nothing but a class."""
    told = tree().tells("""
        class Base:
            pass
        class Worker(Base):
            pass
        def extend():
            Worker.__bases__ += (worker_module().HiddenStatesWorkerExtension,)
        tell([
            outcome(extend), outcome(lambda: Worker()._reset_capture()),
            outcome(lambda: Worker()._set_request_metadata({"r": 1})),
        ])
    """)
    assert told[0] == told[2] == "NoneType"
    assert "call _setup_hidden_states_capture first" in told[1]


def test_tokenizers_may_have_code_of_their_own(tree: Trees) -> None:
    told = tree().tells("""
        module = generator_module()
        tell([
            vars(module.AutoTokenizer.from_pretrained("kimi")),
            module.AutoTokenizer.__name__,
            hasattr(module.AutoConfig.from_pretrained("nested"), "text_config"),
            module.AutoConfig.from_pretrained("llama").path,
        ])
    """)
    assert told == [{"path": "kimi", "trust_remote_code": True}, "AutoTokenizer", True, "llama"]
