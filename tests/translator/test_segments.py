"""Segments of texts: nothing is lost, sentences of many languages, long sentences by clauses."""

import random
import sys

import pytest

from hf_posenc.translator.segments import Segment, join_segments, split_segments, split_sentences

SENTENCES = {  # abbreviations, numbers, quotations, other scripts, scripts without blanks
    "am": ["እሱ መጣ።", "እሷ ሄደች።"],
    "ar": ["هل أنت بخير؟", "أنا بخير."],
    "bn": ["সে এসেছে।", "সে চলে গেছে।"],
    "cs": ["Stojí to např. 5 Kč.", "Prof. Novák odešel."],
    "de": ["Das kostet z. B. 1.250,50 Euro.", "Dr. Müller kam am 3. Mai an."],
    "el": ["Τι κάνεις;", "Είμαι καλά."],
    "en": ["Dr. Smith paid $3.50 at 5 p.m. on Monday.", "He left."],
    "es": ["El Sr. García llegó.", "¿Qué pasó?", "Nada."],
    "fa": ["او آمد.", "چه شد؟"],
    "fi": ["Hän tuli klo 5.30 kotiin.", "Hän lähti."],
    "fr": ["M. Dupont est arrivé à 8 h.", "Il a dit : « Je viens. »"],
    "he": ["הוא הגיע.", "היא הלכה."],
    "hi": ["यह एक वाक्य है।", "वह चला गया।"],
    "hu": ["Dr. Kovács megjött.", "Elment."],
    "hy": ["Նա եկավ։", "Նա գնաց։"],
    "it": ["Il dott. Rossi è qui.", "Costa 3,50 euro."],
    "ja": ["彼は「行くよ。」と言った。", "そして去った。"],
    "ko": ["그는 왔다.", "그녀는 갔다."],
    "my": ["သူလာပြီ။", "သူသွားပြီ။"],
    "nl": ["Dhr. Jansen kwam om 5 uur.", "Hij ging weg."],
    "pl": ["To kosztuje np. 5 zł.", "Prof. Nowak wyszedł."],
    "pt": ["O Sr. Silva chegou.", "São 10.5 km."],
    "ru": ["Это стоит 3,5 руб. в день.", "Он ушёл."],
    "th": ["เขามาแล้ว"],
    "tr": ["Dr. Yılmaz geldi.", "Saat 5.30 oldu."],
    "uk": ["Він народився 1990 р. у Києві.", "Потім переїхав."],
    "zh": ["他说:“我来了。”", "然后他走了。"],
}
UNSPACED = ("ja", "my", "zh")


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("language", SENTENCES)
def test_the_sentences_of_a_language_are_found(language: str) -> None:
    text = ("" if language in UNSPACED else " ").join(SENTENCES[language])
    assert [sentence.strip() for sentence in split_sentences(text, language)] == SENTENCES[language]


def test_a_sentence_of_the_maximum_length_is_not_divided_for_the_blank_after_it() -> None:
    segments = split_segments("Er kam. Sie ging.  Ja.", "de", len("Sie ging."), len)
    assert [segment.text for segment in segments] == ["Er kam.", "Sie ging.", "Ja."]


@pytest.mark.parametrize("count", [count_words, len])
@pytest.mark.parametrize("max_tokens", [1, 3, 40])
def test_segments_one_after_another_are_the_text_and_none_is_too_long(count, max_tokens) -> None:
    rng = random.Random(0)
    pieces = [*"ab,;: .!?\n\t", "\u3000", "。", "e\u0301", "Dr. ", "12", "\u2028", "语", "\r\n"]
    for _ in range(200):
        text = "".join(rng.choices(pieces, k=rng.randrange(60)))
        segments = split_segments(text, "de", max_tokens, count)
        assert "".join(segment.before + segment.text + segment.after for segment in segments) == text
        # A character and its marks are one unit, even if they are several tokens.
        assert all(count(segment.text) <= max(max_tokens, 2) for segment in segments)


def test_a_long_sentence_is_divided_at_the_strongest_sign_of_its_second_half() -> None:
    text = "eins zwei, drei vier; fünf sechs sieben, acht neun zehn elf zwölf"
    parts = [segment.text for segment in split_segments(text, "de", 6, count_words)]
    assert parts == ["eins zwei, drei vier;", "fünf sechs sieben,", "acht neun zehn elf zwölf"]
    assert [segment.text for segment in split_segments("a b c d e", "de", 2, count_words)] == ["a b", "c d", "e"]


def test_dividing_a_text_without_signs_takes_linear_time() -> None:
    """By the characters that are counted."""
    counted = []

    def count(text: str) -> int:
        counted.append(len(text))
        return count_words(text)

    totals = []
    for number in (2000, 8000):
        counted.clear()
        assert len(split_segments("wort " * number, "de", 100, count)) == number // 100
        totals.append(sum(counted))
    assert totals[1] < 5 * totals[0]


def test_joined_translations_have_the_blanks_of_the_source_and_one_between_words() -> None:
    segments = [Segment("", "他来了。", ""), Segment("", "她走了。", "\n\n"), Segment(" ", "Ja.", "")]
    assert join_segments(segments, ["He came.", "She left.", "Yes."]) == "He came. She left.\n\n Yes."
    assert join_segments(segments[:2], ["彼は来た。", "彼女は去った。"]) == "彼は来た。彼女は去った。\n\n"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ValueError, match=r"sentencex must be installed .*hf-posenc\[translate\]"):
        split_segments("Ein Satz.", "de", 8, len)


def test_text_with_other_blanks_than_of_ascii_is_divided() -> None:
    """The package stops the whole program where some of them stand beside a single letter."""
    blanks = ("\u00a0", "\u2028", "\u2029", "\u3000", "\u0085")
    for first in blanks:
        for second in blanks:
            text = f"Er las Teil D{first}.{second}Sie ging."
            assert "".join(split_sentences(text, "de")) == text
