"""Time of generation by exported ONNX graphs against `generate` in torch, and whether the tokens are the same.

python benchmarks/onnx_engine.py [--encodings relative "relative+window by length_ratio"] [--threads 1] [--save NAME]

Models have random weights and the papers' size. Every sentence has 32 source tokens and 32 target tokens. Engines take
turns on the same batch:

- generate: the model in torch, float32;
- generate, int8: its linear layers in int8 (`translate --quantize`);
- ONNX, and ONNX, int8: the exported graphs in onnxruntime;
- products alone: the decoder's linear layers in torch, without the rest of its steps, the search and the encoder. No
  float32 engine with torch's matrix products is faster.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import common
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_posenc import PosEncOnnxModel, PosEncTokenizer, to_onnx
from hf_posenc.inference.int8 import quantize_int8
from hf_posenc.inference.onnx_engine import quantize_graphs

NUM_TOKENS = 32
BEAMS = (1, 5)
PRODUCTS = "products alone"
Engines = dict[str, PreTrainedModel]


def build_engines(name: str, options: argparse.Namespace, scratch: Path) -> Engines:
    """The same model by each engine; `generate` is first."""
    from transformers.exporters.base import ExportedModel

    model = common.TimedStep(name, options).model.eval()
    tokenizer = PosEncTokenizer.train(["a b c"], vocab_size=267)
    folder = to_onnx(model, tokenizer, scratch / name)
    exported = ExportedModel.from_pretrained(folder)
    quantize_graphs(exported)
    exported.save_pretrained(scratch / f"{name}, int8")
    return {
        "generate": model,
        "generate, int8": quantize_int8(model),
        "ONNX": PosEncOnnxModel.from_pretrained(folder),
        "ONNX, int8": PosEncOnnxModel.from_pretrained(scratch / f"{name}, int8"),
    }


def generate(model: PreTrainedModel, ids_BS: torch.Tensor, num_beams: int) -> torch.Tensor:
    """NUM_TOKENS target tokens for each source."""
    lengths = {"min_new_tokens": NUM_TOKENS, "max_new_tokens": NUM_TOKENS}
    return model.generate(ids_BS, num_beams=num_beams, do_sample=False, **lengths)


def run_products(layers: Sequence[torch.nn.Linear], rows: int) -> None:
    """The linear layers of NUM_TOKENS decoding steps of so many rows."""
    inputs = {width: torch.zeros(rows, width) for width in {layer.in_features for layer in layers}}
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            for layer in layers:
                layer(inputs[layer.in_features])


def step_layers(model: PreTrainedModel) -> list[torch.nn.Linear]:
    """The linear layers of a decoding step: all of the decoder but the source's keys and values, and the output's."""
    once = tuple(f"encoder_attn.{projection}" for projection in ("k_proj", "v_proj"))
    modules = [*model.model.decoder.named_modules(), ("lm_head", model.lm_head)]
    return [module for name, module in modules if isinstance(module, torch.nn.Linear) and not name.endswith(once)]


def measure(name: str, engines: Engines, options: argparse.Namespace, progress: tqdm) -> list[dict[str, Any]]:
    """A record for each engine, batch size and beam."""
    clock, records = common.CLOCKS[options.clock], []
    for batch_size in options.batches:
        torch.manual_seed(0)
        ids_BS = torch.randint(4, common.VOCAB_SIZE, (batch_size, NUM_TOKENS))
        for num_beams in BEAMS:
            outputs: dict[str, torch.Tensor] = {}
            calls: dict[str, Callable[[], torch.Tensor | None]] = {
                engine: partial(generate, model, ids_BS, num_beams) for engine, model in engines.items()
            }
            calls[PRODUCTS] = partial(run_products, step_layers(engines["generate"]), batch_size * num_beams)
            seconds = common.run_interleaved(
                {engine: partial(timed, engine, call, outputs=outputs, clock=clock) for engine, call in calls.items()},
                options.rounds,
                progress,
            )
            for engine in calls:
                same = [
                    torch.equal(row, other)
                    for row, other in zip(outputs.get(engine, ()), outputs["generate"], strict=engine in outputs)
                ]
                records.append(
                    {
                        "encoding": name,
                        "engine": engine,
                        "batch": batch_size,
                        "beams": num_beams,
                        **common.ratio_statistics("time_ratio", seconds[engine], seconds["generate"]),
                        "milliseconds": round(1000 * median(seconds[engine]), 1),
                        "same": sum(same),
                    }
                )
    return records


def timed(
    engine: str,
    call: Callable[[], torch.Tensor | None],
    number: int,
    *,
    outputs: dict[str, torch.Tensor],
    clock: Callable[[], float],
) -> float:
    """The seconds of one engine for one batch; its tokens go to `outputs`."""
    start = clock()
    output = call()
    seconds = clock() - start
    if output is not None:
        outputs[engine] = output
    return seconds


def markdown(report: dict[str, Any]) -> str:
    """A row for each encoding and engine: how many times as fast as `generate`, and equal outputs."""
    cells = {(one["encoding"], one["engine"], one["batch"], one["beams"]): one for one in report["records"]}
    ways = list(dict.fromkeys((one["batch"], one["beams"]) for one in report["records"]))
    titles = [f"batch of {batch}, {'greedy' if beams == 1 else f'{beams} beams'}" for batch, beams in ways]
    lines = ["| encoding | engine | " + " | ".join(titles) + " |", "|---" * (len(titles) + 2) + "|"]
    for encoding, engine in dict.fromkeys((one["encoding"], one["engine"]) for one in report["records"]):
        row = [f"`{encoding}`", engine]
        for batch, beams in ways:
            cell = cells[encoding, engine, batch, beams]
            same = "" if engine == PRODUCTS else f" ({cell['same']} of {batch})"
            row.append(f"{1 / cell['time_ratio']:.1f}{same}")
        lines.append("| " + " | ".join(row) + " |")
    how = f"median of {report['rounds']} rounds, {report['clock']} time"
    lines += [
        "",
        f"Times as fast as `generate` (sentences with the same tokens), {NUM_TOKENS} source and target tokens, {how}, "
        f"{common.describe_machine(report['machine'])}.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.base_parser(__doc__, rounds=3, what="generations of each engine")
    parser.add_argument("--encodings", nargs="+", default=["relative", "relative+window by length_ratio"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--width", type=int, default=512, help="of the models (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="of either side (%(default)s)")
    parser.set_defaults(device="cpu")
    options = common.parse(parser, arguments)
    report: dict[str, Any] = vars(options) | {"machine": common.machine_info("cpu"), "records": []}
    with TemporaryDirectory() as scratch, tqdm(unit="run") as progress:
        for name in options.encodings:
            engines = build_engines(name, options, Path(scratch))
            report["records"] += measure(name, engines, options, progress)
            if options.save:
                common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
