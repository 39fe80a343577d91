"""Time of translating documents in one pass, over that of translating them segment by segment.

Both use one aligned model with random weights, which decodes greedily as many tokens as its source has. A size is a
number of documents and of segments in each. The segments of all documents are one batch, and so are the documents.

With --rows both have batches of at most so many rows, as `translate` has (`batch_size`). Where there are as many
documents as rows, one pass and segments take the same number of steps, with the same number of rows in each.
"""

import argparse
from collections.abc import Sequence

import common
import torch
from tqdm import tqdm

SIZES = [(1, 2), (1, 8), (1, 32), (16, 8), (16, 32)]
ONE_PASS, SEGMENTS = "one pass", "segments"


class Translation(common.TimedStep):
    """Calls of generate() on the documents, or on all their segments, a batch at a time."""

    def __init__(self, name: str, size: common.Size, options: argparse.Namespace) -> None:
        super().__init__(options.model, options)
        self.model.eval().to(getattr(torch, options.dtype))
        documents, segments = size
        source = torch.randint(3, common.VOCAB_SIZE, (documents * segments, options.tokens), device=self.device)
        source = source if name == SEGMENTS else source.reshape(documents, segments * options.tokens)
        self.batches = source.split(options.rows or len(source))

    @property
    def num_steps(self) -> int:
        """The decoding steps of all batches."""
        return sum(batch.shape[1] for batch in self.batches)

    def __call__(self) -> None:
        for batch in self.batches:
            length = batch.shape[1]
            made = self.model.generate(batch, do_sample=False, min_new_tokens=length, max_new_tokens=length)
            assert made.shape == (len(batch), 1 + length)


def measure(size: common.Size, options: argparse.Namespace, progress: tqdm) -> common.Records:
    """A record for each way: its time over that of the segments in each round, its steps, and the most rows of one."""
    steps = {name: Translation(name, size, options) for name in options.encodings}
    for step in steps.values():  # The first call pays for what later ones find ready.
        step()
    return [
        record | {"steps": step.num_steps, "rows": len(step.batches[0])}
        for record, step in zip(common.compare(steps, size, options, progress), steps.values(), strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, encodings=[ONE_PASS], sizes=SIZES, rounds=3, base=SEGMENTS, axis="segments")
    parser.set_defaults(width=192, layers=3)
    parser.add_argument("--model", default=common.ALIGNED_ENCODINGS[0], help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=25, help="of each segment (%(default)s)")
    parser.add_argument("--rows", type=int, help="at most so many of a batch; one batch by default")
    common.run(common.parse(parser, arguments), measure)


if __name__ == "__main__":
    main()
