"""What a short training mends in a language model with replaced positions: perplexity before and after.

    python benchmarks/recalibration.py MODEL --train TEXT ... --test TEXT ... [--rows ROW ...] [--seeds 1 2 3]

Each row is the model after `hf_posenc.replace_positions`, as in changed_positions.py. LoRA trains all its linear layers
for `--steps` steps on one block of `--length` tokens each, of the training texts. The row "as it is" is trained, too:
what it gains comes from the texts, and not from its positions. A seed draws the adapter and the order of the blocks.

Each training is a file of its own in a folder: a killed command goes on, and commands with different rows may run at
once. The table has what the folder has.
"""

import argparse
import copy
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from changed_positions import losses_by_position, rows
from common import describe_machine, machine_info, save
from peft import LoraConfig, get_peft_model
from tqdm.auto import tqdm
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from hf_posenc.measure.loading import load_for_measuring
from hf_posenc.measure.text import Block, encode, make_blocks, prefix_tokens
from hf_posenc.utils.atomic_io import atomic_write

Losses = list[list[float]]  # of each test block, between each two edges


def recalibrate(model: PreTrainedModel, blocks: list[Block], seed: int, steps: int, learning_rate: float) -> None:
    """Train the model by LoRA on one block a step, and merge the adapter into its weights."""
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    order = [index for _ in range(steps // len(blocks) + 1) for index in torch.randperm(len(blocks)).tolist()]
    adapted.train()
    bar = tqdm(order[:steps], desc=f"training, seed {seed}", leave=False)
    for index in bar:
        ids_1T = blocks[index].ids_T[None]
        loss = adapted(input_ids=ids_1T, labels=ids_1T, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.2f}")
    adapted.merge_and_unload().eval()


def cell(before: np.ndarray, after: list[np.ndarray]) -> str:
    """The perplexity without training, and after it: the mean over seeds and their range."""
    shown = f"{math.exp(before.mean()):.1f}"
    if not after:
        return shown
    trained = [math.exp(losses.mean()) for losses in after]
    spread = f" [{min(trained):.1f} to {max(trained):.1f}]" if len(trained) > 1 else ""
    return f"{shown} → {mean(trained):.1f}{spread}"


def table(found: dict[str, dict[str, Losses]], edges: list[int]) -> list[str]:
    """The rows with their perplexities between each two edges; `found`: losses by row, and by seed, "0" untrained."""
    spans = [f"{start}-{end}" for start, end in pairwise(edges)]
    lines = [f"| positions | seeds | {' | '.join(spans)} |", "| --- | ---: |" + " ---: |" * len(spans)]
    for name, by_seed in found.items():
        before, after = np.array(by_seed["0"]), [np.array(losses) for seed, losses in by_seed.items() if seed != "0"]
        cells = [cell(before[:, column], [losses[:, column] for losses in after]) for column in range(len(spans))]
        lines.append(f"| {name} | {len(after)} | {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--train", nargs="+", type=Path, required=True)
    parser.add_argument("--test", nargs="+", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=["as it is", "none in every 4th layer", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=256, help="of the training blocks, in tokens")
    parser.add_argument("--test-length", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32", help="of the weights, such as bfloat16; adapters are float32")
    parser.add_argument("--save", default="recalibration", help="name in benchmarks/results")
    options = parser.parse_args(arguments)
    model, tokenizer = load_for_measuring(options.model, dtype=options.dtype)
    prefix, blocks = prefix_tokens(tokenizer), {}
    for name, paths, length in (
        ("train", options.train, options.length),
        ("test", options.test, options.test_length),
    ):
        documents = [encode(tokenizer, path.read_text(encoding="utf-8")) for path in paths]
        blocks[name] = make_blocks(documents, prefix, length, len(paths) if name == "test" else options.steps)
    changes = rows(options.test_length // 4, model.config.max_position_embeddings)
    if unknown := sorted({*options.rows} - changes.keys()):
        parser.error(f"--rows must be among {', '.join(changes)}, but it has {', '.join(unknown)}; choose others.")
    edges, folder = [0, options.test_length // 2, options.test_length], Path(f".{options.save}.unfinished")
    folder.mkdir(exist_ok=True)
    for seed in (0, *options.seeds):  # 0: without training
        for name in options.rows:
            path = folder / f"{name}, {seed}.json"
            if path.exists():
                continue
            changed = changes[name](copy.deepcopy(model))
            if seed:
                recalibrate(changed, blocks["train"], seed, options.steps, options.learning_rate)
            losses = losses_by_position(changed, blocks["test"], edges, f"{name}, seed {seed}")
            atomic_write(path, json.dumps(losses))
    found: dict[str, dict[str, Losses]] = {}
    for name in changes:
        for path in sorted(folder.glob(f"{name}, *.json")):
            found.setdefault(name, {})[path.stem.rpartition(", ")[2]] = json.loads(path.read_text())
    machine = machine_info("cpu")
    note = (
        f"Perplexity at these positions of {len(blocks['test'])} blocks of {options.test_length} tokens, without "
        f"training → after {options.steps} steps on a block of {options.length} tokens each: the mean over seeds, and "
        f"the lowest and the highest. LoRA of all linear layers. {describe_machine(machine)}."
    )
    report = {"machine": machine, "edges": edges, "steps": options.steps, "length": options.length, "losses": found}
    save(report, "\n".join([*table(found, edges), "", note]), options.save)


if __name__ == "__main__":
    main()
