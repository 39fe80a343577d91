"""What a translation of paragraphs loses and repeats, by how the paragraphs were given to the model.

    python benchmarks/translate_documents.py MODEL [SOURCE TARGET] [--ids FILE] [--lines 8] [--save NAME]

SOURCE and TARGET have a sentence a line. Without them, sentences are those of the quickstart's generator. Consecutive
sentences become paragraphs, which never go beyond a document of `--ids`. A paragraph is given to `generate` as a whole
with opus-mt's limit of 512 tokens. Its sentences are given one by one, at the true boundaries. It is given to
Translator without and with repair. Dropped and repeated are shares of the source sentences by the audit, with the
references. A loop is counted for a paragraph by the check of Translator.

The cost is the process time of a Translator over that of its own `generate` alone, for the sentences that have no
doubts, so that nothing is repaired. The rounds of both are interleaved.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from common import save
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc  # noqa: F401 (registers its models with the Auto classes)
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.translator.checks import Checked, loop
from hf_posenc.translator.translator import Translator
from hf_posenc.utils.text_io import read_lines

NUM_GENERATED = 960
WHOLE_NEW_TOKENS = 512  # the default of opus-mt
Paragraph = list[tuple[str, str]]  # source and reference of each sentence


def read_pairs(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The sentence pairs of two files; without files, generated ones that no quickstart trains with."""
    if not paths:
        pairs = generate_pairs(seed=3, pairs=NUM_GENERATED, min_words=6, max_words=24)
        return [(source, target) for source, target in pairs]
    return list(zip(*(list(read_lines(path)) for path in paths), strict=True))


def paragraphs_of(pairs: Sequence[tuple[str, str]], ids: Sequence[str], num_lines: int) -> list[Paragraph]:
    """Consecutive sentences of one document, `num_lines` at a time; shorter rests are left out."""
    paragraphs = []
    for _, group in groupby(range(len(pairs)), key=ids.__getitem__):
        rows = list(group)
        starts = range(0, len(rows) - num_lines + 1, num_lines)
        paragraphs += [[pairs[row] for row in rows[start : start + num_lines]] for start in starts]
    return paragraphs


def whole(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Each paragraph as one input, truncated as the tokenizer does."""
    outputs = []
    for start in range(0, len(texts), translator.batch_size):
        batch = list(texts[start : start + translator.batch_size])
        inputs = translator.tokenizer(batch, truncation=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            num_beams = translator.generate_options["num_beams"]
            sequences = translator.model.generate(**inputs, num_beams=num_beams, max_new_tokens=WHOLE_NEW_TOKENS)
        outputs += translator.tokenizer.batch_decode(sequences, skip_special_tokens=True)
    return outputs


def by_sentences(translator: Translator, paragraphs: Sequence[Paragraph]) -> list[str]:
    """The sentences of each paragraph at their true boundaries."""
    sources = [source for paragraph in paragraphs for source, _ in paragraph]
    translations = iter(translator.generate(sources, translator.generate_options))
    return [" ".join(next(translations)[0] for _ in paragraph) for paragraph in paragraphs]


def scores(paragraphs: Sequence[Paragraph], texts: Sequence[str], translations: Sequence[str]) -> dict[str, float]:
    references = [" ".join(reference for _, reference in paragraph) for paragraph in paragraphs]
    result: Any = load_translation_audit().compute(
        predictions=list(translations),
        sources=[[source for source, _ in paragraph] for paragraph in paragraphs],
        references=[[reference for _, reference in paragraph] for paragraph in paragraphs],
        scores=False,
    )
    loops = [loop(Checked(source, text)) is not None for source, text in zip(texts, translations, strict=True)]
    return {
        "dropped": result["all"]["dropped"] / result["all"]["segments"],
        "repeated": result["all"]["repeated"] / result["all"]["segments"],
        "loops": sum(loops) / len(loops),
        "bleu": BLEU().corpus_score(list(translations), [references]).score,
        "chrf": CHRF().corpus_score(list(translations), [references]).score,
    }


def cost_of_checks(translator: Translator, sources: Sequence[str], rounds: int) -> float:
    """Process time of translation with checks over that without, for sources that have no doubts; the median."""
    results = translator.translate_segments(sources, False)
    clean = [result.source for result in results if not result.doubts and not result.repaired]
    steps: list[Callable[[], object]] = [
        lambda: translator.translate_segments(clean, False),
        lambda: translator.generate(clean, translator.generate_options),
    ]
    ratios = []
    for _ in range(rounds):
        seconds = []
        for step in steps:
            start = time.process_time()
            step()
            seconds.append(time.process_time() - start)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="*", metavar="SOURCE TARGET")
    parser.add_argument("--ids", type=Path, help="the document of each line")
    parser.add_argument("--lines", type=int, default=8, help="sentences of a paragraph (default 8)")
    parser.add_argument("--max-paragraphs", type=int, help="the first so many (default all)")
    parser.add_argument("--segment-tokens", type=int, default=128, help="of a segment, at most (default 128)")
    parser.add_argument("--num-beams", type=int, default=1, help="of the first translation (default 1)")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], metavar="CODE")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost (default 3)")
    parser.add_argument("--save", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = read_pairs(options.texts)
    ids = list(read_lines(options.ids)) if options.ids else [""] * len(pairs)
    paragraphs = paragraphs_of(pairs, ids, options.lines)[: options.max_paragraphs]
    texts = [" ".join(source for source, _ in paragraph) for paragraph in paragraphs]
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    decoding = {"max_segment_tokens": options.segment_tokens, "num_beams": options.num_beams}
    plain = Translator(model, tokenizer, *options.languages, repair=False, **decoding)
    repairing = Translator(model, tokenizer, *options.languages, **decoding)
    systems: dict[str, Callable[[], list[str]]] = {
        "paragraph as a whole": lambda: whole(plain, texts),
        "sentence by sentence": lambda: by_sentences(plain, paragraphs),
        "Translator without repair": lambda: [result.text for result in plain(texts)],
        "Translator": lambda: [result.text for result in repairing(texts)],
    }
    rows: dict[str, dict[str, float]] = {}
    for name, translate in systems.items():
        start = time.process_time()
        translations = translate()
        seconds = time.process_time() - start
        rows[name] = {**scores(paragraphs, texts, translations), "seconds": seconds}
        print(name, rows[name], flush=True)
    segments = [segment for result in repairing(texts) for segment in result.segments]
    counts = {
        "segments": len(segments),
        "repaired": sum(segment.repaired for segment in segments),
        "doubtful": sum(bool(segment.doubts) for segment in segments),
    }
    cost = cost_of_checks(repairing, [source for paragraph in paragraphs for source, _ in paragraph], options.rounds)
    lines = ["| system | dropped | repeated | loops | BLEU | chrF | s |", "| --- |" + " ---: |" * 6]
    for name, row in rows.items():
        shares = " | ".join(f"{100 * row[column]:.1f} %" for column in ("dropped", "repeated", "loops"))
        lines.append(f"| {name} | {shares} | {row['bleu']:.1f} | {row['chrf']:.1f} | {row['seconds']:.0f} |")
    table = "\n".join(lines) + (
        f"\n\n{len(paragraphs)} paragraphs of {options.lines} sentences. Of {counts['segments']} segments "
        f"{counts['repaired']} were repaired and {counts['doubtful']} stay doubtful. Checks take {cost:.3f} times the "
        "process time of translation alone, where nothing is repaired.\n"
    )
    print(table)
    if options.save:
        save({"paragraphs": len(paragraphs), "rows": rows, "cost": cost, **counts}, table, options.save)


if __name__ == "__main__":
    main()
