"""Quality over latency: streaming, wait-k, re-translation and whole sentences, on documents read word by word.

    pip install OmniSTEval
    python train.py configs/length/latency.yaml
    python benchmarks/latency.py runs/length-latency --output logs --save latency

Every system of the run that can stream reads documents without sentence boundaries (StreamingTranslator). The system
`relative` cannot. It is given the boundaries, and translates each sentence by these policies:

- whole: when its last word has been read.
- wait-k: a target word for each source word, k words behind (Ma et al., ACL 2019). The model is of whole sentences.
- agreement: after each `stride` words the sentence so far is translated again, behind what was written. What two
  translations in a row share is written (local agreement, Liu et al., Interspeech 2020).
- revised: the sentence so far is translated again after each word, and all of it may change (re-translation,
  Arivazhagan et al., IWSLT 2020). A word's delay is that of its last change. The erasure is the number of tokens that
  were taken back, for each token of the last translation.

`chunks` are the same for pieces of so many words: text whose sentence boundaries are unknown.

Systems SYSTEM-seed1, SYSTEM-seed2 and so on are seeds of one row: the table has the mean, and the lowest and highest.
Sources have the normalization of the models' tokenizer (`data.normalize`), as in training.

FOLDER gets an instance log in SimulEval's format for each system and policy: how many source words had been read when
each word of a document's translation was written. OmniSTEval segments the documents again by their references
(SoftSegmenter). It scores BLEU, chrF, and each segment's LongYAAL (Polak et al., arXiv:2509.17349), LAAL and AL. In
these files a source word stands for one second. The table has latencies in source words. To score a log by hand:

    omnisteval longform --word_level --speech_segmentation logs/segmentation.json \\
        --ref_sentences_file logs/references.txt --hypothesis_file logs/aligned-streamed.jsonl
"""

import argparse
import csv
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
from simultaneous import (
    PrefixTranslator,
    Unit,
    shared_length,
    write_agreement,
    write_revised,
    write_wait_k,
    write_whole,
)

from hf_posenc import StreamingTranslator
from hf_posenc.inference.loading import load_model, silence_logging
from hf_posenc.inference.streaming import compute_source_reach
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.tokenizer.tokenization_posenc import build_normalizer
from hf_posenc.utils.atomic_io import atomic_write
from hf_posenc.utils.run_folder import RunPaths
from hf_posenc.utils.text_io import read_lines

MILLISECONDS = 1000  # OmniSTEval's unit of delays; a source word stands for a second
# The scores that are taken over, by OmniSTEval's names. CU: without the time of computation.
QUALITY = {"bleu": "BLEU", "chrf": "chrF"}
LATENCY = {"long_yaal": "LongYAAL (CU)", "long_laal": "LongLAAL (CU)", "long_al": "LongAL (CU)"}
SHOWN_LATENCY = ("long_yaal", "long_laal")


@dataclass
class Output:
    """A translation that is being written: its words, and how many source words had been read for each."""

    words: list[str] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)

    def update(self, text: str, delay: int) -> None:
        """Take the translation so far. A word that is new or has grown has this delay."""
        words = text.split()
        num_old = shared_length(self.words, words)
        self.delays[num_old:] = [delay] * (len(words) - num_old)
        self.words = words


@dataclass(frozen=True)
class Document:
    """Sentences in order: source and reference."""

    sources: list[str]
    references: list[str]

    @property
    def words(self) -> list[str]:
        return " ".join(self.sources).split()


def stream(model: Any, tokenizer: Any, document: Document) -> Output:
    """The streamed translation of a document, fed a word at a time."""
    translator, output, text = StreamingTranslator(model, tokenizer), Output(), ""
    words = document.words
    for number, word in enumerate(words, 1):
        # A word's subwords are fixed by the space after it.
        text += translator.feed(word + " ") if number < len(words) else translator.feed(word) + translator.finish()
        output.update(text, number)
    return output


def sentences_of(documents: list[Document]) -> list[Unit]:
    units = []
    for number, document in enumerate(documents):
        offset = 0
        for source in document.sources:
            units.append(Unit(number, offset, source.split()))
            offset += len(units[-1].words)
    return units


def chunks_of(documents: list[Document], size: int) -> list[Unit]:
    return [
        Unit(number, offset, document.words[offset : offset + size])
        for number, document in enumerate(documents)
        for offset in range(0, len(document.words), size)
    ]


def outputs_of(units: list[Unit], tokenizer: Any, num_documents: int) -> list[Output]:
    """The documents' translations, unit after unit."""
    outputs = [Output() for _ in range(num_documents)]
    for unit in units:
        own = Output()
        for end, delay in enumerate(unit.delays, 1):
            own.update(tokenizer.decode(unit.ids[:end]), delay)
        outputs[unit.document].words += own.words
        outputs[unit.document].delays += [unit.offset + delay for delay in own.delays]
    return outputs


def split_seed(name: str) -> tuple[str, int | None]:
    """The row and the seed of a system's folder."""
    row, separator, seed = name.rpartition("-seed")
    return (row, int(seed)) if separator and seed.isdecimal() else (name, None)


def streamed(folders: dict[str, Path], documents: list[Document]) -> Iterator[tuple[dict[str, Any], list[Output]]]:
    """Each system that can stream: its record and its outputs."""
    for name, folder in folders.items():
        model, tokenizer = load_model(folder)
        try:
            reach = compute_source_reach(model.config)
        except (AttributeError, ValueError):  # it reads all of its source
            continue
        outputs = [stream(model, tokenizer, document) for document in documents]
        texts = [" ".join(document.words) for document in documents]
        offline = model.translate(texts, tokenizer, num_beams=1, eos_requires_source_end=True)
        same = sum(output.words == text.split() for output, text in zip(outputs, offline, strict=True))
        yield record_of(name, "streamed") | {"lookahead": reach.lookahead, "same_as_offline": same}, outputs


def record_of(name: str, policy: str) -> dict[str, Any]:
    """What identifies a measurement: the row, its seed if it has one, and the policy."""
    system, seed = split_seed(name)
    return {"system": system, "policy": policy} | ({} if seed is None else {"seed": seed})


def simultaneous(
    folder: Path, name: str, documents: list[Document], options: argparse.Namespace
) -> Iterator[tuple[dict[str, Any], list[Output]]]:
    """A system of whole sentences by each policy: its record and its outputs."""
    translator = PrefixTranslator(*load_model(folder))

    def result(policy: str, units: list[Unit], erasure: float | None = None) -> tuple[dict[str, Any], list[Output]]:
        record = record_of(name, policy) | ({} if erasure is None else {"erasure": erasure})
        return record, outputs_of(units, translator.tokenizer, len(documents))

    cuts: list[tuple[str, Callable[[], list[Unit]]]] = [("", partial(sentences_of, documents))]
    cuts += [(f", chunks of {size}", partial(chunks_of, documents, size)) for size in options.chunks]
    for suffix, cut in cuts:
        write_whole(translator, units := cut())
        yield result(f"whole{suffix}", units)
        for k in options.wait_k:
            write_wait_k(translator, units := cut(), k)
            yield result(f"wait-{k}{suffix}", units)
        for stride in options.stride:
            write_agreement(translator, units := cut(), stride)
            yield result(f"agreement, stride {stride}{suffix}", units)
    erasure = write_revised(translator, units := sentences_of(documents))
    yield result("revised", units, erasure)


def write_references(folder: Path, documents: list[Document]) -> None:
    """OmniSTEval's segmentation and references."""
    segments, offset = [], 0
    for number, document in enumerate(documents):
        offset = 0
        for source in document.sources:
            length = len(source.split())
            segments.append({"wav": f"document-{number}", "offset": offset, "duration": length})
            offset += length
    references = [reference for document in documents for reference in document.references]
    atomic_write(folder / "segmentation.json", json.dumps(segments) + "\n")
    atomic_write(folder / "references.txt", "".join(f"{reference}\n" for reference in references))


def write_log(path: Path, documents: list[Document], outputs: list[Output]) -> None:
    """An instance log in SimulEval's format, a line for each document."""
    lines = [
        {
            "index": number,
            "source": f"document-{number}",
            "prediction": " ".join(output.words),
            "delays": [delay * MILLISECONDS for delay in output.delays],
            "source_length": len(document.words) * MILLISECONDS,
        }
        for number, (document, output) in enumerate(zip(documents, outputs, strict=True))
    ]
    atomic_write(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def score(folder: Path, log: Path) -> dict[str, float]:
    """OmniSTEval's scores of a log, latencies in source words."""
    command = [sys.executable, "-m", "omnisteval.cli", "longform", "--word_level"]
    command += ["--speech_segmentation", str(folder / "segmentation.json"), "--hypothesis_file", str(log)]
    with TemporaryDirectory() as scratch:
        command += ["--ref_sentences_file", str(folder / "references.txt"), "--output_folder", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"OmniSTEval must score {log}, but it failed:\n{done.stderr[-2000:]}")
        with Path(scratch, "scores.tsv").open(encoding="utf-8") as file:
            values = {row["metric"]: row["value"] for row in csv.DictReader(file, delimiter="\t")}
    scores = {key: float(values[name]) for key, name in QUALITY.items()}
    return scores | {key: float(values[name]) / MILLISECONDS for key, name in LATENCY.items()}


def over_seeds(records: Sequence[dict[str, Any]], key: str, decimals: int) -> str:
    """The mean of a score; of several seeds also the lowest and the highest."""
    values = [record[key] for record in records]
    mean = f"{sum(values) / len(values):.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{decimals}f}-{max(values):.{decimals}f})"


def row(records: Sequence[dict[str, Any]], num_documents: int) -> list[str]:
    """The cells of one system and policy, from the records of its seeds."""
    first = records[0]
    cells = [first["system"], first["policy"], str(first.get("lookahead", "-"))]
    cells += [over_seeds(records, key, 1) for key in QUALITY]
    cells += [over_seeds(records, key, 2) for key in SHOWN_LATENCY]
    cells.append(over_seeds(records, "erasure", 2) if "erasure" in first else "-")
    same = sum(record.get("same_as_offline", 0) for record in records)
    return [*cells, f"{same} of {num_documents * len(records)}" if "same_as_offline" in first else "-"]


def table(records: Sequence[dict[str, Any]], documents: list[Document]) -> str:
    """The records as Markdown, a row for each system and policy."""
    sources = [source for document in documents for source in document.sources]
    lines = [
        "| system | policy | lookahead | BLEU | chrF | LongYAAL | LongLAAL | erasure | streamed = offline |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault((record["system"], record["policy"]), []).append(record)
    lines += [f"| {' | '.join(row(seeds, len(documents)))} |" for seeds in rows.values()]
    words = sum(len(source.split()) for source in sources)
    num_seeds = max(map(len, rows.values()))
    lines += [
        "",
        f"{len(documents)} documents of {len(sources) // len(documents)} sentences, {words / len(sources):.1f} source "
        "words a sentence. Latencies in source words, `lookahead` in subwords. "
        + ("One seed." if num_seeds == 1 else f"Mean over {num_seeds} seeds, with the lowest and the highest."),
    ]
    return "\n".join(lines)


def documents_of(options: argparse.Namespace, normalization: dict[str, list[str]]) -> list[Document]:
    """Documents of generated sentences, or of those in the files, with a tokenizer's normalization of sources."""
    if options.files:
        source_file, target_file = options.files
        pairs = list(zip(read_lines(source_file), read_lines(target_file), strict=True))
    else:
        num_pairs = options.documents * options.sentences
        pairs = list(generate_pairs(seed=2, pairs=num_pairs, min_words=6, max_words=24))
    normalizer, size = build_normalizer(normalization.get("source", [])), options.sentences
    pairs = [(normalizer.normalize_str(source), target) for source, target in pairs]
    groups = [pairs[start : start + size] for start in range(0, len(pairs) - size + 1, size)][: options.documents]
    return [Document([source for source, _ in group], [target for _, target in group]) for group in groups]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--output", type=Path, required=True, help="the folder of the logs")
    parser.add_argument("--sentence-system", default="relative", help="the system of whole sentences (%(default)s)")
    parser.add_argument("--files", type=Path, nargs=2, metavar=("SOURCE", "TARGET"), help="sentences, one a line")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=20, help="of a document (%(default)s)")
    parser.add_argument("--wait-k", type=int, nargs="*", default=[1, 3, 5, 7], metavar="K")
    parser.add_argument("--stride", type=int, nargs="*", default=[1, 2, 4], metavar="WORDS")
    parser.add_argument("--chunks", type=int, nargs="*", default=[10], metavar="WORDS")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    can_score = importlib.util.find_spec("omnisteval") is not None
    if options.save and not can_score:
        raise SystemExit("--save must have scores, but OmniSTEval is not installed; pip install OmniSTEval.")
    silence_logging()
    folders = RunPaths(options.run).model_folders()
    _, tokenizer = load_model(next(iter(folders.values())))
    documents = documents_of(options, tokenizer.normalization)
    write_references(options.output, documents)
    policies = [streamed(folders, documents)]
    policies += [
        simultaneous(folder, name, documents, options)
        for name, folder in folders.items()
        if split_seed(name)[0] == options.sentence_system
    ]
    records = []
    for record, outputs in itertools.chain(*policies):
        seed = [f"seed{record['seed']}"] if "seed" in record else []
        name = "-".join([record["system"], *seed, *re.findall(r"\w+", record["policy"])])
        write_log(log := options.output / f"{name}.jsonl", documents, outputs)
        records.append(record | (score(options.output, log) if can_score else {}))
        print(json.dumps(records[-1]), flush=True)
        if options.save:  # after every policy, so that a run which is stopped leaves the ones that it finished
            report = {"documents": len(documents), "sentences": options.sentences, "records": records}
            common.save(report | {"machine": common.machine_info("cpu")}, table(records, documents), options.save)
    if not can_score:
        print("The logs are written. To score them, pip install OmniSTEval, and repeat the command.")
        return
    print(table(records, documents))


if __name__ == "__main__":
    main()
