"""What each position encoding costs: one training step, its time and memory against `none`'s, in one run.

A step is a forward and a backward pass of the papers' Transformer (6 + 6 layers, width 512), or of RNN-NMT, on full
sentences or, with --padding, on sentences of different lengths; no optimiser.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import common
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers import initialization as init

from hf_posenc import POSITION_ENCODINGS, AttentionContext, PositionEncoding, distance, register_position_encoding

SIZES = [(16, 64), (4, 256), (1, 1024)]


class NaiveRelative(PositionEncoding):
    """`relative` as its equations are written: one vector for each pair of positions, an (L, L, K) tensor per term."""

    summary = "relative, with a vector for each pair."
    shift_invariant = True

    def __init__(self, config: Any, side: Any) -> None:
        super().__init__(config, side)
        self.clip = config.relative_clip
        shape = (side.layers, 2 * self.clip + 1, side.head_dim)
        self.keys = torch.nn.Parameter(torch.empty(shape))
        self.values = torch.nn.Parameter(torch.empty(shape))

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        return torch.einsum("bhqk,qsk->bhqs", q_BHQK * self.scaling, self.pairs(self.keys[ctx.layer], ctx))

    def value_bias(self, p_BHQS: Tensor, ctx: AttentionContext) -> Tensor:
        return torch.einsum("bhqs,qsk->bhqk", p_BHQS, self.pairs(self.values[ctx.layer], ctx))

    def pairs(self, table_RK: Tensor, ctx: AttentionContext) -> Tensor:
        """The vector of every pair of positions (Q, S, K): with padding on the right, the longest sentence has all."""
        longest = distance(ctx.query_pos_BQ.amax(0, keepdim=True), ctx.key_pos_BS.amax(0, keepdim=True))[0]
        return table_RK[longest.clamp(-self.clip, self.clip) + self.clip]

    def init_weights(self) -> None:
        for table in (self.keys, self.values):
            init.xavier_uniform_(table)


class TrainingStep(common.TimedStep):
    """One training step on a batch of its own drawn from a fixed seed."""

    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__(name, options)
        self.model.to(getattr(torch, options.dtype)).train()
        self.source = torch.randint(3, common.VOCAB_SIZE, size, device=self.device)
        self.labels = torch.randint(3, common.VOCAB_SIZE, size, device=self.device)
        self.mask: Tensor | None = None
        if options.padding:
            self.mask = sentences(size, options.padding).to(self.device)
            self.source = self.source.masked_fill(~self.mask, self.model.config.pad_token_id)
            self.labels = self.labels.masked_fill(~sentences(size, options.padding).to(self.device), -100)

    def forward(self) -> Tensor:
        return self.model(input_ids=self.source, attention_mask=self.mask, labels=self.labels).loss

    def __call__(self) -> None:
        self.forward().backward()
        self.model.zero_grad(set_to_none=True)

    def peak_bytes(self) -> int:
        """The most that a step holds at once beyond the model: activations, gradients, temporaries."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self()
            return torch.cuda.max_memory_allocated() - before
        return peak_bytes(self)


def peak_bytes(step: Callable[[], None]) -> int:
    """The most that a step on the CPU holds at once beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def sentences(size: common.Size, padding: float) -> Tensor:
    """Which places hold tokens (B, L). The lengths go evenly from L down to (1 - 2 padding) L, so that padding is just
    that share of the batch; the order of the sentences is torch's seed's."""
    batch, length = size
    lengths = torch.linspace(length, (1 - 2 * padding) * length, batch).round().clamp(min=1)
    return torch.arange(length) < lengths[torch.randperm(batch), None]


def assert_naive_equals_relative(options: argparse.Namespace) -> None:
    """With the same tables both give the same gradients, or there would be nothing to compare."""
    exact = argparse.Namespace(**vars(options) | {"device": "cpu", "dtype": "float64"})
    grads: list[dict[str, Tensor]] = []
    weights: dict[str, Tensor] = {}
    for name in ("relative", "naive_relative"):
        step = TrainingStep(name, (2, 40), exact)
        model = step.model.eval()
        weights = weights or model.state_dict()
        model.load_state_dict(weights)
        step.forward().backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in grads[0].items():
        torch.testing.assert_close(grads[1][name], expected, rtol=1e-9, atol=1e-12)


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each encoding: its time over that of `none` in each round, and its peak memory."""
    steps = {name: TrainingStep(name, size, options) for name in options.encodings}
    steps["none"]()  # The first step of a process pays for what later ones find ready.
    peaks = {name: step.peak_bytes() for name, step in steps.items()}
    records = common.compare(steps, size, options, progress)
    for record in records:
        peak = peaks[record["encoding"]]
        record |= {"peak_mib": round(peak / 2**20, 1), "memory_ratio": round(peak / peaks["none"], 4)}
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    register_position_encoding(
        "naive_relative",
        NaiveRelative,
        summary="Relative, by the (L, L, K) tensors that the equations suggest.",
        shift_invariant=True,
        config_parameters=POSITION_ENCODINGS["relative"].config_parameters,
    )
    parser = common.parser(__doc__, encodings=[*common.ENCODINGS, *common.ALIGNED_ENCODINGS], sizes=SIZES, rounds=9)
    parser.add_argument("--padding", type=float, default=0.0, help="the share of a batch that is padding, on the right")
    options = common.parse(parser, arguments)
    if not 0 <= options.padding < 0.5:
        parser.error(
            "the shortest sentence has (1 - 2 x padding) of the longest one's tokens, so padding must be 0 or more and "
            f"less than 0.5, but it is {options.padding}; give 0.3, say."
        )
    if options.padding and any(batch < 2 for batch, _ in options.sizes):
        parser.error("a batch of one sentence has no padding, but --sizes has one; give sizes of 2 sentences or more.")
    if "naive_relative" in options.encodings:
        assert_naive_equals_relative(options)
    common.run(options, measure)


if __name__ == "__main__":
    main()
