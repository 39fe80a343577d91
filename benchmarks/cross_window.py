"""Time and memory of cross-attention with a window, by the source's length: keys in the window against all keys.

Both ways are one aligned model with random weights, and are exact. A row is a source of so many tokens. `step` is one
greedy decoding step with a cache, `beams` one step of five beams with the reordering of the cache, `training` a forward
and a backward pass with a target of the same length. Memory is the peak of a step beyond model and cache, for training
divided by the number of tokens. `all keys` computes what the window hides, too.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import common
import torch
from tqdm import tqdm
from training_step import peak_bytes
from transformers.modeling_outputs import BaseModelOutput

from hf_posenc.generation.model_inputs import get_cache
from hf_posenc.transformer.plans import local_attention as window_blocks

WINDOW, ALL_KEYS = "window", "all keys"
NUM_BEAMS, FIRST_STEPS = 5, 20  # after the first steps the window is whole
NEVER = 10**9


class CrossAttentionStep(common.TimedStep):
    """One step of a kind on a source of `length` tokens, by one of the two ways."""

    cache: Any = None

    def __init__(self, way: str, kind: str, length: int, options: argparse.Namespace) -> None:
        super().__init__(common.ALIGNED_ENCODINGS[0], options)
        self.kind, self.min_length = kind, NEVER if way == ALL_KEYS else window_blocks.MIN_LENGTH
        self.source = torch.randint(3, common.VOCAB_SIZE, (1, length))
        if kind == "training":
            self.model.train()
            return
        self.model.eval()
        if way == ALL_KEYS:
            self.model.model.decoder.min_keys_to_prune = NEVER
        self.batch = NUM_BEAMS if kind == "beams" else 1
        with torch.no_grad():
            states_BSD = self.model.model.encoder(self.source).last_hidden_state
        self.states_BSD = states_BSD.repeat(self.batch, 1, 1)
        for _ in range(FIRST_STEPS):
            self.decode()
        if way == ALL_KEYS:
            for layer in self.cache.cross_attention_cache.layers:
                layer.row_ids = None

    @torch.no_grad()
    def decode(self) -> None:
        outputs = self.model(
            encoder_outputs=BaseModelOutput(self.states_BSD),
            attention_mask=torch.ones(self.states_BSD.shape[:2], dtype=torch.long),
            decoder_input_ids=self.source[:, :1].expand(self.batch, 1),
            cache=self.cache,
            use_cache=True,
        )
        self.cache = get_cache(outputs)

    def __call__(self) -> None:
        if self.kind == "training":
            before, window_blocks.MIN_LENGTH = window_blocks.MIN_LENGTH, self.min_length
            self.model(self.source, labels=self.source).loss.backward()
            window_blocks.MIN_LENGTH = before
            self.model.zero_grad(set_to_none=True)
            return
        self.decode()
        if self.kind == "beams":
            self.cache.reorder_cache(torch.arange(self.batch))


def measure(kind: str, length: int, options: argparse.Namespace, progress: tqdm) -> dict[str, Any]:
    """The record of one kind of step and one length: each way's milliseconds and peak memory."""
    ways = {way: CrossAttentionStep(way, kind, length, options) for way in (WINDOW, ALL_KEYS)}
    peaks = {way: peak_bytes(step) for way, step in ways.items()}
    clock = common.CLOCKS[options.clock]

    def timed(step: CrossAttentionStep) -> Callable[[int], float]:
        return lambda number: step.seconds(clock)

    seconds = common.run_interleaved({way: timed(step) for way, step in ways.items()}, options.rounds, progress)
    tokens = length if kind == "training" else 1
    record: dict[str, Any] = {"kind": kind, "source_tokens": length}
    record |= common.ratio_statistics("time_ratio", seconds[WINDOW], seconds[ALL_KEYS])
    for way in ways:
        record[f"milliseconds, {way}"] = round(1000 * sorted(seconds[way])[options.rounds // 2] / tokens, 2)
        record[f"kib, {way}"] = round(peaks[way] / tokens / 1024, 1)
    return record


def markdown(report: dict[str, Any]) -> str:
    """A row for each kind of step and length."""
    lines = [
        "| step | source tokens | ms a token, window | all keys | time ratio | KiB a token, window | all keys |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in report["records"]:
        ratio = "{time_ratio:.2f} ({time_ratio_min:.2f}-{time_ratio_max:.2f})".format(**record)
        cells = [record["kind"], record["source_tokens"], record[f"milliseconds, {WINDOW}"]]
        cells += [record[f"milliseconds, {ALL_KEYS}"], ratio, record[f"kib, {WINDOW}"], record[f"kib, {ALL_KEYS}"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    how = f"Median (min-max) of {report['rounds']} rounds, {report['clock']} time, float32"
    return "\n".join([*lines, "", f"{how}, {common.describe_machine(report['machine'])}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.base_parser(__doc__, rounds=7, what="steps of each kind and length")
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[250, 1000, 4000, 16000], help="of sources, in tokens"
    )
    parser.add_argument("--training-lengths", nargs="+", type=int, default=[250, 1000, 4000], help="of both sides")
    parser.add_argument("--width", type=int, default=256, help="of the models (%(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="of either side (%(default)s)")
    parser.set_defaults(device="cpu")
    options = common.parse(parser, arguments)
    cases = [(kind, length) for kind in ("step", "beams") for length in options.lengths]
    cases += [("training", length) for length in options.training_lengths]
    report: dict[str, Any] = vars(options) | {"machine": common.machine_info("cpu"), "records": []}
    with tqdm(total=2 * options.rounds * len(cases), unit="step") as progress:
        for kind, length in cases:
            report["records"].append(measure(kind, length, options, progress))
            if options.save:
                common.save(report, markdown(report), options.save)
    print(markdown(report))


if __name__ == "__main__":
    main()
