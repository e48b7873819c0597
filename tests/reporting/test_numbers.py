"""Numbers of tables, on paper."""

import pytest

from cosent.reporting.numbers import Number, Range, mean_of, mean_of_corpora, printed, times_100


def test_a_mean_has_its_deviation():
    """Fails if a table shows another mean or deviation than that of its runs: 0.6 and 0.7 give 65.00 ± 7.07."""
    assert printed(times_100([0.6, None, 0.7])) == "65.00 ± 7.07"
    assert printed(times_100([0.6])) == "60.00", "one run has no deviation"
    assert times_100([0.6, 0.7]).value == pytest.approx(65)
    assert times_100([None]) is None and times_100([]) is None


def test_a_mean_of_corpora_needs_all_of_them():
    """Fails if a method that was tested on the easy corpora only gets the best mean: (0.5 + 0.8) / 2 is 65.00."""
    assert printed(mean_of_corpora([[0.4, 0.6], [0.8]])) == "65.00"
    assert mean_of_corpora([[0.4], []]) is None and mean_of_corpora([[0.4], [None]]) is None
    assert mean_of_corpora([[0.4]]) is None, "of one corpus, it would repeat its column"


def test_cells_are_printed_in_their_format():
    """Fails if a count gets decimals, an interval loses its signs, or an empty cell says None."""
    cells = [None, 3, "text", Number(0.1234, form=".1%"), Range(-0.5, 1.25), mean_of([1.0, 2.0, None], ".1f")]
    assert [printed(cell) for cell in cells] == ["", "3", "text", "12.3%", "-0.50 to +1.25", "1.5"]
    assert mean_of([], ".1f") is None
