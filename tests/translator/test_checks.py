"""Checks of translations: each planted fault is found by its check, and nothing is found in human translations."""

import random

import pytest

from hf_posenc.translator.checks import CHECKS, Checked, find_doubts, longest_loop, usual_ratio

SOURCE = "Die Kommission hat gestern 350 Millionen Euro bewilligt, wie unter https://example.org/a zu lesen ist."
GOOD = "Yesterday the Commission granted 350 million euros, as can be read at https://example.org/a."
MUCH_MORE = " ".join(f"w{number}" for number in range(100))
HUMAN = [  # source, translation, script of the target
    (SOURCE, GOOD, "Latn"),
    ("Er sagte: „Nein, nein, nein!“", "He said: “No, no, no!”", "Latn"),
    ("Sie riefen: nein, nein, nein, nein, nein, nein!", "They cried: no, no, no, no, no, no!", "Latn"),
    ("Am 3. Oktober um 17 Uhr", "On 3 October at five in the afternoon", "Latn"),
    ("1.234,50 Euro kostet das Gerät.", "The device costs 1,234.50 euros.", "Latn"),
    ("John Smith, New York", "John Smith, New York", "Latn"),
    ("Das Wetter in Tokio ist heute sehr schön.", "東京の天気は今日とても良いです。", "Jpan"),
    (
        "We met <b>Ms Ivanova</b> and {name} in 2019.",
        "Мы встретили <b>госпожу Иванову</b> и {name} в 2019 году.",
        "Cyrl",
    ),
    ("The prices rose by 35 per cent last year.", "ارتفعت الأسعار بنسبة ٣٥ في المائة العام الماضي.", "Arab"),
    ("哈哈哈哈哈哈真好笑", "Hahahahahaha, how funny!", "Latn"),
    ("***", "", "Latn"),
    ("Agent 007", "agent seven", "Latn"),
]
FAULTS = {
    "length": [(SOURCE, "350, https://example.org/a."), (SOURCE, f"{GOOD} {MUCH_MORE}")],
    "loop": [
        (SOURCE, GOOD + " the the the the the the the"),
        (SOURCE, GOOD + " as can be read, as can be read, as can be read"),
        ("Das Wetter ist schön, und alle gehen aus dem Haus.", "天気が良い良い良い良い良い良い良い"),
    ],
    "copy": [
        (SOURCE, SOURCE),
        (SOURCE, SOURCE.lower().replace(",", "")),
        (SOURCE, f'In German, "{SOURCE[:70]}" is right.'),
    ],
    "numbers": [(SOURCE, GOOD.replace("350", "35")), ("2019 war gut.", "It was good."), ("7" * 5000, "7")],
    "links": [(SOURCE, GOOD.replace("https://example.org/a", "the page")), ("<i>Ja</i>, {name}.", "Yes, {name}.")],
}  # fmt: skip


@pytest.mark.parametrize(("source", "translation", "script"), HUMAN)
def test_human_translations_have_no_doubts(source: str, translation: str, script: str) -> None:
    assert find_doubts(Checked(source, translation, target_script=script)) == []


@pytest.mark.parametrize(
    ("check", "number"), [(check, n) for check, faults in FAULTS.items() for n in range(len(faults))]
)
def test_a_fault_is_found_by_its_check(check: str, number: int) -> None:
    source, translation = FAULTS[check][number]
    assert check in {doubt.check for doubt in find_doubts(Checked(source, translation))}


def test_faults_that_need_more_than_the_texts() -> None:
    assert [doubt.check for doubt in find_doubts(Checked(SOURCE, GOOD, was_cut=True))] == ["cut"]
    assert [doubt.check for doubt in find_doubts(Checked(SOURCE, GOOD, target_script="Cyrl"))] == ["script"]
    assert [doubt.check for doubt in find_doubts(Checked(SOURCE, " "))] == ["empty"]
    assert find_doubts(Checked(SOURCE, SOURCE, same_language=True)) == []


def test_every_check_has_a_planted_fault() -> None:
    assert set(CHECKS) == {*FAULTS, "cut", "script"}


def test_a_loop_is_the_most_repeated_words() -> None:
    """Compared with a search over all places and lengths."""
    rng = random.Random(0)
    for _ in range(200):
        words = rng.choices("abc", k=rng.randint(0, 14))
        best = 1
        for period in range(1, len(words) // 2 + 1):
            for start in range(len(words)):
                unit = words[start : start + period]
                repeats = 1
                while words[start + repeats * period :][:period] == unit:
                    repeats += 1
                best = max(best, repeats * period if repeats > 2 else 1)
        repeats, loop = longest_loop(" ".join(words))
        assert repeats * len(loop) == best or best == repeats == 1


def test_lengths_are_judged_by_the_spread_of_the_other_segments() -> None:
    rng = random.Random(0)
    pairs = [("x" * 60, "y" * rng.randint(85, 95)) for _ in range(60)]
    ratio = usual_ratio(pairs)
    assert usual_ratio(pairs[:20]) is None
    half = "a word of this text is no other word of a text, not"
    source = "ein Wort des Textes ist kein anderes Wort des Textes, nie."
    assert "length" in {doubt.check for doubt in find_doubts(Checked(source, half[:30], expected_ratio=ratio))}
    assert find_doubts(Checked(source, half[:30])) == []
