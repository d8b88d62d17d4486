"""Write docs/patches.md: the series for the newest speculators as a reviewer reads it.

    python tests/patches_page.py

Subjects and bodies, and which files change; no code of speculators.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

from patched_trees import TREES, patch, series, wheel_content  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "patches.md"
HEAD = f"""# The patches

What `specvllm-compat patch` makes from speculators {TREES[-1]}, without the code: the messages as
`git am` takes them, and what they change. Written by `python tests/patches_page.py`; a test holds
it to the command.

    pip install 'specvllm-compat[patch]'
    specvllm-compat patch --source CHECKOUT --output-dir series
    git -C CHECKOUT am "$PWD"/series/000[1-9]*.patch

Without `--source` it takes the installed speculators; a wheel will do as well. With
`--vllm '>=0.16,<0.21'` it leaves out what those releases don't need. We hold none of speculators'
code: codemods find classes, methods and imports by name, and put code of ours there (see
[templates](../src/specvllm_compat/upstream_patches/templates)). Where code is replaced as a whole,
it has to be that of speculators 0.3.0, 0.4.0 or 0.4.0.1, comments and layout apart; else the
command names the place and writes nothing, since a fork's own change would be lost.

Each patch applies alone and in order, and leaves a tree that compiles and passes ruff. Patched
trees run without us on vLLM 0.11.0 to 0.32.0: their states are those of a shimmed tree, bit for bit
(`nox -s patched`).

Left to the shims: engine arguments that the generator does not expose, states through shared
memory instead of the RPC, an engine that stays usable after Ctrl-C, and model families that are
refused before their weights are loaded instead of after.
"""


def section(text: str) -> str:
    """One mail: its message, and its list of changed files."""
    message, _, rest = text.split("\nSubject: ")[1].partition("\n---\n")
    message = message.partition("\n-- \n")[0].rstrip()
    changed = rest.partition("\n\n")[0]
    shown = f"{message}\n\n{changed}".rstrip()
    return "\n```text\n" + re.sub(r" [+-]+$", "", shown, flags=re.MULTILINE) + "\n```\n"


def page(folder: Path) -> str:
    """The page for a series."""
    mails = [folder / "0000-cover-letter.patch", *series(folder)]
    return HEAD + "".join(section(mail.read_text()) for mail in mails)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        finished = patch(wheel_content(TREES[-1]), Path(folder) / "series")
        assert finished.returncode == 0, finished.stderr
        PAGE.write_text(page(Path(folder) / "series"))
