"""Whether exported ONNX graphs write what `generate` writes, and what int8 changes in BLEU and time.

python benchmarks/onnx_agreement.py SYSTEM SOURCES REFERENCES [--max-lines 128] [--threads 1] [--save NAME]

SYSTEM is a trained model, SOURCES and REFERENCES are text files of one sentence a line. Translations are by greedy
search and by a beam of 5, in batches of 16.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import sacrebleu
from tqdm import tqdm
from transformers.exporters.base import ExportedModel

from hf_posenc import PosEncOnnxModel, to_onnx
from hf_posenc.inference.loading import load_model, silence_logging
from hf_posenc.inference.onnx_engine import quantize_graphs
from hf_posenc.utils.text_io import read_lines

BEAMS = (1, 5)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A record for each engine and width of the beam; `generate` is first."""
    sources, references = (
        list(read_lines(path))[: options.max_lines] for path in (options.sources, options.references)
    )
    model, tokenizer = load_model(options.system)
    clock, records = common.CLOCKS[options.clock], []
    with TemporaryDirectory() as scratch:
        folder = to_onnx(model, tokenizer, Path(scratch) / "float32")
        exported = ExportedModel.from_pretrained(folder)
        quantize_graphs(exported)
        exported.save_pretrained(Path(scratch) / "int8")
        engines = {
            "generate": model.eval(),
            "ONNX": PosEncOnnxModel.from_pretrained(folder),
            "ONNX, int8": PosEncOnnxModel.from_pretrained(Path(scratch) / "int8"),
        }
        outputs: dict[tuple[str, int], list[str]] = {}
        for num_beams in BEAMS:
            for name, engine in tqdm(engines.items(), desc=f"num_beams={num_beams}"):
                start = clock()
                texts = engine.translate(sources, tokenizer, num_beams=num_beams, batch_size=16)
                outputs[name, num_beams] = texts
                same = sum(map(str.__eq__, texts, outputs["generate", num_beams]))
                bleu, chrf = sacrebleu.corpus_bleu(texts, [references]), sacrebleu.corpus_chrf(texts, [references])
                record = {"engine": name, "beams": num_beams, "lines": len(texts), "same": same}
                scores = {"bleu": round(bleu.score, 2), "chrf": round(chrf.score, 2)}
                records.append(record | scores | {"seconds": round(clock() - start, 2)})
    return records


def markdown(report: dict[str, Any]) -> str:
    """A row for each engine and width of the beam."""
    lines = ["| engine | search | the same | BLEU | chrF | seconds |", "|---|---|---|---|---|---|"]
    for one in report["records"]:
        search = "greedy" if one["beams"] == 1 else f"beam of {one['beams']}"
        scores = f"{one['bleu']:.1f} | {one['chrf']:.1f} | {one['seconds']:.1f}"
        lines.append(f"| {one['engine']} | {search} | {one['same']} of {one['lines']} | {scores} |")
    machine = common.describe_machine(report["machine"])
    return "\n".join([*lines, "", f"One round, {report['clock']} time, batches of 16, {machine}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.base_parser(__doc__, rounds=1, what="unused")
    for name in ("system", "sources", "references"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--max-lines", type=int, default=128, help="so many of them (%(default)s)")
    options = common.parse(parser, arguments)
    silence_logging()
    report: dict[str, Any] = {
        "clock": options.clock,
        "machine": common.machine_info("cpu"),
        "records": measure(options),
    }
    if options.save:
        common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
