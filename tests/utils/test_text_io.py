"""Text input and output: UTF-8, one rule for line ends, packed files, any terminal."""

import ast
import bz2
import gzip
import importlib
import io
import json
import lzma
import random
import sys
from pathlib import Path

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from hf_posenc.hub.checkpoint_code import copy_of_user_file
from hf_posenc.hub.errors import is_blank
from hf_posenc.utils.command_line import set_stdout_utf8
from hf_posenc.utils.text_io import (
    BROKEN_LINE,
    LINE_END,
    SEPARATORS,
    iter_lines,
    json_line,
    read_lines,
    read_stream,
    replace_line_ends,
)

# What str.splitlines, or another program, takes for the end of a line.
LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("end", LINE_ENDS, ids=ascii)
def test_a_line_feed_alone_ends_a_line(tmp_path, end):
    text = f"a{end}b\r\nc{end}\n\n"
    expected = [line.removesuffix("\r") for line in text.split("\n")[:-1]]
    assert list(read_lines(written(tmp_path / "a", text.encode()))) == expected
    assert list(iter_lines(io.BufferedReader(io.BytesIO(text.encode())), "standard input")) == expected


@pytest.mark.parametrize("end", LINE_ENDS, ids=ascii)
def test_what_is_written_as_a_line_is_one_to_every_program(end):
    assert replace_line_ends(f"a{end}b") == "a b"
    assert replace_line_ends(f"{end}a{end}") == " a "
    value = {"text": f"ä{end}b"}
    line = json_line(value)
    assert line.endswith("}\n") and "ä" in line and len(line.splitlines()) == 1
    assert json.loads(line) == value


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ending", PACK)
def test_a_packed_text_is_read_as_a_plain_one(tmp_path, ending, named):
    """By its content: a name says nothing of it, or the same."""
    text = "\ufeffJa.\nÖl.\r\n\nein Ende"
    path = written(tmp_path / f"a{ending if named else ''}", PACK[ending](text.encode()))
    assert list(read_lines(path)) == ["Ja.", "Öl.", "", "ein Ende"]


@pytest.mark.parametrize("ending", [ending for ending in PACK if ending])
@pytest.mark.parametrize("broken", ["cut", "plain", "flipped"])
def test_a_broken_packed_text_is_refused(tmp_path, ending, broken):
    text = "".join(f"{number * number}\n" for number in range(9999)).encode()
    whole = bytearray(PACK[ending](text))
    whole[len(whole) // 2] ^= 255
    content = {"cut": PACK[ending](text)[:-50], "plain": text, "flipped": bytes(whole)}[broken]
    path = written(tmp_path / f"a{ending}", content)
    with pytest.raises(ValueError, match=rf"named {ending} must be whole and .*{path} breaks off after line \d+ \("):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Ja.\nÖl.".encode("latin-1"), r"a, line 2, is not \('utf-8' codec can't decode byte 0xd6 .* iconv -f ISO"),
        ("Ja.".encode("utf-16"), r"a is UTF-16: convert it, such as by iconv -f UTF-16 -t UTF-8\.$"),
        ("\ufeffJa.".encode("utf-16-be"), "a is UTF-16: "),
        ("Ja.".encode("utf-32"), "a is UTF-32: "),
        ("\ufeffJa.".encode("utf-32-be"), "a is UTF-32: "),
        ("Ja.".encode("utf-16-le"), "a begins as UTF-16 does"),
        ("Ja.".encode("utf-16-be"), "a begins as UTF-16 does"),
        (b"PK\x03\x04\x14\x00\x00\x00", "a is a zip archive: unpack it"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "a is zstandard: decompress it, such as by zstd -d"),
        (b"", "A text must have lines, but .*a is empty"),
    ],
)
def test_what_is_no_utf8_is_refused_by_what_it_is(tmp_path, content, said):
    with pytest.raises(ValueError, match=said):
        list(read_lines(written(tmp_path / "a", content)))


def test_text_that_begins_like_packed_one_is_text(tmp_path):
    for line in ("BZh", "BZh9 ist ein Name", "PK", "(µ/ý"):
        assert list(read_lines(written(tmp_path / "a", line.encode()))) == [line]


@pytest.mark.parametrize("ending", [ending for ending in PACK if ending])
def test_a_small_file_that_holds_very_much_is_refused(tmp_path, ending):
    """By its bytes or by its lines."""
    for line, number in ((b"Ja.\n", 20_000), (b"\n", 20_000), (b"Ja! " * 500 + b"\n", 600)):
        path = written(tmp_path / f"a{ending}", PACK[ending](line * number))
        assert sum(1 for _ in read_lines(path)) == number, "that much is none yet"
        with pytest.raises(ValueError, match=rf"at most 100 times .* but in .*a{ending}, up to line \d+, "):
            list(read_lines(path, window_bytes=10**6))


def test_what_precedes_a_part_that_holds_very_much_makes_it_no_smaller(tmp_path):
    """Text that is hard to compress is read, however long it is."""
    text = b"".join(b"%x\n" % number for number in map(random.Random(0).getrandbits, [400] * 25_000))
    path = written(tmp_path / "a.gz", gzip.compress(text, 1))
    assert sum(1 for _ in read_lines(path, window_bytes=10**6)) == 25_000
    path = written(tmp_path / "b.gz", gzip.compress(text + b"\n" * 10**5, 1))
    with pytest.raises(ValueError, match=r"at most 100 times .* up to line \d+, "):
        list(read_lines(path, window_bytes=10**6))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_without_end_is_refused(ending):
    packed = io.BufferedReader(io.BytesIO(PACK[ending](b"a\n" + b"b" * 999 + b"\n" + b"c" * 5000)))
    lines = iter_lines(packed, f"a{ending}", window_bytes=10**4, max_line_bytes=1000)
    assert [len(next(lines)) for _ in range(2)] == [1, 999]
    with pytest.raises(ValueError, match=r"at most 1000 bytes, but .*, line 3,"):
        next(lines)


def test_a_packed_stream_is_refused():
    """Nothing says how large it is."""
    with pytest.raises(ValueError, match=r"standard input .* \(\.gz\): decompress"):
        list(iter_lines(io.BufferedReader(io.BytesIO(gzip.compress(b"Ja."))), "standard input"))


def test_what_is_printed_is_utf8_whatever_the_terminal_lacks(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", newline="\r\n"))
    set_stdout_utf8()
    print("„日本“", flush=True)
    assert written.getvalue() == "„日本“\n".encode()
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # of a notebook or another program
    set_stdout_utf8()


def test_a_form_feed_in_a_users_file_moves_no_import(tmp_path, monkeypatch, unregistered_after):
    """Python's parser counts line feeds alone; editors put form feeds between parts of a file."""
    (tmp_path / "with_form_feed.py").write_text(
        '"""Mine."""\n\f\nfrom hf_posenc import PositionEncoding, register_position_encoding\n\f\nNOTE = "a\x85b"\n\n\n'
        "class Mine(PositionEncoding):\n    summary = NOTE\n    shift_invariant = True\n\n\n"
        'register_position_encoding("mine", Mine)\n',
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("with_form_feed").Mine
    made, _ = copy_of_user_file(mine, "register_position_encoding", lambda module: "encodings")
    assert "hf_posenc" not in made and "from .encodings import PositionEncoding\n" in made
    assert 'NOTE = "a\x85b"' in made and made.count("\f") == 2
    ast.parse(made)


@pytest.mark.full
def test_a_line_ends_and_a_blank_is_what_unicode_says():
    """One definition: line ends are Python's, blanks those of tokenizers, in every module that reads text."""
    characters = list(map(chr, range(sys.maxunicode + 1)))
    line_ends = {one for one in characters if LINE_END.fullmatch(one)}
    assert line_ends == {one for one in characters if len(f"a{one}b".splitlines()) == 2}
    blanks = {one for one in characters if is_blank(one)}
    assert set(SEPARATORS) == line_ends | blanks
    at_blanks = Split(Regex(r"\s"), "isolated")
    candidates = [one for one in characters if one.isspace() or one in SEPARATORS]
    assert blanks == {one for one in candidates if len(at_blanks.pre_tokenize_str(f"a{one}b")) > 1}


@pytest.mark.parametrize("blank", ["\x1f", "\u200b", "\x1c", "\u2028", "\x85", "\u3000", " "])
def test_a_stream_has_the_characters_of_its_text_but_for_blanks_at_line_ends(blank):
    """At a border of chunks, at the ends of the text, and next to a line end."""
    for text in (f"a{blank}b", f"a {blank}", f"{blank}a", f"a{blank}\nb", f"a\n{blank}b"):
        whole = BROKEN_LINE.sub(" ", text.strip(SEPARATORS))
        stream = io.BufferedReader(OneByteAtATime(text.encode()))
        assert "".join(read_stream(stream, "a stream")) == whole


class OneByteAtATime(io.BytesIO):
    """A stream whose reads return a byte each, as a slow terminal's do."""

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer)[:1])
