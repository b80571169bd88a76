import numpy as np
import pytest

from capsnmt.decoding.penalties import LENGTH_PENALTIES, length_penalty, log_coverage
from capsnmt.errors import CapsNMTError


def test_values_by_hand():
    assert length_penalty(7.0, 1.0, "wu") == pytest.approx(2.0)
    assert length_penalty(19.0, 0.5, "wu") == pytest.approx(2.0)
    assert length_penalty(9.0, 0.5, "len") == pytest.approx(3.0)


@pytest.mark.parametrize("kind", LENGTH_PENALTIES)
def test_alpha_zero_is_no_penalty_and_length_one_costs_nothing(kind):
    assert length_penalty(17.0, 0.0, kind) == 1.0
    assert length_penalty(1.0, 0.8, kind) == 1.0


@pytest.mark.parametrize("kind", LENGTH_PENALTIES)
def test_arrays_equal_scalars_and_never_shrink(kind):
    lengths = np.arange(1.0, 300.0)
    values = length_penalty(lengths, 0.8, kind)
    assert values == pytest.approx([length_penalty(float(length), 0.8, kind) for length in lengths])
    assert (np.diff(values) > 0).all()


def test_errors_name_value_and_fix():
    with pytest.raises(CapsNMTError, match=r"'words' is unknown.*wu, len"):
        length_penalty(3.0, 1.0, "words")
    for alpha in (-0.5, float("nan")):
        with pytest.raises(CapsNMTError, match=f"{alpha} must be 0 or more"):
            length_penalty(3.0, alpha, "wu")


def test_coverage_is_paid_for_what_was_looked_at_less_than_once():
    coverage = np.array([[0.5, 1.0, 0.25], [3.0, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=np.float32)
    found = log_coverage(coverage)
    assert found[:2] == pytest.approx([np.log(0.125), 0.0])
    assert -30.0 < found[2] < -20.0  # an underflow is bad, not impossible
