"""How many of this package's own functions a pass calls, and in how many files a reader finds them.

An encoder of one layer, each further layer, a cached decoding step of two layers. Calls are counted after a first pass,
and a step after the second token: then caches are full, and nothing is computed once only.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import hf_posenc
from hf_posenc import PosEncConfig, PosEncForConditionalGeneration
from hf_posenc.generation.model_inputs import get_cache, rename_cache

PACKAGE = str(Path(hf_posenc.__file__).parent)
SIZES = {"vocab_size": 16, "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


def own_calls(run: Callable[[], object]) -> tuple[int, int]:
    """The number of calls of functions of this package, comprehensions apart, and of the files that define them."""
    files: list[str] = []

    def record(frame: FrameType, event: str, argument: object) -> None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and name not in ("<listcomp>", "<dictcomp>", "<setcomp>"):
            files.append(file)

    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(files), len(set(files))


def build_model(encoding: str, layers: int) -> Any:
    """A small model in eval mode."""
    config = PosEncConfig(position_encoding_type=encoding, encoder_layers=layers, decoder_layers=layers, **SIZES)
    return PosEncForConditionalGeneration(config).eval()


@torch.no_grad()
def count_calls(encoding: str) -> dict[str, int]:
    """The counts of one encoding, by their column."""
    ids = torch.arange(3, 9)[None]
    encoders = [build_model(encoding, layers).model.encoder for layers in (1, 2)]
    for encoder in encoders:
        encoder(ids)
    (one, files), (two, _) = (own_calls(partial(encoder, ids)) for encoder in encoders)
    model = build_model(encoding, 2)
    states = model.model.encoder(ids)
    cache = None
    for step in range(3):
        token = {"encoder_outputs": states, "decoder_input_ids": ids[:, step : step + 1], "use_cache": True}
        inputs = token if cache is None else token | rename_cache({"cache": cache})
        if step == 2:
            calls, _ = own_calls(partial(model, **inputs))
        else:
            cache = get_cache(model(**inputs))
    return {"encoder of one layer": one, "its files": files, "each further layer": two - one, "cached step": calls}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encodings", nargs="+", default=["relative"], help="names of position_encoding_type")
    options = parser.parse_args(arguments)
    counts = {encoding: count_calls(encoding) for encoding in options.encodings}
    columns = list(next(iter(counts.values())))
    print("| encoding |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for encoding, numbers in counts.items():
        print(f"| `{encoding}` |", " | ".join(str(numbers[column]) for column in columns), "|")


if __name__ == "__main__":
    main()
