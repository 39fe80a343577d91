"""How fast a trained model translates by each engine, and how near its translations come to those of `generate`.

Engines take turns on the same lines, one line at a time and in batches of 16, greedily and with a beam of 5:

- generate: the model's own, in float32, and with linear layers quantised to int8 by torch as it runs;
- Marian: transformers' own, with the same weights, if the encoding is `sinusoidal`;
- CTranslate2: the exported model, in float32 and in int8.

    python benchmarks/engines.py runs/multi30k/sinusoidal/model LINES.de --save engines
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import common
import sacrebleu
import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc
from hf_posenc.generation.limits import with_length_limits
from hf_posenc.generation.translate import translate_in_batches
from hf_posenc.inference.int8 import quantize_int8
from hf_posenc.utils.text_io import read_lines

BATCHES = (1, 16)
BEAMS = (1, 5)
Engine = Callable[..., list[str]]


def engines(folder: Path, scratch: Path, threads: int) -> dict[str, Engine]:
    """How each engine translates lines, by its name; `generate` is first."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    by_name: dict[str, Engine] = {
        "generate": partial(model.translate, tokenizer=tokenizer),
        "generate, int8": partial(quantize_int8(model).translate, tokenizer=tokenizer),
    }
    if model.config.position_encoding_type == "sinusoidal":
        by_name["Marian"] = marian_engine(model, tokenizer)
    for name, quantization in (("CTranslate2", None), ("CTranslate2, int8", "int8")):
        exported = hf_posenc.to_ctranslate2(model, tokenizer, scratch / name, quantization=quantization)
        by_name[name] = hf_posenc.CTranslate2Translator(exported, threads=threads).translate
    return by_name


def marian_engine(model: Any, tokenizer: Any) -> Engine:
    """What transformers' Marian makes of the same batches, with the same limits of length."""
    marian = hf_posenc.to_transformers(model).eval()

    def translate(texts: Sequence[str], *, batch_size: int, num_beams: int) -> list[str]:
        def translate_batch(sources: list[list[int]]) -> list[tuple[str, bool]]:
            limits = with_length_limits(model, model.max_target_lengths(map(len, sources)), {})
            inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt")
            outputs = marian.generate(**inputs, num_beams=num_beams, do_sample=False, **limits)
            return [(text, False) for text in tokenizer.batch_decode(outputs, skip_special_tokens=True)]

        return translate_in_batches(tokenizer(texts)["input_ids"], translate_batch, batch_size=batch_size).texts

    return translate


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A record for each engine, batch and beam."""
    lines = list(read_lines(options.lines))[: options.max_lines]
    tokenizer = AutoTokenizer.from_pretrained(options.folder, trust_remote_code=False)
    clock = common.CLOCKS[options.clock]
    records = []
    with TemporaryDirectory() as scratch, tqdm(unit="run") as progress:
        engine_by_name = engines(options.folder, Path(scratch), torch.get_num_threads())
        progress.reset(total=len(BATCHES) * len(BEAMS) * len(engine_by_name) * options.rounds)
        for batch_size in BATCHES:
            for num_beams in BEAMS:
                outputs: dict[str, list[str]] = {}

                def timed(
                    name: str, number: int, *, search_options: dict[str, int], outputs: dict[str, list[str]]
                ) -> float:
                    start = clock()
                    outputs[name] = engine_by_name[name](lines, **search_options)
                    return clock() - start

                search_options = {"batch_size": batch_size, "num_beams": num_beams}
                measures = {
                    name: partial(timed, name, search_options=search_options, outputs=outputs)
                    for name in engine_by_name
                }
                seconds = common.run_interleaved(measures, options.rounds, progress)
                for name, texts in outputs.items():
                    num_tokens = sum(map(len, tokenizer(texts)["input_ids"]))
                    records.append({
                        "engine": name,
                        **search_options,
                        **common.ratio_statistics("time_ratio", seconds[name], seconds["generate"]),
                        "tokens_per_second": round(num_tokens / median(seconds[name])),
                        "same": sum(one == other for one, other in zip(texts, outputs["generate"], strict=True)),
                        "bleu": round(sacrebleu.corpus_bleu(texts, [outputs["generate"]]).score, 1),
                    })  # fmt: skip
    return records


def markdown(report: dict[str, Any]) -> str:
    """Tokens a second by engine, batch and beam; and of the batches' translations those that are generate's."""
    cells = {(one["engine"], one["batch_size"], one["num_beams"]): one for one in report["records"]}
    ways = [(batch, beams) for batch in BATCHES for beams in BEAMS]
    titles = [f"batch of {batch}, {'greedy' if beams == 1 else f'beam of {beams}'}" for batch, beams in ways]
    titles += [f"the same, {'greedy' if beams == 1 else f'beam of {beams}'} (BLEU)" for beams in BEAMS]
    rows = ["| engine | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name in dict.fromkeys(one["engine"] for one in report["records"]):
        speeds = [
            f"{cells[name, *way]['tokens_per_second']} ({1 / cells[name, *way]['time_ratio']:.1f})" for way in ways
        ]
        same = ["{same} ({bleu})".format(**cells[name, BATCHES[-1], beams]) for beams in BEAMS]
        rows.append("| " + " | ".join([name, *speeds, *same]) + " |")
    return "\n".join(
        [
            *rows,
            "",
            f"Target tokens a second (times as many as `generate`), {report['first']} lines, median of "
            f"{report['rounds']} rounds, {report['clock']} time, {common.describe_machine(report['machine'])}.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.base_parser(__doc__, rounds=3, what="translations of all lines")
    parser.add_argument("folder", type=Path, help="a trained model that CTranslate2 can run")
    parser.add_argument("lines", type=Path, help="sentences, one a line")
    parser.add_argument("--max-lines", type=int, default=128, help="so many of them (%(default)s)")
    options = common.parse(parser, arguments)
    report = {
        "rounds": options.rounds,
        "clock": options.clock,
        "first": options.max_lines,
        "machine": common.machine_info("cpu"),
        "records": measure(options),
    }
    table = markdown(report)
    if options.save:
        common.save(report, table, options.save)
    print(table)


if __name__ == "__main__":
    main()
