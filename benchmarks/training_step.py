"""What each position encoding costs: one training step, its time and memory against `none`'s, in one run.

A step is a forward and a backward pass of the papers' Transformer (6 + 6 layers, width 512) on full, unpadded
sentences; no optimiser. Every round takes one step of each encoding, in rotating order, and divides its time by that of
`none` in the same round: what else the machine does hits all alike, and the median over rounds is reported.
"""

import argparse
import gc
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers import initialization as init

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncConfig,
    PosEncForConditionalGeneration,
    PositionEncoding,
    distance,
    register_position_encoding,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "training_step.json"
README = HERE / "README.md"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MARKERS = ("<!-- training_step: begin -->", "<!-- training_step: end -->")
SIZES = [(16, 64), (4, 256), (1, 1024)]
VOCAB_SIZE = 8000


class NaiveRelative(PositionEncoding):
    """`relative` as its equations are written: one vector for each pair of positions, an (L, L, K) tensor per term."""

    def __init__(self, config: Any, *, causal: bool, num_layers: int, num_heads: int, head_width: int) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        self.clip = config.relative_clip
        self.scale = head_width**-0.5
        shape = (num_layers, 2 * self.clip + 1, head_width)
        self.keys = torch.nn.Parameter(torch.empty(shape))
        self.values = torch.nn.Parameter(torch.empty(shape))

    def score_bias(self, q_BHQK: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        return torch.einsum("bhqk,qsk->bhqs", q_BHQK * self.scale, self.pairs(self.keys[layer], pos_BQ, pos_BS))

    def value_bias(self, p_BHQS: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        return torch.einsum("bhqs,qsk->bhqk", p_BHQS, self.pairs(self.values[layer], pos_BQ, pos_BS))

    def pairs(self, table_RK: Tensor, pos_BQ: Tensor, pos_BS: Tensor) -> Tensor:
        """The vector of every pair of positions (Q, S, K), the same for all sentences: there is no padding here."""
        return table_RK[distance(pos_BQ[:1], pos_BS[:1])[0].clamp(-self.clip, self.clip) + self.clip]

    def init_weights(self) -> None:
        for table in (self.keys, self.values):
            init.xavier_uniform_(table)


class Step:
    """One training step of the model with one encoding, on a batch of its own drawn from a fixed seed."""

    def __init__(self, encoding: str, size: tuple[int, int], device: str, dtype: torch.dtype) -> None:
        config = PosEncConfig(vocab_size=VOCAB_SIZE, position_encoding_type=encoding, use_cache=False)
        torch.manual_seed(0)
        self.device = device
        self.model = PosEncForConditionalGeneration(config).to(device, dtype).train()
        self.source = torch.randint(3, VOCAB_SIZE, size, device=device)
        self.labels = torch.randint(3, VOCAB_SIZE, size, device=device)

    def __call__(self) -> None:
        self.model(input_ids=self.source, labels=self.labels).loss.backward()
        self.model.zero_grad(set_to_none=True)

    def seconds(self, clock: Callable[[], float]) -> float:
        self.synchronize()
        start = clock()
        self()
        self.synchronize()
        return clock() - start

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """The most that a step holds at once beyond the model: activations, gradients, temporaries."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self()
            return torch.cuda.max_memory_allocated() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            self()
        events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
        held = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            held += event.nbytes()
            peak = max(peak, held)
        return peak


def assert_naive_equals_relative() -> None:
    """With the same tables both give the same loss and gradients, or there would be nothing to compare."""
    grads: list[dict[str, Tensor]] = []
    weights: dict[str, Tensor] = {}
    for encoding in ("relative", "naive_relative"):
        step = Step(encoding, (2, 40), "cpu", torch.float64)
        model = step.model.eval()
        weights = weights or model.state_dict()
        model.load_state_dict(weights)
        model(input_ids=step.source, labels=step.labels).loss.backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in grads[0].items():
        torch.testing.assert_close(grads[1][name], expected, rtol=1e-9, atol=1e-12)


def measure(
    encodings: list[str], size: tuple[int, int], options: argparse.Namespace, progress: tqdm
) -> list[dict[str, Any]]:
    """A record for each encoding: its time over that of `none` in each round, and its peak memory."""
    dtype, clock = getattr(torch, options.dtype), CLOCKS[options.clock]
    progress.set_postfix_str(f"{size[0]} x {size[1]}")
    steps = {encoding: Step(encoding, size, options.device, dtype) for encoding in encodings}
    peaks: dict[str, int] = {}
    seconds: dict[str, list[float]] = {encoding: [] for encoding in encodings}
    steps["none"]()  # The first step of a process pays for what later ones find ready.
    for encoding, step in steps.items():
        peaks[encoding] = step.peak_bytes()
        progress.update()
    for number in range(options.rounds):
        first = number % len(encodings)
        for encoding in encodings[first:] + encodings[:first]:
            gc.collect()
            seconds[encoding].append(steps[encoding].seconds(clock))
            progress.update()
    records = []
    for encoding in encodings:
        ratios = [mine / base for mine, base in zip(seconds[encoding], seconds["none"], strict=True)]
        records.append({
            "encoding": encoding,
            "batch": size[0],
            "length": size[1],
            "time_ratio": round(median(ratios), 4),
            "time_ratio_min": round(min(ratios), 4),
            "time_ratio_max": round(max(ratios), 4),
            "milliseconds": round(1000 * median(seconds[encoding]), 1),
            "peak_mib": round(peaks[encoding] / 2**20, 1),
            "memory_ratio": round(peaks[encoding] / peaks["none"], 4),
        })  # fmt: skip
    return records


def machine(device: str) -> dict[str, Any]:
    """What a reader needs to judge the numbers, and nothing that says whose machine it was."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        cpu = next((value.strip() for name, _, value in facts if name.strip() == "model name"), cpu)
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
    """The report as one table: a row for each encoding, time and memory for each size."""
    records = report["records"]
    sizes = list(dict.fromkeys((record["batch"], record["length"]) for record in records))
    cells = {(record["encoding"], record["batch"], record["length"]): record for record in records}
    titles = [f"{what}, {batch} x {length}" for batch, length in sizes for what in ("time", "memory")]
    lines = ["| encoding | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for encoding in dict.fromkeys(record["encoding"] for record in records):
        row = [f"`{encoding}`"]
        for size in sizes:
            cell = cells[encoding, *size]
            row.append("{time_ratio:.2f} ({time_ratio_min:.2f}-{time_ratio_max:.2f})".format(**cell))
            row.append("{memory_ratio:.2f}".format(**cell))
        lines.append("| " + " | ".join(row) + " |")
    template = "{batch} x {length}: {milliseconds:.0f} ms, {peak_mib:.0f} MiB"
    absolute = "; ".join(template.format(**cells["none", *size]) for size in sizes)
    facts = report["machine"]
    where = facts["gpu"] or f"{facts['cpu']}, {facts['threads']} of {facts['cores']} cores"
    how = f"Median (min-max) of {report['rounds']} rounds, {report['dtype']}, {report['clock']} time, {where}"
    versions = f"torch {facts['torch']}, transformers {facts['transformers']}"
    lines += ["", f"`none` itself: {absolute}. {how}; {versions}."]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """All of the text, or the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def write_readme(table: str) -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    write(README, f"{before}{MARKERS[0]}\n{table}\n{MARKERS[1]}{after}")


def batch_by_length(text: str) -> tuple[int, int]:
    batch, length = text.split("x")
    return int(batch), int(length)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="steps of each encoding that are timed (%(default)s)")
    parser.add_argument("--encodings", nargs="+", default=None, help="all that are registered, and naive_relative")
    parser.add_argument("--sizes", nargs="+", type=batch_by_length, default=SIZES, metavar="BxL")
    parser.add_argument("--threads", type=int, default=None, help="of torch on the CPU; torch's own choice by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: the process's own time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the report, as JSON (benchmarks/results/)")
    parser.add_argument("--write-readme", action="store_true", help="put the table into benchmarks/README.md")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    register_position_encoding(
        "naive_relative",
        NaiveRelative,
        summary="Relative, by the (L, L, K) tensors that the equations suggest.",
        shift_invariant=True,
        knobs=POSITION_ENCODINGS["relative"].knobs,
    )
    assert_naive_equals_relative()
    encodings = ["none", *(name for name in options.encodings or POSITION_ENCODINGS if name != "none")]
    report: dict[str, Any] = {
        "rounds": options.rounds,
        "device": options.device,
        "dtype": options.dtype,
        "clock": options.clock,
        "machine": machine(options.device),
        "records": [],
    }
    with tqdm(total=len(options.sizes) * len(encodings) * (options.rounds + 1), unit="step") as progress:
        for size in options.sizes:
            report["records"] += measure(encodings, size, options, progress)
            # Written after every size, so that a run which is stopped leaves the sizes it finished.
            write(options.output, json.dumps(report, indent=2) + "\n")
            if options.write_readme:
                write_readme(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
