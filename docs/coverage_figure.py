"""Which sentences of a document have a counterpart in its translation, by system.

    python docs/coverage_figure.py FOLDER      measures coverage.csv.xz of docs/results/news-small, and draws it
    python docs/coverage_figure.py             draws the saved measurement

FOLDER has the documents: `python corpora/check.py OTHER --lowercase FOLDER`. Content words are those of five letters or
more. The content words of the whole translation are matched in order with those of the whole reference, as a longest
common subsequence. The coverage of a sentence is the share of its content words in the reference that are matched. The
figure has means over three seeds.
"""

import csv
import lzma
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from saved_documents import RUN, read_test_sets, read_translations

from hf_posenc.lab.figures.style import FONT_SIZE, WIDTH_INCHES, line_styles, save_figure, style_axes, with_title
from hf_posenc.utils.atomic_io import atomic_write

FILE = RUN / "coverage.csv.xz"
TEST_SET, SEEDS = "parliament-400", (1, 2, 3)
TITLE = "aligned covers every tenth of a document, relative the first one, sinusoidal none"
LABELS = {
    "aligned-100": "aligned",
    "aligned-100-split": "aligned, segmented",
    "relative-100": "relative",
    "sinusoidal-100": "sinusoidal",
}
OTHER_DOCUMENT = "other document"  # the aligned translation of the next document: the coverage by chance
NUM_PARTS = 10  # equal parts of a document, over which all documents are averaged
CONTENT_WORD = re.compile(r"[^\W\d_]{5,}")


class Coverage(NamedTuple):
    """The coverage of a sentence in one system's translation; `words` counts its content words."""

    system: str
    seed: int
    document: int
    sentence: int
    words: int
    matched: int

    @property
    def translation(self) -> tuple[int, int]:
        return self.seed, self.document


def content_words(text: str) -> list[str]:
    return CONTENT_WORD.findall(text.lower())


def matched_in_order(reference: Sequence[str], translation: Sequence[str]) -> np.ndarray:
    """Which reference words belong to a longest common subsequence (R,); of several, the one that starts earliest."""
    equal = np.array(reference, dtype=object)[:, None] == np.array(translation, dtype=object)[None, :]
    longest = np.zeros(
        (len(reference) + 1, len(translation) + 1), dtype=int
    )  # [i, j]: of reference[i:], translation[j:]
    for i in reversed(range(len(reference))):
        for j in reversed(range(len(translation))):
            skipped = max(longest[i + 1, j], longest[i, j + 1])
            longest[i, j] = 1 + longest[i + 1, j + 1] if equal[i, j] else skipped
    matched, i, j = np.zeros(len(reference), dtype=bool), 0, 0
    while i < len(reference) and j < len(translation):
        if equal[i, j]:
            matched[i], i, j = True, i + 1, j + 1
        elif longest[i + 1, j] >= longest[i, j + 1]:
            i += 1
        else:
            j += 1
    return matched


def sentence_coverage(
    system: str, seed: int, document: int, references: Sequence[str], translation: str
) -> Iterator[Coverage]:
    """The coverage of each sentence that has content words."""
    words = [content_words(sentence) for sentence in references]
    matched = matched_in_order([word for sentence in words for word in sentence], content_words(translation))
    ends = np.cumsum([len(sentence) for sentence in words])
    for number, (sentence, of_sentence) in enumerate(zip(words, np.split(matched, ends[:-1]), strict=True)):
        if sentence:
            yield Coverage(system, seed, document, number, len(sentence), int(of_sentence.sum()))


def measure(folder: Path) -> list[Coverage]:
    references = read_test_sets([TEST_SET], folder)[TEST_SET].references
    saved = read_translations([f"{system}-seed{seed}" for system in LABELS for seed in SEEDS], [TEST_SET])
    texts = {(system, seed): saved[f"{system}-seed{seed}", TEST_SET] for system in LABELS for seed in SEEDS}
    for seed in SEEDS:
        first, *others = texts["aligned-100", seed]
        texts[OTHER_DOCUMENT, seed] = [*others, first]
    return [
        coverage
        for (system, seed), translations in texts.items()
        for document, translation in enumerate(translations)
        for coverage in sentence_coverage(system, seed, document, references[document], translation)
    ]


def mean_by_part(rows: Sequence[Coverage]) -> list[float]:
    """Percent of matched content words in each tenth of the documents, over all documents and seeds."""
    words, matched = np.zeros(NUM_PARTS), np.zeros(NUM_PARTS)
    ends: dict[tuple[int, int], int] = {}
    for row in rows:
        ends[row.translation] = ends.get(row.translation, 0) + row.words
    read = dict.fromkeys(ends, 0)
    for row in rows:
        middle = read[row.translation] + row.words / 2
        part = int(NUM_PARTS * middle / ends[row.translation])
        words[part] += row.words
        matched[part] += row.matched
        read[row.translation] += row.words
    return list(100 * matched / words)


def coverage_figure(rows: Sequence[Coverage]) -> Figure:
    by_system = {system: [row for row in rows if row.system == system] for system in (*LABELS, OTHER_DOCUMENT)}
    figure = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    panels = figure.subplots(1, len(LABELS), sharey=True)
    styles = line_styles(LABELS)
    chance = mean_by_part(by_system[OTHER_DOCUMENT])
    parts = (np.arange(NUM_PARTS) + 0.5) * 100 / NUM_PARTS
    for axes, (system, label) in zip(panels, LABELS.items(), strict=True):
        colour, line = styles[system][0], ":" if "split" in system else "-"
        axes.plot(parts, mean_by_part(by_system[system]), color=colour, linestyle=line)
        axes.plot(parts, chance, color="#888888", linestyle="--", linewidth=1)
        axes.set_title(label, fontsize=FONT_SIZE + 1, color=colour)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 50)
        axes.set_xlabel("% of the document", fontsize=FONT_SIZE)
        style_axes(axes)
    panels[0].set_ylabel("% of content words matched", fontsize=FONT_SIZE)
    panels[0].text(50, max(chance) + 2, "by chance", fontsize=FONT_SIZE, color="#666666", ha="center")
    return with_title(figure, TITLE)


def read_coverage() -> list[Coverage]:
    """The saved measurement."""
    with lzma.open(FILE, "rt", encoding="utf-8", newline="") as file:
        return [Coverage(system, *map(int, counts)) for system, *counts in list(csv.reader(file))[1:]]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        lines = [",".join(Coverage._fields), *(",".join(map(str, row)) for row in measure(Path(sys.argv[1])))]
        atomic_write(FILE, lzma.compress("\n".join([*lines, ""]).encode()))
    save_figure(coverage_figure(read_coverage()), RUN / "coverage.png")
