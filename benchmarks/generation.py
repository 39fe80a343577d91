"""What generate() costs under each position encoding: its time against that of transformers' own Marian.

Models have random weights and make as many tokens as their sources have, neither fewer nor more: what is compared is
what steps cost with all that generate() does around them. A size is a batch and a number of beams, 1 for a greedy
search. With more than one of `--caches`, each model is measured with each: `static` has room for all tokens from the
start, and `compiled` compiles the steps of such a cache. The compilation itself is not measured.
"""

import argparse
from collections.abc import Sequence

import common
import torch
from tqdm import tqdm
from transformers import CompileConfig

from hf_posenc import to_transformers

SIZES = [(1, 1), (1, 5), (16, 1), (16, 5)]
MARIAN = "marian"


def cache_options(cache: str) -> dict[str, object]:
    """The arguments of generate() for a kind of cache."""
    if cache == "dynamic":
        return {}
    if cache == "static":
        return {"cache_implementation": "static", "disable_compile": True}
    how = CompileConfig(mode="default", fullgraph=True)
    how._compile_all_devices = True  # transformers compiles on accelerators only, unless it is told
    return {"cache_implementation": "static", "compile_config": how}


class Generation(common.TimedStep):
    """One call of generate() by the model of an encoding, or by the Marian with the weights of `sinusoidal`."""

    def __init__(self, name: str, cache: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__("sinusoidal" if name == MARIAN else name, options)
        if name == MARIAN:
            self.model = to_transformers(self.model).to(self.device)
        self.model.eval().to(getattr(torch, options.dtype))
        batch, beams = size
        self.made = (batch, 1 + options.tokens)
        self.source = torch.randint(3, common.VOCAB_SIZE, (batch, options.tokens), device=self.device)
        self.how = {"num_beams": beams, "min_new_tokens": options.tokens, "max_new_tokens": options.tokens}
        self.how |= cache_options(cache)

    def __call__(self) -> None:
        assert self.model.generate(self.source, do_sample=False, **self.how).shape == self.made


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each model: its time over that of Marian in each round."""
    steps = {}
    for name in options.encodings:
        for cache in options.caches:
            label = name if cache == "dynamic" else f"{name}, {cache} cache"
            steps[label] = Generation(name, cache, size, options)
    for step in steps.values():  # The first call pays for what later ones find ready.
        step()
    return common.compare(steps, size, options, progress)


def main(arguments: Sequence[str] | None = None) -> None:
    encodings = [*common.ENCODINGS, *common.ALIGNED_ENCODINGS]
    parser = common.parser(__doc__, encodings=encodings, sizes=SIZES, rounds=5, base=MARIAN, axis="beams")
    parser.add_argument("--tokens", type=int, default=32, help="of each source and target (%(default)s)")
    kinds = ["dynamic", "static", "compiled"]
    parser.add_argument("--caches", nargs="+", choices=kinds, default=kinds[:1], help="kinds of cache (%(default)s)")
    common.run(common.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
