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
(CLDR, https://cldr.unicode.org), read through Babel; number words are num2words'. The rest of the words stand in
`vocabulary.py`, the grammar in `grammar.py`, the draws below.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from .grammar import ACCUSATIVE, NOTHING, NounPhrase, ago, amount, clause, date, in_order, noun_phrase, sentence
from .vocabulary import (
    CHARACTERS,
    COUNTRIES,
    COUNTS,
    CURRENCIES,
    DURATIONS,
    FREE_CONJUNCTIONS,
    GOODS,
    HANDLING,
    IDIOMS,
    LANGUAGES,
    LOOKS,
    MONTH_DAYS,
    MONTHS,
    NUMBERS,
    PEOPLE,
    REPORTING,
    SIZES,
    SPEAKING,
    TASTES,
    THINGS,
    TRADING,
    VERB_FINAL,
    WEEKDAYS,
    Noun,
    Phrase,
    Verb,
)

__all__ = ["LANGUAGES", "generate_pairs"]

T = TypeVar("T")

# Everything below counts German words. A noun phrase has a determiner and a noun, and maybe adjectives and `aus Japan`:
# by length: how many adjectives, and whether a country.
NOUN_PHRASES = {2: [(0, False)], 3: [(1, False)], 4: [(2, False), (0, True)], 5: [(1, True)], 6: [(2, True)]}


class Frame(NamedTuple):
    """A kind of clause: its verbs, and how many words its object and its manner may have."""

    verbs: Sequence[Verb]
    object_words: Sequence[int]
    manner_words: Sequence[int]


FRAMES = {
    "speak": Frame(SPEAKING, tuple(NOUN_PHRASES), (0, 2)),  # to a person, maybe in a language
    "trade": Frame(TRADING, tuple(NOUN_PHRASES), (0, 3, 4)),  # in things, maybe for a price
    "handle": Frame(HANDLING, tuple(NOUN_PHRASES), (0,)),
    "report": Frame(REPORTING, (0,), (0,)),  # and a clause with `dass` follows
}


class Shape(NamedTuple):
    subject: int
    time: int
    place: int
    object: int
    manner: int


LONGEST_CLAUSE = 14  # a limit of taste: with every slot full a clause would have 22
SHORTEST_CLAUSE = 5  # `der Koch die Uhr fand`
JOINT = 2  # the comma and the conjunction


def shapes(frame: Frame) -> dict[int, list[Shape]]:
    """From the length of a clause to all the ways of reaching it."""
    by_length: dict[int, list[Shape]] = {}
    for shape in itertools.starmap(
        Shape, itertools.product(NOUN_PHRASES, (0, 2, 3), (0, 2), frame.object_words, frame.manner_words)
    ):
        if (length := sum(shape) + 1) <= LONGEST_CLAUSE:
            by_length.setdefault(length, []).append(shape)
    return by_length


SHAPES = {kind: shapes(frame) for kind, frame in FRAMES.items()}

# The determiner and whether the noun is plural; a 0 stands for a count yet to be drawn.
UNCOUNTED: list[tuple[str | int, bool]] = [("the", False), ("the", True), ("this", False), ("this", True), ("a", False)]
DETERMINERS = [*UNCOUNTED, (0, True), (0, True)]


def generate_pairs(*, seed: int, pairs: int, min_words: int, max_words: int) -> Iterator[tuple[str, str]]:
    """Yield `pairs` (German, English) sentences whose German side has `min_words` to `max_words` tokens.

    A token is a word or a punctuation mark, the full stop included; lengths in subwords are nearly the same, since a
    tokenizer trained on these sentences keeps almost every word whole. Every length from 6 on exists, and lengths are
    drawn uniformly from those in the window. The same arguments give the same sentences on every platform and Python
    version (under the same CLDR), and fewer `pairs` give the beginning of more. Another seed gives other sentences.
    There are 10^6 opening clauses of 5 words, 10^9 of 8 and nearly 10^12 of 11: of two streams of 6 to 30 tokens, 20000
    and 1000 sentences long, one sentence of the shortest may be in both; among longer ones hardly any.
    """
    shortest = SHORTEST_CLAUSE + 1
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, not {pairs}; ask for as many sentences as you need.")
    if min_words > max_words:
        raise ValueError(f"min_words must not exceed max_words, but {min_words} > {max_words}; swap them.")
    if max_words < shortest:
        raise ValueError(f"max_words must be at least {shortest}, the shortest sentence, not {max_words}; raise it.")
    draws, lengths = Draws(seed), range(max(min_words, shortest), max_words + 1)
    return (draws.sentence(draws.one(lengths)) for _ in range(pairs))


class Draws:
    """Everything random: each method returns a phrase whose German side has exactly `words` tokens."""

    def __init__(self, seed: int):
        # A string is hashed by SHA-512, alike everywhere; as integers, 1 and -1 would be one seed. Of the methods only
        # `random()` is used, the one whose numbers Python promises to keep.
        self.random = random.Random(f"hf_posenc {seed}").random

    def one(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def sentence(self, words: int) -> Phrase:
        left = words - 1  # the full stop
        past = self.one((False, True))
        clauses: list[Phrase] = []
        conjunctions: list[str] = []
        while True:
            # A clause either ends the sentence exactly or leaves room for one more; a report cannot end it.
            room = left - JOINT - SHORTEST_CLAUSE
            lengths = {
                kind: [length for length in of_kind if length <= room or (length == left and kind != "report")]
                for kind, of_kind in SHAPES.items()
            }
            kind = self.one([kind for kind in lengths if lengths[kind]])
            length = self.one(lengths[kind])
            clauses.append(self.clause(kind, length, past, conjunctions[-1] if conjunctions else None))
            if length == left:
                return sentence(clauses, conjunctions)
            free = [conjunction for conjunction in FREE_CONJUNCTIONS if conjunction not in conjunctions[-1:]]
            conjunctions.append("dass" if kind == "report" else self.one(free))
            left -= length + JOINT

    def clause(self, kind: str, words: int, past: bool, conjunction: str | None) -> Phrase:
        """A sentence never starts with a count: that would double the number words by their capitalised forms."""
        shape = self.one(SHAPES[kind][words])
        subject = self.noun_phrase(PEOPLE, CHARACTERS, shape.subject, UNCOUNTED if conjunction is None else DETERMINERS)
        return clause(
            subject,
            self.one(FRAMES[kind].verbs),
            self.object(kind, shape.object, [noun for noun in PEOPLE if noun != subject.noun]),
            time=self.time(shape.time, past),
            place=in_order(Phrase("in", "in"), self.one(COUNTRIES)) if shape.place else NOTHING,
            manner=self.manner(kind, shape.manner),
            past=past,
            verb_final=conjunction in VERB_FINAL,
        )

    def noun_phrase(
        self,
        nouns: Sequence[Noun],
        qualities: Sequence[Phrase],
        words: int,
        determiners: Sequence[tuple[str | int, bool]],
    ) -> NounPhrase:
        adjectives, has_country = self.one(NOUN_PHRASES[words])
        determiner, plural = self.one(determiners)
        return NounPhrase(
            self.one(nouns),
            determiner or self.one(COUNTS),
            plural,
            self.adjectives(adjectives, qualities),
            self.one(COUNTRIES) if has_country else None,
        )

    def adjectives(self, count: int, qualities: Sequence[Phrase]) -> list[Phrase]:
        if count == 2:
            return [self.one(SIZES), self.one(qualities)]
        return [self.one([*SIZES, *qualities])] if count else []

    def object(self, kind: str, words: int, others: Sequence[Noun]) -> Phrase:
        if kind == "report":
            return NOTHING
        if kind == "speak":
            return noun_phrase(self.noun_phrase(others, CHARACTERS, words, DETERMINERS), ACCUSATIVE)
        if words in (3, 4) and self.one((True, False, False)):
            tastes = [self.one(TASTES)] if words == 4 else []
            return amount(self.one(COUNTS), self.one(list(GOODS)), tastes)
        return noun_phrase(self.noun_phrase(THINGS, LOOKS, words, DETERMINERS), ACCUSATIVE)

    def time(self, words: int, past: bool) -> Phrase:
        if not words:
            return NOTHING
        if past and words == 2:
            return in_order(Phrase("am", "on"), self.one(WEEKDAYS))
        if past:
            if self.one((True, True, False)):
                return date(self.one(range(1, 13)), self.one(MONTH_DAYS))
            return ago(self.one(COUNTS), self.one(DURATIONS))
        if words == 2:
            before, names = self.one([(Phrase("im", "in"), MONTHS), (Phrase("jeden", "every"), WEEKDAYS)])
            return in_order(before, self.one(names))
        return in_order(Phrase("alle", "every"), NUMBERS[self.one(COUNTS)], self.one(DURATIONS))

    def manner(self, kind: str, words: int) -> Phrase:
        if not words:
            return NOTHING
        if kind == "speak":
            return in_order(Phrase("auf", "in"), self.one(IDIOMS))
        currencies = [currency for currency in CURRENCIES if len(currency.german.split()) == words - 2]
        return in_order(Phrase("für", "for"), NUMBERS[self.one(COUNTS)], self.one(currencies))
