"""The parts of a measurement of a decoder-only model, each at one length: functions from a `Job` to a JSON object.

Context: Lizhe Fang et al. score the same tokens with long and short context. What is Wrong with Perplexity for
Long-context Language Modeling? ICLR 2025. https://arxiv.org/abs/2410.23771
Copying: Catherine Olsson et al. In-context Learning and Induction Heads. 2022. https://arxiv.org/abs/2209.11895
Repetition: Sean Welleck et al. Neural Text Generation with Unlikelihood Training. ICLR 2020.
https://arxiv.org/abs/1908.04319
First tokens: Guangxuan Xiao et al. Efficient Streaming Language Models with Attention Sinks. ICLR 2024.
https://arxiv.org/abs/2309.17453
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..encodings.registry import POSITION_ENCODINGS, parse_sum
from ..encodings.rotary import Rotary
from ..generation.model_inputs import CACHE_NAME
from ..hosts.attention import IMPLEMENTATION_PREFIX
from ..hosts.configuration_posenc_host import OWN
from ..hosts.modeling_posenc_host import stack_of
from .scoring import score_tokens
from .store import Record
from .text import Block, key_value_prompt, needle_prompt, random_copy

PROMPTS = {"needle": needle_prompt, "values": key_value_prompt}
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_SCORED = 64  # tokens of a block that are scored with every context
NEW_TOKENS = 64  # tokens that are generated
N_GRAM = 4
FIRST_TOKENS = 4  # whose attention mass is counted apart: attention sinks
NUM_QUERIES = 16  # last tokens of a block whose attention is measured
# Back ends without attention weights. A model with replaced positions has them under names with a prefix, and chooses
# among them by the plain names. A user's own back end is left as it is.
WITHOUT_WEIGHTS = ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class Job:
    """What all parts read: the model, blocks of the longest length, and how often a random input is drawn.

    `prefix` are the special tokens before each input, `tokens` the different ordinary tokens of the texts.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    blocks: list[Block]
    lengths: Sequence[int]
    prefix: list[int]
    tokens: list[int]
    trials: int
    progress: bool

    def bar(self, items: Sequence[Any], label: str) -> Iterator[Any]:
        """The items, with a progress bar that disappears."""
        return tqdm(items, desc=label, leave=False, disable=not self.progress)

    def random(self, *names: object) -> Random:
        """Random numbers that depend on these names alone, in every process."""
        return Random("-".join(map(str, names)))


def context_loss(job: Job, length: int) -> Record:
    """The mean loss of the last tokens of each block, the same ones at every length, from `length` tokens of input.

    The special tokens before a text stand before the cut context too.
    """
    scored = min(MAX_SCORED, job.lengths[0] // 2)
    losses = []
    for block in job.bar(job.blocks, f"context {length}"):
        context_T = block.ids_T[len(block.ids_T) - length + len(job.prefix) :]
        ids_T = torch.cat([torch.tensor(job.prefix, dtype=torch.long), context_T])
        losses.append(float(score_tokens(job.model, ids_T, length - scored)[0].mean()))
    return {"loss": losses, "document": [block.document for block in job.blocks]}


def loss_by_position(job: Job, length: int) -> Record:
    """The loss of each token of each block, from the second on, with all tokens before it as context."""
    losses = []
    for block in job.bar(job.blocks, f"loss {length}"):
        losses.append([round(loss, 4) for loss in score_tokens(job.model, block.ids_T[:length])[0].tolist()])
    return {"loss": losses, "document": [block.document for block in job.blocks]}


def copying(job: Job, length: int) -> Record:
    """The accuracy on a random string that occurred `length` tokens before, from its second token on."""
    hits = []
    for trial in job.bar(range(job.trials), f"copy {length}"):
        ids, size = random_copy(job.tokens, job.random("copy", length, trial), length - len(job.prefix))
        ids_T = torch.tensor(job.prefix + ids)
        hits.append(float(score_tokens(job.model, ids_T, length - size + 1)[1].float().mean()))
    return {"accuracy": hits}


def retrieval(job: Job, length: int) -> Record:
    """Whether the model answers a question on one fact, by depth of the fact; an empty list if `length` is too short.

    Every token of the answer must be the most likely one; greedy decoding then generates the answer.
    """
    record: Record = {"depth": list(DEPTHS), **{kind: [] for kind in PROMPTS}}
    for depth, (kind, make_prompt) in job.bar(list(product(DEPTHS, PROMPTS.items())), f"retrieval {length}"):
        hits = []
        for trial in range(job.trials):
            haystack = job.blocks[trial % len(job.blocks)].ids_T[len(job.prefix) :].tolist()
            rng = job.random(kind, length, depth, trial)
            prompt = make_prompt(job.tokenizer, haystack, rng, length - len(job.prefix), depth)
            if prompt is not None:
                ids_T = torch.tensor(job.prefix + prompt[0])
                hits.append(bool(score_tokens(job.model, ids_T, length - prompt[1])[1].all()))
        if hits:
            record[kind].append(sum(hits) / len(hits))
    return record


@torch.no_grad()
def repetition(job: Job, length: int) -> Record:
    """The share of 4-grams that occur again in a greedy continuation, and in the text itself.

    The continuation and its prompt have `length` tokens together. The model's own generation settings, such as a
    penalty on repetition, are not used.
    """
    size = min(NEW_TOKENS, length // 2)
    config = job.model.generation_config
    settings = GenerationConfig(
        max_new_tokens=size,
        min_new_tokens=size,
        use_cache=config.use_cache,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id or 0,
    )
    record: Record = {"generated": [], "text": []}
    for block in job.bar(job.blocks[: job.trials], f"repetition {length}"):
        prompt_1T = block.ids_T[None, : length - size].to(job.model.device)
        mask_1T = torch.ones_like(prompt_1T)
        ids_T = job.model.generate(input_ids=prompt_1T, attention_mask=mask_1T, generation_config=settings)[0]
        record["generated"].append(repeated_share(ids_T[length - size :].tolist()))
        record["text"].append(repeated_share(block.ids_T[length - size : length].tolist()))
    return record


def repeated_share(ids: list[int]) -> float:
    """The share of the n-grams of a text that occurred before in it."""
    grams = list(zip(*(ids[start:] for start in range(N_GRAM)), strict=False))
    return 1 - len(set(grams)) / max(1, len(grams))


@torch.no_grad()
def attention_mass(job: Job, length: int) -> Record:
    """The share of attention by distance in powers of two, and that on the first tokens, over all layers and heads.

    The last tokens of a block are the queries. What stands before them comes from the cache, so that memory grows with
    the length alone. Empty for a model without attention weights or without a cache.
    """
    edges = [0, *(2**power for power in range(math.ceil(math.log2(length))))]
    mass, first, count = torch.zeros(len(edges)), 0.0, 0
    queries = min(NUM_QUERIES, length // 2)
    for block in job.bar(job.blocks[: job.trials], f"attention {length}"):
        ids_1T = block.ids_T[None, :length].to(job.model.device)
        cache = getattr(job.model(input_ids=ids_1T[:, :-queries], use_cache=True), CACHE_NAME, None)
        if cache is None:
            return {}
        with attention_weights(job.model):
            step = {CACHE_NAME: cache, "use_cache": True, "output_attentions": True}
            outputs = job.model(input_ids=ids_1T[:, -queries:], **step)
        for p_BHQS in outputs.attentions or ():
            if p_BHQS is None:
                continue
            p_QS = p_BHQS.float().mean((0, 1)).cpu()
            # A cache may have left out the earliest keys; the last one is that of the last query.
            keys_S = torch.arange(length - p_QS.shape[1], length)
            distance_QS = torch.arange(length - queries, length)[:, None] - keys_S
            is_first_QS = (keys_S < FIRST_TOKENS).expand_as(distance_QS)
            is_counted_QS = ~is_first_QS & (distance_QS >= 0)
            bucket_N = torch.bucketize(distance_QS[is_counted_QS], torch.tensor(edges), right=True) - 1
            mass.index_add_(0, bucket_N, p_QS[is_counted_QS])
            first, count = first + float(p_QS[is_first_QS].sum()), count + queries
    if not count:
        return {}
    return {"from_distance": edges, "mass": (mass / count).tolist(), "first_tokens": first / count}


@contextmanager
def attention_weights(model: PreTrainedModel) -> Iterator[None]:
    """Context manager: the model computes attention by a back end that returns weights; the old one afterwards."""
    implementation = model.config._attn_implementation
    if str(implementation).removeprefix(IMPLEMENTATION_PREFIX) not in WITHOUT_WEIGHTS:
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


# By name, in the order in which they are measured: the first one finds out which lengths the model can read.
PARTS: Mapping[str, Callable[[Job, int], Record]] = {
    "context": context_loss,
    "loss": loss_by_position,
    "copy": copying,
    "retrieval": retrieval,
    "repetition": repetition,
    "attention": attention_mass,
}


def wavelengths(model: PreTrainedModel) -> list[float]:
    """The wavelengths of RoPE in tokens, ascending, of all modules together; empty without RoPE.

    A pair of channels of wavelength W has turned once after W tokens. Where positions are replaced in every layer, the
    host's own rotation has no effect.
    """
    encodings = getattr(model.config, "layer_encodings", [OWN])
    if not any(map(is_rotated, encodings)):
        return []
    found: set[float] = set()
    rotary: Any = None if OWN in encodings else stack_of(model).posenc.rotary  # in place of the host's own
    for module in (rotary or model).modules():
        tensors = [
            value for name, value in named_tensors(module) if name.endswith("inv_freq") and "original" not in name
        ]
        if isinstance(module, Rotary):
            tensors.append(module.frequencies(next(model.parameters()))[0])
        for frequencies_C in tensors:
            positive = [value for value in frequencies_C.flatten().tolist() if value > 0]
            found.update(round(2 * math.pi / value, 6) for value in positive)
    return sorted(found)


def is_rotated(encoding: str) -> bool:
    """Whether a layer of a host with this encoding rotates queries and keys."""
    return encoding == OWN or any(POSITION_ENCODINGS[name].encoding is Rotary for name in parse_sum(encoding))


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers of a module, and tensors that are plain attributes."""
    yield from module.named_buffers(recurse=False)
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, value


def position_table(model: PreTrainedModel) -> int | None:
    """The number of positions of a learned table, None without one.

    Tables are recognised by the names that models of transformers give them. Ours raise an error by themselves.
    """
    sizes = []
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and (last == "wpe" or "position" in last) and "rel" not in last:
            sizes.append(module.num_embeddings - getattr(module, "offset", 0))
    return min(sizes, default=None)
