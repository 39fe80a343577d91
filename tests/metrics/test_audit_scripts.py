"""The audit finds in every script what it finds in Latin."""

import random
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hf_posenc import load_translation_audit
from hf_posenc.lab.data.segmentation import merge_overlap
from hf_posenc.lab.reports.audit import audit_files
from hf_posenc.metrics.translation_audit.lexicon import tokenize


class Script(NamedTuple):
    """Twenty consonants from a code point on, what stands for five vowels, and the end of a sentence."""

    consonants: int
    vowels: str
    end: str
    space: str = " "


SCRIPTS = {
    "Devanagari": Script(0x915, "\u093e\u093f\u0940\u0941\u0947", "\u0964"),
    "Bengali": Script(0x995, "\u09be\u09bf\u09c0\u09c1\u09c7", "\u0965"),
    "Telugu": Script(0xC15, "\u0c3e\u0c3f\u0c40\u0c41\u0c46", "."),
    "Arabic with vowels": Script(0x628, "\u064e\u064f\u0650\u064b\u064c", "\u06d4"),
    "Hebrew with points": Script(0x5D0, "\u05b4\u05b5\u05b6\u05b7\u05b8", "."),
    "Armenian": Script(0x561, "\u0561\u0565\u056b\u0578\u0585", "\u0589"),
    "Amharic": Script(0x1208, "\u12a0\u12a1\u12a2\u12a3\u12a4", "\u1362"),
    "Santali": Script(0x1C5A, "\u1c77\u1c76\u1c75\u1c74\u1c73", "\u1c7e"),
    "Latin, decomposed": Script(0x62, "a\u0308,e\u0301,i\u0302,o\u0300,u\u0303", "\uff0e"),
    "Persian with joiners": Script(0x628, "\u0627,\u06cc,\u0648,\u0627\u200c,\u0647\u200c", "\u061f"),
}
LATIN = "bcdfghjklmnpqrstvwxz"


def spell(word: tuple[tuple[int, int], ...], script: Script | None) -> str:
    if script is None:
        return "".join(LATIN[consonant] + "aeiou"[vowel] for consonant, vowel in word)
    vowels = script.vowels.split(",") if "," in script.vowels else list(script.vowels)
    return "".join(chr(script.consonants + consonant) + vowels[vowel] for consonant, vowel in word)


def findings(script: Script | None) -> list[tuple[Any, ...]]:
    """The findings in documents of which some sentences are left out, repeated or invented."""
    rng = random.Random(3)
    words = [tuple((rng.randrange(20), rng.randrange(5)) for _ in range(rng.randint(2, 4))) for _ in range(300)]
    references, translations = [], []
    for number in range(24):
        document = [rng.choices(words, [1 / (rank + 2) for rank in range(300)], k=rng.randint(5, 9)) for _ in range(8)]
        written = [list(sentence) for sentence in document]
        invented = rng.sample(words, 7)
        written[3:5] = ([written[4]], [written[3], *[written[4]] * 2], [written[3], invented, written[4]])[number % 3]
        end = script.end if script else "."
        texts = [
            [" ".join(spell(word, script) for word in sentence) + end for sentence in one]
            for one in (document, written)
        ]
        references.append(texts[0])
        translations.append(" ".join(texts[1]))
    result = load_translation_audit().compute(
        predictions=translations, sources=references, references=references, scores=False
    )
    return [
        (
            *([found["segment"] for found in record[kind]] for kind in ("dropped", "repeated", "moved")),
            len(record["invented"]),
        )
        for record in result["documents"]
    ]


@pytest.mark.full
def test_every_script_has_the_findings_of_latin() -> None:
    expected = findings(None)
    assert sum(len(dropped) for dropped, *_ in expected) >= 7 and sum(invented for *_, invented in expected) >= 7
    for name, script in SCRIPTS.items():
        assert findings(script) == expected, name


WORDS = {
    "Hindi": ("\u092a\u0941\u0930\u093e\u0928\u093e \u0928\u0926\u0940 \u0916\u0921\u093c\u093e \u0964", 4),
    "Persian": ("\u062e\u0627\u0646\u0647\u200c\u0647\u0627\u06cc \u0642\u062f\u06cc\u0645\u06cc .", 3),
    "Hebrew": ("\u05d4\u05b7\u05d1\u05b7\u05bc\u05d9\u05b4\u05ea \u05e2\u05d5\u05b9\u05de\u05b5\u05d3 .", 3),
    "Yoruba": ("il\u00e9 \u00e0tij\u1ecd\u0301 d\u00far\u00f3 .", 4),
    "Tibetan": ("\u0f41\u0f44\u0f0b\u0f54\u0f0d", 3),
    "Thai": ("\u0e1a\u0e49\u0e32\u0e19", 3),  # three characters, of which one has a tone mark
}


@pytest.mark.parametrize("language", WORDS)
def test_a_word_is_one_token_with_its_marks_and_joiners(language: str) -> None:
    text, number = WORDS[language]
    assert len(tokenize(text).keys) == number
    for form in ("NFC", "NFD"):
        assert tokenize(unicodedata.normalize(form, text)).keys == tokenize(text).keys


def test_overlapping_translations_meet_at_equal_words_of_any_script() -> None:
    """Words that differ in their vowel signs alone are different."""
    words = [f"\u0915{sign}" for sign in "\u093e\u093f\u0940\u0941\u0947\u0948"]
    assert merge_overlap(words[:4], words[2:], 4, is_next=True) == (words[:2], words[2:])


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


DOCUMENTS = {
    "A": [
        "The old house stands near the river.",
        "Its garden is very beautiful.",
        "Nobody has lived there since winter.",
    ],
    "B": ["Our neighbours want to buy it.", "They have saved money for years.", "The bank refuses their application."],
    "C": [
        "The parliament voted on the budget.",
        "Several members criticised new taxes.",
        "A second reading follows soon.",
    ],
}


def written_documents(tmp_path: Path, name: str, order: str) -> tuple[Path, Path]:
    """The lines of these documents, and the name of each line's document."""
    lines = write(tmp_path / name, [line for one in order for line in DOCUMENTS[one]])
    return lines, write(tmp_path / f"{name}.ids", [one for one in order for _ in DOCUMENTS[one]])


def test_documents_are_compared_by_name(tmp_path: Path) -> None:
    source, ids = written_documents(tmp_path, "source", "ABC")
    other, other_ids = written_documents(tmp_path, "other", "CAB")
    options = {"references": source, "document_ids": ids}
    assert "| all | 9 | 0 | 0 | 0 | 0 " in audit_files(source, other, translation_ids=other_ids, **options)
    short, short_ids = written_documents(tmp_path, "short", "AC")
    with pytest.raises(ValueError, match="lacks 'B'"):
        audit_files(source, short, translation_ids=short_ids, **options)
    twice, twice_ids = written_documents(tmp_path, "twice", "ABCA")
    with pytest.raises(ValueError, match="consecutive, but 'A'"):
        audit_files(source, twice, translation_ids=twice_ids, **options)


@pytest.mark.parametrize("empty", [[], [4], [1, 3, 4, 5], [0], [3, 4, 5]])
def test_an_empty_translated_line_drops_its_segment_alone(tmp_path: Path, empty: list[int]) -> None:
    """Documents are separated by blank lines, and so are their translations."""
    sentences = [line for document in DOCUMENTS.values() for line in document]
    written = ["" if number in empty else sentence for number, sentence in enumerate(sentences)]
    sides = []
    for name, lines in (("source", sentences), ("written", written)):
        separated = [*lines[:3], "", *lines[3:6], "", *lines[6:]]
        sides.append(write(tmp_path / name, separated))
    report = audit_files(*sides, references=sides[0], output=tmp_path / "out")
    assert f"| all | 9 | {len(empty)} | 0 | 0 | 0 " in report
    assert all(f": dropped: {sentences[number]}" in report for number in empty)


@pytest.mark.parametrize(
    "references", [["", "One."], ["One.", ""], ["", ""], ["One.", "", "Two."], [" ", "One."]], ids=str
)
def test_empty_references_are_audited(references: list[str]) -> None:
    result = load_translation_audit().compute(
        predictions=[" ".join(filter(str.strip, references))], sources=[references], references=[references]
    )
    assert result["all"]["dropped"] == 0 and result["all"]["segments"] == len(references)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_document_that_is_its_reference_has_nothing_dropped(number: int) -> None:
    lines = DOCUMENTS["A"][:number]
    result = load_translation_audit().compute(
        predictions=[" ".join(lines)], sources=[lines], references=[lines], scores=False
    )
    assert result["all"]["dropped"] == result["all"]["invented"] == 0
