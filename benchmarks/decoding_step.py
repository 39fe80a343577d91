"""What each position encoding costs in translation: one step of cached greedy decoding, its time against `none`'s.

A step is one new token for every sentence of a batch, by the papers' Transformer (6 + 6 layers, width 512) or by
RNN-NMT, after as many cached tokens as the size says. The source is encoded once, before.
"""

import argparse
from collections.abc import Sequence

import ratios
import torch
from torch import Tensor
from tqdm import tqdm

from hf_posenc.modeling.model_inputs import cache_of

SIZES = [(32, 32), (32, 128), (32, 512)]
SOURCE_LENGTH = 64


class DecodingStep(ratios.Step):
    """The choice of the next token after a cached prefix, by logits that are asserted to be those without a cache."""

    def __init__(self, name: str, size: ratios.Size, options: argparse.Namespace) -> None:
        super().__init__(name, options)
        self.model.eval()
        batch, length = size
        self.source = torch.randint(3, ratios.VOCAB_SIZE, (1, SOURCE_LENGTH), device=self.device)
        self.target = torch.randint(3, ratios.VOCAB_SIZE, (1, length + 1), device=self.device)
        self.assert_cache_changes_nothing()
        self.model.to(getattr(torch, options.dtype))
        self.fill(batch)

    @torch.no_grad()
    def fill(self, batch: int) -> None:
        """A cache of all the target's tokens but the last, of one sentence; the others are its copies, because a step
        takes as long whatever the tokens are, and a recurrent decoder fills its cache token by token."""
        memory = self.model.model.encoder(input_ids=self.source)
        prefix = self.target[:, :-1]
        self.cache = cache_of(self.model(encoder_outputs=memory, decoder_input_ids=prefix, use_cache=True))
        self.cache.batch_repeat_interleave(batch)
        self.memory = type(memory)(**{name: part.repeat_interleave(batch, dim=0) for name, part in memory.items()})
        self.newest = self.target[:, -1:].repeat_interleave(batch, dim=0)

    @torch.no_grad()
    def logits(self) -> Tensor:
        return self.model(
            encoder_outputs=self.memory, decoder_input_ids=self.newest, cache=self.cache, use_cache=True
        ).logits[:, -1]

    def __call__(self) -> None:
        self.logits().argmax(dim=-1)

    def undo(self) -> None:
        self.cache.crop(-1)

    @torch.no_grad()
    def assert_cache_changes_nothing(self) -> None:
        """In float32, as the model is made, for one sentence: or the time would be that of something else."""
        self.fill(1)
        whole = self.model(input_ids=self.source, decoder_input_ids=self.target, use_cache=False, follow_alignment=True)
        torch.testing.assert_close(self.logits(), whole.logits[:, -1], rtol=0, atol=1e-3)


def measure(size: ratios.Size, options: argparse.Namespace, progress: tqdm) -> ratios.Records:
    """A record for each encoding: its time over that of `none` in each round."""
    steps = {name: DecodingStep(name, size, options) for name in options.encodings}
    for step in steps.values():  # The first step pays for what later ones find ready.
        step()
        step.undo()
    return ratios.compare(steps, size, options, progress)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ratios.parser(__doc__, encodings=[*ratios.ENCODINGS, *ratios.ALIGNED, "rnn_nmt"], sizes=SIZES, rounds=21)
    ratios.run(ratios.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
