"""What a decoder-only model costs against transformers' Llama of the same size: a training step, or a decoding step.

A training step is a forward and a backward pass without an optimizer. A decoding step is one greedy token for every
sentence of a batch, after as many cached tokens as the size says. Llama has rotary positions. Its gated feed-forward
network has three matrices where ours has two, and two thirds of the width, so that both have as many parameters.
"""

import argparse
from collections.abc import Sequence

import common
import torch
from tqdm import tqdm
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_posenc import POSITION_ENCODINGS, PosEncCausalConfig, PosEncForCausalLM
from hf_posenc.generation.model_inputs import CACHE_NAME

SIZES = [(4, 256), (1, 1024)]
LAYERS, HEADS = 6, 8


def build_model(name: str, width: int, layers: int) -> PreTrainedModel:
    """The model of an encoding, or "llama"."""
    sizes = {
        "vocab_size": common.VOCAB_SIZE,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
    }
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(intermediate_size=8 * width // 3, **sizes))
    return PosEncForCausalLM(
        PosEncCausalConfig(position_encoding_type=name, intermediate_size=4 * width, dropout=0.0, **sizes)
    )


class CausalStep(common.TimedStep):
    """One step of a decoder-only model on a batch drawn from a fixed seed."""

    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = options.device
        self.model = build_model(name, options.width, options.layers or LAYERS)
        self.model.to(self.device, getattr(torch, options.dtype))
        torch.manual_seed(0)
        self.ids = torch.randint(3, common.VOCAB_SIZE, size, device=self.device)


class TrainingStep(CausalStep):
    """A forward and a backward pass."""

    def __call__(self) -> None:
        self.model.train()
        self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss.backward()
        self.model.zero_grad(set_to_none=True)


class DecodingStep(CausalStep):
    """The choice of the next token after a cached prefix."""

    @torch.no_grad()
    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__(name, size, options)
        self.model.eval()
        self.cache = DynamicCache(config=self.model.config)
        expected = self.model(input_ids=self.ids, use_cache=False).logits[:, -1]
        self.model(input_ids=self.ids[:, :-1], **{CACHE_NAME: self.cache}, use_cache=True)
        torch.testing.assert_close(self.logits(), expected, rtol=0, atol=1e-3 if options.dtype == "float32" else 1)
        self.reset()

    def logits(self) -> torch.Tensor:
        return self.model(input_ids=self.ids[:, -1:], **{CACHE_NAME: self.cache}, use_cache=True).logits[:, -1]

    @torch.no_grad()
    def __call__(self) -> None:
        self.logits().argmax(-1)

    def reset(self) -> None:
        self.cache.crop(-1)


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each model: its time over that of Llama in each round, and its parameters."""
    step_class = {"training": TrainingStep, "decoding": DecodingStep}[options.step]
    steps = {name: step_class(name, size, options) for name in options.encodings}
    for step in steps.values():  # The first step pays for what later ones find ready.
        step()
        step.reset()
    records = common.compare(steps, size, options, progress)
    return [record | {"parameters": steps[record["encoding"]].model.num_parameters()} for record in records]


def main(arguments: Sequence[str] | None = None) -> None:
    encodings = [name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier]
    parser = common.parser(__doc__, encodings=encodings, sizes=SIZES, rounds=15, base="llama")
    parser.add_argument("--step", choices=("training", "decoding"), default="training")
    common.run(common.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
