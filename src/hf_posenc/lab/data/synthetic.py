"""The embedded generator: German-English sentences by rule, of any length, in which a wrong order is a visible mistake.

    Die Ärztin verkaufte das Bild, weil ein alter Koch am dritten Mai in Japan zwölf rote Hüte stahl.
    The doctor sold the picture because an old cook stole twelve red hats in Japan on May 3.

A sentence is a row of clauses joined by conjunctions, all in one tense; each clause is drawn on its own.
Between clauses nothing moves; inside one nearly everything does:

    German   subject [time] [place] [object] [manner] verb        (in a main clause the verb comes second)
    English  subject verb [object] [manner] [place] [time]

Smaller reorderings lie inside the phrases: day before month, `vor zwei Tagen` / `two days ago`, and ones before tens in
`einundzwanzig`. German articles, adjectives and verbs agree in gender, case and number; English chooses between `a` and
`an`, `this` and `these`, `buys` and `buy`. There are no synonyms: a German sentence has one translation and an English
one has one source, so that BLEU 100 can be reached. About 340 word types in German, 260 in English.

The names of countries, languages, currencies, units, weekdays and months, and the English form of a date, are Unicode's
(CLDR, https://cldr.unicode.org), read through Babel; number words are num2words'. The vocabulary
comes first, then the grammar, in which nothing is drawn, and then the draws.
"""

import datetime
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from babel import Locale
from babel.dates import format_skeleton
from babel.numbers import get_currency_name
from babel.units import format_unit
from num2words import num2words

T = TypeVar("T")

LANGUAGES = ("de", "en")


class Phrase(NamedTuple):
    german: str
    english: str


class Noun(NamedTuple):
    """`gender` is m, f or n; `accusative` is the singular's and differs only in the weak declension (`den Bauern`)."""

    gender: str
    singular: str
    accusative: str
    plural: str
    english: str
    english_plural: str


class Verb(NamedTuple):
    """Third person; the English past has one form for singular and plural."""

    present: str
    present_plural: str
    past: str
    past_plural: str
    english: str
    english_singular: str
    english_past: str


def parse_rows(row_type: Callable[..., T], text: str) -> list[T]:
    return [row_type(*line.split()) for line in text.strip().splitlines()]


PEOPLE = parse_rows(
    Noun,
    """
    m Lehrer Lehrer Lehrer teacher teachers
    m Koch Koch Köche cook cooks
    m König König Könige king kings
    m Bauer Bauern Bauern farmer farmers
    m Onkel Onkel Onkel uncle uncles
    f Frau Frau Frauen woman women
    f Tante Tante Tanten aunt aunts
    f Ärztin Ärztin Ärztinnen doctor doctors
    f Richterin Richterin Richterinnen judge judges
    f Schwester Schwester Schwestern sister sisters
    n Kind Kind Kinder child children
    n Mädchen Mädchen Mädchen girl girls
    """,
)
THINGS = parse_rows(
    Noun,
    """
    m Stuhl Stuhl Stühle chair chairs
    m Brief Brief Briefe letter letters
    m Apfel Apfel Äpfel apple apples
    m Hut Hut Hüte hat hats
    f Lampe Lampe Lampen lamp lamps
    f Uhr Uhr Uhren clock clocks
    f Tasche Tasche Taschen bag bags
    f Flasche Flasche Flaschen bottle bottles
    n Buch Buch Bücher book books
    n Bild Bild Bilder picture pictures
    n Fahrrad Fahrrad Fahrräder bicycle bicycles
    n Ei Ei Eier egg eggs
    """,
)
SPEECH_VERBS = parse_rows(
    Verb,
    """
    grüßt grüßen grüßte grüßten greet greets greeted
    lobt loben lobte lobten praise praises praised
    warnt warnen warnte warnten warn warns warned
    fragt fragen fragte fragten ask asks asked
    ruft rufen rief riefen call calls called
    tröstet trösten tröstete trösteten comfort comforts comforted
    """,
)
TRADE_VERBS = parse_rows(
    Verb,
    """
    kauft kaufen kaufte kauften buy buys bought
    verkauft verkaufen verkaufte verkauften sell sells sold
    bestellt bestellen bestellte bestellten order orders ordered
    """,
)
HANDLING_VERBS = parse_rows(
    Verb,
    """
    findet finden fand fanden find finds found
    verliert verlieren verlor verloren lose loses lost
    stiehlt stehlen stahl stahlen steal steals stole
    trägt tragen trug trugen carry carries carried
    holt holen holte holten fetch fetches fetched
    versteckt verstecken versteckte versteckten hide hides hid
    """,
)
REPORT_VERBS = parse_rows(
    Verb,
    """
    sagt sagen sagte sagten say says said
    glaubt glauben glaubte glaubten believe believes believed
    weiß wissen wusste wussten know knows knew
    schreibt schreiben schrieb schrieben write writes wrote
    """,
)
# Adjectives stand in two ranks, first size or age, then the rest: so German needs no comma between them.
SIZE_ADJECTIVES = parse_rows(Phrase, "klein small\n groß big\n alt old")
PERSON_ADJECTIVES = parse_rows(Phrase, "klug clever\n müd tired\n stolz proud\n ehrlich honest\n reich rich")
THING_ADJECTIVES = parse_rows(Phrase, "rot red\n grün green\n blau blue\n schwer heavy\n billig cheap")
FOOD_ADJECTIVES = parse_rows(Phrase, "frisch fresh\n kalt cold\n billig cheap")

# The comma of the English side is part of the conjunction; on the German side there is always one (before `und` between
# main clauses it is allowed). `dass` follows the reporting verbs and nothing else.
CONJUNCTIONS = {
    "weil": " because",
    "obwohl": " although",
    "während": " while",
    "bevor": " before",
    "dass": " that",
    "und": ", and",
    "aber": ", but",
}
VERB_FINAL = ("weil", "obwohl", "während", "bevor", "dass")
FREE_CONJUNCTIONS = ("weil", "obwohl", "während", "bevor", "und", "aber")

GERMAN, ENGLISH = (Locale(language) for language in LANGUAGES)


def plural_unit(unit: str) -> Phrase:
    """CLDR's long plural of a unit, without the number in front."""
    return Phrase(*(format_unit(2, unit, locale=language).split(maxsplit=1)[1] for language in LANGUAGES))


def localized_names(codes: str, german: Mapping[str, str], english: Mapping[str, str]) -> list[Phrase]:
    return [Phrase(german[code], english[code]) for code in codes.split()]


# Only countries without an article in German: nobody says `in Schweiz`.
COUNTRIES = localized_names(
    "DE FR IT ES PL AT PT GR NO SE DK FI JP CN IN BR CA EG", GERMAN.territories, ENGLISH.territories
)
LANGUAGE_NAMES = localized_names("de en fr it es pl pt el sv fi ja zh", GERMAN.languages, ENGLISH.languages)
CURRENCIES = [
    Phrase(*(get_currency_name(code, count=2, locale=language) for language in LANGUAGES))
    for code in ("EUR", "CHF", "SEK", "JPY", "INR")
]
DURATIONS = [plural_unit(f"duration-{unit}") for unit in ("hour", "day", "week", "month", "year")]
WEEKDAYS = [Phrase(GERMAN.days["format"]["wide"][day], ENGLISH.days["format"]["wide"][day]) for day in range(7)]
MONTHS = [Phrase(GERMAN.months["format"]["wide"][m], ENGLISH.months["format"]["wide"][m]) for m in range(1, 13)]
# What is measured, and in what.
MEASURED_FOODS = {
    Noun("f", "Milch", "Milch", "", "milk", ""): plural_unit("volume-liter"),
    Noun("n", "Wasser", "Wasser", "", "water", ""): plural_unit("volume-liter"),
    Noun("m", "Tee", "Tee", "", "tea", ""): plural_unit("volume-liter"),
    Noun("m", "Käse", "Käse", "", "cheese", ""): plural_unit("mass-kilogram"),
    Noun("n", "Brot", "Brot", "", "bread", ""): plural_unit("mass-kilogram"),
    Noun("m", "Honig", "Honig", "", "honey", ""): plural_unit("mass-gram"),
}
COUNTS = range(2, 40)
NUMBER_WORDS = {count: Phrase(*(num2words(count, lang=language) for language in LANGUAGES)) for count in COUNTS}
MONTH_DAYS = range(1, 21)  # so few that each is seen often enough
ORDINALS = {day: num2words(day, lang="de", to="ordinal") for day in MONTH_DAYS}


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
    return " ".join(filter(None, parts))


def concat_phrases(*phrases: Phrase) -> Phrase:
    """Phrases that follow each other alike in both languages: `jeden Montag`, `every Monday`."""
    german, english = zip(*phrases, strict=True)
    return Phrase(join_words(*german), join_words(*english))


def is_plural(phrase: NounPhrase) -> bool:
    return phrase.plural or isinstance(phrase.determiner, int)


def noun_phrase(phrase: NounPhrase, case: int) -> Phrase:
    """`einen alten Koch aus Japan`, `an old cook from Japan`."""
    noun, determiner, plural = phrase.noun, phrase.determiner, is_plural(phrase)
    gender = "p" if plural else noun.gender
    if plural:
        german_noun, english_noun = noun.plural, noun.english_plural
    else:
        german_noun, english_noun = (noun.singular, noun.accusative)[case], noun.english
    english = join_words(*(adjective.english for adjective in phrase.adjectives), english_noun)
    if isinstance(determiner, int):
        ending = select_form(ENDINGS["count"][case], gender)
        article = NUMBER_WORDS[determiner]
    else:
        ending = select_form(ENDINGS[determiner][case], gender)
        english_article = {"the": "the", "this": "these" if plural else "this", "a": indefinite_article(english)}
        article = Phrase(select_form(ARTICLES[determiner][case], gender), english_article[determiner])
    german = join_words(article.german, *(adjective.german + ending for adjective in phrase.adjectives), german_noun)
    english = join_words(article.english, english)
    if phrase.country:
        return Phrase(f"{german} aus {phrase.country.german}", f"{english} from {phrase.country.english}")
    return Phrase(german, english)


def indefinite_article(english: str) -> str:
    return "an" if english.startswith(("a", "e", "i", "o", "u", "honest")) else "a"


def amount(count: int, goods: Noun, adjectives: Sequence[Phrase] = ()) -> Phrase:
    """`zwei Kilogramm frischen Käse`, `two kilograms of fresh cheese`: an object, so in the accusative."""
    ending = select_form(ENDINGS["count"][ACCUSATIVE], goods.gender)
    tastes = [Phrase(adjective.german + ending, adjective.english) for adjective in adjectives]
    food = concat_phrases(*tastes, Phrase(goods.accusative, goods.english))
    return concat_phrases(NUMBER_WORDS[count], MEASURED_FOODS[goods], Phrase("", "of"), food)


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
    if past:
        german_verb, english_verb = (verb.past, verb.past_plural)[plural], verb.english_past
    else:
        german_verb = (verb.present, verb.present_plural)[plural]
        english_verb = (verb.english_singular, verb.english)[plural]
    field = join_words(time.german, place.german, object.german, manner.german)
    german = join_words(field, german_verb) if verb_final else join_words(german_verb, field)
    english = join_words(english_verb, object.english, manner.english, place.english, time.english)
    return Phrase(join_words(actor.german, german), join_words(actor.english, english))


def sentence(clauses: Sequence[Phrase], conjunctions: Sequence[str]) -> Phrase:
    """The clauses with a conjunction between each two of them, a capital at the start and a full stop at the end."""
    german, english = clauses[0]
    for conjunction, following in zip(conjunctions, clauses[1:], strict=True):
        german += f", {conjunction} {following.german}"
        english += f"{CONJUNCTIONS[conjunction]} {following.english}"
    return Phrase(f"{german[0].upper()}{german[1:]}.", f"{english[0].upper()}{english[1:]}.")


# Everything below counts German words. A noun phrase has a determiner and a noun, and maybe adjectives and `aus Japan`:
# by length: how many adjectives, and whether a country.
NOUN_PHRASES = {2: [(0, False)], 3: [(1, False)], 4: [(2, False), (0, True)], 5: [(1, True)], 6: [(2, True)]}


class Frame(NamedTuple):
    """A kind of clause: its verbs, and how many words its object and its manner may have."""

    verbs: Sequence[Verb]
    object_words: Sequence[int]
    manner_words: Sequence[int]


FRAMES = {
    "speak": Frame(SPEECH_VERBS, tuple(NOUN_PHRASES), (0, 2)),  # to a person, maybe in a language
    "trade": Frame(TRADE_VERBS, tuple(NOUN_PHRASES), (0, 3, 4)),  # in things, maybe for an amount of money
    "handle": Frame(HANDLING_VERBS, tuple(NOUN_PHRASES), (0,)),
    "report": Frame(REPORT_VERBS, (0,), (0,)),  # and a clause with `dass` follows
}


class ClauseShape(NamedTuple):
    subject: int
    time: int
    place: int
    object: int
    manner: int


MAX_CLAUSE_WORDS = 14  # a limit of taste: with every slot full a clause would have 22
MIN_CLAUSE_WORDS = 5  # `der Koch die Uhr fand`
CONJUNCTION_WORDS = 2  # the comma and the conjunction


def clause_shapes(frame: Frame) -> dict[int, list[ClauseShape]]:
    """From the length of a clause to all the ways of reaching it."""
    by_length: dict[int, list[ClauseShape]] = {}
    for words in itertools.product(NOUN_PHRASES, (0, 2, 3), (0, 2), frame.object_words, frame.manner_words):
        length = sum(words) + 1  # with the verb
        if length <= MAX_CLAUSE_WORDS:
            by_length.setdefault(length, []).append(ClauseShape(*words))
    return by_length


CLAUSE_SHAPES = {kind: clause_shapes(frame) for kind, frame in FRAMES.items()}

# The determiner and whether the noun is plural; a 0 stands for a count yet to be drawn.
UNCOUNTED: list[tuple[str | int, bool]] = [("the", False), ("the", True), ("this", False), ("this", True), ("a", False)]
DETERMINERS = [*UNCOUNTED, (0, True), (0, True)]


def generate_pairs(*, seed: int, pairs: int, min_words: int, max_words: int) -> Iterator[tuple[str, str]]:
    """Yield `pairs` (German, English) sentences whose German side has `min_words` to `max_words` tokens.

    A token is a word or a punctuation mark, the full stop included. Lengths in subwords are nearly the same, because a
    tokenizer trained on these sentences keeps almost every word whole. Every length from 6 on exists, and lengths are
    sampled uniformly.

    The same arguments give the same sentences on every platform and Python version (with the same CLDR). Fewer `pairs`
    give a prefix of more, and another seed gives other sentences. There are 10^6 opening clauses of 5 words, 10^9 of 8
    and almost 10^12 of 11. Streams of 20000 and 1000 sentences of 6 to 30 tokens may share one of the shortest
    sentences.
    """
    sampler, lengths = SentenceSampler(seed), range(max(min_words, MIN_CLAUSE_WORDS + 1), max_words + 1)
    for _ in range(pairs):
        yield sampler.sentence(sampler.choose(lengths))


class SentenceSampler:
    """Everything random: each method returns a phrase whose German side has exactly `words` tokens."""

    def __init__(self, seed: int):
        # A string is hashed by SHA-512, alike everywhere; as integers, 1 and -1 would be one seed. Of the methods only
        # `random()` is used, the one whose numbers Python promises to keep.
        self.random = random.Random(f"hf_posenc {seed}").random

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def sentence(self, words: int) -> Phrase:
        remaining = words - 1  # the full stop
        past = self.choose((False, True))
        clauses: list[Phrase] = []
        conjunctions: list[str] = []
        while True:
            # A clause either ends the sentence exactly or leaves room for one more; a report cannot end it.
            room = remaining - CONJUNCTION_WORDS - MIN_CLAUSE_WORDS
            lengths: dict[str, list[int]] = {}
            for kind, clause_lengths in CLAUSE_SHAPES.items():
                last = None if kind == "report" else remaining
                fitting = [length for length in clause_lengths if length <= room or length == last]
                if fitting:
                    lengths[kind] = fitting
            kind = self.choose(list(lengths))
            length = self.choose(lengths[kind])
            clauses.append(self.clause(kind, length, past, conjunctions[-1] if conjunctions else None))
            if length == remaining:
                return sentence(clauses, conjunctions)
            allowed = [conjunction for conjunction in FREE_CONJUNCTIONS if conjunction not in conjunctions[-1:]]
            conjunctions.append("dass" if kind == "report" else self.choose(allowed))
            remaining -= length + CONJUNCTION_WORDS

    def clause(self, kind: str, words: int, past: bool, conjunction: str | None) -> Phrase:
        """A sentence never starts with a count: that would double the number words by their capitalised forms."""
        shape = self.choose(CLAUSE_SHAPES[kind][words])
        subject = self.noun_phrase(
            PEOPLE, PERSON_ADJECTIVES, shape.subject, UNCOUNTED if conjunction is None else DETERMINERS
        )
        return clause(
            subject,
            self.choose(FRAMES[kind].verbs),
            self.object(kind, shape.object, [noun for noun in PEOPLE if noun != subject.noun]),
            time=self.time(shape.time, past),
            place=concat_phrases(Phrase("in", "in"), self.choose(COUNTRIES)) if shape.place else EMPTY_PHRASE,
            manner=self.manner(kind, shape.manner),
            past=past,
            verb_final=conjunction in VERB_FINAL,
        )

    def noun_phrase(
        self,
        nouns: Sequence[Noun],
        adjective_options: Sequence[Phrase],
        words: int,
        determiners: Sequence[tuple[str | int, bool]],
    ) -> NounPhrase:
        adjectives, has_country = self.choose(NOUN_PHRASES[words])
        determiner, plural = self.choose(determiners)
        return NounPhrase(
            self.choose(nouns),
            determiner or self.choose(COUNTS),
            plural,
            self.adjectives(adjectives, adjective_options),
            self.choose(COUNTRIES) if has_country else None,
        )

    def adjectives(self, count: int, adjective_options: Sequence[Phrase]) -> list[Phrase]:
        if count == 2:
            return [self.choose(SIZE_ADJECTIVES), self.choose(adjective_options)]
        return [self.choose([*SIZE_ADJECTIVES, *adjective_options])] if count else []

    def object(self, kind: str, words: int, others: Sequence[Noun]) -> Phrase:
        if kind == "report":
            return EMPTY_PHRASE
        if kind == "speak":
            return noun_phrase(self.noun_phrase(others, PERSON_ADJECTIVES, words, DETERMINERS), ACCUSATIVE)
        if words in (3, 4) and self.choose((True, False, False)):
            tastes = [self.choose(FOOD_ADJECTIVES)] if words == 4 else []
            return amount(self.choose(COUNTS), self.choose(list(MEASURED_FOODS)), tastes)
        return noun_phrase(self.noun_phrase(THINGS, THING_ADJECTIVES, words, DETERMINERS), ACCUSATIVE)

    def time(self, words: int, past: bool) -> Phrase:
        if not words:
            return EMPTY_PHRASE
        if past and words == 2:
            return concat_phrases(Phrase("am", "on"), self.choose(WEEKDAYS))
        if past:
            if self.choose((True, True, False)):
                return date(self.choose(range(1, 13)), self.choose(MONTH_DAYS))
            return ago(self.choose(COUNTS), self.choose(DURATIONS))
        if words == 2:
            preposition, names = self.choose([(Phrase("im", "in"), MONTHS), (Phrase("jeden", "every"), WEEKDAYS)])
            return concat_phrases(preposition, self.choose(names))
        return concat_phrases(Phrase("alle", "every"), NUMBER_WORDS[self.choose(COUNTS)], self.choose(DURATIONS))

    def manner(self, kind: str, words: int) -> Phrase:
        if not words:
            return EMPTY_PHRASE
        if kind == "speak":
            return concat_phrases(Phrase("auf", "in"), self.choose(LANGUAGE_NAMES))
        currencies = [currency for currency in CURRENCIES if len(currency.german.split()) == words - 2]
        return concat_phrases(Phrase("für", "for"), NUMBER_WORDS[self.choose(COUNTS)], self.choose(currencies))
