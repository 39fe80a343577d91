"""The words: Unicode's names through Babel, num2words' numbers, and the sixty words that the grammar bends."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from babel import Locale
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
