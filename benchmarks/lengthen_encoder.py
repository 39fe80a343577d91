"""A sentence encoder for inputs beyond its table of positions: which change finds a passage in a long document?

    python benchmarks/lengthen_encoder.py MODEL --documents TALKS [TALKS ...] --passages SPEECHES [SPEECHES ...] \\
        --train NEWS [NEWS ...] [--save NAME]

In text files, a document ends at an empty line. Consecutive documents of `--documents` make stretches of each length.
Each stretch takes in the first halves of four documents of `--passages`, at four depths; the second halves are the
queries. A query is compared with all stretches of one length by cosine, and the rank of its own stretch is the score.

Trained rows are distilled from the unchanged model: each token's last hidden state is to equal that of the token in
its window of 512 tokens, and the embedding is to equal the mean of those of the windows. A killed command goes on
from what it has saved.
"""

import argparse
import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, machine_info, save
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_posenc import lengthen_table, replace_positions
from hf_posenc.measure.scoring import mean_with_interval
from hf_posenc.measure.text import encode
from hf_posenc.utils.atomic_io import atomic_write

DEPTHS = (0.125, 0.375, 0.625, 0.875)
MIN_HALF, MAX_HALF = 32, 64  # tokens of a passage and of a query
# Of the training steps: the share with long inputs, and the tokens of a step.
LONG_STEPS, STEP_TOKENS = 0.25, 2048
LEARNING_RATE, WARMUP = 2e-4, 0.1

Embed = Callable[[list[int]], Tensor]  # the tokens of a text -> its unit embeddings (N, D), one or several


@dataclass(frozen=True)
class Encoder:
    """A model with mean pooling. `special`: the tokens before and after each input."""

    model: PreTrainedModel
    special: tuple[int, int]

    def states(self, pieces: list[list[int]]) -> Tensor:
        """The last hidden states of texts with equal numbers of tokens (B, T + 2, D)."""
        ids_BT = torch.tensor([[self.special[0], *piece, self.special[1]] for piece in pieces])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(ids_BT).last_hidden_state.float()

    @torch.no_grad()
    def embed(self, ids: list[int]) -> Tensor:
        return unit(self.states([ids]).mean(1))

    def embed_start(self, ids: list[int], size: int) -> Tensor:
        """The embedding of the first `size` tokens, special ones included."""
        return self.embed(ids[: size - 2])

    def embed_windows(self, ids: list[int], size: int) -> Tensor:
        """The embedding of each window of up to `size` tokens, special ones included (N, D)."""
        return torch.cat([self.embed_window(tuple(window)) for window in windows(ids, size)])

    def embed_mean(self, ids: list[int], size: int) -> Tensor:
        return unit(self.embed_windows(ids, size).mean(0, keepdim=True))

    @cache  # noqa: B019  the encoder lives as long as the program; both rows of windows need it
    def embed_window(self, ids: tuple[int, ...]) -> Tensor:
        return self.embed(list(ids))


def unit(x_BD: Tensor) -> Tensor:
    return nn.functional.normalize(x_BD, dim=-1)


def windows(ids: list[int], size: int) -> list[list[int]]:
    """The fewest consecutive pieces of at most `size` tokens with two special ones, of nearly equal length."""
    count = -(-len(ids) // (size - 2))
    edges = [len(ids) * number // count for number in range(count + 1)]
    return [ids[start:end] for start, end in pairwise(edges)]


def read_documents(paths: Sequence[Path]) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [" ".join(document.split()) for text in texts for document in text.split("\n\n") if document.strip()]


def read_pairs(
    tokenizer: PreTrainedTokenizerBase, paths: Sequence[Path], count: int
) -> list[tuple[list[int], list[int]]]:
    """A passage and a query of each short document: its halves, which end at their longest lengths."""
    pairs = []
    for document in read_documents(paths):
        ids = encode(tokenizer, document)
        middle = len(ids) // 2
        if MIN_HALF <= middle <= 2 * MAX_HALF:
            pairs.append((ids[max(0, middle - MAX_HALF) : middle], ids[middle : middle + MAX_HALF]))
    require(len(pairs), count, f"documents of {2 * MIN_HALF} to {4 * MAX_HALF} tokens in --passages")
    return pairs[:count]


def read_stretches(tokenizer: PreTrainedTokenizerBase, paths: Sequence[Path], length: int) -> list[list[int]]:
    """Consecutive stretches of this many tokens."""
    ids = [token for document in read_documents(paths) for token in encode(tokenizer, document)]
    return [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]


def require(found: int, needed: int, what: str) -> None:
    if found < needed:
        raise SystemExit(f"There must be {needed} {what}, but there are {found}; give longer texts or less --count.")


def with_passages(stretch: list[int], passages: Sequence[list[int]], length: int) -> list[int]:
    """`length` tokens with two special ones, of which those at the depths are the passages."""
    rest = stretch[: length - 2 - sum(map(len, passages))]
    ids, start = [], 0
    for depth, passage in zip(DEPTHS, passages, strict=True):
        end = round(depth * len(rest))
        ids += [*rest[start:end], *passage]
        start = end
    return ids + rest[start:]


def ranks(queries_BD: Tensor, documents: list[Tensor]) -> list[int]:
    """The rank of each query's own document from 1, by the largest cosine with any of a document's embeddings."""
    scores_BN = torch.stack([(queries_BD @ document_ND.T).amax(1) for document_ND in documents], dim=1)
    own_B1 = torch.arange(len(queries_BD))[:, None] // len(DEPTHS)
    return (1 + (scores_BN > scores_BN.gather(1, own_B1)).sum(1)).tolist()


def ranks_by_length(
    embed: Embed, stretches: list[list[int]], pairs: list[tuple[list[int], list[int]]], lengths: list[int], label: str
) -> dict[str, list[int]]:
    """The rank of each query's document at each length."""
    queries_BD = torch.cat([embed(query).mean(0, keepdim=True) for _, query in pairs])
    found = {}
    for length in lengths:
        documents = []
        for number in tqdm(range(len(pairs) // len(DEPTHS)), desc=f"{label}, {length}", leave=False):
            passages = [passage for passage, _ in pairs[number * len(DEPTHS) : (number + 1) * len(DEPTHS)]]
            documents.append(embed(with_passages(stretches[number], passages, length)))
        found[str(length)] = ranks(queries_BD, documents)
    return found


def distill(encoder: Encoder, teacher: Encoder, inputs: Iterator[list[list[int]]], steps: int, size: int) -> None:
    """Train an encoder in place to compute at any length what the teacher computes in windows of `size` tokens."""
    model = encoder.model
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    warmup = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))
    )
    progress = tqdm(range(steps), desc="distill", leave=False)
    for _ in progress:
        pieces = next(inputs)
        with torch.no_grad():
            taught = [[teacher.states([window])[0] for window in windows(piece, size)] for piece in pieces]
        target_BTD = torch.stack([torch.cat([states[1:-1] for states in of_windows]) for of_windows in taught])
        means = [unit(torch.stack([states.mean(0) for states in of_windows])).mean(0) for of_windows in taught]
        states_BTD = encoder.states(pieces)
        state_loss = nn.functional.mse_loss(states_BTD[:, 1:-1], target_BTD) / target_BTD.square().mean()
        embedding_loss = 1 - nn.functional.cosine_similarity(states_BTD.mean(1), torch.stack(means)).mean()
        optimizer.zero_grad()
        (state_loss + embedding_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress.set_postfix(states=f"{state_loss.item():.3f}", embedding=f"{embedding_loss.item():.3f}")


def training_inputs(stretches: list[list[int]], size: int, seed: int) -> Iterator[list[list[int]]]:
    """Endless batches: of long inputs, and of inputs as long as a window of the teacher or a quarter of it."""
    rng, longest = random.Random(seed), len(stretches[0])
    while True:
        length = longest if rng.random() < LONG_STEPS else rng.choice([size // 4, size]) - 2
        rows = rng.choices(stretches, k=max(1, STEP_TOKENS // length))
        starts = [rng.randrange(longest - length + 1) for _ in rows]
        yield [row[start : start + length] for row, start in zip(rows, starts, strict=True)]


def all_rows(
    teacher: Encoder, options: argparse.Namespace, stretches: list[list[int]]
) -> dict[str, Callable[[], Embed]]:
    """By name, what makes the embeddings of a row."""
    size, longest = options.window, max(options.lengths)

    def changed(change: Callable[..., Any], seed: int | None = None) -> Embed:
        torch.manual_seed(seed or 0)
        encoder = Encoder(change(copy.deepcopy(teacher.model)), teacher.special)
        if seed is not None:
            distill(encoder, teacher, training_inputs(stretches, size, seed), options.steps, size)
        return encoder.embed

    rows: dict[str, Callable[[], Embed]] = {f"first {size} tokens": lambda: partial(teacher.embed_start, size=size)}
    for part in (size, size // 2, size // 4):
        rows[f"windows of {part}, mean"] = lambda part=part: partial(teacher.embed_mean, size=part)  # type: ignore[misc]
        rows[f"windows of {part}, max"] = lambda part=part: partial(teacher.embed_windows, size=part)  # type: ignore[misc]
    changes: dict[str, Callable[..., Any]] = {
        "table, interpolate": partial(lengthen_table, max_position_embeddings=longest, method="interpolate"),
        "table, repeat": partial(lengthen_table, max_position_embeddings=longest, method="repeat"),
        "ALiBi": partial(replace_positions, position_encoding_type="alibi"),
        "RoPE": partial(replace_positions, position_encoding_type="rotary"),
    }
    for name, change in changes.items():
        rows[name] = partial(changed, change)
    for name in ("ALiBi", "RoPE", "table, interpolate"):
        for seed in options.seeds:
            rows[f"{name}, trained, seed {seed}"] = partial(changed, changes[name], seed)
    return rows


def share_of_first(found: Sequence[int]) -> str:
    return f"{100 * sum(rank == 1 for rank in found) / len(found):.0f}"


def table(results: dict[str, dict[str, list[int]]], lengths: Sequence[int]) -> str:
    """Percent of queries whose own document is the first, with the mean reciprocal rank; then by depth at the end."""
    depths = [f"{lengths[-1]}, depth {depth:g}" for depth in DEPTHS]
    lines = [f"| encoder | {' | '.join([*map(str, lengths), *depths])} |", "| --- |" + " ---: |" * (len(lengths) + 4)]
    for name, found in results.items():
        cells = []
        for length in lengths:
            of_document = [number // len(DEPTHS) for number in range(len(found[str(length)]))]
            score = mean_with_interval([1 / rank for rank in found[str(length)]], of_document)
            low, high = score["interval"]
            cells.append(f"{share_of_first(found[str(length)])} ({score['mean']:.2f} [{low:.2f}, {high:.2f}])")
        cells += [share_of_first(found[str(lengths[-1])][part :: len(DEPTHS)]) for part in range(len(DEPTHS))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name in ("documents", "passages", "train"):
        parser.add_argument(f"--{name}", nargs="+", type=Path, required=True)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048])
    parser.add_argument("--window", type=int, default=512, help="tokens that the model takes as it is")
    parser.add_argument("--count", type=int, default=40, help="documents")
    parser.add_argument("--steps", type=int, default=60, help="of training, each of 2,048 tokens")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="as in the table; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the trained rows")
    parser.add_argument("--save", default="lengthen-encoder", help="name in benchmarks/results")
    options = parser.parse_args(arguments)
    tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    model = AutoModel.from_pretrained(options.model, trust_remote_code=False, dtype=torch.float32).eval()
    teacher = Encoder(model, (tokenizer.cls_token_id, tokenizer.sep_token_id))
    longest = max(options.lengths)
    pairs = read_pairs(tokenizer, options.passages, options.count * len(DEPTHS))
    stretches = read_stretches(tokenizer, options.documents, longest)
    require(len(stretches), options.count, f"stretches of {longest} tokens in --documents")
    training = read_stretches(tokenizer, options.train, longest - 2)
    require(len(training), 1, f"stretches of {longest} tokens in --train")
    state = Path(f".{options.save}.unfinished.json")
    results: dict[str, dict[str, list[int]]] = json.loads(state.read_text()) if state.exists() else {}
    machine = machine_info("cpu")
    report = {"machine": machine, "model": Path(options.model).name, "lengths": options.lengths, "steps": options.steps}
    note = (
        f"{report['model']}: percent of {len(pairs)} queries whose own document ranks first among {options.count} of "
        "this many tokens; in brackets the mean reciprocal rank, with a 95 % bootstrap interval over documents. "
        f"Trained rows: {options.steps} steps of {STEP_TOKENS} tokens. bfloat16. {describe_machine(machine)}."
    )
    rows = all_rows(teacher, options, training)
    for name in options.rows or rows:
        if name not in results:
            results[name] = ranks_by_length(rows[name](), stretches, pairs, options.lengths, name)
            atomic_write(state, json.dumps(results))
        # After every row, so that a run which is stopped leaves the rows it finished.
        save(report | {"ranks": results}, "\n".join([table(results, options.lengths), "", note]), options.save)
    state.unlink()


if __name__ == "__main__":
    main()
