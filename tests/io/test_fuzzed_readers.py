"""Readers end in rows or in a message for any bytes: no traceback, no hang, no memory without bound.

`corpus/` keeps what once failed, a folder each, named by a seed and the fault. An input that fails below is printed: to
keep it, write its files there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import reader_worker
from reader_mutations import mutated
from reader_seeds import SEEDS, Parts
from reader_worker import ReaderProcess, read_all_ways, write_files

from ooc_mdp.errors import InputError, StoreError
from ooc_mdp.io.registry import FORMAT_NAMES, ReadOptions, open_source

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(path.name for path in CORPUS.iterdir())
INPUTS = 800
"""Of each seed: 12,000 in all."""


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_input_ends_in_rows_or_in_a_message(name: str) -> None:
    seed = SEEDS[name.partition("__")[0]]
    assert read_all_ways(CORPUS / name, seed.main, seed.format, seed.reward_model) == ""


def test_every_format_of_files_has_a_seed() -> None:
    assert {seed.format for seed in SEEDS.values()} == set(FORMAT_NAMES) - {"gymnasium"}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_is_a_model(name: str, tmp_path: Path) -> None:
    seed = SEEDS[name]
    write_files(tmp_path / "model", seed.pack(seed.parts))
    main = tmp_path / "model" / seed.main
    rewards = main.with_name("rewards") if seed.format == "transition-list" else None
    source = open_source(str(main), None, ReadOptions(rewards=rewards, reward_model=seed.reward_model))
    assert source.format == seed.format
    for block in source.blocks():
        block()
    source.check_totals()
    source.close()
    assert source.n_states in (2, 3)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (IndexError("out of bounds"), "IndexError: out of bounds"),
        (MemoryError(), "MemoryError"),
        (StoreError("x" * 2000), "a message of 2000 characters"),
        (InputError("m", "\x1b[31m"), "a message of 8 characters"),
        (InputError("m", "short"), ""),
    ],
)
def test_what_is_no_message_is_a_failure(monkeypatch, tmp_path: Path, error: Exception, said: str) -> None:
    def raises(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(reader_worker, "open_source", raises)
    assert said in reader_worker.read_all_ways(tmp_path, "model", "prism", None)
    assert bool(said) == bool(reader_worker.read_all_ways(tmp_path, "model", "prism", None))


def altered(name: str, number: int) -> Parts:
    """The files of an altered seed: parts are altered before they are packed, and sometimes files after it."""
    seed = SEEDS[name]
    rng = random.Random(f"{name} {number}")
    parts = dict(seed.parts)
    if rng.random() < 0.8:
        part = rng.choice(list(parts))
        parts[part] = mutated(parts[part], rng)
        return seed.pack(parts)
    files = seed.pack(parts)
    file = rng.choice(list(files))
    return {**files, file: mutated(files[file], rng)}


@pytest.fixture(scope="module")
def reader() -> Iterator[ReaderProcess]:
    with ReaderProcess() as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_any_bytes_end_in_rows_or_in_a_message(name: str, reader: ReaderProcess) -> None:
    failures = []
    for number in range(INPUTS):
        files = altered(name, number)
        wrong = reader.read(SEEDS[name], files)
        if wrong:
            failures.append(f"{name} {number}: {wrong}\n{ {key: data[:3000] for key, data in files.items()} }")
    assert not failures, f"{len(failures)} inputs failed\n" + "\n".join(failures[:5])
