"""The explorer's tab *Stream*: its translation is the streamed one, and its window is what a step depends on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import TEXTS_VOCABULARY, tiny_model
from test_explorer import chromium, in_a_browser, opened, served, tab  # noqa: F401  (two of them are fixtures)

from hf_posenc import StreamingTranslator
from hf_posenc.lab.explorer.runs import ExplorerRun
from hf_posenc.lab.explorer.views import default_system, source_kind, stream_html, stream_record

TEXT = "Ein Hund. Zwei Kinder im Schnee Ein Hund"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("run")
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY, "dtype": torch.float32}
    for system, sides in (("another", "relative"), ("streams", "relative+window by length_ratio")):
        tiny_model(sides, **sizes, window_size=1).save_pretrained(folder / system / "model")
        tokenizer.save_pretrained(folder / system / "model")
    return folder


@pytest.fixture(scope="module")
def run(run_folder: Path) -> ExplorerRun:
    return ExplorerRun(run_folder)


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    yield from served(str(run_folder))


def written(html: str) -> str:
    [target] = re.findall(r'<p class="written">(.*?)</p>', html)
    return "".join(re.findall(r'<span class="token \w+">([^<]*)</span>', target))


@pytest.mark.full
def test_after_each_word_the_page_shows_what_is_streamed(run: ExplorerRun):
    record, translator = stream_record(run, "streams", TEXT), StreamingTranslator(*run.load_model("streams"))
    text, words = "", re.findall(r"\S+\s*", TEXT)
    for number, word in enumerate(words, 1):
        text += translator.feed(word)
        assert written(stream_html(record, number, 1)) == text
        assert record.num_read[number] == translator.num_source_tokens
    assert len(text) > 0
    assert written(stream_html(record, len(words) + 1, 1)) == text + translator.finish()
    assert record.num_words == len(words) and record.num_read[-1] == len(record.source_tokens)


@pytest.mark.full
@torch.no_grad()
def test_marked_tokens_are_those_on_which_the_step_depends(run: ExplorerRun):
    """A later source token changes no step; the record has a step at every distance."""
    record = stream_record(run, "streams", TEXT)
    for step in record.steps:
        num_read = record.num_read[step.num_words]
        kinds = [source_kind(record.reach, index, num_read, step) for index in range(len(record.source_tokens))]
        marked = [index for index, kind in enumerate(kinds) if kind in ("window", "reach")]
        assert marked == list(range(marked[0], marked[-1] + 1)) and marked[-1] < num_read
        if step.num_words <= record.num_words:  # the whole window has been read
            assert marked[-1] == record.reach.last_key(step.source_position) + record.reach.encoder_right
            assert abs(marked[-1] - step.source_position) <= record.reach.lookahead
    assert stream_html(record, 0, 0).count("unread") == len(record.source_tokens) + 2  # the legend has two


@pytest.mark.full
def test_a_model_that_cannot_stream_is_refused_with_the_reason(run: ExplorerRun):
    with pytest.raises(ValueError, match=r"Streaming must have a window"):
        stream_record(run, "another", TEXT)
    with pytest.raises(ValueError, match="the box is empty"):
        stream_record(run, "streams", "  ")
    with pytest.raises(ValueError, match="up to 400 subwords"):
        stream_record(run, "streams", "Hund " * 399)
    assert default_system(run) == "streams"


@pytest.mark.full
def test_a_text_is_no_html(run: ExplorerRun):
    html = stream_html(stream_record(run, "streams", "<script> Ein Hund </script>"), 3, 1)
    assert "<script>" not in html


class TestPage:
    pytestmark = in_a_browser

    @pytest.mark.parametrize("width", ["desktop", "phone"])
    def test_a_text_is_streamed_as_it_is_typed_and_read_word_by_word(self, width, run: ExplorerRun, address, opened):  # noqa: F811
        page = opened(address, width)
        tab(page, "Stream")
        page.locator("#stream .stream").wait_for()
        page.get_by_label("Text, as it is being written").fill(TEXT)
        num_words = len(TEXT.split())
        page.locator(f"#stream .stream[data-words='{num_words}']").wait_for()
        record = stream_record(run, "streams", TEXT)
        typed = " ".join(written(stream_html(record, num_words, 1)).split())
        assert typed and typed in " ".join(page.locator("#stream .written").text_content().split())
        page.get_by_role("button", name="Read it word by word").click()
        page.locator("#stream .stream[data-words='1']").wait_for()
        page.locator(f"#stream .stream[data-words='{num_words + 1}']").wait_for()
        whole = " ".join(written(stream_html(record, num_words + 1, 1)).split())
        assert " ".join(page.locator("#stream .written").text_content().split()) == whole
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        page.get_by_label("another").check()
        page.get_by_text("Streaming must have a window").wait_for()
