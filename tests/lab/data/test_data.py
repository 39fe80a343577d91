"""Reading, concatenating, encoding and filtering parallel text, and the error for each unreadable file."""

import gzip
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, Value

from hf_posenc.lab.config.errors import parse
from hf_posenc.lab.config.settings import CorpusKeys
from hf_posenc.lab.data import corpus, synthetic
from hf_posenc.lab.data.corpus import concatenate_consecutive, load_pairs
from hf_posenc.lab.data.lengths import balance_lengths, filter_lengths, lengths
from hf_posenc.lab.data.overlap import Overlap, find_overlaps, without_concatenation
from hf_posenc.lab.data.readers import corpus_file_hashes, is_files_spec
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.lab.data.tokenization import tokenize_pairs, train_tokenizer
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer

GERMAN_ENGLISH = {"source_language": "de", "target_language": "en"}
PAIRS = [("Das Haus.", "The house."), ("Ein Öl, bitte!", "An oil, please!"), ("Ja.", "Yes.")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> PosEncTokenizer:
    return PosEncTokenizer.train([text for pair in PAIRS for text in pair] * 3, 320)


def texts(pairs: Dataset, source: str = "de", target: str = "en") -> list[tuple[str, str]]:
    assert pairs.column_names == ["translation"]
    assert pairs.features["translation"] == {source: Value("string"), target: Value("string")}
    return [(row[source], row[target]) for row in pairs["translation"]]


def dataset_of(pairs: list[tuple[str, str]]) -> Dataset:
    return Dataset.from_dict({"translation": [{"de": source, "en": target} for source, target in pairs]})


def write(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path.name


def write_aligned(folder: Path, pairs: list[tuple[str, str]], name: str = "a", end: str = "") -> list[str]:
    sides = zip(("de", "en"), zip(*pairs, strict=True), strict=True)
    return [
        write(folder / f"{name}.{language}{end}", "".join(f"{line}\n" for line in side)) for language, side in sides
    ]


def write_tsv(folder: Path, pairs: list[tuple[str, str]], name: str = "a.tsv") -> str:
    return write(folder / name, "".join(f"{source}\t{target}\n" for source, target in pairs))


def write_jsonl(folder: Path, pairs: list[tuple[str, str]], name: str = "a.jsonl", **more: str) -> str:
    rows = ({"translation": {"en": target, "de": source, **more}} for source, target in pairs)
    return write(folder / name, "".join(json.dumps(row) + "\n" for row in rows))


def load(folder: Path, where: dict[str, Any]) -> Dataset:
    return load_pairs(where, folder=str(folder), **GERMAN_ENGLISH)


# Reading


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("kind", ["aligned", "tsv", "jsonl"])
def test_every_kind_of_file_gives_the_same_pairs(tmp_path: Path, kind: str, end: str) -> None:
    if kind == "aligned":
        files: Any = write_aligned(tmp_path, PAIRS, end=end)
    elif kind == "tsv":
        files = write_tsv(tmp_path, PAIRS, "a.tsv" + end)
    else:
        files = write_jsonl(tmp_path, PAIRS, "a.jsonl" + end, fr="Oui.")
    assert texts(load(tmp_path, {"files": files})) == PAIRS


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    first, second = write_aligned(tmp_path, PAIRS), write_aligned(tmp_path, PAIRS[:1], "b", ".gz")
    assert texts(load(tmp_path, {"files": [first, second]})) == PAIRS + PAIRS[:1]
    assert texts(load(tmp_path, {"files": [second, first]})) == PAIRS[:1] + PAIRS
    tables = [write_tsv(tmp_path, PAIRS[1:]), write_jsonl(tmp_path, PAIRS[:2])]
    assert texts(load(tmp_path, {"files": tables})) == PAIRS[1:] + PAIRS[:2]
    assert texts(load(tmp_path, {"files": [first, tables[0]]})) == PAIRS + PAIRS[1:]


def test_source_and_target_may_be_exchanged(tmp_path: Path) -> None:
    german, english = write_aligned(tmp_path, PAIRS)
    swapped = [(target, source) for source, target in PAIRS]
    english_german = {"source_language": "en", "target_language": "de", "folder": str(tmp_path)}
    assert texts(load_pairs({"files": [english, german]}, **english_german), "en", "de") == swapped
    jsonl = write_jsonl(tmp_path, PAIRS)
    assert texts(load_pairs({"files": jsonl}, **english_german), "en", "de") == swapped


def test_paths_are_relative_to_the_folder_or_to_home_or_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_tsv(tmp_path, PAIRS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder, path in [(None, name), (None, f"~/{name}"), ("/nowhere", f"~/{name}"), ("~", name)]:
        assert texts(load_pairs({"files": path}, folder=folder, **GERMAN_ENGLISH)) == PAIRS
    assert texts(load_pairs({"files": str(tmp_path / name)}, folder="/nowhere", **GERMAN_ENGLISH)) == PAIRS


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    odd = [("a\u2028b\x0bc\x0cd\x85e", "f\rg"), ("h\u2029", "\x1ci\ufeff")]
    assert texts(load(tmp_path, {"files": write_aligned(tmp_path, odd)})) == odd
    assert texts(load(tmp_path, {"files": write_tsv(tmp_path, odd)})) == odd


def test_windows_line_ends_byte_order_marks_and_a_missing_last_line_feed_are_not_text(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.de", b"\xef\xbb\xbfJa.\r\nNein.\r\n"), write(tmp_path / "a.en", "Yes.\nNo.")]
    assert texts(load(tmp_path, {"files": files})) == [("Ja.", "Yes."), ("Nein.", "No.")]


def test_a_pair_with_an_empty_side_is_kept(tmp_path: Path) -> None:
    pairs = [("Ja.", ""), ("", "No."), ("", "")]
    assert texts(load(tmp_path, {"files": write_aligned(tmp_path, pairs)})) == pairs


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    name, cached = write_tsv(tmp_path, [("alt", "old")]), []
    for _ in range(2):
        pairs = load(tmp_path, {"files": name})
        cached.append(pairs.cache_files[0]["filename"])
        assert texts(pairs) == [("alt", "old")]
    assert cached[0] == cached[1]
    os.utime(tmp_path / name, ns=(0, 0))
    before = load(tmp_path, {"files": name})
    write_tsv(tmp_path, [("neu", "new")])  # of the same size
    assert texts(before) == [("alt", "old")]
    assert texts(load(tmp_path, {"files": name})) == [("neu", "new")]


def test_reading_streams(tmp_path: Path) -> None:
    pairs = load(tmp_path, {"files": write_aligned(tmp_path, PAIRS)})
    assert pairs.cache_files, "the pairs lie in a memory-mapped file"


def test_the_progress_bars_of_small_corpora_are_hidden_and_the_setting_survives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tokenizer: PosEncTokenizer
) -> None:
    assert not datasets.are_progress_bars_disabled()
    pairs = load(tmp_path, {"files": write_aligned(tmp_path, PAIRS), "concatenate": 2})
    tokenize_pairs(pairs, tokenizer, **GERMAN_ENGLISH)
    train_tokenizer(pairs, 300, **GERMAN_ENGLISH)
    with pytest.raises(ValueError, match="empty"):
        load(tmp_path, {"files": write(tmp_path / "empty.tsv", "")})
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()


def test_the_progress_bars_of_large_corpora_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Patched, because 100,000 pairs take half a minute.
    monkeypatch.setattr("hf_posenc.lab.data.corpus.PROGRESS_BAR_MIN_PAIRS", 0)
    load(tmp_path, {"files": write_aligned(tmp_path, PAIRS), "concatenate": 2})
    shown = capfd.readouterr().err
    assert "Generating" in shown and "Map" in shown


# What cannot be read


def refused(folder: Path, where: dict[str, Any], *words: str, kind: type[Exception] = ValueError) -> None:
    """`where` is refused with a message that has the `words` in this order, as itself and with nothing left behind."""
    with pytest.raises(kind) as caught:
        load(folder, where)
    message, start = str(caught.value), 0
    for word in words:
        assert word in message[start:], f"{word!r} is not in its place in: {message}"
        start = message.index(word, start) + len(word)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not list((folder / "cache").rglob("*.arrow")), "nothing is left in the cache"


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("num_german", "num_english"), [(3, 5), (5, 3)])
def test_files_of_different_length_are_refused(tmp_path: Path, num_german: int, num_english: int, end: str) -> None:
    german, english = (
        write(tmp_path / f"a.de{end}", "x\n" * num_german),
        write(tmp_path / f"a.en{end}", "x\n" * num_english),
    )
    shorter, longer = (german, english) if num_german < num_english else (english, german)
    rule = "aligned files must have the same number of lines"
    refused(tmp_path, {"files": [german, english]}, rule, shorter, "after line 3", longer, "has 5 lines", "align")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.jsonl.gz"):
        refused(tmp_path, {"files": write(tmp_path / name, "")}, "must have lines", name, "is empty", "take it off")
    files = write_aligned(tmp_path, PAIRS)
    for side, name in enumerate(["b.de", "b.en"]):
        one_empty = [*files[:side], write(tmp_path / name, ""), *files[side + 1 :]]
        refused(tmp_path, {"files": one_empty}, "must have lines", name, "is empty", "take it off")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.de", "Ja.\nÖl.\nNein.".encode("latin-1")), write(tmp_path / "a.en", "Yes.\nOil.\nNo.")]
    refused(tmp_path, {"files": files}, "must be UTF-8", "a.de, line 2,", "0xd6", "iconv")


def test_a_tsv_without_two_columns_is_refused(tmp_path: Path) -> None:
    for line, num_columns in [("Ja.", 1), ("Ja.\tYes.\tOui.", 3), ("", 1)]:
        name = write(tmp_path / "a.tsv", f"a\tb\n{line}\na\tb\n")
        refused(tmp_path, {"files": name}, "must have two columns", "a.tsv, line 2,", f"has {num_columns}", "one tab")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"translation": null}',
        '{"translation": {"de": "Ja."}}',
        '{"translation": {"de": "Ja.", "en": null}}',
        '{"translation": {"de": 1, "en": 2}}',
        '{"translation": {"de": ["Ja."], "en": ["Yes."]}}',
        '{"translation": {"de": "Ja.", "en": "\\ud800"}}',
        '{"de": "Ja.", "en": "Yes."}',
        "[" * 100_000,
        '{"translation":' * 100_000,
        "1" * 5_000,
    ],
    ids=lambda line: line[:40],
)
def test_a_jsonl_of_another_form_is_refused(tmp_path: Path, line: str) -> None:
    good = '{"translation": {"de": "Ja.", "en": "Yes."}}'
    name = write(tmp_path / "a.jsonl", f"{good}\n{good}\n{line}\n")
    form = 'must be {"translation": {"de": text, "en": text}}'
    refused(tmp_path, {"files": name}, form, "a.jsonl, line 3, is", repr(line[:80]), "correct or remove")


@pytest.mark.full
def test_a_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{number}\t{number * number}\n" for number in range(9999))
    whole = gzip.compress(rows.encode())
    path = tmp_path / "a.tsv.gz"
    for broken in (rows.encode(), whole[: len(whole) // 2], whole[:-9] + bytes(9), whole[:10] + b"\xff" * 99):
        path.write_bytes(broken)
        refused(tmp_path, {"files": path.name}, "must be whole and gzip", "a.tsv.gz breaks off after line", "again")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    there = write_aligned(tmp_path, PAIRS)[0]
    for files in ([there, "gone.en"], "gone.tsv", [[there, there], [there, "gone.en"]]):
        remedy = f"correct the path; a relative one starts at {tmp_path}"
        refused(tmp_path, {"files": files}, "must exist", "gone.", remedy, kind=FileNotFoundError)


@pytest.mark.parametrize(
    "files",
    [[], [[]], 3, "a.de", ["a.de"], ["a.de", "a.en", "b.de", "b.en"], ["a.tsv", "b.en"], [["a.de", 3]], {"a": 1}],
)
def test_files_have_one_shape(files: Any) -> None:
    assert not is_files_spec(files)
    assert is_files_spec([["a.de", "a.en"], "b.tsv"])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "data.train: .*exactly one of dataset, files, generator.*holds none: write"),
        ({"files": None}, "holds none"),
        ({"files": "a.tsv", "dataset": "x"}, "dataset and files: write"),
        ({"fils": "a.tsv", "task": {}}, "no key 'fils'; the nearest one is"),
        ({"files": "a.tsv", "split": "train"}, "no key 'split'; the nearest"),
        ({"files": "a.tsv", "min_words": 3}, "belong together, but 'document_ids' is missing"),
        ({"files": "a.tsv", "document_ids": "d"}, "belong together, but 'min_words' is missing"),
        (
            {"generator": {"seed": 1, "pairs": 1, "min_words": 9, "max_words": 7}},
            "data.train.generator: min_words must not exceed max_words",
        ),
        (
            {"corpora": [{"task": {"name": "copy", "seed": 1, "min_length": 9, "max_length": 7}}]},
            r"corpora\[0\]\.task: min_length must not",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(where: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(CorpusKeys, where, "data.train")


def test_one_language_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must differ, but both are 'de'"):
        load_pairs({"files": write_tsv(tmp_path, PAIRS)}, source_language="de", target_language="de")


# The Hub and the generator


def test_a_dataset_by_name_is_brought_into_form(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder, PAIRS, "train.jsonl", fr="Oui.")
    write_jsonl(folder, PAIRS[:2], "test.jsonl", fr="Oui.")
    assert texts(load(tmp_path, {"dataset": "corpus", "split": "train"})) == PAIRS
    assert texts(load(tmp_path, {"dataset": str(folder), "split": "test[1:]", "max_examples": 5})) == PAIRS[1:2]
    one_two = "one split is read, but .*corpus has (train, test|test, train): add for example split: "
    with pytest.raises(ValueError, match=one_two):
        load(tmp_path, {"dataset": "corpus"})
    (folder / "test.jsonl").unlink()
    assert texts(load(tmp_path, {"dataset": "corpus"})) == PAIRS
    with pytest.raises(ValueError, match=r"`translation` with texts of de and cs, but .*fr.*: choose"):
        load_pairs({"dataset": str(folder)}, source_language="de", target_language="cs")


@pytest.mark.parametrize(
    "feature",
    [
        datasets.Translation(["de", "en"]),
        datasets.Translation(["cs", "de", "en"]),
        {"en": Value("large_string"), "de": Value("string")},
    ],
)
def test_the_forms_in_use_on_the_hub_become_one(monkeypatch: pytest.MonkeyPatch, feature: Any) -> None:
    languages = feature.languages if isinstance(feature, datasets.Translation) else feature
    rows = [{language: f"{language} {number}" for language in languages} for number in range(3)]
    rows[2]["en"] = None
    on_hub = Dataset.from_dict(
        {"id": range(3), "translation": rows},
        features=datasets.Features({"id": Value("int64"), "translation": feature}),
    )
    asked: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: asked.append((names, options)) or on_hub)
    pairs = load_pairs({"dataset": "wmt14", "name": "de-en", "split": "test", "revision": "abc"}, **GERMAN_ENGLISH)
    assert asked == [(("wmt14",), {"name": "de-en", "split": "test", "revision": "abc"})]
    assert texts(pairs) == [("de 0", "en 0"), ("de 1", "en 1"), ("de 2", "")]


NULLS = [
    {"de": "der Hund", "en": "the dog"}, {"de": "die Katze", "en": None}, {"de": None, "en": "a house"},
    {"de": None, "en": None}, None, {"de": "", "en": "rain"},
]  # fmt: skip
STRUCTS = {kind: {"de": Value(kind), "en": Value(kind)} for kind in ("string", "large_string")}


@pytest.mark.parametrize("feature", [None, *STRUCTS.values(), datasets.Translation(["de", "en"])], ids=str)
def test_a_null_of_a_dataset_is_an_empty_side_whatever_its_type(
    tmp_path: Path, feature: Any, tokenizer: PosEncTokenizer
) -> None:
    """Of JSON lines, and of each form in which parquet holds texts."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    if feature is not None:
        features = datasets.Features({"translation": feature})
        Dataset.from_dict({"translation": NULLS}, features=features).to_parquet(folder / "train.parquet")
    else:
        lines = "".join(json.dumps({"translation": row}) + "\n" for row in NULLS)
        (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    pairs = load(tmp_path, {"dataset": "corpus", "split": "train"})
    expected = [((row or {}).get("de") or "", (row or {}).get("en") or "") for row in NULLS]
    assert texts(pairs) == expected
    joined = tuple(" ".join(filter(None, side)) for side in zip(*expected, strict=True))
    assert texts(concatenate_consecutive(pairs, len(NULLS))) == [joined]
    assert [row["de"] for row in find_overlaps(pairs, {"test": pairs})["test"].pairs] == [
        de for de, en in expected if de or en
    ]
    encoded = tokenize_pairs(pairs, tokenizer, **GERMAN_ENGLISH)
    assert filter_lengths(encoded, min_length=None, max_length=None)[:] == encoded[:1]


@pytest.mark.parametrize("text", [["a"], {"text": "a"}, ["a", 5]], ids=str)
def test_a_dataset_whose_texts_are_no_texts_is_refused(tmp_path: Path, text: Any) -> None:
    """Lists, objects, and texts of which some are numbers, which datasets reads as JSON with its quotation marks."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [{"de": "x", "en": english} for english in (text if text == ["a", 5] else [text])]
    lines = "".join(json.dumps({"translation": row}) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(ValueError, match=r"`translation` with texts of de and en, but .*corpus has"):
        load(tmp_path, {"dataset": "corpus", "split": "train"})


@pytest.mark.parametrize("content", ["", '{"translation": ' + "[" * 2_000, '{"transl'], ids=len)
def test_a_dataset_that_cannot_be_read_is_a_value_error_with_its_name(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"rows .* but .*corpus has not \(.+\): correct"):
        load(tmp_path, {"dataset": "corpus", "split": "train"})


@pytest.mark.parametrize("column", [None, "text", ["text"]])
def test_a_dataset_without_translations_is_refused(monkeypatch: pytest.MonkeyPatch, column: Any) -> None:
    plain = Dataset.from_dict({"text": ["x"]} if column is None else {"translation": [column]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: plain)
    with pytest.raises(ValueError, match=r"`translation` with texts of de and en, but .*: choose"):
        load_pairs({"dataset": "corpus"}, **GERMAN_ENGLISH)


SETTINGS = {"seed": 7, "pairs": 20, "min_words": 8, "max_words": 30}


def test_generated_pairs_in_either_direction() -> None:
    expected = [tuple(pair) for pair in generate_pairs(**SETTINGS)]
    assert texts(load_pairs({"generator": SETTINGS}, **GERMAN_ENGLISH)) == expected
    swapped = load_pairs({"generator": SETTINGS, "max_examples": 5}, source_language="en", target_language="de")
    assert texts(swapped, "en", "de") == [(english, german) for german, english in expected[:5]]


def test_the_generator_has_two_languages() -> None:
    with pytest.raises(ValueError, match=r"de and en, but .* de and fr; set"):
        load_pairs({"generator": SETTINGS}, source_language="de", target_language="fr")


def test_a_changed_generator_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "package" / "__init__.py"
    code.parent.mkdir()
    monkeypatch.setattr(corpus, "__file__", str(code))
    for word in ("alt", "neu!"):
        code.write_text(f"# writes {word}")
        monkeypatch.setattr(synthetic, "generate_pairs", _Fixed(word))
        assert texts(load_pairs({"generator": SETTINGS}, **GERMAN_ENGLISH)) == [(word, word)]


class _Fixed:
    """A generator whose pickle does not show what it writes, as that of a function does not show its code."""

    word = ""

    def __init__(self, word: str) -> None:
        type(self).word = word

    def __call__(self, **settings: int) -> Iterator[tuple[str, str]]:
        yield self.word, self.word


# Joining


def test_max_examples_applies_before_concatenation(tmp_path: Path) -> None:
    pairs = [(str(number), f"n{number}") for number in range(10)]
    name = write_tsv(tmp_path, pairs)
    assert texts(load(tmp_path, {"files": name, "max_examples": 4})) == pairs[:4]
    assert texts(load(tmp_path, {"files": name, "max_examples": 99})) == pairs
    assert texts(load(tmp_path, {"files": name, "max_examples": 5, "concatenate": 2})) == [
        ("0 1", "n0 n1"),
        ("2 3", "n2 n3"),
        ("4", "n4"),
    ]


@pytest.mark.parametrize("k", [1, 2, 3, 7, 600, 1500, 4000])
def test_concatenation_keeps_every_word_in_order(k: int) -> None:
    num_pairs = 2503  # more than a batch of the map, and no multiple of k
    joined = texts(concatenate_consecutive(dataset_of([(f"a{i}", f"b{i}") for i in range(num_pairs)]), k))
    assert len(joined) == -(-num_pairs // k)
    assert all(len(source.split(" ")) == len(target.split(" ")) == k for source, target in joined[:-1])
    assert " ".join(source for source, _ in joined) == " ".join(f"a{i}" for i in range(num_pairs))
    assert " ".join(target for _, target in joined) == " ".join(f"b{i}" for i in range(num_pairs))


def test_an_empty_text_adds_no_space() -> None:
    joined = concatenate_consecutive(dataset_of([("a", ""), ("", "b"), ("", ""), ("c", "d")]), 4)
    assert texts(joined) == [("a c", "b d")]


def test_corpora_are_read_one_after_the_other(tmp_path: Path) -> None:
    first, second = PAIRS[:2], PAIRS[2:]
    where = {
        "corpora": [
            {"files": write_aligned(tmp_path, first)},
            {"corpora": [{"files": write_tsv(tmp_path, second), "max_examples": 1}]},
        ]
    }
    assert texts(load(tmp_path, where)) == [*first, *second[:1]]
    assert texts(load(tmp_path, where | {"max_examples": 1})) == first[:1]
    assert set(corpus_file_hashes(where, str(tmp_path))) == {"a.de", "a.en", "a.tsv"}


DOCUMENT = [("one two", "1 2"), ("three", "3"), ("four five six", "4 5 6"), ("seven", "7"), ("eight nine", "8 9")]


@pytest.mark.parametrize(
    ("names", "min_words", "expected"),
    [
        ("aaaaa", 3, [("one two three", "1 2 3"), ("four five six", "4 5 6"), ("seven eight nine", "7 8 9")]),
        ("aabbb", 4, [("four five six seven", "4 5 6 7")]),  # what is left of a document is too short
        ("aabba", 2, [("one two", "1 2"), ("four five six", "4 5 6"), ("eight nine", "8 9")]),
        ("abcde", 1, DOCUMENT),
    ],
)
def test_documents_are_truncated_to_enough_words(
    tmp_path: Path, names: str, min_words: int, expected: list[tuple[str, str]]
) -> None:
    where = {"files": write_aligned(tmp_path, DOCUMENT), "document_ids": "a.doc.gz", "min_words": min_words}
    write(tmp_path / "a.doc.gz", "".join(f"{name}\n" for name in names))
    assert texts(load(tmp_path, where)) == expected
    assert "a.doc.gz" in corpus_file_hashes(where, str(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_words": 100}, "no document of .* has min_words=100 source words: ask for fewer"),
        ({"document_ids": "short.doc"}, "has 2 lines for 5 pairs: give it a line for each"),
    ],
)
def test_documents_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write(tmp_path / "a.doc", "a\n" * 5)
    write(tmp_path / "short.doc", "a\n" * 2)
    where = {"files": write_aligned(tmp_path, DOCUMENT), "document_ids": "a.doc", "min_words": 2}
    with pytest.raises(ValueError, match=said):
        load(tmp_path, where | change)


# Encoding and filtering


def test_encoding(tokenizer: PosEncTokenizer) -> None:
    pairs = dataset_of([*PAIRS, ("", "No.")])
    encoded = tokenize_pairs(pairs, tokenizer, **GERMAN_ENGLISH)
    assert encoded.column_names == ["input_ids", "labels", "source_length", "target_length"]
    assert len(encoded) == len(pairs)
    for row, (source, target) in zip(encoded, texts(pairs), strict=True):
        assert tokenizer.decode(row["input_ids"], skip_special_tokens=True) == source
        assert tokenizer.decode(row["labels"], skip_special_tokens=True) == target
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
        assert row["source_length"] == len(tokenizer(source, add_special_tokens=False)["input_ids"])
        assert row["target_length"] == len(tokenizer(target, add_special_tokens=False)["input_ids"])
    assert encoded[3]["source_length"] == 0
    other_way = tokenize_pairs(pairs, tokenizer, source_language="en", target_language="de")
    assert other_way["input_ids"][:] == encoded["labels"][:]


def lengths_of(pairs: list[tuple[int, int]]) -> Dataset:
    source, target = zip(*pairs, strict=True)
    ids = [[4] * length + [2] for length in source]
    return Dataset.from_dict({"input_ids": ids, "labels": ids, "source_length": source, "target_length": target})


@pytest.mark.parametrize(
    ("least", "most", "kept"),
    [
        (None, None, [(1, 9), (9, 1), (5, 5), (4, 6), (25, 26)]),
        (0, None, [(1, 9), (9, 1), (5, 5), (4, 6), (25, 26)]),
        (None, 9, [(1, 9), (9, 1), (5, 5), (4, 6)]),
        (None, 8, [(5, 5), (4, 6)]),
        (4, None, [(5, 5), (4, 6), (25, 26)]),
        (5, 25, [(5, 5)]),
        (25, 26, [(25, 26)]),
    ],
)
def test_both_sides_lie_within_the_bounds(least: int | None, most: int | None, kept: list[tuple[int, int]]) -> None:
    encoded = lengths_of([(1, 9), (0, 3), (9, 1), (5, 5), (3, 0), (4, 6), (25, 26), (0, 0)])
    filtered = filter_lengths(encoded, min_length=least, max_length=most)
    assert list(zip(filtered["source_length"], filtered["target_length"], strict=True)) == kept
    assert filtered.column_names == encoded.column_names


def test_dropped_empty_pairs_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        filter_lengths(lengths_of([(0, 3), (2, 0), (5, 5), (9, 9)]), min_length=None, max_length=5)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "dropped 2 of 4 pairs: one side is empty"),
        ("INFO", "kept 1 of 4 pairs, of 1 to 5 subwords a side"),
    ]


def test_nothing_left_is_refused_with_the_longest_side() -> None:
    encoded = lengths_of([(0, 0), (3, 10), (11, 2), (20, 20), (12, 39), (5, 41)])
    bounds = r"both sides of 50 to 60 subwords \(min_length=50, max_length=60\)"
    with pytest.raises(ValueError, match=rf"{bounds}, but none of 6 is, whose longest side has 41; choose bounds"):
        filter_lengths(encoded, min_length=50, max_length=60)
    with pytest.raises(ValueError, match=r"both sides of 1 to inf .* none of 0 is"):
        filter_lengths(encoded.select([]), min_length=None, max_length=None)


def test_the_lengths_of_a_selection_are_its_rows() -> None:
    """However it was selected, put together or shuffled."""
    whole = lengths_of([(number, 100 - number) for number in range(1, 90)])
    some = whole.select([5, 3, 3, 80])
    for pairs in (whole, some, whole.select(range(10, 20)), some.select([1, 0]), whole.shuffle(seed=1),
                  datasets.concatenate_datasets([some, whole, whole.shuffle(seed=2).select(range(7))])):  # fmt: skip
        for side in ("source", "target"):
            assert lengths(pairs, side).tolist() == list(pairs[f"{side}_length"])


@pytest.mark.full
@pytest.mark.parametrize("most_copies", [1, 2, 5, 1000])
@pytest.mark.parametrize("sizes", [{9: 1, 3: 40, 4: 17, 30: 2}, {5: 3}, {2: 7, 8: 7}, {1: 100, 2: 1, 3: 1, 4: 30}])
def test_balanced_lengths_are_as_uniform_as_copies_allow(sizes: dict[int, int], most_copies: int) -> None:
    """No pair can be moved to a rarer length that has copies left, and nothing but the number of copies has changed."""
    pairs = lengths_of([(length, number) for length, size in sizes.items() for number in range(size)])
    flat = balance_lengths(pairs, most_copies)
    copies = Counter(zip(flat["source_length"], flat["target_length"], strict=True))
    taken, total = Counter(flat["source_length"]), sum(sizes.values())
    assert len(flat) == total and max(copies.values()) <= most_copies
    for length, size in sizes.items():
        full = taken[length] == most_copies * size
        assert full or max(taken.values()) <= taken[length] + 1
        of_length = [copies[length, number] for number in range(size)]
        assert max(of_length) <= min(of_length) + 1
    rows = [(pairs["source_length"].index(length), number) for length, number in copies.elements()]
    assert rows == sorted(rows), "in their order"
    assert flat.to_dict() == balance_lengths(pairs, most_copies).to_dict()
    if most_copies == 1:
        assert flat.to_dict() == pairs.to_dict()


def test_the_tokenizer_learns_from_both_sides() -> None:
    pairs = dataset_of([("hallo welt", "hello world")] * 50)
    tokenizer = train_tokenizer(pairs, 285, **GERMAN_ENGLISH)
    assert tokenizer.tokenize("hallo welt hello world") == [" hallo", " welt", " hello", " world"]
    both_sides = [text for pair in texts(pairs) for text in pair]
    again = PosEncTokenizer.train(both_sides, 285)
    assert tokenizer.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()


def test_shared_pairs_are_those_of_two_equal_texts() -> None:
    """Whatever their case, the white space around them and how often they stand there; one text alone is no pair."""
    held_out = dataset_of([("Ja.", "Yes."), ("Das Haus.", "A house."), ("ÖL! ", "Oil!"), ("", ""), ("Nein", "No")])
    corpus = dataset_of([*PAIRS, ("öl!", "\toil!"), ("Ja.", "YES."), ("Ja.", "Yes."), ("No", "Nein")])
    shared = [{"de": "Ja.", "en": "Yes."}, {"de": "ÖL! ", "en": "Oil!"}]
    assert find_overlaps(corpus, {"test": held_out})["test"] == Overlap(shared, [])
    backwards = corpus.select(range(len(corpus) - 1, 3, -1))
    assert find_overlaps(backwards, {"test": held_out})["test"] == Overlap(shared[:1], [])
    blank = Dataset.from_dict({"translation": [{"de": "", "en": " "}]}, held_out.features)
    assert find_overlaps(blank, {"test": blank})["test"] == Overlap([], [])
    assert find_overlaps(dataset_of(PAIRS[:1]), {"test": held_out})["test"] == Overlap([], [])


def test_a_long_text_of_one_side_is_shared_too() -> None:
    """A pair counts once, and not by one side if it is shared as a whole."""
    long, other = "Eins zwei drei vier fünf sechs sieben acht.", "Acht sieben sechs fünf vier drei zwei eins."
    corpus = dataset_of(
        [(long, "Trained."), (f"{other} ", "One two three four five six seven eight."), ("Kurz.", "Short.")]
    )
    held_out = dataset_of(
        [
            (long.upper(), "Another translation."),
            (other, "ONE two three four five six seven eight."),
            ("Andere Quelle.", "One two three four five six seven eight."),
            ("Kurz.", "Brief."),
            ("Trained.", long),
        ]
    )
    rows = held_out["translation"][:]
    assert find_overlaps(corpus, {"test": held_out})["test"] == Overlap([rows[1]], [rows[0], rows[2]])


def test_overlap_is_found_in_concatenated_pairs(tmp_path: Path) -> None:
    files = {"files": write_aligned(tmp_path, PAIRS), "document_ids": write(tmp_path / "d", "1\n1\n2\n")}
    single = {"files": files["files"]}
    assert without_concatenation({"corpora": [files | {"min_words": 2}, single]}) == {"corpora": [single, single]}
    for where in (files | {"min_words": 2, "max_examples": 1}, single | {"concatenate": 2}, single):
        assert texts(load_pairs(without_concatenation(where), folder=str(tmp_path), **GERMAN_ENGLISH)) == PAIRS
    assert without_concatenation(single | {"max_examples": 2, "concatenate": 2}) == single | {"max_examples": 2}
    for part in (single | {"concatenate": 2}, files):  # of which the first are more pairs than so many
        assert without_concatenation({"corpora": [part], "max_examples": 2}) == {"corpora": [single]}
    assert without_concatenation({"corpora": [single], "max_examples": 2}) == {"corpora": [single], "max_examples": 2}
