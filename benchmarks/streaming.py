"""Streaming translation of an endless text: time and memory by length, and whether it equals offline translation.

python benchmarks/streaming.py FOLDER [--source-tokens 100000] [--documents 128 1024 4096] [--threads 1]

FOLDER is a saved model of finite reach: `aligned` of a run of configs/quickstart.yaml. The text is generated sentences,
one after another, with no line ends, fed a word at a time. Two tables are printed. The first has, for each range of
source tokens, the CPU time of the process for one source token, the resident memory at its end, and the bytes of the
tensors and numbers that the translator holds. The second has one document a row: whether the streamed translation is
that of `model.translate(..., num_beams=1, eos_requires_source_end=True)`, and the CPU time of both.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hf_posenc import StreamingTranslator
from hf_posenc.data.synthetic.generator import generate_pairs
from hf_posenc.inference.batch_translate import load_model, silence_logging

SENTENCES_PER_SEED = 1000


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
    caches = translator.cache.self_attention_cache, translator.cache.cross_attention_cache
    tensors = [translator.source.states_BSD] if translator.source.states_BSD is not None else []
    for layer in (layer for cache in caches for layer in cache.layers):
        tensors += [layer.keys, layer.values, *getattr(layer, "states", {}).values()]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    return (num_bytes + 8 * len(translator.source.ids)) / 1024


def measure_stream(model: Any, tokenizer: Any, num_source_tokens: int) -> None:
    """Print a row for each range of source tokens, three ranges a decade."""
    translator, words = StreamingTranslator(model, tokenizer), endless_words()
    steps = [multiple * 10**power for power in range(3, 10) for multiple in (1, 2, 5)]
    last_tokens, last_time = 0, time.process_time()
    print(
        "| source tokens up to | ms a source token | target tokens | resident MiB | held KiB |\n|---|---|---|---|---|"
    )
    for step in [step for step in steps if step <= num_source_tokens]:
        while translator.num_source_tokens < step:
            translator.feed(next(words))
        now = time.process_time()
        milliseconds = 1000 * (now - last_time) / (translator.num_source_tokens - last_tokens)
        print(
            f"| {step} | {milliseconds:.2f} | {translator.num_target_tokens} | {resident_mib():.0f} | "
            f"{held_kib(translator):.0f} |",
            flush=True,
        )
        last_tokens, last_time = translator.num_source_tokens, now


def measure_documents(model: Any, tokenizer: Any, lengths: list[int]) -> None:
    """Print a row for each document of so many words."""
    print("\n| words | target characters | streamed = offline | streamed s | offline s |\n|---|---|---|---|---|")
    for length in lengths:
        text = "".join(itertools.islice(endless_words(seed=1000), length)).strip()
        start = time.process_time()
        streamed = "".join(StreamingTranslator(model, tokenizer).translate([text]))
        middle = time.process_time()
        [offline] = model.translate([text], tokenizer, num_beams=1, eos_requires_source_end=True)
        end = time.process_time()
        print(
            f"| {length} | {len(offline)} | {'yes' if streamed == offline else 'NO'} | {middle - start:.1f} | "
            f"{end - middle:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source-tokens", type=int, default=100_000)
    parser.add_argument("--documents", type=int, nargs="*", default=[128, 1024, 4096])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    silence_logging()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_model(options.folder)
    measure_stream(model, tokenizer, options.source_tokens)
    measure_documents(model, tokenizer, options.documents)


if __name__ == "__main__":
    main()
