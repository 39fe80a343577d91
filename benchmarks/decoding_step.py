"""What each position encoding costs in translation: one step of cached greedy decoding, its time against `none`'s.

A step is one new token for every sentence of a batch, by the papers' Transformer (6 + 6 layers, width 512) or by
RNN-NMT, after as many cached tokens as the size says. The source is encoded once, before.
"""

import argparse
from collections.abc import Sequence

import common
import torch
from torch import Tensor
from tqdm import tqdm

from hf_posenc.generation.model_inputs import get_cache

SIZES = [(32, 32), (32, 128), (32, 512)]
SOURCE_LENGTH = 64


class DecodingStep(common.TimedStep):
    """The choice of the next token after a cached prefix, by logits that are asserted to be those without a cache."""

    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__(name, options)
        self.model.eval()
        batch, length = size
        self.source = torch.randint(3, common.VOCAB_SIZE, (1, SOURCE_LENGTH), device=self.device)
        self.target = torch.randint(3, common.VOCAB_SIZE, (1, length + 1), device=self.device)
        self.assert_same_logits_without_cache()
        self.model.to(getattr(torch, options.dtype))
        self.fill_cache(batch)

    @torch.no_grad()
    def fill_cache(self, batch: int) -> None:
        """A cache of all the target's tokens but the last, of one sentence; the others are its copies, because a step
        takes as long whatever the tokens are, and a recurrent decoder fills its cache token by token."""
        encoder_outputs = self.model.model.encoder(input_ids=self.source)
        prefix = self.target[:, :-1]
        cache = get_cache(self.model(encoder_outputs=encoder_outputs, decoder_input_ids=prefix, use_cache=True))
        assert cache is not None  # use_cache=True
        self.cache = cache
        self.cache.batch_repeat_interleave(batch)
        self.encoder_outputs = type(encoder_outputs)(
            **{name: value.repeat_interleave(batch, dim=0) for name, value in encoder_outputs.items()}
        )
        self.last_ids = self.target[:, -1:].repeat_interleave(batch, dim=0)

    @torch.no_grad()
    def logits(self) -> Tensor:
        return self.model(
            encoder_outputs=self.encoder_outputs, decoder_input_ids=self.last_ids, cache=self.cache, use_cache=True
        ).logits[:, -1]

    def __call__(self) -> None:
        self.logits().argmax(dim=-1)

    def reset(self) -> None:
        self.cache.crop(-1)

    @torch.no_grad()
    def assert_same_logits_without_cache(self) -> None:
        """In float32, as the model is made, for one sentence: or the time would be that of something else."""
        self.fill_cache(1)
        whole = self.model(input_ids=self.source, decoder_input_ids=self.target, use_cache=False, track_attention=True)
        torch.testing.assert_close(self.logits(), whole.logits[:, -1], rtol=0, atol=1e-3)


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each encoding: its time over that of `none` in each round."""
    steps = {name: DecodingStep(name, size, options) for name in options.encodings}
    for step in steps.values():  # The first step pays for what later ones find ready.
        step()
        step.reset()
    return common.compare(steps, size, options, progress)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(
        __doc__, encodings=[*common.ENCODINGS, *common.ALIGNED_ENCODINGS, "rnn_nmt"], sizes=SIZES, rounds=21
    )
    common.run(common.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
