"""What a translation of paragraphs loses and repeats, by how the paragraphs were given to the model.

    python benchmarks/translate_documents.py MODEL [MODEL ...] [--texts SOURCE TARGET] [--ids FILE] [--lines 8]
        [--training-length N] [--lengthened MODEL ...] [--save NAME]

The models differ in their seed alone. SOURCE and TARGET have a sentence a line, plain or gzip. Without them, sentences
are generated, and the quickstart trains with none of them. Consecutive sentences become paragraphs, which never go
beyond a document of `--ids`. A paragraph is given to `generate` as a whole with opus-mt's limit of 512 tokens. Its
sentences are given one by one, at the true boundaries. It is given to Translator without and with repair, in segments
of its default length, and with repair in segments of at most `--training-length` tokens. `--lengthened` names models by
`hf-posenc lengthen`, which translate it as a whole.

Rows are of all paragraphs, of those whose sentences all have at most `--training-length` tokens, and of those with a
longer one. Dropped and repeated are shares of the source sentences by the audit, with the references. A loop is counted
for a paragraph by the check of Translator.

The cost is the process time of a Translator over that of its own `generate` alone, for the sentences of the first
paragraphs that have no doubts, so that nothing is repaired. The rounds of both are interleaved.

With `--save`, the same command goes on after a kill with the models that are not measured yet.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import common
import torch
import yaml
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tqdm.auto import tqdm

from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.translator.checks import Checked, SegmentTranslation, loop
from hf_posenc.translator.translator import MAX_SEGMENT_TOKENS, Translator
from hf_posenc.utils.atomic_io import first_difference, short_hash
from hf_posenc.utils.manifest import sha256
from hf_posenc.utils.text_io import read_lines

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
NUM_GENERATED = 960
WHOLE_NEW_TOKENS = 512  # the default of opus-mt
COST_PARAGRAPHS = 40
STRATA = ("all", "short sentences", "a longer sentence")
SHARES, SCORES = ("dropped", "repeated", "loops"), ("bleu", "chrf")
Paragraph = list[tuple[str, str]]  # source and reference of each sentence
Row = dict[str, float]
Record = dict[str, Any]


def read_pairs(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The sentence pairs of two files; without files, generated ones that the quickstart does not train with."""
    if paths:
        return list(zip(*(list(read_lines(path)) for path in paths), strict=True))
    corpora = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))["data"]["train"]["corpora"]
    trained = {source for corpus in corpora for source, _ in generate_pairs(**corpus["generator"])}
    candidates = generate_pairs(seed=61, pairs=2 * NUM_GENERATED, min_words=6, max_words=24)
    return [(source, target) for source, target in candidates if source not in trained][:NUM_GENERATED]


def paragraphs_of(pairs: Sequence[tuple[str, str]], ids: Sequence[str], num_lines: int) -> list[Paragraph]:
    """Consecutive sentences of one document, `num_lines` at a time; shorter rests are left out."""
    paragraphs = []
    for _, group in groupby(range(len(pairs)), key=ids.__getitem__):
        rows = list(group)
        starts = range(0, len(rows) - num_lines + 1, num_lines)
        paragraphs += [[pairs[row] for row in rows[start : start + num_lines]] for start in starts]
    return paragraphs


def text_of(paragraph: Paragraph) -> str:
    return " ".join(source for source, _ in paragraph)


def strata_of(paragraphs: Sequence[Paragraph], count: Callable[[str], int], length: int) -> dict[str, list[int]]:
    """The numbers of all paragraphs, of those whose sentences have at most `length` tokens, and of the others."""
    longest = [max(count(source) for source, _ in paragraph) for paragraph in paragraphs]
    short = [number for number, tokens in enumerate(longest) if tokens <= length]
    long = [number for number, tokens in enumerate(longest) if tokens > length]
    strata = dict(zip(STRATA, (list(range(len(paragraphs))), short, long), strict=True))
    return {name: numbers for name, numbers in strata.items() if numbers}


def whole(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Each paragraph as one input, truncated as the tokenizer does."""
    options = {**translator.generate_options, "max_new_tokens": WHOLE_NEW_TOKENS, "max_length": None}
    outputs = []
    for start in range(0, len(texts), translator.batch_size):
        batch = list(texts[start : start + translator.batch_size])
        inputs = translator.tokenizer(batch, truncation=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            sequences = translator.model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **options
            )
        outputs += translator.tokenizer.batch_decode(sequences, skip_special_tokens=True)
    return outputs


def by_sentences(translator: Translator, paragraphs: Sequence[Paragraph]) -> list[str]:
    """The sentences of each paragraph at their true boundaries."""
    sources = [source for paragraph in paragraphs for source, _ in paragraph]
    translations = iter(translator.generate(sources, translator.generate_options))
    return [" ".join(next(translations)[0] for _ in paragraph) for paragraph in paragraphs]


def score(
    paragraphs: Sequence[Paragraph], translations: Sequence[str], strata: Mapping[str, Sequence[int]]
) -> dict[str, Row]:
    """The shares and scores of each stratum. All paragraphs are audited at once."""
    references = [" ".join(reference for _, reference in paragraph) for paragraph in paragraphs]
    audit: Any = load_translation_audit().compute(
        predictions=list(translations),
        sources=[[source for source, _ in paragraph] for paragraph in paragraphs],
        references=[[reference for _, reference in paragraph] for paragraph in paragraphs],
        scores=False,
    )
    pairs = [Checked(text_of(paragraph), text) for paragraph, text in zip(paragraphs, translations, strict=True)]
    loops = [loop(pair) is not None for pair in pairs]
    rows = {}
    for name, numbers in strata.items():
        records = [audit["documents"][number] for number in numbers]
        num_sentences = sum(record["segments"] for record in records)
        outputs = [translations[number] for number in numbers]
        expected = [[references[number] for number in numbers]]
        rows[name] = {
            "dropped": sum(len(record["dropped"]) for record in records) / num_sentences,
            "repeated": sum(len(record["repeated"]) for record in records) / num_sentences,
            "loops": sum(loops[number] for number in numbers) / len(numbers),
            "bleu": BLEU().corpus_score(outputs, expected).score,
            "chrf": CHRF().corpus_score(outputs, expected).score,
        }
    return rows


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


def measure(folder: Path, paragraphs: Sequence[Paragraph], options: argparse.Namespace) -> Record:
    """A model's rows: whole, by sentences and by Translator, and the cost of its checks."""
    decoding = {"max_segment_tokens": MAX_SEGMENT_TOKENS, "num_beams": options.num_beams}
    plain = Translator.from_pretrained(folder, *options.languages, repair=False, **decoding)
    repairing = Translator(plain.model, plain.tokenizer, *options.languages, **decoding)
    decoding["max_segment_tokens"] = options.training_length
    dividing = Translator(plain.model, plain.tokenizer, *options.languages, **decoding)
    texts = [text_of(paragraph) for paragraph in paragraphs]
    segments: list[SegmentTranslation] = []

    def translate_and_repair() -> list[str]:
        results = repairing(texts)
        segments.extend(segment for result in results for segment in result.segments)
        return [result.text for result in results]

    systems: dict[str, Callable[[], list[str]]] = {
        "paragraph as a whole": lambda: whole(plain, texts),
        "sentence by sentence": lambda: by_sentences(plain, paragraphs),
        "Translator without repair": lambda: [result.text for result in plain(texts)],
        "Translator": translate_and_repair,
        "Translator, training length": lambda: [result.text for result in dividing(texts)],
    }
    record = measure_systems(systems, paragraphs, plain.count, options)
    sources = [source for paragraph in paragraphs[:COST_PARAGRAPHS] for source, _ in paragraph]
    return record | {
        "segments": len(segments),
        "repaired": sum(segment.repaired for segment in segments),
        "doubtful": sum(bool(segment.doubts) for segment in segments),
        "cost": cost_of_checks(repairing, sources, options.rounds),
    }


def measure_lengthened(folder: Path, paragraphs: Sequence[Paragraph], options: argparse.Namespace) -> Record:
    """The row of a model that translates a paragraph as a whole."""
    translator = Translator.from_pretrained(folder, *options.languages, num_beams=options.num_beams)
    texts = [text_of(paragraph) for paragraph in paragraphs]
    systems: dict[str, Callable[[], list[str]]] = {
        "lengthened model, as a whole": lambda: [result.text for result in translator(texts)]
    }
    return measure_systems(systems, paragraphs, translator.count, options)


def measure_systems(
    systems: Mapping[str, Callable[[], list[str]]],
    paragraphs: Sequence[Paragraph],
    count: Callable[[str], int],
    options: argparse.Namespace,
) -> Record:
    """Scores by stratum and system, the process time of each system, and the size of each stratum."""
    strata = strata_of(paragraphs, count, options.training_length)
    rows, seconds = {}, {}
    for name, translate in systems.items():
        start = time.process_time()
        translations = translate()
        seconds[name] = time.process_time() - start
        rows[name] = score(paragraphs, translations, strata)
    return {"rows": rows, "seconds": seconds, "strata": {name: len(numbers) for name, numbers in strata.items()}}


def with_range(values: Sequence[float], form: str = ".1f", unit: str = "") -> str:
    """The mean, with minimum and maximum of several values."""
    shown = f"{statistics.mean(values):{form}}{unit}"
    return shown if len(values) == 1 else f"{shown} ({min(values):{form}}-{max(values):{form}})"


def score_cells(rows: Sequence[Row]) -> list[str]:
    """The cells of SHARES and SCORES, for several models."""
    cells = [with_range([100 * row[column] for row in rows], unit=" %") for column in SHARES]
    return cells + [with_range([row[column] for row in rows]) for column in SCORES]


def render(records: Sequence[Record], num_lines: int, training_length: int) -> str:
    """The table of all models: mean and range over them, by stratum and system."""
    lines = ["| paragraphs | system | models | dropped | repeated | loops | BLEU | chrF | s |"]
    lines.append("| --- | --- |" + " ---: |" * 7)
    names = dict.fromkeys(name for record in records for name in record["rows"])
    for stratum in STRATA:
        for name in names:
            measured = [record for record in records if stratum in record["rows"].get(name, {})]
            rows = [record["rows"][name][stratum] for record in measured]
            if rows:
                cells = score_cells(rows)
                seconds = [record["seconds"][name] for record in measured]
                cells.append(with_range(seconds, ".0f") if stratum == "all" else "")
                lines.append(f"| {stratum} | {name} | {len(rows)} | {' | '.join(cells)} |")
    sizes = {name: sorted({record["strata"].get(name, 0) for record in records}) for name in STRATA}
    counts = "; ".join(f"{'-'.join(map(str, numbers))} {name}" for name, numbers in sizes.items())
    note = (
        f"Paragraphs of {num_lines} sentences: {counts}. A sentence is short up to {training_length} tokens. Mean "
        "(range) over models."
    )
    if translated := [record for record in records if "cost" in record]:
        segments, repaired, doubtful = (
            with_range([record[key] for record in translated], ".0f") for key in ("segments", "repaired", "doubtful")
        )
        cost = with_range([record["cost"] for record in translated], ".3f")
        note += (
            f" Of {segments} segments of Translator {repaired} were repaired and {doubtful} stay doubtful. Checks "
            f"take {cost} times the process time of translation alone, where nothing is repaired."
        )
    return "\n".join([*lines, "", note])


def saved_records(name: str | None, settings: Mapping[str, object]) -> dict[str, Record]:
    """The records of an unfinished or finished command by the hash of their model's weights.

    A SystemExit for saved ones with other settings.
    """
    path = common.FOLDER / "results" / f"{name}.json"
    if name is None or not path.exists():
        return {}
    report = json.loads(path.read_text(encoding="utf-8"))
    if difference := first_difference(report.get("settings", {}), settings):
        raise SystemExit(f"{path} must have these settings, but {difference}; delete it, or choose another --save.")
    records: dict[str, Record] = report["models"]
    return records


def argument_parser(description: str | None, num_lines: int) -> argparse.ArgumentParser:
    """The arguments of a benchmark of models on paragraphs of `num_lines` sentences, unless `--lines` is given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--texts", type=Path, nargs=2, default=[], metavar=("SOURCE", "TARGET"))
    parser.add_argument("--ids", type=Path, help="the document of each line")
    parser.add_argument("--lines", type=int, default=num_lines, help="sentences of a paragraph (default %(default)s)")
    parser.add_argument("--max-paragraphs", type=int, help="the first so many (default all)")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], metavar="CODE")
    parser.add_argument("--save", metavar="NAME")
    return parser


def read_paragraphs(options: argparse.Namespace) -> list[Paragraph]:
    """The paragraphs that the arguments name."""
    pairs = read_pairs(options.texts)
    ids = list(read_lines(options.ids)) if options.ids else [""] * len(pairs)
    return paragraphs_of(pairs, ids, options.lines)[: options.max_paragraphs]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__, 8)
    parser.add_argument("--training-length", type=int, default=128, help="longest training source, in tokens (128)")
    parser.add_argument("--lengthened", type=Path, nargs="+", default=[], metavar="MODEL")
    parser.add_argument("--num-beams", type=int, default=1, help="of the first translation (default 1)")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost (default 3)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    paragraphs = read_paragraphs(options)
    chosen = ("lines", "training_length", "num_beams", "languages")
    settings = {name: getattr(options, name) for name in chosen} | {"paragraphs": short_hash(json.dumps(paragraphs))}
    records = saved_records(options.save, settings)
    jobs = [(folder, measure) for folder in options.models]
    jobs += [(folder, measure_lengthened) for folder in options.lengthened]
    for folder, step in tqdm(jobs, unit="model"):
        key = sha256(folder / "model.safetensors")[:12]
        if key not in records:
            records[key] = step(folder, paragraphs, options)
        table = render(list(records.values()), options.lines, options.training_length)
        if options.save:
            report = {"settings": settings, "machine": common.machine_info("cpu"), "models": records}
            common.save(report, table, options.save)
    print(table)


if __name__ == "__main__":
    main()
