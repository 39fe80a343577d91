"""How many planted faults the checks of a translation find, and how many human translations they doubt.

    python benchmarks/translation_checks.py SOURCE TARGET [--save NAME]

Each fault is planted into a tenth of the human translations, one kind at a time. A fault is found if the segment has
any doubt that its human translation has not. All segments are one document, which `coverage` reads together. Precision
is the share of faults among all doubted segments, if a tenth of all has the fault. The row `none` has the share of
human translations that are doubted. Below the table is the process time of the checks of a segment, without `coverage`
and of `coverage` alone.
"""

import argparse
import itertools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common import save

from hf_posenc.translator.checks import LINK, NUMBER, Checked, SegmentTranslation, find_doubts, usual_ratio
from hf_posenc.translator.coverage import doubt_uncovered

Pair = tuple[str, str]
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстуввхыз")


def cut_in_half(pair: Pair, rng: random.Random) -> str:
    words = pair[1].split()
    return " ".join(words[: len(words) // 2])


def keep_a_quarter(pair: Pair, rng: random.Random) -> str:
    words = pair[1].split()
    return " ".join(words[: len(words) // 4])


def repeat_the_end(pair: Pair, rng: random.Random) -> str:
    words = pair[1].split()
    return " ".join(words + words[-rng.randint(1, 4) :] * rng.randint(4, 9))


def change_a_number(pair: Pair, rng: random.Random) -> str | None:
    numbers = [match for match in NUMBER.finditer(pair[1]) if len(match[0]) > 1 and match[0] in pair[0]]
    if not numbers:
        return None
    number = rng.choice(numbers)
    return pair[1][: number.start()] + str(rng.randint(2, 9)) + pair[1][number.end() :]


def drop_a_link(pair: Pair, rng: random.Random) -> str | None:
    return LINK.sub("", pair[1]) if LINK.search(pair[0]) and LINK.search(pair[1]) else None


FAULTS: dict[str, Callable[[Pair, random.Random], str | None]] = {
    "empty": lambda pair, rng: "",
    "half of it": cut_in_half,
    "a quarter of it": keep_a_quarter,
    "a loop at the end": repeat_the_end,
    "the source": lambda pair, rng: pair[0],
    "another script": lambda pair, rng: pair[1].lower().translate(CYRILLIC),
    "another number": change_a_number,
    "without a link": drop_a_link,
    "most of the source": lambda pair, rng: f'In German, "{pair[0][: 3 * len(pair[0]) // 4]}".',
}


def checks_of(pairs: Sequence[Pair], ratio: tuple[float, float] | None) -> tuple[list[set[str]], list[float]]:
    """The names of the checks that doubt each translation; process seconds without `coverage` and of it."""
    segments, times = [], [time.process_time()]
    for number, (source, translation) in enumerate(pairs):
        doubts = find_doubts(Checked(source, translation, False, ratio, "Latn"))
        segments.append(SegmentTranslation(str(number), source, translation, doubts))
    times.append(time.process_time())
    doubt_uncovered(segments)
    times.append(time.process_time())
    checks = [{doubt.check for doubt in segment.doubts} for segment in segments]
    return checks, [after - before for before, after in itertools.pairwise(times)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--save")
    options = parser.parse_args(arguments)
    sides = [path.read_text(encoding="utf-8").split("\n") for path in (options.source, options.target)]
    pairs = [(source, target) for source, target in zip(*sides, strict=True) if source.strip() and target.strip()]
    ratio = usual_ratio(pairs)
    human, seconds = checks_of(pairs, ratio)
    false_alarms = sum(map(bool, human)) / len(pairs)
    rows = {"none": ("", f"{false_alarms:.2%}", "")}
    rng = random.Random(0)
    faults = FAULTS | {"another sentence": lambda pair, rng: rng.choice(pairs)[1]}
    for name, plant in faults.items():
        chosen = rng.sample(range(len(pairs)), len(pairs) // 10)
        planted = {row: fault for row in chosen if (fault := plant(pairs[row], rng)) is not None}
        if planted:
            texts = [(source, planted.get(row, target)) for row, (source, target) in enumerate(pairs)]
            checks, _ = checks_of(texts, ratio)
            found = sum(bool(checks[row] - human[row]) for row in planted)
            # A fault in a tenth of the segments; the others have false alarms.
            precision = found / (found + 9 * len(planted) * false_alarms)
            rows[name] = (str(len(planted)), f"{found / len(planted):.0%}", f"{precision:.0%}")
    lines = ["| fault in a tenth of the segments | planted | doubted | precision |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    each, coverage = (1000 * value / len(pairs) for value in seconds)
    lines += ["", f"Process time of a segment's checks: {each:.2f} ms, and {coverage:.2f} ms of `coverage`."]
    table = "\n".join(lines)
    print(table)
    if options.save:
        save({"pairs": len(pairs), "seconds": seconds, "rows": rows}, table, options.save)


if __name__ == "__main__":
    main()
