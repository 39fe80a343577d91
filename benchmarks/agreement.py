"""Whether CTranslate2 writes what `generate` writes: every trained system of a run that it can run, on a test set.

Greedily; with a beam of 5; and with a beam of 5 that ends as CTranslate2's does, as soon as five translations are
finished (`early_stopping=True`), where `generate` by itself goes on while a better one may come. Of those that then
still differ, it counts the ones that never end and were cut at the limit of length. BLEU of either engine, in float32
and in int8.

    python benchmarks/agreement.py CONFIG [dotted.key=value ...]      as train.py was called
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import sacrebleu
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc import CTranslate2Translator, to_ctranslate2
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.run.prepared_run import PreparedRun

COLUMNS = {
    "greedy": "the same, greedy",
    "beam": "beam",
    "beam, ending early": "beam, ending early",
    "cut": "others, cut at the limit",
    "BLEU": "BLEU, greedy: `generate`",
    "BLEU, CTranslate2": "CTranslate2",
    "BLEU, int8": "int8",
}


def compare(folder: Path, texts: list[str], references: list[str]) -> dict[str, Any] | None:
    """How many translations are the same and what they score; None if CTranslate2 cannot run the model."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    with TemporaryDirectory() as scratch:
        try:
            engines = {
                name: CTranslate2Translator(
                    to_ctranslate2(model, tokenizer, Path(scratch) / name, quantization=quantization)
                )
                for name, quantization in (("whole", None), ("int8", "int8"))
            }
        except ValueError:
            return None
        generate = partial(model.translations, texts, tokenizer)
        greedy, ctranslate2 = generate(num_beams=1).texts, engines["whole"].translate(texts, num_beams=1)
        beam = engines["whole"].translate(texts, num_beams=5)
        quantised = engines["int8"].translate(texts, num_beams=1)
    early = generate(num_beams=5, early_stopping=True)
    truncated = [
        text
        for text, other, truncated in zip(early.texts, beam, early.truncated, strict=True)
        if truncated and text != other
    ]

    def bleu(texts_out: list[str]) -> float:
        return round(sacrebleu.corpus_bleu(texts_out, [references]).score, 1)

    return {
        "greedy": count_equal(greedy, ctranslate2),
        "beam": count_equal(generate(num_beams=5).texts, beam),
        "beam, ending early": count_equal(early.texts, beam),
        "cut": len(truncated),
        "BLEU": bleu(greedy),
        "BLEU, CTranslate2": bleu(ctranslate2),
        "BLEU, int8": bleu(quantised),
    }


def count_equal(ours: list[str], theirs: list[str]) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def markdown(report: dict[str, Any]) -> str:
    rows = ["| system | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for record in report["records"]:
        rows.append("| " + " | ".join([f"`{record['system']}`", *map(str, map(record.get, COLUMNS))]) + " |")
    return "\n".join([*rows, "", f"Of {report['lines']} lines; {common.describe_machine(report['machine'])}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value")
    parser.add_argument("--max-lines", type=int, default=128, help="lines of the first test set (%(default)s)")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    experiment = load_experiment(options.config, options.overrides)
    run = PreparedRun(experiment)
    records = []
    for name, system in tqdm(experiment.systems.items(), unit="system"):
        folder = experiment.folder / name / "model"
        if system.segment is not None or not folder.exists():
            continue
        test = next(iter(system.data.test))
        pairs = run.system(name).test_sets[test].pairs["translation"][: options.max_lines]
        texts, references = (
            [pair[language] for pair in pairs]
            for language in (system.data.source_language, system.data.target_language)
        )
        if record := compare(folder, texts, references):
            records.append({"system": name, **record})
    report = {
        "config": options.config.name,
        "lines": len(texts),
        "machine": common.machine_info("cpu"),
        "records": records,
    }
    if options.save:
        common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
