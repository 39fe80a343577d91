"""Which of transformers' exporters write graphs of a model that equal the model, in batches of another size.

python benchmarks/exporters.py [--encodings relative "relative+window by length_ratio"] [--save NAME]

Models have random weights. Each exporter writes the three graphs of `to_onnx`: the encoder, the first decoding step and
each later one. They are run on a smaller batch and shorter sources than they were traced with, for three decoding
steps. An exporter whose package is not installed is not tried.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import common
import torch
import transformers.exporters
from tqdm import tqdm
from transformers.exporters.base import ExportedModel

from hf_posenc.generation.model_inputs import CACHE_NAME
from hf_posenc.inference.onnx_engine import (
    export_components,
    import_exporters,
    root_cause,
    suppress_output,
    verify_outputs,
)

EXPORTERS = ("DynamoExporter", "OnnxExporter", "OpenVINOExporter", "ExecutorchExporter")
EQUAL, NOT_INSTALLED = "equal", "not installed"


def outcome(exporter_name: str, model: Any) -> str:
    """EQUAL, NOT_INSTALLED, or the reason of a failure; for logits that differ, by how much."""
    exporter_class = getattr(transformers.exporters, exporter_name)
    try:
        exporter = exporter_class()
    except ImportError:
        return NOT_INSTALLED
    _, _, decompose = import_exporters()
    components = {}
    try:
        with suppress_output():
            for name, (module, inputs) in export_components(model, decompose).items():
                if name == "prefill":  # an empty cache, which a runner would want as an input; the graph makes one
                    inputs = {field: value for field, value in inputs.items() if field != CACHE_NAME}
                made = exporter.export(module, inputs, exporter.config_class(dynamic=True))
                components[name] = made.components["model"]
            verify_outputs(
                model, ExportedModel(components, exporter.export_format, model.config, model.generation_config)
            )
    except Exception as error:
        differences = [line for line in str(error.__cause__).splitlines() if line.startswith("Greatest absolute")]
        return ", ".join(differences) or root_cause(error)
    return EQUAL


def markdown(report: dict[str, Any]) -> str:
    """A row for each exporter, a column for each model."""
    lines = ["| exporter | " + " | ".join(f"`{name}`" for name in report["encodings"]) + " |"]
    lines.append("|---" * (len(report["encodings"]) + 1) + "|")
    found = {(record["exporter"], record["encoding"]): record["outcome"] for record in report["records"]}
    for exporter in report["exporters"]:
        lines.append(f"| `{exporter}` | " + " | ".join(found[exporter, name] for name in report["encodings"]) + " |")
    return "\n".join([*lines, "", f"{common.describe_machine(report['machine'])}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", nargs="+", default=["relative", common.ALIGNED_ENCODINGS[0]])
    parser.add_argument("--exporters", nargs="+", default=EXPORTERS, choices=EXPORTERS)
    parser.add_argument("--width", type=int, default=64, help="of the models (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="of either side (%(default)s)")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    parser.set_defaults(device="cpu")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = vars(options) | {"machine": common.machine_info("cpu"), "records": []}
    for encoding in tqdm(options.encodings, unit="model"):
        model = common.TimedStep(encoding, options).model.eval().to(torch.float32)
        for exporter in options.exporters:
            record = {"exporter": exporter, "encoding": encoding, "outcome": outcome(exporter, model)}
            report["records"].append(record)
    if options.save:
        common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
