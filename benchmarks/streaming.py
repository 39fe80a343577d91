"""Streaming translation of an endless text: time and memory by length, and whether it equals offline translation.

python benchmarks/streaming.py FOLDER [--source-tokens 100000] [--documents 128 1024 4096] [--files TEST.de]

FOLDER is a saved model of finite reach, such as `aligned` of a run of configs/quickstart.yaml. The text is generated
sentences, one after another, with no line ends, fed one word or more at a time. Two tables are printed. The first has,
for each range of source tokens, the CPU time of the process for one source token, the resident memory at its end, and
the bytes of the tensors and numbers that the translator holds. The second counts the documents whose streamed
translation is that of `model.translate(..., eos_requires_source_end=True)`: generated documents of so many words, and
each line of the files. With --dtype float64 no rounding can differ.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import torch

from hf_posenc import StreamingTranslator
from hf_posenc.inference.loading import load_model, silence_logging
from hf_posenc.lab.data.synthetic import generate_pairs

SENTENCES_PER_SEED = 1000
Record = dict[str, Any]


def endless_words(seed: int = 7) -> Iterator[str]:
    """Words of generated sentences, each with the space after it."""
    for number in itertools.count(seed):
        for source, _ in generate_pairs(seed=number, pairs=SENTENCES_PER_SEED, min_words=6, max_words=24):
            yield from (f"{word} " for word in source.split())


def resident_mib() -> float:
    """The resident memory of this process in MiB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def held_kib(translator: StreamingTranslator) -> float:
    """What the translator holds of source and target, in KiB: encoder states, cached tensors, and token ids."""
    decoder, tensors = translator.decoder, [translator.source.states_1SD]
    caches = decoder.cache.self_attention_cache, decoder.cache.cross_attention_cache
    for layer in (layer for cache in caches for layer in cache.layers):
        tensors += [layer.keys, layer.values, *getattr(layer, "states", {}).values()]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    return (num_bytes + 8 * len(translator.source.ids)) / 1024


def measure_stream(model: Any, tokenizer: Any, options: argparse.Namespace) -> Iterator[Record]:
    """A record for each range of source tokens, three ranges a decade."""
    translator, words = StreamingTranslator(model, tokenizer), endless_words()
    steps = [multiple * 10**power for power in range(3, 10) for multiple in (1, 2, 5)]
    last_tokens, last_time = 0, time.process_time()
    for step in [step for step in steps if step <= options.source_tokens]:
        while translator.num_source_tokens < step:
            translator.feed("".join(itertools.islice(words, options.words_per_feed)))
        now = time.process_time()
        milliseconds = 1000 * (now - last_time) / (translator.num_source_tokens - last_tokens)
        yield {
            "source_tokens": step,
            "milliseconds": round(milliseconds, 2),
            "target_tokens": translator.num_target_tokens,
            "resident_mib": round(resident_mib()),
            "held_kib": round(held_kib(translator)),
        }
        last_tokens, last_time = translator.num_source_tokens, now


def documents(options: argparse.Namespace) -> Iterator[str]:
    """The documents of both translations: generated ones of so many words, and the lines of the given files."""
    for length in options.documents:
        yield "".join(itertools.islice(endless_words(seed=1000), length)).strip()
    for path in options.files:
        yield from filter(str.strip, path.read_text(encoding="utf-8").splitlines())


def measure_documents(model: Any, tokenizer: Any, options: argparse.Namespace) -> Iterator[Record]:
    """A record for each document: whether both translations are equal, and the CPU time of both."""
    for text in documents(options):
        start = time.process_time()
        streamed = "".join(StreamingTranslator(model, tokenizer).translate([text]))
        middle = time.process_time()
        [offline] = model.translate([text], tokenizer, num_beams=1, eos_requires_source_end=True)
        end = time.process_time()
        yield {
            "words": len(text.split()),
            "target_characters": len(offline),
            "equal": streamed == offline,
            "streamed_seconds": round(middle - start, 2),
            "offline_seconds": round(end - middle, 2),
        }


def markdown(report: dict[str, Any]) -> str:
    """The report as two tables; documents of one length in words are one row."""
    lines = [
        "| source tokens up to | CPU ms a source token | target tokens | resident MiB | held KiB |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(str, record.values())) + " |" for record in report["stream"]]
    lines += ["", "| words | documents | streamed = offline | streamed s | offline s |", "|---|---|---|---|---|"]
    by_decade: dict[int, list[Record]] = {}
    for record in report["documents"]:
        by_decade.setdefault(len(str(record["words"])), []).append(record)
    for _, records in sorted(by_decade.items()):
        lengths = sorted({record["words"] for record in records})
        seconds = (sum(record[name] for record in records) for name in ("streamed_seconds", "offline_seconds"))
        lines.append(
            f"| {lengths[0]}-{lengths[-1]} | {len(records)} | {sum(record['equal'] for record in records)} | "
            + " | ".join(f"{value:.1f}" for value in seconds)
            + " |"
        )
    num_words = report["words_per_feed"]
    how = f"{num_words} word{'s' * (num_words > 1)} a call of `feed`, {report['dtype']}, CPU time"
    return "\n".join([*lines, "", f"{how}, {common.describe_machine(report['machine'])}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source-tokens", type=int, default=100_000, help="length of the stream (%(default)s)")
    parser.add_argument("--words-per-feed", type=int, default=1, help="words that are fed at a time (%(default)s)")
    parser.add_argument("--documents", type=int, nargs="*", default=[128, 1024, 4096], help="words of each")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="text files with a document a line")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    silence_logging()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_model(options.folder)
    model.to(getattr(torch, options.dtype))
    report: dict[str, Any] = {name: getattr(options, name) for name in ("words_per_feed", "dtype")}
    report |= {"machine": common.machine_info("cpu"), "stream": [], "documents": []}
    for name, measure in (("stream", measure_stream), ("documents", measure_documents)):
        for record in measure(model, tokenizer, options):
            print(json.dumps(record), flush=True)
            report[name].append(record)
            if options.save:  # after every record, so that a run that is stopped leaves what it measured
                common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
