"""Make the series for one tree of speculators, in memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import libcst as cst
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from specvllm_compat.files import Files
from specvllm_compat.preflight.locate import CannotTell, package_at
from specvllm_compat.shim import Shim
from specvllm_compat.shims import CATALOG, FLOOR, GENERATOR, consumer_gone
from specvllm_compat.source import SourceLens
from specvllm_compat.upstream_patches.diff import FileDiff, Overlap, file_diffs, in_order
from specvllm_compat.upstream_patches.edit import MissingAnchor
from specvllm_compat.upstream_patches.mail import Commit, mails
from specvllm_compat.upstream_patches.patches import PATCHES, Patch

PREFIX = "src/speculators"
"""Where speculators' repository has the package."""
_OLDEST = ".".join(map(str, FLOOR))


class NotPossible(ValueError):
    """No series can be made of this source; why, in one sentence."""


def series(source: Path | None, vllm: str | None = None) -> dict[str, str]:
    """The mails by file name, for the given or the installed speculators.

    ``vllm``: releases that the patched tree is to run on, such as ``>=0.16,<0.21``.

    Raises:
        NotPossible: it isn't a speculators that we know, it is patched already, or it is a git
            checkout with changes.
    """
    wanted = PATCHES if vllm is None else _for_releases(vllm)
    files = _files(source)
    diffs = diffs_of(files, wanted.values())
    commits = [
        Commit(subject=patch.subject, paragraphs=patch.paragraphs(), diffs=tuple(changed))
        for patch, changed in diffs
    ]
    return mails(commits, _cover([patch for patch, _ in diffs], vllm))


def diffs_of(files: Files, patches: Iterable[Patch]) -> list[tuple[Patch, list[FileDiff]]]:
    """What each patch changes; patches that have nothing to change are left out.

    Raises:
        NotPossible: a place to change is not there, or patches exclude each other.
    """
    patches = list(patches)
    texts = {path: _text(files, path) for patch in patches for path in patch.codemods}
    for patch in PATCHES.values():
        if any(patch.mark in texts.get(path, "") for path in patch.codemods):
            raise NotPossible(f'{files.location} is patched already, by "{patch.subject}"')
    found: dict[str, list[tuple[Patch, str]]] = {path: [] for path in texts}
    for patch in patches:
        for path, codemod in patch.codemods.items():
            new = _changed(patch, codemod, path, texts[path])
            if new != texts[path]:
                found[path].append((patch, new))
    diffs: dict[str, list[FileDiff]] = {patch.subject: [] for patch in patches}
    for path, changes in sorted(found.items()):
        if changes:
            variants = [new for _, new in changes]
            try:
                of_file = file_diffs(f"{PREFIX}/{path}", texts[path], variants)
            except Overlap as error:
                raise NotPossible(f"the patches exclude each other in this tree: {error}") from None
            for state in [*variants, *in_order(of_file)]:
                compile(state, path, "exec")
            for (patch, _), diff in zip(changes, of_file, strict=True):
                diffs[patch.subject].append(diff)
    return [(patch, diffs[patch.subject]) for patch in patches if diffs[patch.subject]]


def _changed(patch: Patch, codemod: object, path: str, text: str) -> str:
    assert callable(codemod)
    try:
        module: cst.Module = codemod(cst.parse_module(text))
    except MissingAnchor as error:
        raise NotPossible(
            f'this speculators is not one that we know: for "{patch.subject}", {path} lacks {error}'
        ) from None
    except cst.ParserSyntaxError as error:
        raise NotPossible(f"{path} is not Python: {error.message}") from None
    return module.code


def _text(files: Files, path: str) -> str:
    if not files.has(path):
        raise NotPossible(f"this speculators is not one that we know: it has no {path}")
    text = files.text(path)
    if not text.endswith("\n"):
        raise NotPossible(f"{path} ends in the middle of a line, which no patch can say")
    return text


def _files(source: Path | None) -> Files:
    try:
        roots = {"speculators": package_at(source, "speculators")} if source else {}
    except CannotTell as error:
        raise NotPossible(str(error)) from None
    lens = SourceLens(roots)
    files = lens.files("speculators")
    if files is None:
        raise NotPossible("speculators is not installed here: name one with --source DIR_OR_WHEEL")
    if gone := consumer_gone(GENERATOR, lens):
        raise NotPossible(gone)
    if files.location.is_dir() and (changes := _uncommitted(files.location)):
        raise NotPossible(
            f"the checkout of {files.location} has changes that are not committed ({changes}): "
            "commit or stash them"
        )
    return files


def _uncommitted(folder: Path) -> str:
    """The first changed file of the checkout that the package is in; nothing if it is in none."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    try:
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return ""
        changes = git("status", "--porcelain", "--untracked-files=no").stdout
    except FileNotFoundError:  # no git: it is no checkout that anybody works in
        return ""
    return changes.strip().partition("\n")[0].strip()


def _for_releases(text: str) -> dict[str, Patch]:
    """The patches of which a shim is needed on some release in the range."""
    try:
        releases = SpecifierSet(text)
    except InvalidSpecifier:
        raise NotPossible(f"--vllm {text!r} is no range: write one as '>=0.16,<0.21'") from None
    if not _meets(releases, Version(_OLDEST), None):
        raise NotPossible(f"--vllm {text!r} holds no release from {_OLDEST}, our oldest, on")
    return {
        name: patch
        for name, patch in PATCHES.items()
        if any(_is_needed(CATALOG[shim], releases) for shim in patch.shims)
    }


def _is_needed(shim: Shim, releases: SpecifierSet) -> bool:
    """It does something in an era that the range touches; ranges are vLLM's only."""
    if shim.provider != "vllm":
        return True
    starts = [Version(era.since) for era in shim.eras]
    return any(
        not era.native and _meets(releases, start, end)
        for era, start, end in zip(shim.eras, starts, [*starts[1:], None], strict=True)
    )


def _meets(releases: SpecifierSet, start: Version, end: Version | None) -> bool:
    """A release from ``start`` to before ``end`` is in the range.

    The start, the limits of the range and what follows each of them tell.
    """
    limits = [Version(one.version.removesuffix(".*")) for one in releases]
    following = [Version(f"{v.major}.{v.minor}.{v.micro + 1}") for v in limits]
    return any(
        start <= version and (end is None or version < end) and version in releases
        for version in [start, *limits, *following]
    )


def _cover(patches: list[Patch], vllm: str | None) -> Commit:
    listed = "\n".join(f"{number}. {patch.subject}" for number, patch in enumerate(patches, 1))
    scope = f"vLLM {vllm}" if vllm else f"every vLLM from {_OLDEST} on"
    return Commit(
        subject=f"Run VllmHiddenStatesGenerator on {scope}",
        paragraphs=(
            "These patches make the generator run, and return the right states, on "
            f"{scope}, with transformers 4.56 and later. Each applies alone and in order, and "
            "says what changed, where, and what is seen without it.",
            listed,
            "What is left to vLLM breaks no more when vLLM changes it: the engine is assembled, "
            "and its steps are run, by EngineCore; its config comes from EngineArgs; the model's "
            "forward stays as it is.",
        ),
    )
