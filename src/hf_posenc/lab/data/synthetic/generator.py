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

from .grammar import (
    ACCUSATIVE,
    EMPTY_PHRASE,
    NounPhrase,
    ago,
    amount,
    clause,
    concat_phrases,
    date,
    noun_phrase,
    sentence,
)
from .vocabulary import (
    COUNTRIES,
    COUNTS,
    CURRENCIES,
    DURATIONS,
    FOOD_ADJECTIVES,
    FREE_CONJUNCTIONS,
    HANDLING_VERBS,
    LANGUAGE_NAMES,
    LANGUAGES,
    MEASURED_FOODS,
    MONTH_DAYS,
    MONTHS,
    NUMBER_WORDS,
    PEOPLE,
    PERSON_ADJECTIVES,
    REPORT_VERBS,
    SIZE_ADJECTIVES,
    SPEECH_VERBS,
    THING_ADJECTIVES,
    THINGS,
    TRADE_VERBS,
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
    for shape in itertools.starmap(
        ClauseShape, itertools.product(NOUN_PHRASES, (0, 2, 3), (0, 2), frame.object_words, frame.manner_words)
    ):
        if (length := sum(shape) + 1) <= MAX_CLAUSE_WORDS:
            by_length.setdefault(length, []).append(shape)
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
    shortest = MIN_CLAUSE_WORDS + 1
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, not {pairs}; ask for as many sentences as you need.")
    if min_words > max_words:
        raise ValueError(f"min_words must not exceed max_words, but {min_words} > {max_words}; swap them.")
    if max_words < shortest:
        raise ValueError(f"max_words must be at least {shortest}, the shortest sentence, not {max_words}; raise it.")
    sampler, lengths = SentenceSampler(seed), range(max(min_words, shortest), max_words + 1)
    return (sampler.sentence(sampler.choose(lengths)) for _ in range(pairs))


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
            lengths = {
                kind: [
                    length for length in clause_lengths if length <= room or (length == remaining and kind != "report")
                ]
                for kind, clause_lengths in CLAUSE_SHAPES.items()
            }
            kind = self.choose([kind for kind in lengths if lengths[kind]])
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
