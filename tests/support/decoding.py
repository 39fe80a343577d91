"""Cached decoding step by step, chunks of a target, and what must be equal."""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from hf_posenc import PosEncForConditionalGeneration
from support.models import padded, sentences

EXACT = {"rtol": 1e-9, "atol": 1e-9}


# A mask with padding before the sentence, and with a hole behind its first token.
HOLES = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6, [1, 0, 0] + [1] * 6])


TOKENS, CHUNKS = [1] * 9, [4, 1, 3, 1]  # ways to decode 9 tokens


def cache_for(model: PosEncForConditionalGeneration, kind: str, room: int = 12) -> EncoderDecoderCache:
    if kind == "static":
        return EncoderDecoderCache(
            StaticCache(config=model.config, max_cache_len=room), StaticCache(config=model.config, max_cache_len=6)
        )
    return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))


@torch.no_grad()
def decode(
    model: PosEncForConditionalGeneration,
    source: Tensor,
    target: Tensor,
    chunks: list[int],
    cache: EncoderDecoderCache,
    *,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
    start: int = 0,
) -> Tensor:
    """The logits of `target` from `start` on, through a cache that holds what stands before."""
    memory = model.model.encoder(source)
    logits = []
    for size in chunks:
        end = start + size
        step = model(
            encoder_outputs=memory,
            decoder_input_ids=target[:, start:end],
            decoder_attention_mask=None if mask is None else mask[:, :end],
            decoder_position_ids=None if positions is None else positions[:, start:end],
            cache=cache,
            use_cache=True,
        )
        logits.append(step.logits)
        start = end
    return torch.cat(logits, dim=1)


def assert_padding_changes_nothing(model: PosEncForConditionalGeneration, side: str) -> None:
    sources = [sentences(n, seed=n) for n in (7, 3, 5)]
    targets = [sentences(n, seed=10 + n) for n in (4, 8, 1)]
    source, source_mask = padded(sources, side)
    target, target_mask = padded(targets, side)
    batch = model(
        input_ids=source, attention_mask=source_mask, decoder_input_ids=target, decoder_attention_mask=target_mask
    ).logits
    for i, (one_source, one_target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(input_ids=one_source[None], decoder_input_ids=one_target[None]).logits[0]
        torch.testing.assert_close(batch[i][target_mask[i] == 1], alone, **EXACT)


def gradients(model: nn.Module, **inputs) -> dict[str, Tensor]:
    model.zero_grad()
    model(**inputs).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result
