"""What converting a model file will take, estimated from its first blocks before the work, and refused where it cannot
fit.

    disk     rows of all blocks on their way (16 bytes per transition and row), and the store, not compressed
    time     seconds of the sampled blocks, times the rest of the file; as long again for the second pass

How much of the file the blocks are follows from the number of states where the file announces it, else from its length.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion.size_estimate import SizeEstimate
from ooc_mdp.io.registry import open_source
from ooc_mdp.io.source import ReadOptions, Source
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.room import Room
from ooc_mdp.sizes import format_seconds
from ooc_mdp.table_options import ConvertOptions

__all__ = ["SAMPLE_SEGMENT", "ConversionEstimate", "check_fits", "estimate_conversion", "estimate_file", "source_bytes"]

SAMPLE_SEGMENT = 1 << 20
"""Bytes of a sampled block."""
_SAMPLED_BLOCKS = 8
_SPOOL_BYTES = 16
"""Of each transition, and of each row."""


@dataclass(frozen=True, slots=True)
class ConversionEstimate:
    """What a conversion takes, as far as its first blocks tell."""

    source_bytes: int
    states: int
    rows: int
    transitions: int
    spool: int
    """Bytes on disk until the conversion ends."""
    store: int
    """Bytes of the store at most: before compression."""
    seconds: float
    threads: int
    whole: bool
    """Whether the sample was the whole file."""

    @property
    def disk(self) -> int:
        """Most bytes on disk at a time."""
        return self.spool + self.store

    def summary(self) -> dict[str, Any]:
        """The figures as plain values, as --json prints them."""
        return {
            "source_bytes": self.source_bytes,
            "n_states": self.states,
            "n_state_actions": self.rows,
            "n_transitions": self.transitions,
            "spool_bytes": self.spool,
            "store_bytes": self.store,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "threads": self.threads,
            "whole": self.whole,
        }


def source_bytes(source: str) -> int:
    """Length of a file, or of the files in a folder; 0 where there is none."""
    path = Path(source)
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return os.path.getsize(path) if path.is_file() else 0


def estimate_conversion(source: Source, length: int, options: ConvertOptions) -> ConversionEstimate:
    """Read the first blocks of a source that was opened for this, in segments of `SAMPLE_SEGMENT`.

    Raises
    ------
    InputError : these blocks break a rule of the format.
    """
    states = rows = transitions = decoded = blocks = 0
    took, ended = list[float](), True
    for read in islice(source.blocks(), _SAMPLED_BLOCKS + 1):
        if blocks == _SAMPLED_BLOCKS:
            ended = False
            break
        began = time.perf_counter()
        block = read().rows
        took.append(time.perf_counter() - began)
        blocks += 1
        n = block.action_ptr.size - 1
        states, rows, transitions = states + n, rows + block.n_rows, transitions + block.n_transitions
        if n:
            sizes = SizeEstimate.of_rows(block, options.stored_dtype, n)
            decoded += sizes.total(n, block.n_rows, block.n_transitions)
    if ended:
        scale = 1.0
    elif source.n_states is not None and states:
        scale = max(source.n_states / states, 1.0)
    else:
        scale = max(length / (blocks * SAMPLE_SEGMENT), 1.0)
    seconds = sum(took) if blocks < 2 else sum(took[1:]) * blocks / (blocks - 1)  # the first one loads code
    parallel = min(options.threads, max(int(blocks * scale), 1))
    return ConversionEstimate(
        source_bytes=length,
        states=round(states * scale),
        rows=round(rows * scale),
        transitions=round(transitions * scale),
        spool=round(_SPOOL_BYTES * (rows + transitions) * scale),
        store=round(decoded * scale),
        seconds=2.0 * seconds * scale / parallel,
        threads=options.threads,
        whole=ended,
    )


def estimate_file(
    source: str, store: Path, format: str | None, reading: ReadOptions, options: ConvertOptions
) -> tuple[ConversionEstimate, Room]:
    """What a conversion will take, and what is free at the place of the store.

    Raises
    ------
    InputError, OptionsError, MissingExtraError : as where the source is opened to be converted.
    """
    opened = open_source(source, format, replace(reading, segment_bytes=SAMPLE_SEGMENT))
    try:
        return estimate_conversion(opened, source_bytes(source), options), Room.at(store)
    finally:
        opened.close()


def check_fits(estimate: ConversionEstimate, room: Room, confirmed: bool) -> None:
    """Refuse what the disk has no room for, and what is large unless it is confirmed.

    Raises
    ------
    OptionsError : more disk than there is, or, unconfirmed, more than an hour, or more than 80% of the free disk.
    """
    said = (
        f"estimate: {estimate.states:,} states, {estimate.rows:,} rows and {estimate.transitions:,} transitions; "
        f"{format_bytes(estimate.disk)} on disk, {format_seconds(estimate.seconds)} on {estimate.threads} threads"
    )
    if room.disk is not None and estimate.spool > room.disk:
        raise OptionsError(
            f"the conversion needs about {format_bytes(estimate.spool)} of disk on its way, and "
            f"{format_bytes(room.disk)} are free: write the store to another disk ({said})"
        )
    reasons = room.reasons_to_confirm(estimate.seconds, estimate.disk)
    if reasons and not confirmed:
        raise OptionsError(
            f"converting this model {' and '.join(reasons)}; confirm with --yes (in Python allow_large=True) ({said})"
        )
