"""Options are checked once, and say what they would have."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Discounted, TotalReward
from ooc_mdp.option_fields import options_in
from ooc_mdp.options import (
    CacheSize,
    ClusterOptions,
    MethodName,
    PriorityName,
    RunOptions,
    SolveKeywords,
    SolveOptions,
    Stopping,
    format_bytes,
    parse_bytes,
    solve_options,
)
from ooc_mdp.sizes import counted


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        (" 1.5GB ", 1_500_000_000),
        ("0.5KiB", 512),
        ("2TiB", 2 << 40),
        ("7b", 7),
    ],
)
def test_sizes_are_read_with_their_units(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


def test_one_thing_is_counted_as_one() -> None:
    assert [counted(n, "partition") for n in (0, 1, 2, 1600)] == [
        "0 partitions",
        "1 partition",
        "2 partitions",
        "1,600 partitions",
    ]


@pytest.mark.parametrize("text", ["", "MiB", "1e3", "-5", "64 MiBs", "1,5GB", "٣", "1.GB", "nan", "22%"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionsError, match=r"is no size; write for example 67108864, 64MiB or 1\.5GB"):
        parse_bytes(text)


@pytest.mark.parametrize("size", [0, -1, "0", "0MiB", "0.3"])
def test_nothing_fits_no_bytes(size: str | int) -> None:
    with pytest.raises(OptionsError, match="cannot hold anything; give a positive one"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [2**63, 10**400, "8388608TiB", "9" * 5000, "9" * 400 + ".5"])
def test_a_size_beyond_64_bits_is_refused(size: str | int) -> None:
    with pytest.raises(OptionsError, match="a size is more than 64 bits hold; give at most 9223372036854775807"):
        parse_bytes(size)


@given(st.integers(1, 1 << 50))
def test_whole_sizes_are_read_exactly(size: int) -> None:
    assert parse_bytes(str(size)) == parse_bytes(size) == size
    assert parse_bytes(f"{size}KiB") == size << 10


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 << 20, "64.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_bytes_are_told_to_people_in_their_own_units(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_a_cache_is_a_size_or_a_share_of_the_table() -> None:
    assert CacheSize.parse("64MiB").resolve(10, 5) == 64 << 20
    assert CacheSize.parse("22%").resolve(1000, 5) == 220
    assert CacheSize.parse(0.22) == CacheSize.parse("22%")
    assert CacheSize.parse(1.0) == CacheSize.parse("100%")
    assert CacheSize.parse("0.1 %").resolve(1001, 1) == 2
    assert CacheSize.parse("100%").resolve(12345, 5) == 12345
    assert CacheSize.parse("1%").resolve(1000, 300) == 300  # a share always holds the largest partition
    assert CacheSize.parse("100B").resolve(1000, 300) == 100
    assert CacheSize.parse("101").resolve(1000, 300) == 101
    assert CacheSize.parse(22).resolve(1000, 300) == 22  # of Python, which has bytes as integers


@pytest.mark.parametrize("bare", ["22", " 100 ", "2", "1.5"])
def test_a_number_that_must_be_a_percentage_is_refused_with_what_was_meant(bare):
    number = str(bare).strip()
    meant = rf"{number}% of the table, or {number}MiB\?"
    said = rf"a cache of {number} is {int(float(number))} bytes?, .*; did you mean {meant}"
    with pytest.raises(OptionsError, match=said):
        CacheSize.parse(bare)


@pytest.mark.parametrize(("bare", "percentage"), [("0.22", "22%"), (".05", "5%"), ("1.0", "1%")])
def test_a_share_without_a_percent_sign_is_refused_with_what_was_meant(bare, percentage):
    with pytest.raises(OptionsError, match=rf"a cache of {bare} is [01] bytes?, .*; did you mean {percentage} of"):
        CacheSize.parse(bare)


@pytest.mark.parametrize("text", ["0%", "101%", "-3%", "nan%", "inf%"])
def test_a_share_lies_between_nothing_and_all(text: str) -> None:
    with pytest.raises(OptionsError, match="give a percentage above 0 and up to 100"):
        CacheSize.parse(text)


def test_a_share_is_a_number() -> None:
    with pytest.raises(OptionsError, match="'some%' is no percentage"):
        CacheSize.parse("some%")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": 1.0 + 1e-15}, "the discount must be at least 0 and below 1, not 1.0000000000000"),
        ({"criterion": TotalReward(), "device": "cuda:0"}, "--total is solved on the CPU only; give --device cpu"),
        ({"criterion": TotalReward(), "kernel": "plain"}, "--total has a method of its own"),
        ({"criterion": TotalReward(), "device_memory": 1 << 30}, "--total is solved on the CPU only"),
        ({"criterion": TotalReward(), "method": "vi"}, "--total has a method of its own"),
        ({"criterion": TotalReward(), "priority": "h1"}, "--total has a method of its own"),
        ({"criterion": 1}, r"discount 1 is no discount; give --total \(in Python TotalReward\(\)\)"),
        ({"criterion": -0.1}, "the discount must be"),
        ({"criterion": float("nan")}, "the discount must be"),
        ({"epsilon": 0.0}, "epsilon must be a positive number, not 0.0"),
        ({"epsilon": float("inf")}, "epsilon must be"),
        ({"residual": float("nan")}, "residual must be"),
        ({"epsilon": 1.0, "residual": 1.0}, "not both"),
        ({"method": "magic"}, "unknown method 'magic'; there are auto, vi, p-eva, policy-iteration"),
        ({"priority": "h3"}, "unknown priority 'h3'"),
        ({"method": "vi", "priority": "exact-h2"}, "exact priorities belong to the method p-eva"),
        ({"method": "vi", "priority": "h1"}, "--priority is of p-eva, and --method vi visits all partitions"),
        ({"method": "vi", "sweeps_per_visit": 0}, "sweeps per visit is 0; give at least 1"),
        ({"sweeps_per_visit": 8}, "are those of the method vi"),
        ({"device_memory": 0}, "device memory: a size of 0 bytes cannot hold anything; give a positive one"),
        ({"device_memory": 1 << 30, "cache": CacheSize(size=1)}, "give the cache's size or a device's budget in all"),
        ({"device_memory": 1 << 30, "device": "cpu"}, "runs on the CPU; give --cache"),
    ],
)
def test_options_out_of_range_or_at_odds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        SolveOptions(**({"criterion": 0.9} | options))


def test_numbers_of_numpy_become_pythons_own() -> None:
    figures = {"criterion": np.float32(0.5), "epsilon": np.float16(0.25)}
    options = SolveOptions(**figures, method="vi", sweeps_per_visit=np.int32(2))  # type: ignore[arg-type]
    for name, value in {"discount": 0.5, "epsilon": 0.25, "sweeps_per_visit": 2}.items():
        assert getattr(options, name) == value
        assert type(getattr(options, name)) is type(value)
    exact = SolveOptions(Decimal("0.5"), epsilon=Fraction(1, 4))  # type: ignore[arg-type]
    assert (type(exact.discount), exact.discount, exact.epsilon) == (float, 0.5, 0.25)
    run = RunOptions(time_limit=np.int64(3))  # type: ignore[arg-type]
    assert (type(run.time_limit), run.time_limit) == (float, 3.0)
    assert type(ClusterOptions(workers=np.int64(2)).workers) is int  # type: ignore[arg-type]
    assert parse_bytes(np.int64(4096)) == 4096  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "0.9"}, "criterion is '0.9', which is no number"),
        ({"criterion": None}, "neither is given"),
        ({"criterion": np.array([0.9])}, "criterion is array.*, which is no number"),
        ({"method": "vi", "sweeps_per_visit": 2.5}, "sweeps per visit is 2.5, which is no whole number"),
        ({"criterion": True}, "criterion is True, which is no number"),
        ({"method": "vi", "sweeps_per_visit": True}, "sweeps per visit is True, which is no whole number"),
        ({"device_memory": 2.5e9}, "device memory is 2500000000.0, which is no whole number"),
        ({"epsilon": 10**400}, "epsilon is larger than any float; give a number of at most 1e308"),
        ({"epsilon": Decimal("1e400")}, "epsilon must be a positive number, not inf"),
        (
            {"method": "vi", "sweeps_per_visit": 2**63},
            "sweeps per visit is more than 64 bits hold; give at most 9223372036854775807",
        ),
        ({"device_memory": 10**5000}, "device memory is more than 64 bits hold"),
    ],
)
def test_what_is_no_number_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        SolveOptions(**({"criterion": 0.9} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": -1.0}, "time limit must be a positive number, not -1.0"),
        ({"time_limit": "3"}, "time limit is '3', which is no number"),
        ({"time_limit": 10**400}, "time limit is larger than any float"),
        ({"time_limit": -Fraction(10**400)}, "time limit is larger than any float"),
        ({"checkpoint_interval": -1.0}, "checkpoint interval must not be negative"),
        ({"checkpoint_interval": float("nan")}, "checkpoint interval must not be negative"),
        ({"checkpoint_interval": None}, "checkpoint interval is None, which is no number"),
        ({"resume": True}, "resume needs an output .*: the checkpoint lies beside it"),
    ],
)
def test_options_of_a_run_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        RunOptions(**options)


@pytest.mark.parametrize("size", [-0.22, 1e9, None])
def test_a_size_that_is_neither_text_nor_whole_is_refused(size: Any) -> None:
    with pytest.raises(OptionsError, match="which is no whole number; write for example 67108864"):
        CacheSize.parse(size)


def test_options_do_not_change() -> None:
    options = SolveOptions(0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.criterion = 0.5  # type: ignore[misc]


def test_text_is_read_wherever_options_are_made() -> None:
    options = SolveOptions(0.9, cache="22%", kernel="plain", stopping="blocks:16")  # type: ignore[arg-type]
    assert (options.cache, options.stopping) == (CacheSize(share=0.22), Stopping("blocks", 16))
    assert SolveOptions(0.9, cache=0.22) == SolveOptions(0.9, cache=CacheSize(share=0.22))  # type: ignore[arg-type]
    assert SolveOptions(0.9, device_memory="8GiB").device_memory == 8 << 30  # type: ignore[arg-type]
    assert dataclasses.replace(options, epsilon=1e-3).cache == options.cache


def test_keywords_become_the_options_of_a_solve_a_run_and_workers() -> None:
    given = {"epsilon": 1e-3, "cache": "1GiB", "output": "r", "workers": 2, "stage": "s"}
    options, run, cluster = solve_options(Discounted(0.9), given)
    assert options == SolveOptions(0.9, 1e-3, cache=CacheSize(size=1 << 30))
    assert run == RunOptions(output=Path("r"))
    assert cluster == ClusterOptions(2, stage=Path("s").absolute())
    assert solve_options(Discounted(0.9), {}) == (SolveOptions(0.9), RunOptions(), None)


def test_the_keywords_of_a_solve_are_the_options_and_their_types() -> None:
    declared = list(options_in(SolveOptions, RunOptions, ClusterOptions))
    assert [option.name for option in declared] == list(SolveKeywords.__annotations__)
    fields = SolveOptions.__annotations__ | RunOptions.__annotations__ | ClusterOptions.__annotations__
    for name, hint in SolveKeywords.__annotations__.items():
        kept = {word.replace("Path", "str | PathLike[str]") for word in fields[name].split(" | ")}
        assert set(" | ".join(kept).split(" | ")) <= set(hint.__forward_arg__.split(" | ")), name


def test_every_option_has_a_sentence_of_help_and_accepts_its_default() -> None:
    for option in options_in(SolveOptions, RunOptions, ClusterOptions):
        assert option.help.endswith((".", "]")), option.name
        assert option.default is None or option.takes.read(option.words, option.default) == option.default


def test_the_cache_is_256_mib_unless_said_otherwise() -> None:
    assert SolveOptions(0.9).cache_size == CacheSize(size=256 << 20)
    assert SolveOptions(0.9, cache=CacheSize(share=0.1)).cache_size == CacheSize(share=0.1)


def test_exact_priorities_are_words_of_their_own() -> None:
    assert SolveOptions(0.9).effective_priority == "joint"
    assert SolveOptions(0.9, priority="exact-h2").effective_priority == "h2"
    assert SolveOptions(0.9, priority="exact-h1").effective_priority == "h1"
    with pytest.raises(OptionsError, match="unknown priority 'exact-joint'; there are joint, h1"):
        SolveOptions(
            0.9,
            priority="exact-joint",  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "0 workers do nothing"),
        ({"workers": 2.5}, "workers is 2.5, .* give a number of processes, the address of a Dask scheduler or a Dask"),
        ({"worker_timeout": 0.0}, "worker timeout must be a positive number, not 0.0"),
        ({"threads": 0}, "threads is 0; give at least 1"),
    ],
)
def test_ways_to_spread_a_solve_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        ClusterOptions(**options)


def test_every_word_of_an_option_has_something_behind_it() -> None:
    from ooc_mdp.solver.local import METHODS

    assert set(get_args(MethodName)) - {"auto"} <= METHODS.keys()
    for word in get_args(PriorityName):
        assert SolveOptions(0.9, priority=word).effective_priority == word.removeprefix("exact-")
