"""Importing costs nothing; the first import of vllm or speculators installs, in workers too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_trees
import pytest
from fake_trees import Tree

Trees = Callable[..., Tree]

HEAVY = [
    "wrapt",
    "asyncio",
    "importlib.metadata",
    "packaging",
    "inspect",
    "dataclasses",
    "typing",
    "json",
    "re",
    "logging",
    "threading",
    "argparse",
    "ast",
    "vllm",
    "torch",
    "speculators",
    "transformers",
]


def test_importing_us_loads_nothing_that_takes_time(tree: Trees) -> None:
    """Without site-packages, whose start-up hooks may have loaded any of these already."""
    script = f"""
import sys
before = set(sys.modules)
import specvllm_compat
new = set(sys.modules) - before
own = {{name for name in new if name.partition(".")[0] == "specvllm_compat"}}
print(sorted(new & set({HEAVY})), sorted(own), len(new - own) < 12)
"""
    finished = tree().command("-S", "-c", script)
    assert finished.code == 0, finished.err
    assert finished.out.strip() == "[] ['specvllm_compat', 'specvllm_compat._tripwire'] True"


@pytest.mark.parametrize("first", ["vllm", "speculators", "vllm.v1.request", "speculators.config"])
def test_the_first_import_of_either_package_installs(tree: Trees, first: str) -> None:
    told = tree().tells(f"""
        import sys
        before = "wrapt" in sys.modules, len(sys.meta_path)
        import json, email
        still = "wrapt" in sys.modules
        import {first}
        gone = not any("Tripwire" in type(finder).__name__ for finder in sys.meta_path)
        tell([before[0], still, "wrapt" in sys.modules, gone, outcome(request)])
    """)
    assert told == [False, False, True, True, "Request"]


@pytest.mark.parametrize("first", ["vllm", "speculators", "user; user.generator_module()"])
def test_it_is_not_too_late_after_their_import(tree: Trees, first: str) -> None:
    finished = tree().run(f"""
        import {first}
        import specvllm_compat
        from user import *
        tell([outcome(request), outcome(two_steps)])
    """)
    assert finished.value == ["Request", ["execute", "sample"] * 2]


def test_a_generator_that_exists_is_adapted_through_its_class(tree: Trees) -> None:
    told = tree(vllm="0.16.0").run("""
        from user import *
        cls = generator_module().VllmHiddenStatesGenerator
        made = object.__new__(cls)
        made.layer_ids = [1]
        create = lambda: made._create_vllm_config("model", 64, 0.5, 1).engine_args["model"]
        before = outcome(create)
        import specvllm_compat
        tell([before, outcome(create)])
    """)
    assert told.value == ["TypeError: 'NoneType' object is not subscriptable", "model"]


RACE = """
import sys, threading, importlib
import specvllm_compat
from user import *

names = ["vllm.v1.request", "speculators", "speculators.data_generation.custom_worker",
         "speculators.data_generation.vllm_hidden_states_generator"] * 2
barrier, errors = threading.Barrier(len(names)), []

def race(name):
    barrier.wait()
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=race, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell([errors, outcome(request), outcome(two_steps), outcome(generator),
      [shim for shim, verdict, _ in specvllm_compat.status() if verdict == "WAITING"]])
"""


def test_threads_that_race_to_the_import_miss_nothing(tree: Trees) -> None:
    told = tree().run(RACE).value
    assert told == [
        [], "Request", ["execute", "sample"] * 2, "VllmHiddenStatesGenerator", []
    ]  # fmt: skip


def test_a_thread_that_comes_second_waits_until_everything_is_installed(tree: Trees) -> None:
    """The first thread is held in the middle of installing until the second has imported."""
    told = tree(transformers="5.24.0").tells("""
        import threading
        from specvllm_compat import installer
        real, begun, imported = installer.install, threading.Event(), threading.Event()
        def slow():
            begun.set()
            imported.wait(0.5)  # in vain if the second thread waits for us, as it should
            real()
        installer.install = slow
        found = []
        def second():
            begun.wait()
            found.append(outcome(lambda: __import__("speculators")))
            imported.set()
        thread = threading.Thread(target=second)
        thread.start()
        import vllm
        thread.join()
        tell(found)
    """)
    assert told == ["module"]


def test_a_thread_that_is_importing_what_we_import_does_not_hang_the_process(
    tmp_path: Path,
) -> None:
    """``needed`` stands for wrapt, asyncio, inspect, …: whatever install() is first to import."""
    tree = fake_trees.write(tmp_path)
    (tmp_path / "events.py").write_text(
        "import threading\nhalf_way, installing = threading.Event(), threading.Event()\n"
    )
    (tmp_path / "needed.py").write_text(
        "import events\nevents.half_way.set()\nevents.installing.wait()\nimport another\n"
    )
    (tmp_path / "another.py").touch()
    finished = tree.run("""
        import faulthandler, threading
        import events, specvllm_compat
        from specvllm_compat import installer
        faulthandler.dump_traceback_later(2, exit=True)  # ends a process that hangs
        real = installer.install
        def install():
            events.installing.set()
            import needed
            real()
        installer.install = install
        threading.Thread(target=lambda: __import__("needed"), daemon=True).start()
        events.half_way.wait()
        import vllm
        print("imported")
    """)
    assert finished.out.strip() == "imported", finished.err


@pytest.mark.parametrize("package", ["vllm", "speculators"])
def test_an_environment_without_wrapt_can_still_import(tmp_path: Path, package: str) -> None:
    tree = fake_trees.write(tmp_path)
    (tmp_path / "wrapt.py").write_text("raise ImportError('wrapt is broken here')\n")
    finished = tree.run(f"import specvllm_compat\nimport {package}\nprint('imported')")
    assert "imported" in finished.out
    assert "wrapt is broken here" in finished.err  # logged


def test_the_plugin_never_raises(tmp_path: Path) -> None:
    tree = fake_trees.write(tmp_path)
    (tmp_path / "wrapt.py").write_text("raise ImportError('wrapt is broken here')\n")
    assert tree.run("import specvllm_compat\nspecvllm_compat.plugin()").code == 0


def test_uninstall_holds_until_somebody_installs(tree: Trees) -> None:
    told = tree().tells("""
        specvllm_compat.uninstall()
        first = outcome(request)
        specvllm_compat.plugin()  # vLLM calls it in the driver's process too
        tell([first, outcome(request)])
    """)
    assert all(text.startswith("TypeError") for text in told), told


def test_the_plugin_may_be_called_again_and_again(tree: Trees) -> None:
    told = tree().tells("""
        for _ in range(3):
            specvllm_compat.plugin()
        first = specvllm_compat.plugin(), outcome(request)
        wrapped = generator_module().Request
        specvllm_compat.plugin()
        tell([first, wrapped is generator_module().Request, outcome(two_steps)])
    """)
    assert told == [[None, "Request"], True, ["execute", "sample"] * 2]


def test_the_plugin_is_enough_in_a_process_that_imported_nothing(tree: Trees) -> None:
    finished = tree().run("""
        import vllm.v1.request, speculators
        from importlib import import_module
        getattr(import_module("specvllm_compat"), "plugin")()
        from user import *
        tell([outcome(request), outcome(generator)])
    """)
    assert finished.value == ["Request", "VllmHiddenStatesGenerator"]


CHILDREN = """
import importlib
import multiprocessing
import sys

import user


def child(queue):
    here = "speculators.data_generation.custom_worker" in sys.modules
    importlib.import_module("specvllm_compat").plugin()  # as vLLM does, before any work
    extension = user.worker_module().HiddenStatesWorkerExtension
    queue.put([here, user.outcome(user.request), user.outcome(extension()._reset_capture)])


if __name__ == "__main__":
    import specvllm_compat

    user.generator_module(), user.worker_module()
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    told = queue.get(timeout=30)
    process.join()
    user.tell([told, user.outcome(user.request)])
"""


@pytest.mark.parametrize(("method", "inherited"), [("fork", True), ("spawn", False)])
def test_a_worker_process_is_adapted(tmp_path: Path, method: str, inherited: bool) -> None:
    tree = fake_trees.write(tmp_path)
    (tmp_path / "children.py").write_text(CHILDREN)
    told, parent = tree.command("children.py", method).value
    assert told[:2] == [inherited, "Request"]
    assert told[2].startswith("CaptureError")
    assert parent == "Request"


def test_a_worker_of_a_switched_off_driver_is_off_too(tmp_path: Path) -> None:
    tree = fake_trees.write(tmp_path)
    (tmp_path / "children.py").write_text(CHILDREN)
    told, parent = tree.command("children.py", "spawn", SPECVLLM_COMPAT="off").value
    assert told[1].startswith("TypeError")
    assert told[2] == "NoneType"
    assert parent.startswith("TypeError")


def test_the_facade_names_what_it_offers(tree: Trees) -> None:
    told = tree().tells("""
        def missing():
            return specvllm_compat.no_such_name
        tell([sorted(specvllm_compat.__all__), specvllm_compat.UnsupportedVllm.__name__,
              [callable(getattr(specvllm_compat, n)) for n in specvllm_compat.__all__],
              outcome(missing)])
    """)
    names = ["UnsupportedVllm", "configure", "install", "plugin", "status", "uninstall"]
    assert told[:3] == [names, "UnsupportedVllm", [True] * 6]
    assert told[3] == "AttributeError: module 'specvllm_compat' has no attribute 'no_such_name'"
