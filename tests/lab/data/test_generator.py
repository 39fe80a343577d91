"""The synthetic language pair: lengths, determinism, one correct translation, and grammar checked by hand."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from hf_posenc.lab.data.synthetic import (
    ACCUSATIVE,
    CONJUNCTIONS,
    COUNTRIES,
    CURRENCIES,
    DURATIONS,
    FREE_CONJUNCTIONS,
    HANDLING_VERBS,
    LANGUAGES,
    MEASURED_FOODS,
    NOMINATIVE,
    PEOPLE,
    PERSON_ADJECTIVES,
    REPORT_VERBS,
    SIZE_ADJECTIVES,
    SPEECH_VERBS,
    THING_ADJECTIVES,
    THINGS,
    TRADE_VERBS,
    VERB_FINAL,
    NounPhrase,
    Phrase,
    ago,
    amount,
    clause,
    date,
    generate_pairs,
    noun_phrase,
    sentence,
)

VERBS = SPEECH_VERBS + TRADE_VERBS + HANDLING_VERBS + REPORT_VERBS


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


@pytest.fixture(scope="module")
def many() -> list[tuple[str, str]]:
    return list(generate_pairs(seed=0, pairs=8_000, min_words=6, max_words=45))


def clauses(pair: tuple[str, str]) -> list[tuple[str, str]]:
    """The sentence cut at its conjunctions, which are left at the head of their clauses."""
    german, english = pair[0].rstrip("."), pair[1].rstrip(".")
    comma_or_not = "|".join(map(re.escape, CONJUNCTIONS.values()))
    return list(zip(german.split(", "), re.split(rf"(?=(?:{comma_or_not})\b)", english), strict=True))


# The stream


def test_a_seed_is_a_stream_and_fewer_pairs_are_its_beginning() -> None:
    short, long = (list(generate_pairs(seed=3, pairs=pairs, min_words=6, max_words=30)) for pairs in (20, 50))
    assert len(short) == 20
    assert short == long[:20]


@pytest.mark.full
def test_seeds_share_no_long_sentence() -> None:
    """Also not 1 and -1, which are one seed to Python's `random.Random`."""
    streams = [set(generate_pairs(seed=seed, pairs=2000, min_words=9, max_words=30)) for seed in (-1, 0, 1, 2**70)]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(streams, 2))


@pytest.mark.full
def test_a_fresh_process_with_another_hash_seed_draws_the_same() -> None:
    command = "from hf_posenc.lab.data.synthetic import generate_pairs as g; "
    command += "print(ascii([tuple(pair) for pair in g(seed=5, pairs=200, min_words=6, max_words=40)]))"
    environment = os.environ | {"PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    pairs = [tuple(pair) for pair in generate_pairs(seed=5, pairs=200, min_words=6, max_words=40)]
    assert output.stdout.strip() == ascii(pairs)


@pytest.mark.full
def test_sentences_hardly_repeat(many: list[tuple[str, str]]) -> None:
    assert len(set(many)) > 0.999 * len(many)


# Lengths


@pytest.mark.parametrize("words", [*range(6, 45), 160, 511])
def test_a_window_of_one_length_is_filled(words: int) -> None:
    for german, _ in generate_pairs(seed=words, pairs=20, min_words=words, max_words=words):
        assert len(tokens(german)) == words


@pytest.mark.parametrize("window", [(6, 15), (10, 40), (41, 80)])
def test_a_window_is_filled_evenly(window: tuple[int, int]) -> None:
    lengths = range(window[0], window[1] + 1)
    pairs = 60 * len(lengths)
    counts = Counter(
        len(tokens(german))
        for german, _ in generate_pairs(seed=1, pairs=pairs, min_words=window[0], max_words=window[1])
    )
    assert set(counts) == set(lengths)
    assert min(counts.values()) > 20 and max(counts.values()) < 120


def test_a_window_that_begins_below_the_shortest_sentence_is_filled_from_there() -> None:
    pairs = list(generate_pairs(seed=0, pairs=100, min_words=1, max_words=8))
    assert {len(tokens(german)) for german, _ in pairs} == {6, 7, 8}


# One right translation, and few words


@pytest.mark.full
def test_clauses_translate_one_to_one(many: list[tuple[str, str]]) -> None:
    """Also clause by clause: so what is right does not depend on the rest of the sentence."""
    for items in (many, [item for pair in many for item in clauses(pair)]):
        assert len(set(items)) == len({german for german, _ in items}) == len({english for _, english in items})


@pytest.mark.full
def test_the_vocabulary_is_small_and_every_word_is_frequent(many: list[tuple[str, str]]) -> None:
    for side, _ in enumerate(LANGUAGES):
        counts = Counter(token for pair in many for token in tokens(pair[side]))
        assert 240 <= len(counts) <= 400
        assert min(counts.values()) > len(many) / 700


def test_no_form_of_a_verb_has_two_meanings() -> None:
    german = [form for verb in VERBS for form in verb[:4]]
    english = [form for verb in VERBS for form in verb[4:]]
    assert len(german) == len(set(german))
    assert len(english) == len(set(english))


def test_names_are_single_words_as_the_lengths_of_the_draws_suppose() -> None:
    for phrase in COUNTRIES + DURATIONS + list(MEASURED_FOODS.values()):
        assert len(tokens(phrase.german)) == 1
    assert {len(tokens(currency.german)) for currency in CURRENCIES} == {1, 2}


# Order


def test_a_sentence_has_one_full_stop_and_a_capital(many: list[tuple[str, str]]) -> None:
    for text in itertools.chain.from_iterable(many):
        assert text.index(".") == len(text) - 1
        assert text[0].isupper()
        assert "  " not in text and " ," not in text and " ." not in text


def test_the_verb_stands_last_after_subordinating_conjunctions_and_never_last_elsewhere(
    many: list[tuple[str, str]],
) -> None:
    forms = {form for verb in VERBS for form in verb[:4]}
    reports = {form for verb in REPORT_VERBS for form in verb[:4]}
    seen: Counter[str] = Counter()
    for pair in many[:5000]:
        for german, english in clauses(pair):
            first, *_, last = german.split()
            seen[first] += 1
            if first in VERB_FINAL:
                assert last in forms
                assert english.split()[-1] not in {form for verb in VERBS for form in verb[4:]} or last in reports
            else:
                assert last not in forms or last in reports
            assert len(forms & set(german.split())) == 1
    assert all(seen[conjunction] > 100 for conjunction in CONJUNCTIONS)


def test_dass_follows_a_report_and_nothing_else_and_no_other_conjunction_repeats(many: list[tuple[str, str]]) -> None:
    reports = {form for verb in REPORT_VERBS for form in verb[:4]}
    for pair in many[:5000]:
        cut = [german.split() for german, _ in clauses(pair)]
        for before, after in itertools.pairwise(cut):
            assert before[0] != after[0] or after[0] == "dass"
            assert bool(reports & set(before)) == (after[0] == "dass")
        assert not reports & set(cut[-1])


def test_numbers_dates_and_times_change_their_order(many: list[tuple[str, str]]) -> None:
    text = [" ".join(side) for side in zip(*many, strict=True)]
    for german, english in [
        ("einundzwanzig", "twenty-one"),
        ("achtunddreißig", "thirty-eight"),
        ("am zwanzigsten Mai", "on May 20"),
        ("vor zwölf Tagen", "twelve days ago"),
        ("für zwei Euro", "for two euros"),
    ]:
        assert text[0].count(german) == text[1].count(english) > 0


# The grammar, against what a reader of both languages writes

PEOPLE_BY_NAME = {noun.singular: noun for noun in PEOPLE}
THINGS_BY_NAME = {noun.singular: noun for noun in THINGS}
GOODS_BY_NAME = {noun.singular: noun for noun in MEASURED_FOODS}
VERB_BY_PAST = {verb.past: verb for verb in VERBS}
ADJECTIVES = {adjective.german: adjective for adjective in SIZE_ADJECTIVES + PERSON_ADJECTIVES + THING_ADJECTIVES}
JAPAN = next(country for country in COUNTRIES if country.german == "Japan")


def described(name: str, *adjectives: str, determiner: str | int = "the", plural: bool = False) -> NounPhrase:
    noun = (PEOPLE_BY_NAME | THINGS_BY_NAME)[name]
    return NounPhrase(noun, determiner, plural, [ADJECTIVES[adjective] for adjective in adjectives])


@pytest.mark.parametrize(
    ("phrase", "nominative", "accusative", "english"),
    [
        (described("Koch", "alt"), "der alte Koch", "den alten Koch", "the old cook"),
        (described("Frau", "alt"), "die alte Frau", "die alte Frau", "the old woman"),
        (described("Kind", "alt"), "das alte Kind", "das alte Kind", "the old child"),
        (described("Lehrer", "alt", plural=True), "die alten Lehrer", "die alten Lehrer", "the old teachers"),
        (described("Bauer", "klug", determiner="this"),
            "dieser kluge Bauer", "diesen klugen Bauern", "this clever farmer"),
        (described("Uhr", "rot", determiner="this"), "diese rote Uhr", "diese rote Uhr", "this red clock"),
        (described("Bild", "rot", determiner="this"), "dieses rote Bild", "dieses rote Bild", "this red picture"),
        (described("Ei", determiner="this", plural=True), "diese Eier", "diese Eier", "these eggs"),
        (described("König", "müd", determiner="a"), "ein müder König", "einen müden König", "a tired king"),
        (described("Tante", "ehrlich", determiner="a"), "eine ehrliche Tante", "eine ehrliche Tante", "an honest aunt"),
        (described("Buch", "alt", "grün", determiner="a"),
            "ein altes grünes Buch", "ein altes grünes Buch", "an old green book"),
        (described("Apfel", determiner="a"), "ein Apfel", "einen Apfel", "an apple"),
        (described("Hut", "klein", "blau", determiner=21),
            "einundzwanzig kleine blaue Hüte", "einundzwanzig kleine blaue Hüte", "twenty-one small blue hats"),
        (described("Koch")._replace(country=JAPAN), "der Koch aus Japan", "den Koch aus Japan", "the cook from Japan"),
    ],
)  # fmt: skip
def test_noun_phrases_agree(phrase: NounPhrase, nominative: str, accusative: str, english: str) -> None:
    assert noun_phrase(phrase, NOMINATIVE) == (nominative, english)
    assert noun_phrase(phrase, ACCUSATIVE) == (accusative, english)


@pytest.mark.parametrize(
    ("made", "german", "english"),
    [
        (date(5, 3), "am dritten Mai", "on May 3"),
        (date(3, 1), "am ersten März", "on March 1"),
        (date(12, 20), "am zwanzigsten Dezember", "on December 20"),
        (ago(2, DURATIONS[0]), "vor zwei Stunden", "two hours ago"),
        (ago(21, DURATIONS[1]), "vor einundzwanzig Tagen", "twenty-one days ago"),
        (ago(3, DURATIONS[4]), "vor drei Jahren", "three years ago"),
        (amount(2, GOODS_BY_NAME["Milch"]), "zwei Liter Milch", "two liters of milk"),
        (amount(3, GOODS_BY_NAME["Käse"], [Phrase("frisch", "fresh")]),
            "drei Kilogramm frischen Käse", "three kilograms of fresh cheese"),
        (amount(4, GOODS_BY_NAME["Brot"], [Phrase("frisch", "fresh")]),
            "vier Kilogramm frisches Brot", "four kilograms of fresh bread"),
        (amount(5, GOODS_BY_NAME["Milch"], [Phrase("kalt", "cold")]),
            "fünf Liter kalte Milch", "five liters of cold milk"),
    ],
)  # fmt: skip
def test_dates_times_and_amounts(made: Phrase, german: str, english: str) -> None:
    assert made == (german, english)


def test_the_clause_of_the_design_in_all_its_orders_tenses_and_numbers() -> None:
    books = noun_phrase(described("Buch", "grün", determiner=21), ACCUSATIVE)
    where = {
        "time": date(5, 3),
        "place": Phrase("in Japan", "in Japan"),
        "manner": Phrase("für zwei Euro", "for two euros"),
    }
    teacher, teachers = (described("Lehrer", "alt", plural=plural) for plural in (False, True))
    buy = VERB_BY_PAST["kaufte"]

    field = "am dritten Mai in Japan einundzwanzig grüne Bücher für zwei Euro"
    rest = "twenty-one green books for two euros in Japan on May 3"
    assert clause(teacher, buy, books, past=True, verb_final=True, **where) == (
        f"der alte Lehrer {field} kaufte",
        f"the old teacher bought {rest}",
    )
    assert clause(teachers, buy, books, past=True, verb_final=False, **where) == (
        f"die alten Lehrer kauften {field}",
        f"the old teachers bought {rest}",
    )
    assert clause(teacher, buy, books, past=False, verb_final=False, **where) == (
        f"der alte Lehrer kauft {field}",
        f"the old teacher buys {rest}",
    )
    assert clause(teachers, buy, books, past=False, verb_final=True, **where) == (
        f"die alten Lehrer {field} kaufen",
        f"the old teachers buy {rest}",
    )


def test_subject_and_object_differ_by_order_alone_where_cases_are_equal() -> None:
    woman, child, greet = described("Frau"), described("Kind"), VERB_BY_PAST["grüßte"]
    one = clause(woman, greet, noun_phrase(child, ACCUSATIVE), past=True, verb_final=True)
    other = clause(child, greet, noun_phrase(woman, ACCUSATIVE), past=True, verb_final=True)
    assert one == ("die Frau das Kind grüßte", "the woman greeted the child")
    assert other == ("das Kind die Frau grüßte", "the child greeted the woman")


def test_a_sentence_has_german_commas_on_the_german_side_and_english_ones_on_the_english() -> None:
    cook = clause(described("Koch"), VERB_BY_PAST["sagte"], past=True, verb_final=False)
    sells = clause(
        described("Ärztin"),
        VERB_BY_PAST["verkaufte"],
        noun_phrase(described("Bild"), ACCUSATIVE),
        past=True,
        verb_final=True,
    )
    finds = clause(
        described("Tante", determiner="a"),
        VERB_BY_PAST["fand"],
        noun_phrase(described("Hut"), ACCUSATIVE),
        past=True,
        verb_final=False,
    )
    assert sentence([cook, sells, finds], ["dass", "und"]) == (
        "Der Koch sagte, dass die Ärztin das Bild verkaufte, und eine Tante fand den Hut.",
        "The cook said that the doctor sold the picture, and an aunt found the hat.",
    )


def test_every_conjunction_is_free_or_belongs_to_a_report() -> None:
    assert set(FREE_CONJUNCTIONS) | {"dass"} == set(CONJUNCTIONS)
