"""What generate() costs under each position encoding: its time against that of transformers' own Marian.

Models have random weights and make as many tokens as their sources have, neither fewer nor more: what is compared is
what steps cost with all that generate() does around them. A size is a batch and a number of beams, 1 for a greedy
search.
"""

import argparse
from collections.abc import Sequence

import common
import torch
from tqdm import tqdm

from hf_posenc import to_marian

SIZES = [(1, 1), (1, 5), (16, 1), (16, 5)]
MARIAN = "marian"


class Generation(common.TimedStep):
    """One call of generate() by the model of an encoding, or by the Marian with the weights of `sinusoidal`."""

    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__("sinusoidal" if name == MARIAN else name, options)
        if name == MARIAN:
            self.model = to_marian(self.model).to(self.device)
        self.model.eval().to(getattr(torch, options.dtype))
        batch, beams = size
        self.made = (batch, 1 + options.tokens)
        self.source = torch.randint(3, common.VOCAB_SIZE, (batch, options.tokens), device=self.device)
        self.how = {"num_beams": beams, "min_new_tokens": options.tokens, "max_new_tokens": options.tokens}

    def __call__(self) -> None:
        assert self.model.generate(self.source, do_sample=False, **self.how).shape == self.made


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each model: its time over that of Marian in each round."""
    steps = {name: Generation(name, size, options) for name in options.encodings}
    for step in steps.values():  # The first call pays for what later ones find ready.
        step()
    return common.compare(steps, size, options, progress)


def main(arguments: Sequence[str] | None = None) -> None:
    encodings = [*common.ENCODINGS, *common.ALIGNED_ENCODINGS]
    parser = common.parser(__doc__, encodings=encodings, sizes=SIZES, rounds=5, base=MARIAN, axis="beams")
    parser.add_argument("--tokens", type=int, default=32, help="of each source and target (%(default)s)")
    common.run(common.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
