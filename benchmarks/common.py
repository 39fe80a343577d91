"""What the benchmarks share: models take turns, their times are ratios within a round, and a report may be saved.

Every round takes one step of each model, in rotating order, and divides its time by that of one of them, mostly `none`,
in the same round: what else the machine does hits all alike, and the median over rounds is reported.
"""

import argparse
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from tqdm import tqdm

from hf_posenc import (
    ALIGNMENTS,
    POSITION_ENCODINGS,
    PosEncConfig,
    PosEncForConditionalGeneration,
    RnnNmtConfig,
    RnnNmtForConditionalGeneration,
)
from hf_posenc.utils.atomic_io import atomic_write

FOLDER = Path(__file__).parent
# What only changes what another encoding does, stands in a sum.
ENCODINGS = [f"relative+{name}" if entry.is_modifier else name for name, entry in POSITION_ENCODINGS.items()]
ALIGNED_ENCODINGS = [f"relative+window by {name}" for name in ALIGNMENTS if name != "none"]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
VOCAB_SIZE = 8000

Size = tuple[int, int]
Records = list[dict[str, Any]]


class TimedStep:
    """What is timed, for a subclass to say: one step of the Transformer with the encoding `name`, or of RNN-NMT. With
    "by" and an alignment behind it, the cross-attention has `rotary+window` at that one's places."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        sizes = {"vocab_size": VOCAB_SIZE, "d_model": options.width}
        if options.layers:
            sizes |= {"encoder_layers": options.layers, "decoder_layers": options.layers}
        torch.manual_seed(0)
        if name == "rnn_nmt":
            model = RnnNmtForConditionalGeneration(RnnNmtConfig(**sizes))
        else:
            encoding, _, alignment = name.partition(" by ")
            aligned = {"cross_position_encoding_type": "rotary+window", "alignment_type": alignment}
            config = PosEncConfig(position_encoding_type=encoding, **sizes, **(aligned if alignment else {}))
            model = PosEncForConditionalGeneration(config)
        self.device = options.device
        self.model = model.to(self.device)
        torch.manual_seed(0)  # The same batch for all, however many numbers their weights took.

    def __call__(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """What, after a step and untimed, makes the next one do the same again."""

    def seconds(self, clock: Callable[[], float]) -> float:
        self.synchronize()
        start = clock()
        self()
        self.synchronize()
        end = clock()
        self.reset()
        return end - start

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def run_interleaved(
    measures: Mapping[str, Callable[[int], float]], rounds: int, progress: tqdm
) -> dict[str, list[float]]:
    """What each measure gives in each round, which it is told: one after the other, in rotating order."""
    names = list(measures)
    measured: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # What is there now is not looked at again, so that collecting what a step leaves takes no time.
    for round_number in range(rounds):
        offset = round_number % len(names)
        for name in names[offset:] + names[:offset]:
            gc.collect()
            measured[name].append(measures[name](round_number))
            progress.update()
    gc.unfreeze()
    return measured


def ratio_statistics(name: str, mine: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """The median of the ratios within a round, and the least and the greatest of them."""
    ratios = [time / base_time for time, base_time in zip(mine, base, strict=True)]
    rounded = (round(figure(ratios), 4) for figure in (median, min, max))
    return dict(zip((name, f"{name}_min", f"{name}_max"), rounded, strict=True))


def compare(steps: Mapping[str, TimedStep], size: Size, options: argparse.Namespace, progress: tqdm) -> Records:
    """A record for each of the steps: its time over that of `options.base` in each round."""
    clock = CLOCKS[options.clock]

    def timed(step: TimedStep) -> Callable[[int], float]:
        return lambda number: step.seconds(clock)

    seconds = run_interleaved({name: timed(step) for name, step in steps.items()}, options.rounds, progress)
    return [
        {
            "encoding": name,
            "batch": size[0],
            options.axis: size[1],
            **ratio_statistics("time_ratio", seconds[name], seconds[options.base]),
            "milliseconds": round(1000 * median(seconds[name]), 1),
        }
        for name in steps
    ]


def machine_info(device: str) -> dict[str, Any]:
    """What a reader needs to judge the numbers, and nothing that says whose machine it was."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        cpu = next((value.strip() for name, _, value in fields if name.strip() == "model name"), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as one table: a row for each encoding; for each size the time and, if it was measured, the memory."""
    records, axis, base = report["records"], report["axis"], report["base"]
    sizes = list(dict.fromkeys((record["batch"], record[axis]) for record in records))
    cells = {(record["encoding"], record["batch"], record[axis]): record for record in records}
    columns = {"time": "{time_ratio:.2f} ({time_ratio_min:.2f}-{time_ratio_max:.2f})"}
    template = f"{{batch}} x {{{axis}}}: {{milliseconds:.0f}} ms"
    if "memory_ratio" in records[0]:
        columns["memory"] = "{memory_ratio:.2f}"
        template += ", {peak_mib:.0f} MiB"
    titles = [f"{what}, {batch} x {other}" for batch, other in sizes for what in columns]
    lines = ["| encoding | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name in dict.fromkeys(record["encoding"] for record in records):
        row = [cell.format(**cells[name, *size]) for size in sizes for cell in columns.values()]
        lines.append("| " + " | ".join([f"`{name}`", *row]) + " |")
    absolute = "; ".join(template.format(**cells[base, *size]) for size in sizes)
    padding = f"{100 * report['padding']:.0f} % padding, " if report.get("padding") else ""
    how = f"Median (min-max) of {report['rounds']} rounds, {padding}{report['dtype']}, {report['clock']} time"
    lines += ["", f"`{base}` itself: {absolute}. {how}, {describe_machine(report['machine'])}."]
    return "\n".join(lines)


def describe_machine(machine: dict[str, Any]) -> str:
    """The machine and the versions, for the line below a table."""
    hardware = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    return f"{hardware}; torch {machine['torch']}, transformers {machine['transformers']}"


def save(report: dict[str, Any], table: str, name: str) -> None:
    """The report as JSON, and its table as Markdown."""
    atomic_write(FOLDER / "results" / f"{name}.json", json.dumps(report, indent=2) + "\n")
    atomic_write(FOLDER / "results" / f"{name}.md", f"{table}\n")


def parse_size(text: str) -> Size:
    batch, other = text.split("x")
    return int(batch), int(other)


def base_parser(description: str | None, *, rounds: int, what: str) -> argparse.ArgumentParser:
    """The options of whatever takes turns; `what` one round takes of each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{what} that are timed (%(default)s)")
    parser.add_argument("--threads", type=int, help="of torch on the CPU; torch's own choice by default")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: the process's own time")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    return parser


def parser(
    description: str | None,
    *,
    encodings: Iterable[str],
    sizes: list[Size],
    rounds: int,
    base: str = "none",
    axis: str = "length",
) -> argparse.ArgumentParser:
    """The options of what compares the steps of encodings, and the defaults that each benchmark has of its own; `axis`
    is what a size has beside the batch, and `base` what all are compared with."""
    parser = base_parser(description, rounds=rounds, what="steps of each encoding")
    parser.set_defaults(base=base, axis=axis)
    parser.add_argument(
        "--encodings",
        nargs="+",
        default=list(encodings),
        help=f"and {base}; rnn_nmt is RNN-NMT, 'relative+window by length_ratio' has an alignment (%(default)s)",
    )
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=sizes, metavar=f"BATCHx{axis.upper()}")
    parser.add_argument("--width", type=int, default=512, help="of the models (%(default)s)")
    parser.add_argument("--layers", type=int, help="of either side; by default the papers': 6 + 6, and rnn_nmt's 4 + 3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options as given, but among encodings the base always and first."""
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if "base" in options:
        options.encodings = list(dict.fromkeys([options.base, *options.encodings]))
    return options


def run(options: argparse.Namespace, measure: Callable[[Size, argparse.Namespace, tqdm], Records]) -> None:
    """Measure every size; print the table, and save the report if that was asked for."""
    report: dict[str, Any] = vars(options) | {"machine": machine_info(options.device), "records": []}
    num_rows = len(options.encodings) * len(vars(options).get("caches", [None]))  # of generation.py alone
    with tqdm(total=len(options.sizes) * num_rows * options.rounds, unit="step") as progress:
        for size in options.sizes:
            progress.set_postfix_str(f"{size[0]} x {size[1]}")
            report["records"] += measure(size, options, progress)
            # Saved after every size, so that a run which is stopped leaves the sizes it finished.
            if options.save:
                save(report, markdown(report), options.save)
    print(markdown(report))
