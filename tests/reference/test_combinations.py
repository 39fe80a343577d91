"""Combinations of encodings that make no sense are refused."""

import warnings

import pytest

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from hf_posenc import PosEncConfig


@pytest.mark.parametrize(
    ("named_sum", "reason"),
    [
        ("log_n", "an encoding with position information.* write a sum, such as 'relative[+]log_n'"),
        ("randomized+log_n", "an encoding with position information.* such as 'relative[+]randomized[+]log_n'"),
        ("shape+cape", "`shape` and `cape` both change training positions"),
        ("shape+randomized", "`shape` and `randomized` both change training positions"),
        ("learned+randomized", "`randomized` gives training positions for which the table of `learned`"),
        ("cape+learned", "`cape` gives training positions for which the table of `learned`"),
        ("relative+log_n+log_n_learned", "presets of one encoding, LogN"),
    ],
)
def test_sums_that_make_no_sense_are_refused(named_sum, reason):
    with pytest.raises(ValueError, match=reason):
        PosEncConfig(position_encoding_type=named_sum)
    with pytest.raises(ValueError, match=reason):
        PosEncConfig(decoder_position_encoding_type=named_sum)


def test_log_n_by_itself_makes_sense_between_decoder_and_encoder():
    assert PosEncConfig(cross_position_encoding_type="log_n").modifies_cross_attention
