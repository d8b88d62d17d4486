"""What ``import specvllm_compat`` costs, against an interpreter that imports nothing.

python benchmarks/import_time.py [repetitions]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

HEAVY = ("wrapt", "asyncio", "importlib.metadata", "packaging", "inspect", "torch", "vllm")
BARE, OURS = "pass", "import specvllm_compat"


def milliseconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 41
    times: dict[str, list[float]] = {BARE: [], OURS: []}
    for _ in range(repetitions):
        for code, seen in times.items():
            seen.append(milliseconds(code))
    for code, seen in times.items():
        low, _, high = statistics.quantiles(seen, n=4)
        print(
            f"{code:<24} median {statistics.median(seen):6.1f} ms   quartiles {low:.1f} {high:.1f}"
        )
    extra = statistics.median(times[OURS]) - statistics.median(times[BARE])
    print(f"import specvllm_compat adds {extra:.1f} ms (median of {repetitions}, interleaved)")
    listed = subprocess.run(
        [sys.executable, "-c", f"{OURS}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    print("heavy modules loaded:", [name for name in HEAVY if name in listed] or "none")


if __name__ == "__main__":
    main()
