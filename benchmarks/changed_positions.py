"""What a pretrained language model loses or gains by other positions, without training: perplexity by position.

    python benchmarks/changed_positions.py MODEL TEXT [TEXT ...] --lengths 1024 2048 4096 [--rows ROW ...] [--save NAME]

Each document gives one block of the last of `--lengths` in tokens, the same for all rows. Perplexity is that of the
tokens between two lengths; windows have the first. Each row is the model after `hf_posenc.replace_positions`. A row's
perplexity at some positions is compared with that of the model as it is on the same tokens: the ratio, with a 95 %
bootstrap interval over documents. A killed command goes on from what it has saved.
"""

import argparse
import copy
import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import describe_machine, machine_info, save
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_posenc import replace_positions
from hf_posenc.measure.loading import load_for_measuring
from hf_posenc.measure.scoring import mean_with_interval, score_tokens
from hf_posenc.measure.text import encode, make_blocks, prefix_tokens
from hf_posenc.utils.atomic_io import atomic_write

Change = Callable[[PreTrainedModel], PreTrainedModel]


def change(encoding: str, layers: str | None = None, **parameters: Any) -> Change:
    return lambda model: replace_positions(model, encoding, layers, **parameters)


def scaled(rope_type: str, factor: float, **others: Any) -> Change:
    return change("rotary", rope_parameters={"rope_type": rope_type, "factor": factor, **others})


def windowed(size: int, sinks: int) -> Change:
    """A window of `size` tokens, the token itself included."""
    return change("rotary+window", window_size=size - 1, window_sinks=sinks)


def rows(window: int, claimed: int) -> dict[str, Change]:
    """The changes by name; `window` and the claimed length in tokens."""
    changes: dict[str, Change] = {"as it is": lambda model: model}
    for factor in (2.0, 4.0):
        changes[f"linear x {factor:g}"] = scaled("linear", factor)
        changes[f"NTK by parts x {factor:g}"] = scaled("yarn", factor, attention_factor=1.0)
        changes[f"YaRN x {factor:g}"] = scaled("yarn", factor)
    for sinks in (0, 1, 4, 16):
        changes[f"window {window}, {sinks} sinks"] = windowed(window, sinks)
    changes[f"log n from {claimed}"] = change("rotary+log_n", log_n_length=claimed)
    changes[f"log n from {window}"] = change("rotary+log_n", log_n_length=window)
    changes["none in every 4th layer"] = change("none", "every 4th")
    changes["none"] = change("none")
    return changes


def losses_by_position(model: PreTrainedModel, blocks: list[Any], edges: list[int], label: str) -> list[list[float]]:
    """The mean loss of each block (rows) between each two edges."""
    losses = []
    for block in tqdm(blocks, desc=label, leave=False):
        loss_N, _ = score_tokens(model, block.ids_T)
        bounds = pairwise(edges)
        losses.append([float(loss_N[max(0, start - 1) : end - 1].mean()) for start, end in bounds])
    return losses


def cell(losses: np.ndarray, base: np.ndarray) -> str:
    """The perplexity, and its ratio to the model's own with the interval."""
    shown = f"{math.exp(losses.mean()):.1f}"
    if np.array_equal(losses, base):
        return shown
    difference = mean_with_interval(list(losses - base))
    ratio = f" ({math.exp(difference['mean']):.2f}"
    if difference["interval"] is not None:
        low, high = map(math.exp, difference["interval"])
        ratio += f" [{low:.2f}, {high:.2f}]"
    return shown + ratio + ")"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 2048, 4096], help="in tokens, ascending")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--rows", nargs="+", help="names of the rows to measure, beside 'as it is'; all by default")
    parser.add_argument("--dtype", default="float32", help="of the weights, such as bfloat16")
    parser.add_argument("--gguf")
    parser.add_argument("--save", default="changed-positions", help="name in benchmarks/results")
    options = parser.parse_args(arguments)
    model, tokenizer = load_for_measuring(options.model, dtype=options.dtype, gguf_file=options.gguf)
    documents = [encode(tokenizer, path.read_text(encoding="utf-8")) for path in options.texts]
    blocks = make_blocks(documents, prefix_tokens(tokenizer), options.lengths[-1], options.blocks)
    edges = [0, *options.lengths]
    state = Path(f".{options.save}.unfinished.json")
    found: dict[str, list[list[float]]] = json.loads(state.read_text()) if state.exists() else {}
    changes = rows(options.lengths[0], model.config.max_position_embeddings)
    if unknown := sorted({*(options.rows or [])} - changes.keys()):
        parser.error(f"--rows must be among {', '.join(changes)}, but it has {', '.join(unknown)}; choose others.")
    for name, changed in changes.items():
        is_measured = not options.rows or name in ("as it is", *options.rows)
        if is_measured and name not in found:
            found[name] = losses_by_position(changed(copy.deepcopy(model)), blocks, edges, name)
            atomic_write(state, json.dumps(found))
    losses = {name: np.array(values) for name, values in found.items()}
    base = losses["as it is"]
    spans = [f"{start}-{end}" for start, end in pairwise(edges)]
    lines = [f"| positions | {' | '.join(spans)} |", "| --- |" + " ---: |" * len(spans)]
    for name, values in losses.items():
        cells = [cell(values[:, column], base[:, column]) for column in range(len(spans))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machine = machine_info("cpu")
    note = (
        f"Perplexity at these positions of {len(blocks)} blocks of {options.lengths[-1]} tokens, one a document where "
        "there are as many; in brackets the ratio to the model as it is, on the same tokens, with a 95 % bootstrap "
        f"interval over blocks. Weights in {options.dtype}. {describe_machine(machine)}."
    )
    save(
        {"machine": machine, "dtype": options.dtype, "edges": edges, "losses": found},
        "\n".join([*lines, "", note]),
        options.save,
    )
    state.unlink()


if __name__ == "__main__":
    main()
