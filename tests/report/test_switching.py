"""Controls over time: lines where they are held, bands where they chatter."""

from __future__ import annotations

import numpy as np

from ooc_mdp.report.switching import control_lines

TIMES = np.arange(0.0, 15.0, 0.01)


def test_a_control_that_is_held_is_a_line():
    values = np.where(TIMES < 7.0, -1.0, 1.0)
    lines = control_lines(TIMES, values, 15.0)
    np.testing.assert_array_equal(lines.held, values)
    assert np.isnan(lines.low).all()


def test_a_control_that_chatters_is_a_band_with_its_mean():
    chatter = np.where(np.arange(TIMES.size) % 4 == 0, 1.0, -1.0)
    values = np.where((TIMES > 5.0) & (TIMES < 10.0), chatter, -1.0)
    lines = control_lines(TIMES, values, 15.0)
    middle = (lines.middles > 5.5) & (lines.middles < 9.5)
    assert (lines.low[middle] == -1.0).all()
    assert (lines.high[middle] == 1.0).all()
    np.testing.assert_allclose(lines.mean[middle], -0.5, atol=0.05)
    outside = (lines.middles < 4.5) | (lines.middles > 10.5)
    assert np.isnan(lines.mean[outside]).all()
    assert np.isnan(lines.held[(TIMES > 5.5) & (TIMES < 9.5)]).all()
    assert not np.isnan(lines.held[(TIMES < 4.5) | (TIMES > 10.5)]).any()


def test_a_short_run_in_a_long_plot_has_a_band_no_longer_than_itself():
    times = np.arange(0.0, 1.0, 0.01)
    lines = control_lines(times, np.arange(100) % 2.0, 15.0)
    assert np.nanmax(np.where(np.isnan(lines.low), np.nan, lines.middles)) < 1.0 + 0.1
    alone = control_lines(np.zeros(1), np.ones(1), 0.0)
    assert alone.held.tolist() == [1.0]
