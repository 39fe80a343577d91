"""TER against sacrebleu's on the same pairs in one run: are all statistics equal, and how much faster is it?

python benchmarks/ter.py --save ter                           generated text: edited copies, other text, runaway ones
python benchmarks/ter.py --text newstest2014.en.gz            the same of these lines
python benchmarks/ter.py --text ref.en --translations hyp.en  these translations of the lines, both joined
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
from common import machine_info, save
from sacrebleu.metrics import TER
from tqdm import tqdm

from hf_posenc.lab.data.synthetic import LANGUAGES, generate_pairs
from hf_posenc.metrics.length_buckets.scorers import SCORERS
from hf_posenc.utils.text_io import read_lines

ERROR_RATES = (0.02, 0.1, 0.3, 0.6, 0.9)  # share of the words of an edited copy
IMPLEMENTATIONS: dict[str, Callable[[], Any]] = {"ours": SCORERS["ter"], "sacrebleu": partial(TER, case_sensitive=True)}
PAIRS_PER_TURN = 100  # pairs at a time
TIME_FIELDS = ("sacrebleu_seconds", "seconds")  # of a record

Pair = tuple[str, str]


def corrupted(text: str, error_rate: float, others: Sequence[str], rng: random.Random) -> str:
    """The text with a share of its words lost, replaced, added to, or moved a few places forward."""
    words: list[str] = []
    for word in text.split():
        draw = rng.random() / error_rate if error_rate else 1
        if draw < 1 / 4:
            continue
        if draw < 1 / 2:
            words.insert(max(0, len(words) - rng.randint(1, 8)), word)
            continue
        words.append(rng.choice(others) if draw < 3 / 4 else word)
        if 3 / 4 <= draw < 1:
            words.append(rng.choice(others))
    return " ".join(words)


class PairSource:
    """Segments of 100 to 500 words, each of consecutive lines, and what stands in for their translations."""

    def __init__(self, lines: list[str], translations: list[str] | None) -> None:
        self.lines, self.translations, self.chance = lines, translations, random.Random(1)
        self.words = [word for line in lines for word in line.split()]

    def segment(self, least: int = 100, most: int = 500) -> Pair:
        """The lines' text, and that of their translations, or again the text."""
        number, first = self.chance.randint(least, most), self.chance.randrange(len(self.lines))
        rows: list[int] = []
        words = 0
        while words < number:
            rows.append((first + len(rows)) % len(self.lines))
            words += len(self.lines[rows[-1]].split())
        text = " ".join(self.lines[row] for row in rows)
        if self.translations:
            return text, " ".join(self.translations[row] for row in rows)
        text = " ".join(text.split()[:number])
        return text, text

    def random_text(self, most: int, vocabulary: int) -> str:
        return " ".join(f"w{self.chance.randrange(vocabulary)}" for _ in range(self.chance.randint(0, most)))

    def kinds(self, pairs: int, short: int) -> Iterator[tuple[str, list[Pair]]]:
        """The name of each kind, and its pairs of a hypothesis and a reference."""
        if self.translations:
            yield "translations, joined", [self.segment()[::-1] for _ in range(pairs)]
            return
        for wrong in ERROR_RATES:
            texts = [self.segment()[0] for _ in range(pairs)]
            name = f"copies, {100 * wrong:.0f} % of the words wrong"
            yield name, [(corrupted(text, wrong, self.words, self.chance), text) for text in texts]
        yield "other text", [(self.segment()[0], self.segment()[0]) for _ in range(pairs)]
        yield "runaway, 5 times as long", [(self.segment(500, 500)[0], self.segment(100, 100)[0]) for _ in range(pairs)]
        yield "empty translation", [("", self.segment()[0]) for _ in range(pairs)]
        yield "empty reference", [(self.segment()[0], "") for _ in range(pairs)]
        drawn = [(self.random_text(16, 8), self.random_text(16, 8)) for _ in range(short // 2)]
        texts = [self.random_text(16, 8) for _ in range(short - len(drawn))]
        drawn += [(corrupted(text, 0.3, self.words, self.chance), text) for text in texts]
        yield "random words, up to 16", drawn


def compare_kind(name: str, pairs: list[Pair], progress: tqdm) -> dict[str, Any]:
    """Core-seconds of both, which take turns, and how many statistics differ."""
    seconds = dict.fromkeys(IMPLEMENTATIONS, 0.0)
    statistics: dict[str, list[list[float]]] = {who: [] for who in IMPLEMENTATIONS}
    for start in range(0, len(pairs), PAIRS_PER_TURN):
        hypotheses, references = zip(*pairs[start : start + PAIRS_PER_TURN], strict=True)
        for who, scorer in IMPLEMENTATIONS.items():
            started = time.process_time()
            statistics[who] += scorer()._extract_corpus_statistics(hypotheses, [references])
            seconds[who] += time.process_time() - started
        progress.update(len(hypotheses))
    differ = sum(ours != theirs for ours, theirs in zip(*statistics.values(), strict=True))
    words = [len(reference.split()) for _, reference in pairs]
    return {
        "kind": name,
        "pairs": len(pairs),
        "words": round(sum(words) / len(words), 1),
        "differ": differ,
        "sacrebleu_seconds": round(seconds["sacrebleu"], 3),
        "seconds": round(seconds["ours"], 3),
        "ratio": round(seconds["sacrebleu"] / max(seconds["ours"], 1e-9), 1),
    }


def markdown(report: dict[str, Any]) -> str:
    titles = [
        "pairs",
        "how many",
        "words of the reference",
        "sacrebleu, ms a pair",
        "ours, ms a pair",
        "ratio",
        "differ",
    ]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for record in report["records"]:
        theirs, ours = (1000 * record[name] / record["pairs"] for name in ("sacrebleu_seconds", "seconds"))
        cells = [record["kind"], record["pairs"], record["words"], f"{theirs:.2f}", f"{ours:.2f}", record["ratio"]]
        lines.append("| " + " | ".join(map(str, [*cells, record["differ"]])) + " |")
    facts, total = report["machine"], [sum(record[name] for record in report["records"]) for name in TIME_FIELDS]
    where = f"{facts['cpu']}, Python {facts['python']}, sacrebleu {report['sacrebleu']}"
    lines += [
        "",
        f"Core-seconds in all: sacrebleu {total[0]:.1f}, ours {total[1]:.1f}. {where}; text: {report['text']}.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file of lines, plain or .gz; by default generated English ones")
    parser.add_argument(
        "--translations", type=Path, help="a file of as many lines, which are measured against the text"
    )
    parser.add_argument("--pairs", type=int, default=6, help="of each kind of 100 to 500 words (%(default)s)")
    parser.add_argument("--short", type=int, default=10_000, help="of random words (%(default)s)")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    if options.text:
        lines = list(read_lines(options.text))
    else:
        english = LANGUAGES.index("en")
        lines = [pair[english] for pair in generate_pairs(seed=1, pairs=2000, min_words=6, max_words=60)]
    translations = list(read_lines(options.translations)) if options.translations else None
    if translations is not None and len(translations) != len(lines):
        parser.error(f"translations must be as many as lines of text; {len(translations)} and {len(lines)}; align them")
    report: dict[str, Any] = {"machine": machine_info("cpu"), "sacrebleu": sacrebleu.__version__, "records": []}
    report["text"] = options.text.name if options.text else "generated"
    kinds = list(PairSource(lines, translations).kinds(options.pairs, options.short))
    with tqdm(total=sum(len(pairs) for _, pairs in kinds), unit="pair") as progress:
        for name, pairs in kinds:
            progress.set_postfix_str(name)
            report["records"].append(compare_kind(name, pairs, progress))
    print(markdown(report))
    if options.save:
        save(report, markdown(report), options.save)
    return int(any(record["differ"] for record in report["records"]))


if __name__ == "__main__":
    sys.exit(main())
