"""Signals become flags, of a run and of those around it."""

from __future__ import annotations

import signal

import pytest

from ooc_mdp.runtime.signals import signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flags_of_all_runs_under_way(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals() as outer:
        with signals() as inner:
            signal.raise_signal(number)
            assert inner()
        assert outer()
        with signals() as later:
            assert not later(), "it came before that run"
    assert signal.getsignal(number) is before


def test_a_signal_after_a_run_within_another_is_the_other_s() -> None:
    with signals() as outer:
        with signals() as inner:
            pass
        signal.raise_signal(signal.SIGINT)
        assert outer()
        assert not inner()
