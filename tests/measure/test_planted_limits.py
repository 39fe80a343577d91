"""Models whose limits are planted are measured as what they are."""

import pytest
from support.measured import LENGTHS, character_tokenizer, copy_model, induction_model, periodic_texts

from hf_posenc.measure.measure import measure_length
from hf_posenc.measure.report import LengthReport, reach

TEXTS = periodic_texts(LENGTHS[-1])


def measured(model, lengths=LENGTHS) -> LengthReport:
    return measure_length(model, character_tokenizer(), TEXTS, lengths, max_blocks=16, trials=1, progress=False)


@pytest.mark.parametrize("window", [64, 128])
def test_a_model_that_copies_within_a_window_by_construction(window: int) -> None:
    report = measured(copy_model(window))
    print(report.to_markdown())
    assert report.useful_length == window
    assert reach(report.copying) == window
    assert reach(report.retrieval) == window


@pytest.mark.parametrize("window", [32, 64, 128])
def test_our_model_with_a_window(window: int) -> None:
    """The second layer reads tokens of the window, and the first layer one more."""
    report = measured(induction_model("t5+window", window_size=window))
    print(report.to_markdown())
    assert report.useful_length == window
    assert reach(report.copying) == window


def test_our_model_without_a_window() -> None:
    report = measured(induction_model("t5"))
    print(report.to_markdown())
    assert report.useful_length == LENGTHS[-1]
    assert reach(report.copying) == LENGTHS[-1]
