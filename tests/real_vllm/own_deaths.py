"""A worker that is killed in the middle of a call, then a second generator in the same process,
used in a ``with`` statement that an exception ends.

Arguments: model folder, report file.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from pathlib import Path

import specvllm_compat
import tiny
from oracle import TALLY, check_results
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from specvllm_compat.engine.assembly import _queues, engine_of

LAYER_IDS = [3, 0]


def refused(generator: VllmHiddenStatesGenerator, prompts: list[list[int]]) -> str:
    try:
        generator.generate(prompts)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    raise AssertionError("states came back from a dead worker")


def main(model: Path, report: Path) -> None:
    specvllm_compat.configure(engine_args={"dtype": "float32", "max_num_batched_tokens": 128})
    seen: dict[str, object] = {"before": sorted(os.listdir("/dev/shm"))}

    first = VllmHiddenStatesGenerator(str(model), layer_ids=LAYER_IDS, max_model_len=128)
    [worker] = first.executor.workers
    sockets = [queue.local_socket for queue in _queues(first.executor)]
    engine = weakref.ref(engine_of(first.vllm_config))
    seen["sockets"] = len(sockets)
    steps = 0
    schedule = first.scheduler.schedule

    def killing(*args: object) -> object:
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(worker.proc.pid, signal.SIGKILL)
        return schedule(*args)

    first.scheduler.schedule = killing
    prompts = tiny.prompts(30, 120, seed=1)
    seen["during"] = refused(first, prompts)
    seen["after"] = refused(first, [[1, 2, 3]])
    del first
    gc.collect()
    # Some releases keep everything from garbage collection that was there when an engine was made.
    seen["sockets left open"] = 0 if engine() else sum(not socket.closed for socket in sockets)

    second = VllmHiddenStatesGenerator(str(model), layer_ids=LAYER_IDS, max_model_len=128)
    check_results(second.generate(prompts), prompts, model, LAYER_IDS)
    thread = threading.Thread(target=second.generate, args=([[1, 2, 3]],))
    thread.start()
    thread.join()
    processes = [handle.proc for handle in second.executor.workers]
    with contextlib.suppress(KeyError), second as generator:
        raise KeyError(generator)
    seen["alive"] = [process.is_alive() for process in processes]
    seen["after the block"] = refused(second, [[1, 2, 3]])
    del second, generator
    seen["children"] = len(multiprocessing.active_children())
    seen["ours in shared memory"] = [
        name for name in os.listdir("/dev/shm") if name.startswith("specvllm-")
    ]
    maps = Path("/proc/self/maps").read_text()
    seen["mapped"] = [line for line in maps.splitlines() if "memfd:specvllm-" in line]
    report.write_text(json.dumps({**TALLY.as_json(), **seen}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
