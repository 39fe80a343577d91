"""Streams as users have them: bad input, what is held back, memory, and the command line."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.environments import ROOT
from support.models import TEXTS_VOCABULARY, tiny_model, translator
from support.streams import OFFLINE
from support.tokenizers import ANY_TEXT, KINDS, SOURCES, bert

from hf_posenc import PosEncTokenizer, StreamingTranslator, __main__
from hf_posenc.encodings.cache import EVICTION_SLACK
from hf_posenc.inference.loading import load_model
from hf_posenc.inference.streaming import SubwordReader, SubwordWriter
from hf_posenc.utils.command_line import SIGPIPE_EXIT_CODE

STREAMABLE = "relative+window by length_ratio"


@pytest.fixture(params=KINDS)
def any_tokenizer(request) -> PosEncTokenizer:
    return PosEncTokenizer.train(SOURCES, 480, **KINDS[request.param])


@pytest.fixture
def stream(tokenizer) -> StreamingTranslator:
    return StreamingTranslator(translator(STREAMABLE), tokenizer)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("steps", [[], ["lowercase"], ["no_punctuation"], ["lowercase", "no_punctuation"]])
@pytest.mark.full
def test_subwords_of_a_stream_are_those_of_the_text(any_tokenizer, size, steps):
    any_tokenizer = any_tokenizer.with_normalization(source=steps)
    for text in [*ANY_TEXT, "".join(ANY_TEXT), *SOURCES[:5]]:
        reader, ids = SubwordReader(any_tokenizer), []
        for start in range(0, len(text), size):
            ids += reader.feed(text[start : start + size])
            whole = any_tokenizer(text[: start + size] + "x")["input_ids"]
            assert ids == whole[: len(ids)]  # what is given out stays, whatever follows
        assert ids + reader.finish() == any_tokenizer(text)["input_ids"] or reader.is_blank


def test_a_run_of_punctuation_is_held_back_in_constant_memory(tokenizer):
    reader = SubwordReader(tokenizer.with_normalization(source=["no_punctuation"]))
    assert [reader.feed(character) for character in "Hund" + 1000 * " ."] == [[]] * 2004
    assert len(reader.normalizer.held) == 1 and reader.num_held == 4
    assert reader.feed("a") == tokenizer("Hund")["input_ids"][:-1]


def test_text_of_subwords_is_that_of_all_of_them(any_tokenizer):
    vocabulary_size = len(any_tokenizer.target.get_vocab())
    generator = torch.Generator().manual_seed(0)
    for size in range(60):
        upper = vocabulary_size if size % 2 else 264  # bytes, and special tokens among them
        ids = torch.randint(0, upper, (size,), generator=generator).tolist()
        writer = SubwordWriter(any_tokenizer)
        text = "".join(map(writer.write, ids)) + writer.finish()
        assert text == any_tokenizer.decode(ids, skip_special_tokens=True)


def test_a_punctuation_mark_is_not_held_back_and_a_word_is(tokenizer):
    reader = SubwordReader(tokenizer)
    assert reader.feed("Ein Hund") == tokenizer("Ein")["input_ids"][:-1]
    assert len(reader.feed(".")) > 0
    assert reader.held == [""]


def test_a_text_without_space_is_read_to_its_end(tokenizer):
    text, reader = "ab" * 500, SubwordReader(tokenizer)
    assert [reader.feed(character) for character in text] == [[]] * len(text)
    assert reader.finish() == tokenizer(text)["input_ids"]
    with pytest.raises(ValueError, match=r"within 999 characters, but 1000 .* spaces"):
        SubwordReader(tokenizer, max_pretoken_length=999).feed(text)


@pytest.mark.full
def test_a_finished_stream_stays_finished(stream):
    written = stream.feed("Ein Hund. ") + stream.finish()
    assert written and stream.finish() == ""
    with pytest.raises(ValueError, match=r"`feed` .* after `finish`; make a new"):
        stream.feed("Zwei")


def test_a_hundred_thousand_characters_without_space_are_one_word(tokenizer):
    text, reader = "abÄ" * 33_334, SubwordReader(tokenizer)
    pieces = [text[start : start + 1000] for start in range(0, len(text), 1000)]
    assert [reader.feed(piece) for piece in pieces] == [[]] * len(pieces)
    assert reader.feed(" ") == tokenizer(text)["input_ids"][:-1]


def test_scores_that_overflow_are_refused(tokenizer):
    """Of `xpos` after 36,000 target tokens; here of weights that are no numbers."""
    model = translator("xpos+window by length_ratio")
    stream = StreamingTranslator(model, tokenizer)
    stream.feed("Ein Hund. Zwei Kinder im Schnee. Zwei Kinder.")
    num_written = stream.num_target_tokens
    with torch.no_grad():
        model.model.decoder.layers[0].self_attn.k_proj.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match=rf"after {num_written} target tokens .*"):
        stream.finish()
    assert num_written > 0


@pytest.mark.parametrize("pieces", [[], [""], ["", " ", "\n "]])
def test_a_blank_stream_has_an_empty_translation(stream, pieces):
    assert list(stream.translate(pieces)) == []
    assert stream.num_target_tokens == 0


@pytest.mark.full
def test_half_a_character_is_refused_and_the_stream_goes_on(tokenizer):
    model = translator(STREAMABLE)
    stream = StreamingTranslator(model, tokenizer)
    written = stream.feed("Ein Hund. ")
    with pytest.raises(ValueError, match="half a character"):
        stream.feed("Zwei \ud83d")
    written += stream.feed("Zwei Kinder") + stream.finish()
    [offline] = model.translate(["Ein Hund. Zwei Kinder"], tokenizer, num_beams=1, eos_requires_source_end=True)
    assert written == offline


@pytest.mark.parametrize("piece", [b"Hund", b"", None, 5, ["Hund"]])
def test_what_is_no_text_is_refused_and_leaves_the_stream_as_it_was(tokenizer, piece):
    model = translator(STREAMABLE, length_ratio_step=2.0)
    stream = StreamingTranslator(model, tokenizer)
    begin = stream.feed("Ein Hu")
    with pytest.raises(TypeError, match=rf"given {type(piece).__name__}; give it a str"):
        stream.feed(piece)
    assert begin + stream.feed("nd.") + stream.finish() == model.translate(["Ein Hund."], tokenizer, **OFFLINE)[0]


@pytest.mark.full
def test_memory_is_constant(tokenizer):
    """What is held of source and target does not grow with what was read and written."""
    model = translator(STREAMABLE, length_ratio_step=2.0)
    stream, sizes = StreamingTranslator(model, tokenizer), []
    for _ in range(100):
        stream.feed("Zwei Kinder im Schnee. ")
        self_cache = stream.decoder.cache.self_attention_cache.layers[0]
        sizes.append((stream.source.states_1SD.shape[1], len(stream.source.ids), self_cache.keys.shape[2]))
    assert self_cache.num_evicted > 0
    most_states, most_ids, most_keys = map(max, zip(*sizes, strict=True))
    assert most_states <= 2 * stream.reach.cross_window + max(count for count, _, _ in sizes[:10])
    assert most_ids <= stream.reach.encoder_left + 2 * stream.reach.encoder_right + len("Zwei Kinder im Schnee. ")
    assert most_keys <= 2 * (model.config.window_size + 1 + EVICTION_SLACK)


REFUSED = {
    "no window": ({"sides": "relative by length_ratio"}, r"a window in every attention, but 'relative' in the encoder"),
    "no window in the decoder": (
        {"sides": "relative+window to relative by length_ratio"},
        r"'relative' in the decoder",
    ),
    "no cross-attention": ({"sides": "relative+window"}, r"'none' in the cross-attention"),
    "cross-attention to all": (
        {"sides": "relative+window by length_ratio", "cross_position_encoding_type": "rotary"},
        r"'rotary' in the cross-attention attends to all keys; add the encoding `window`",
    ),
    "absolute": (
        {"sides": "sinusoidal+window by length_ratio"},
        r"`sinusoidal` in the encoder uses absolute positions",
    ),
    "fire": ({"sides": "fire+window by length_ratio"}, r"`fire` in the encoder uses absolute positions"),
    "both directions": ({"sides": "lstm+window by length_ratio"}, r"`lstm` .* reads all tokens after a token"),
    "one direction": ({"sides": "gru+window by length_ratio"}, r"`gru` .* reads all tokens before a token"),
    "recurrent": ({"sides": "relative+window by recurrent"}, r"alignment_type='recurrent' is not local"),
    "no alignment": (
        {"sides": "relative+window", "cross_position_encoding_type": "rotary+window"},
        r"alignment_type='none' is not local; choose 'length_ratio'",
    ),
    "backwards": (
        {"sides": "relative+window by length_ratio", "length_ratio_min_step": -100.0},
        r"never move backwards, .* set length_ratio_min_step to 0 or more",
    ),
    "backwards by fertility": (
        {"sides": "relative+window by fertility", "fertility_min_step": -100.0},
        r"never move backwards, .* set fertility_min_step to 0 or more",
    ),
    "RNN-NMT": ({"sides": "rnn_nmt"}, r"Transformer of this family, .* RnnNmtForConditionalGeneration"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_stream_is_refused_with_the_reason(why, tokenizer):
    changes, message = REFUSED[why]
    with pytest.raises(ValueError, match=rf"Streaming must .*{message}"):
        StreamingTranslator(translator(**changes), tokenizer)


def test_other_searches_and_tokenizers_are_refused(tokenizer):
    model = translator(STREAMABLE)
    model.generation_config.no_repeat_ngram_size = 3
    with pytest.raises(ValueError, match=r"no_repeat_ngram_size=3"):
        StreamingTranslator(model, tokenizer)
    with pytest.raises(ValueError, match=r"PosEncTokenizer.train, but .* PosEncTokenizer"):
        SubwordReader(PosEncTokenizer.from_fast_tokenizer(bert()))
    with pytest.raises(ValueError, match=r"added tokens or tags '<2en>'"):
        SubwordReader(PosEncTokenizer.train(SOURCES, 480, tags=["<2en>"]))


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PosEncTokenizer) -> Path:
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    model = tiny_model(STREAMABLE, dtype=torch.float32, output_bias=True, **sizes)
    with torch.no_grad():
        model.final_logits_bias[:, 4:260] = -50  # no bytes, which are held back until a whole run of them is there
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


TEXT = "Ein Hund. Zwei Kinder im Schnee, zwei Hund-Kinder im ß. " * 4


@pytest.fixture
def expected(folder: Path) -> str:
    model, tokenizer = load_model(folder)
    [offline] = model.translate([TEXT.strip()], tokenizer, num_beams=1, eos_requires_source_end=True)
    return f"{offline}\n"


def run_stream(monkeypatch, capsys, folder: Path, data: bytes, *options: str) -> str:
    """What the command prints for these bytes of standard input."""
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data), 16))
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "translate", str(folder), "--stream", *options])
    __main__.main()
    return capsys.readouterr().out


@pytest.mark.full
def test_command_reads_standard_input_as_one_text(folder, expected, monkeypatch, capsys):
    """Line ends separate words, as spaces do; around the text there is nothing."""
    assert run_stream(monkeypatch, capsys, folder, TEXT.encode()) == expected
    lines = "\ufeff\n\n" + TEXT.replace(" ", " \r\n\n  ") + "\n" * 9
    assert run_stream(monkeypatch, capsys, folder, lines.encode()) == expected
    assert run_stream(monkeypatch, capsys, folder, b" \n") == "\n"


@pytest.mark.full
def test_command_writes_the_rest_before_it_refuses_bytes(folder, monkeypatch, capsys, tokenizer):
    """A stream that ends in half a character, and one with a character of another encoding."""
    model, _ = load_model(folder)
    [before] = model.translate(["Zwei Kinder im Schnee"], tokenizer, num_beams=1, eos_requires_source_end=True)
    for invalid in (b"\xc3", b" \xe4 im"):
        with pytest.raises(SystemExit, match=r"UTF-8, but standard input has b'.* iconv"):
            run_stream(monkeypatch, capsys, folder, b"Zwei Kinder im Schnee" + invalid)
        assert capsys.readouterr().out == before


def test_command_refuses_what_goes_with_lines(folder, monkeypatch, capsys):
    for options in (["--output", "x"], ["--num-processes", "2"], ["--batch-size", "2"], ["--max-new-tokens", "9"]):
        with pytest.raises(SystemExit, match=r"--stream .* standard output"):
            run_stream(monkeypatch, capsys, folder, b"Ein", *options)


def test_command_refuses_beams(folder, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"Streaming must be greedy, but a beam of 3 .*; set its width to 1\.$"):
        run_stream(monkeypatch, capsys, folder, b"Ein", "--num-beams", "3")


def start_command(folder: Path) -> subprocess.Popen:
    arguments = [sys.executable, "-m", "hf_posenc", "translate", str(folder), "--stream"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # One thread, as in the tests: the sums of several differ, and an untrained model has near ties.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, **pipes)


@pytest.mark.slow
def test_command_writes_while_its_input_waits(folder, expected):
    """What is fixed comes while standard input stays open, however long; the rest when it is closed."""
    process = start_command(folder)
    process.stdin.write(TEXT.encode())
    process.stdin.flush()
    first = process.stdout.read(10)
    assert process.poll() is None
    rest, _ = process.communicate(timeout=600)
    assert (first + rest).decode() == expected


@pytest.mark.slow
def test_command_ends_when_its_reader_has_gone(folder):
    process = start_command(folder)
    process.stdin.write(TEXT.encode())
    process.stdin.flush()
    process.stdout.read(1)
    process.stdout.close()
    _, errors = process.communicate(TEXT.encode() * 20, timeout=600)
    assert process.returncode == SIGPIPE_EXIT_CODE
    assert b"Traceback" not in errors
