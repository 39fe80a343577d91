"""What the rules of the end token change: BLEU, chrF and length of translations without and with them.

python benchmarks/source_end.py FOLDER [--files TEST.de.gz TEST.en.gz] [--concatenate 1 10] [--num-beams 5]
    [--expected-length-range 0.8 1.2]

FOLDER is a saved model with an alignment. Its test text is the two files, or generated sentences without them. A
document is so many lines, one after another, joined by spaces. For each number of lines a row without
`eos_requires_source_end` and a row with it are printed, and one with `expected_length_range` too, where that is given:
document BLEU and chrF of sacrebleu, the length of the translations relative to that of the references in words and in
tokens, how many translations are others than in the row before, and how many are truncated at their length limit.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import torch
from sacrebleu.metrics import BLEU, CHRF

from hf_posenc.inference.loading import load_model, silence_logging
from hf_posenc.lab.data.synthetic import generate_pairs

Record = dict[str, Any]


def read_pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The test pairs: of the files, else generated."""
    if not options.files:
        return list(generate_pairs(seed=1000, pairs=options.num_lines, min_words=6, max_words=24))
    sides = []
    for path in options.files:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            sides.append([line.strip() for line in lines][: options.num_lines])
    return list(zip(*sides, strict=True))


def measure(model: Any, tokenizer: Any, options: argparse.Namespace) -> Iterator[Record]:
    """A record for each number of lines and rule."""
    pairs = read_pairs(options)
    rules: dict[str, dict[str, object]] = {
        "off": {"eos_requires_source_end": False},
        "on": {"eos_requires_source_end": True},
    }
    if options.expected_length_range:
        low, high = options.expected_length_range
        rules[f"on, {low:g} to {high:g} times the expected length"] = rules["on"] | {
            "expected_length_range": (low, high)
        }
    for lines in options.concatenate:
        documents = [pairs[i : i + lines] for i in range(0, len(pairs) - lines + 1, lines)]
        sources, references = ([" ".join(pair[side] for pair in document) for document in documents] for side in (0, 1))
        before: list[str] = []
        for rule, options_of_rule in rules.items():
            output = model.translations(sources, tokenizer, num_beams=options.num_beams, **options_of_rule)
            words, tokens = (
                [sum(map(count, texts)) for texts in (output.texts, references)]
                for count in (
                    lambda text: len(text.split()),
                    lambda text: len(tokenizer(text_target=text)["input_ids"]),
                )
            )
            yield {
                "lines": lines,
                "documents": len(sources),
                "rule": rule,
                "bleu": round(BLEU().corpus_score(output.texts, [references]).score, 2),
                "chrf": round(CHRF().corpus_score(output.texts, [references]).score, 2),
                "length_ratio": round(words[0] / words[1], 4),
                "token_ratio": round(tokens[0] / tokens[1], 4),
                "changed": sum(map(str.__ne__, before, output.texts)),
                "truncated": sum(output.truncated),
            }
            before = output.texts


def markdown(report: dict[str, Any]) -> str:
    """The report as a table."""
    lines = [
        "| lines a document | documents | rule | BLEU | chrF | length ratio | token ratio | changed | truncated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in report["records"]:
        lines.append("| " + " | ".join(map(str, record.values())) + " |")
    return "\n".join([*lines, "", f"{report['num_beams']} beam{'s' * (report['num_beams'] > 1)}; {report['text']}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=Path, nargs=2, default=[], help="source and reference; generated without them")
    parser.add_argument("--num-lines", type=int, default=1000, help="of the text that are read (%(default)s)")
    parser.add_argument("--concatenate", type=int, nargs="+", default=[1, 10], help="lines a document")
    parser.add_argument("--num-beams", type=int, default=5, help="width of the beam (%(default)s)")
    parser.add_argument(
        "--expected-length-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="of a model with fertility"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    silence_logging()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_model(options.folder)
    text = " and ".join(path.name for path in options.files) or "generated sentences"
    report: dict[str, Any] = {"num_beams": options.num_beams, "text": text, "records": []}
    for record in measure(model, tokenizer, options):
        print(json.dumps(record), flush=True)
        report["records"].append(record)
    if options.save:
        common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
