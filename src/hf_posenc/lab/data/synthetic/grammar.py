"""The grammar: parts in, a phrase in both languages out; nothing here is drawn."""

import datetime
import functools
from collections.abc import Sequence
from typing import NamedTuple

from babel.dates import format_skeleton

from .vocabulary import CONJUNCTIONS, ENGLISH, MEASURED_FOODS, MONTHS, NUMBER_WORDS, ORDINALS, Noun, Phrase, Verb

EMPTY_PHRASE = Phrase("", "")
NOMINATIVE, ACCUSATIVE = 0, 1

# One row a case, one column for m, f, n and the plural. A count has no article: its adjectives take the strong endings.
ARTICLES = {
    "the": ("der die das die", "den die das die"),
    "this": ("dieser diese dieses diese", "diesen diese dieses diese"),
    "a": ("ein eine ein", "einen eine ein"),
}
ENDINGS = {
    "the": ("e e e en", "en e e en"),
    "this": ("e e e en", "en e e en"),
    "a": ("er e es", "en e es"),
    "count": ("er e es e", "en e es e"),
}


class NounPhrase(NamedTuple):
    """`determiner` is "the", "this", "a" (always singular) or a count from 2 (always plural); adjectives are stems."""

    noun: Noun
    determiner: str | int = "the"
    plural: bool = False
    adjectives: Sequence[Phrase] = ()
    country: Phrase | None = None


def select_form(row: str, gender: str) -> str:
    return row.split()["mfnp".index(gender)]


def join_words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def concat_phrases(*phrases: Phrase) -> Phrase:
    """Phrases that follow each other alike in both languages: `jeden Montag`, `every Monday`."""
    return Phrase(join_words(*(part.german for part in phrases)), join_words(*(part.english for part in phrases)))


def is_plural(phrase: NounPhrase) -> bool:
    return phrase.plural or isinstance(phrase.determiner, int)


def noun_phrase(phrase: NounPhrase, case: int) -> Phrase:
    """`einen alten Koch aus Japan`, `an old cook from Japan`."""
    noun, determiner, plural = phrase.noun, phrase.determiner, is_plural(phrase)
    gender = "p" if plural else noun.gender
    german_noun = noun.plural if plural else (noun.singular, noun.accusative)[case]
    english = join_words(
        *(adjective.english for adjective in phrase.adjectives), noun.english_plural if plural else noun.english
    )
    if isinstance(determiner, int):
        ending = select_form(ENDINGS["count"][case], gender)
        article = NUMBER_WORDS[determiner]
    else:
        ending = select_form(ENDINGS[determiner][case], gender)
        english_article = {"the": "the", "this": "these" if plural else "this", "a": indefinite_article(english)}
        article = Phrase(select_form(ARTICLES[determiner][case], gender), english_article[determiner])
    german = join_words(article.german, *(adjective.german + ending for adjective in phrase.adjectives), german_noun)
    country = phrase.country
    return Phrase(
        join_words(german, f"aus {country.german}" if country else ""),
        join_words(article.english, english, f"from {country.english}" if country else ""),
    )


def indefinite_article(english: str) -> str:
    return "an" if english.startswith(("a", "e", "i", "o", "u", "honest")) else "a"


def amount(count: int, goods: Noun, adjectives: Sequence[Phrase] = ()) -> Phrase:
    """`zwei Kilogramm frischen Käse`, `two kilograms of fresh cheese`: an object, so in the accusative."""
    number, unit, ending = (
        NUMBER_WORDS[count],
        MEASURED_FOODS[goods],
        select_form(ENDINGS["count"][ACCUSATIVE], goods.gender),
    )
    return Phrase(
        join_words(
            number.german, unit.german, *(adjective.german + ending for adjective in adjectives), goods.accusative
        ),
        join_words(number.english, unit.english, "of", *(adjective.english for adjective in adjectives), goods.english),
    )


@functools.cache
def date(month: int, day: int) -> Phrase:
    """`am dritten Mai`, `on May 3`."""
    english = format_skeleton("MMMMd", datetime.date(2000, month, day), locale=ENGLISH)
    return Phrase(f"am {ORDINALS[day]}n {MONTHS[month - 1].german}", f"on {english}")


def ago(count: int, duration: Phrase) -> Phrase:
    """`vor zwei Tagen`, `two days ago`: `vor` asks for the dative, whose plural ends in n."""
    dative = duration.german if duration.german.endswith("n") else f"{duration.german}n"
    return Phrase(f"vor {NUMBER_WORDS[count].german} {dative}", f"{NUMBER_WORDS[count].english} {duration.english} ago")


def clause(
    subject: NounPhrase,
    verb: Verb,
    object: Phrase = EMPTY_PHRASE,
    *,
    time: Phrase = EMPTY_PHRASE,
    place: Phrase = EMPTY_PHRASE,
    manner: Phrase = EMPTY_PHRASE,
    past: bool,
    verb_final: bool,
) -> Phrase:
    actor, plural = noun_phrase(subject, NOMINATIVE), is_plural(subject)
    german_verb = ((verb.present, verb.present_plural), (verb.past, verb.past_plural))[past][plural]
    english_verb = verb.english_past if past else verb.english if plural else verb.english_singular
    field = join_words(time.german, place.german, object.german, manner.german)
    german = (
        join_words(actor.german, field, german_verb) if verb_final else join_words(actor.german, german_verb, field)
    )
    return Phrase(
        german, join_words(actor.english, english_verb, object.english, manner.english, place.english, time.english)
    )


def sentence(clauses: Sequence[Phrase], conjunctions: Sequence[str]) -> Phrase:
    """The clauses with a conjunction between each two of them, a capital at the start and a full stop at the end."""
    german, english = clauses[0]
    for conjunction, following in zip(conjunctions, clauses[1:], strict=True):
        german += f", {conjunction} {following.german}"
        english += f"{CONJUNCTIONS[conjunction]} {following.english}"
    return Phrase(f"{german[0].upper()}{german[1:]}.", f"{english[0].upper()}{english[1:]}.")
