"""Planted omissions, repetitions, swaps and inventions: how well translation_audit finds them, and how fast it is.

    python benchmarks/translation_audit.py FOLDER --save translation-audit
    python benchmarks/translation_audit.py --files SOURCE TRANSLATION REFERENCE --save translation-audit-system

FOLDER has Europarl7 and IWSLT2017 with document ids (corpora/corpora.yaml, "documents"). Each document is cut into
pieces of at most 20 segments, and 1000 of them are drawn. The translation of a segment is its reference with the noise
of a translator: 8 % of the words are left out, 8 % are replaced by random words, and 8 % change places with the next.
Punctuation stays. With --files, three files that are aligned line by line, the translation is a system's own output,
and consecutive segments form pieces of 15.

An omission takes a segment away. A repetition has it twice, each time with other noise. A swap exchanges it with the
next one. An invention is a segment of another piece behind it, with noise. The same texts are audited with references
and without. An invention is found if a reported stretch overlaps with more than half of it, and conversely; a swap, if
one of its two segments is reported. All planted segments count, however short.
"""

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import common
import regex

from hf_posenc.metrics.translation_audit.lexicon import UNSPACED
from hf_posenc.metrics.translation_audit.translation_audit import audit
from hf_posenc.utils.text_io import read_lines

CORPORA = ("Europarl7.dev", "Europarl7.test", "IWSLT2017.dev", "IWSLT2017.test")
CHANCES = {"dropped": 0.06, "repeated": 0.04, "moved": 0.03, "invented": 0.04}
NOISE = 0.08  # of each of the three kinds
MIN_SEGMENTS, MAX_SEGMENTS, SYSTEM_SEGMENTS = 4, 20, 15  # of a piece
MIN_INVENTED_WORDS = 4
UNSPACED_TEXT = regex.compile(UNSPACED, regex.V1)
PAIR = regex.compile(r"\w\p{M}*(?:\w\p{M}*)?|\W")
WORD = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass
class Piece:
    """Consecutive segments of a document, and their translations."""

    sources: list[str]
    references: list[str]
    translations: list[str] | None = None  # a system's; None for references with noise


@dataclass
class Planted:
    """A piece's translation with planted errors: indices of segments, and character spans."""

    text: str = ""
    dropped: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    moved: list[tuple[int, int]] = field(default_factory=list)
    invented: list[tuple[int, int]] = field(default_factory=list)


def read_corpora(folder: Path) -> Iterator[Piece]:
    for name in CORPORA:
        paths = [folder / f"{name}.{suffix}" for suffix in ("doc", "de", "en")]
        columns = [read_lines(path if path.exists() else path.with_name(f"{path.name}.gz")) for path in paths]
        for _, rows in groupby(zip(*columns, strict=True), key=lambda row: row[0]):
            segments = list(rows)
            for start in range(0, len(segments), MAX_SEGMENTS):
                _, sources, references = zip(*segments[start : start + MAX_SEGMENTS], strict=True)
                yield Piece(list(sources), list(references))


def read_files(paths: Sequence[Path]) -> Iterator[Piece]:
    rows = list(zip(*map(read_lines, paths), strict=True))
    for start in range(0, len(rows), SYSTEM_SEGMENTS):
        sources, translations, references = zip(*rows[start : start + SYSTEM_SEGMENTS], strict=True)
        yield Piece(list(sources), list(references), list(translations))


def split_words(text: str) -> tuple[list[str], str]:
    """The words and the blank between them; in scripts without spaces, pairs of characters."""
    return (PAIR.findall(text), "") if UNSPACED_TEXT.search(text) else (text.split(), " ")


def add_noise(text: str, words: Sequence[str], rng: random.Random) -> str:
    """The text with noise in its words; `words` are those that replace others."""
    split, blank = split_words(text)
    parts = [match.groups() for match in map(WORD.fullmatch, split) if match]
    cores = [core for _, core, _ in parts]
    place = 0
    while place + 1 < len(cores):
        if rng.random() < NOISE:
            cores[place], cores[place + 1] = cores[place + 1], cores[place]
            place += 1
        place += 1
    noisy = []
    for (before, _, after), core in zip(parts, cores, strict=True):
        chance = rng.random()
        changed = rng.choice(words) if chance < NOISE else "" if chance < 2 * NOISE else core
        noisy.append(before + changed + after)
    return blank.join(word for word in noisy if word)


def plant(piece: Piece, invent: Callable[[], str], translate: Callable[[int], str], rng: random.Random) -> Planted:
    """A translation of the piece with planted errors, one segment a line."""
    planted, lines = Planted(), []
    segment, count = 0, len(piece.sources)
    while segment < count:
        kind = draw_kind(rng)
        if kind == "moved" and segment + 1 < count:
            planted.moved.append((segment, segment + 1))
            lines += [translate(segment + 1), translate(segment)]
            segment += 2
            continue
        if kind == "dropped":
            planted.dropped.add(segment)
        else:
            lines.append(translate(segment))
        if kind == "repeated":
            planted.repeated.add(segment)
            lines.append(translate(segment))
        if kind == "invented":
            start = sum(len(line) + 1 for line in lines)
            lines.append(invent())
            planted.invented.append((start, start + len(lines[-1])))
        segment += 1
    planted.text = "\n".join(lines)
    return planted


def draw_kind(rng: random.Random) -> str | None:
    chance = rng.random()
    for kind, share in CHANCES.items():
        if chance < share:
            return kind
        chance -= share
    return None


def plant_all(pieces: Sequence[Piece], seed: int, paragraph: bool) -> list[Planted]:
    rng = random.Random(seed)
    words = [WORD.fullmatch(word)[2] for piece in pieces for text in piece.references for word in split_words(text)[0]]  # type: ignore[index]
    words = [word for word in words if word]

    def translation(piece: Piece, segment: int) -> str:
        if piece.translations is not None:
            return piece.translations[segment]
        return add_noise(piece.references[segment], words, rng)

    inventions = [
        (piece, add_noise(text, words, rng))
        for piece in pieces
        for text in piece.references
        if len(split_words(text)[0]) >= MIN_INVENTED_WORDS
    ]

    def invention(piece: Piece) -> str:
        """A segment of another piece."""
        other, text = rng.choice(inventions)
        return invention(piece) if other is piece and len(pieces) > 1 else text

    planted = []
    for piece in pieces:
        planted.append(plant(piece, partial(invention, piece), partial(translation, piece), rng))
        if paragraph:
            planted[-1].text = planted[-1].text.replace("\n", " ")
    return planted


def count_hits(planted: Planted, found: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Found and planted, found, planted: of each kind."""
    counts = {}
    for kind in ("dropped", "repeated"):
        indices, truth = {finding["segment"] for finding in found[kind]}, getattr(planted, kind)
        counts[kind] = (len(indices & truth), len(indices), len(truth))
    moved = {finding["segment"] for finding in found["moved"]}
    hits = [pair for pair in planted.moved if moved & set(pair)]
    others = moved - {segment for pair in hits for segment in pair}
    counts["moved"] = (len(hits), len(hits) + len(others), len(planted.moved))
    spans = [(finding["start"], finding["end"]) for finding in found["invented"]]
    matched = [span for span in planted.invented if any(is_same(span, other) for other in spans)]
    counts["invented"] = (len(matched), len(spans), len(planted.invented))
    return counts


def is_same(span: tuple[int, int], other: tuple[int, int]) -> bool:
    shared = min(span[1], other[1]) - max(span[0], other[0])
    return 2 * shared > max(span[1] - span[0], other[1] - other[0])


def measure(
    pieces: Sequence[Piece], planted: Sequence[Planted], with_references: bool, pairs: Sequence[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """A record for each kind of error."""
    start = time.process_time()
    references = [piece.references if with_references else [] for piece in pieces]
    texts, sources = [one.text for one in planted], [piece.sources for piece in pieces]
    result: Any = audit(texts, sources, references, pairs, scores=False)
    seconds = time.process_time() - start
    counts = [count_hits(one, found) for one, found in zip(planted, result["documents"], strict=True)]
    records = []
    for kind in CHANCES:
        hits, found, truth = (sum(count[kind][index] for count in counts) for index in range(3))
        records.append(
            {
                "evidence": result["evidence"],
                "kind": kind,
                "hits": hits,
                "found": found,
                "planted": truth,
                "precision": hits / max(found, 1),
                "recall": hits / max(truth, 1),
                "f1": 2 * hits / max(found + truth, 1),
                "seconds": seconds * 10_000 / sum(len(piece.sources) for piece in pieces),
            }
        )
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| evidence | error | planted | precision | recall | F1 | CPU seconds for 10,000 segments |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for record in records:
        scores = " | ".join(f"{record[name]:.3f}" for name in ("precision", "recall", "f1"))
        head = f"| {record['evidence']} | {record['kind']} | {record['planted']} | "
        lines.append(f"{head}{scores} | {record['seconds']:.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="with the documents")
    parser.add_argument("--files", type=Path, nargs=3, metavar=("SOURCE", "TRANSLATION", "REFERENCE"))
    parser.add_argument("--documents", type=int, default=1000, help="pieces that are drawn (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paragraph", action="store_true", help="join the lines of a translation")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    if (options.folder is None) == (options.files is None):
        parser.error("one of FOLDER and --files must be given")
    pieces = list(read_corpora(options.folder) if options.folder else read_files(options.files))
    pieces = [piece for piece in pieces if len(piece.sources) >= MIN_SEGMENTS]
    random.Random(options.seed).shuffle(pieces)
    pieces = pieces[: options.documents]
    planted = plant_all(pieces, options.seed, options.paragraph)
    records = [record for with_references in (True, False) for record in measure(pieces, planted, with_references)]
    num_segments = sum(len(piece.sources) for piece in pieces)
    text = table(records) + f"\n\n{len(pieces)} documents, {num_segments} segments, seed {options.seed}."
    if options.save:
        common.save({"documents": len(pieces), "segments": num_segments, "records": records}, text, options.save)
    print(text)


if __name__ == "__main__":
    main()
