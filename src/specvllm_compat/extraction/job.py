"""A job: groups of samples in, files with their states out, each of them recorded.

``extract`` gets the states from an engine and ``convert`` from other files; all else is the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from specvllm_compat.extraction.errors import BadInput, Incomplete
from specvllm_compat.extraction.estimate import Estimate
from specvllm_compat.extraction.files import Sink, remove_temporary_files, replacing
from specvllm_compat.extraction.formats import Format
from specvllm_compat.extraction.manifest import Manifest
from specvllm_compat.extraction.pipeline import Writers, read_ahead
from specvllm_compat.extraction.preprocess import BadRow, Sample
from specvllm_compat.extraction.progress import Progress
from specvllm_compat.extraction.rows import Rows
from specvllm_compat.extraction.schedule import of_rank

log = logging.getLogger("specvllm_compat")

# States per layer, or why the engine can't compute them
States = Sequence[Any] | BadRow
# A group's indices and samples -> (position in the group, states), in any order
Produce = Callable[[list[int], list[Sample]], Iterator[tuple[int, States]]]

_WRITERS = 4


@dataclass(frozen=True)
class Report:
    """How a run ended: ``written`` by this process, ``done`` by all.

    ``skipped`` are rows without a sample, ``failed`` samples whose states can't be computed,
    ``differing`` those that came out otherwise than they are in their files.
    """

    samples: int
    done: int
    written: int
    skipped: int
    failed: int
    differing: int
    complete: bool
    training: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run has to know; ``groups`` are of all ranks."""

    folder: Path
    rows: Rows
    format: Format
    dtype: str
    per_token: int
    groups: list[np.ndarray[Any, Any]]
    world_size: int = 1
    rank: int = 0
    owner: str
    verify: bool
    force: bool
    skipped: int
    max_skipped: float
    training: str


def owner(world_size: int, rank: int) -> str:
    """A rank's name in the names of its files.

    Raises:
        BadInput: there is no such rank.
    """
    if not 0 <= rank < world_size:
        raise BadInput(f"--rank {rank} is not in [0, {world_size - 1}], as --world-size has it")
    return f"{rank}-of-{world_size}"


def run(job: Job, produce: Callable[[], Produce] | None) -> Report:
    """Do what is missing.

    ``produce`` is called when all else is ready; None stops there.

    Raises:
        BadInput: the disk is too small.
        Incomplete: something failed on the way. What is there is whole.
    """
    rows, format = job.rows, job.format
    format.path(job.folder, 0).parent.mkdir(exist_ok=True)
    with Manifest(job.folder, rows, format, job.owner) as manifest:
        for folder in {job.folder, format.path(job.folder, 0).parent}:
            remove_temporary_files(folder, job.owner)
        manifest.load(job.verify)
        _estimate(job, manifest)
        todo = of_rank(job.groups, job.world_size, job.rank, manifest.done)
        written = differing = 0
        if todo and produce is not None:
            written, differing = _run(job, manifest, todo, produce())
        if gone := manifest.refresh():
            raise Incomplete(
                f"{gone} files that were written are no longer in {job.folder}, or no longer what "
                "they were: somebody else removes or writes files there. The same command writes "
                "them again"
            )
        if (complete := bool(manifest.done.all())) and produce is not None:
            manifest.merge()
        return Report(
            samples=len(rows),
            done=int(manifest.done.sum()),
            written=written,
            skipped=job.skipped,
            failed=manifest.failed,
            differing=differing,
            complete=complete,
            training=job.training,
        )


def _estimate(job: Job, manifest: Manifest) -> None:
    missing = ~manifest.done
    tokens = int(job.rows.lengths[missing].sum())
    estimate = Estimate.of(job.folder, int(missing.sum()), tokens, job.per_token)
    if done := int(manifest.done.sum()):
        log.info("%d of %d samples are done already", done, len(job.rows))
    if manifest.damaged:
        log.info("%d files are damaged or unknown and will be done again", manifest.damaged)
    log.info("%s", estimate)
    if not estimate.fits and not job.force:
        raise BadInput(
            f"{job.folder} is too small: {estimate}. Make room, name another --output-dir, take "
            "fewer rows with --max-samples, or go on with --force"
        )


def _run(
    job: Job, manifest: Manifest, todo: list[np.ndarray[Any, Any]], produce: Produce
) -> tuple[int, int]:
    """Compute and write; (written, differing from what was there)."""
    rows, format = job.rows, job.format
    missing = np.concatenate(todo)
    missing = missing[~manifest.done[missing]]
    differing: list[int] = []

    def write(item: tuple[int, Sample, States]) -> None:
        index, sample, states = item
        again = manifest.done[index]  # its group is computed again for another's sake
        if isinstance(states, BadRow):
            if not again:
                log.warning("sample %d, row %d: %s", index, rows.numbers[index], states)
                manifest.add(index, None)
            if manifest.failed + job.skipped > job.max_skipped * (len(rows) + job.skipped):
                raise states
        elif again:
            format.write(sink := Sink(), sample, states, job.dtype)
            if sink.sum != manifest.sums[index].tobytes():
                differing.append(index)
        else:
            with replacing(format.path(job.folder, index), job.owner) as sink:
                format.write(sink, sample, states, job.dtype)
            manifest.add(index, sink.size, sink.sum)
            progress.add(len(sample[0]), sink.size)

    writers = Writers(write, _WRITERS, 2 * _WRITERS)
    progress = Progress(len(missing), int(rows.lengths[missing].sum()), writers.waiting)
    groups = ((group.tolist(), [rows[i] for i in group]) for group in todo)
    try:
        with writers, contextlib.closing(read_ahead(groups, 2)) as ahead:
            for group, samples in ahead:
                for at, states in produce(group, samples):
                    writers.put((group[at], samples[at], states))
    except Exception as error:
        done = int(manifest.done[missing].sum())
        raise Incomplete(
            f"stopped after {done} of {len(missing)} samples by {type(error).__name__}: {error}. "
            f"What is in {job.folder} is whole; the same command goes on from there"
        ) from error
    finally:
        progress.close()
    return int((manifest.sizes[missing] >= 0).sum()), len(differing)
