"""Greedy decoding that keeps, of each step's attention, only its position in the source.

Equal to `generate` with one beam. The centroid is the one that alignments track, attention_centroid of
alignments/tracking.py.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ...alignments.tracking import attention_centroid
from ...generation.model_inputs import get_cache

# Source tokens of a batch, with padding; the cache of 6 layers of width 512 then takes 600 MB.
MAX_TOKENS_PER_BATCH = 2**13


class Decoding(NamedTuple):
    """One decoding.

    `ids`: tokens without the end token. `ended`: whether it ended before its limit. `centroid`, `source_position`: at
    each token and at the end (T), or None. `end_ids`: the end token, which is text if it is not a special token.
    """

    ids: list[int]
    ended: bool
    centroid: np.ndarray | None
    source_position: np.ndarray | None
    end_ids: tuple[int, ...] = ()


def decode(
    model: PreTrainedModel,
    sources: list[list[int]],
    limits: list[int],
    progress: tqdm,
    *,
    may_end: bool,
    max_tokens: int = MAX_TOKENS_PER_BATCH,
) -> list[Decoding]:
    """Greedy decodings of the sources, in order. Sources of similar length share a batch, of at most `max_tokens`."""
    order, by_row = np.argsort([-len(ids) for ids in sources], kind="stable"), dict[int, Decoding]()
    while (num_done := len(by_row)) < len(order):
        max_rows = max(1, max_tokens // len(sources[order[num_done]]))
        rows = order[num_done : num_done + max_rows].tolist()
        batch = decode_batch(model, [sources[row] for row in rows], [limits[row] for row in rows], may_end=may_end)
        by_row |= zip(rows, batch, strict=True)
        progress.update(len(rows))
    return [by_row[row] for row in range(len(order))]


@torch.no_grad()
def decode_batch(
    model: PreTrainedModel, sources: list[list[int]], limits: list[int], *, may_end: bool
) -> list[Decoding]:
    """Greedy decodings of at most `limits` tokens each, or of exactly as many unless they `may_end`.

    Equal to `generate`, but each step's attention weights are dropped after their centroid is computed. The weights of
    all steps would take memory in proportion to the target's length.
    """
    source_ids = [torch.tensor(ids, device=model.device) for ids in sources]
    mask_BS = pad_sequence([torch.ones_like(ids) for ids in source_ids], True, 0)
    encoder_outputs = model.model.encoder(pad_sequence(source_ids, True, model.config.pad_token_id), mask_BS)
    keys_1S = torch.arange(mask_BS.shape[1], device=model.device)[None]
    limits_B, (ends, pad) = torch.tensor(limits, device=model.device), model.end_tokens()
    new_B, cache = torch.full_like(limits_B, model.start_token()), None
    generated, centroids, source_positions = list[Tensor](), list[Tensor](), list[Tensor]()
    ended_B = torch.zeros_like(limits_B, dtype=torch.bool)
    while not ended_B.all():
        step = {"decoder_input_ids": new_B[:, None], "cache": cache, "use_cache": True}
        outputs = model(encoder_outputs=encoder_outputs, attention_mask=mask_BS, output_attentions=True, **step)
        scores_BV, cache = outputs.logits[:, -1].clone(), get_cache(outputs)
        if not may_end:
            scores_BV[:, ends] = -torch.inf
        at_limit_B = limits_B <= len(generated)
        new_B = torch.where(at_limit_B, ends[0] if ends else pad, scores_BV.argmax(-1))
        ended_B = ended_B | at_limit_B | torch.isin(new_B, new_B.new_tensor(ends))
        generated.append(new_B)
        if outputs.cross_attentions:
            centroids.append(attention_centroid(outputs.cross_attentions, keys_1S)[:, 0])
        if outputs.source_positions is not None:
            source_positions.append(outputs.source_positions[:, 0])
    tokens_BT = torch.stack(generated, 1).cpu().numpy()
    centroid_BT = stack_steps(centroids, len(sources))
    position_BT = stack_steps(source_positions, len(sources))
    decodings = []
    for row, (tokens_T, limit) in enumerate(zip(tokens_BT, limits, strict=True)):
        curves = [None if curve_BT is None else curve_BT[row] for curve_BT in (centroid_BT, position_BT)]
        decodings.append(finish_decoding(tokens_T, limit, ends, curves))
    return decodings


def finish_decoding(tokens_T: np.ndarray, limit: int, ends: list[int], curves: list[np.ndarray | None]) -> Decoding:
    """One decoding from a row of a batch, up to its end token or its limit."""
    length = int(np.append(np.isin(tokens_T[:limit], ends), True).argmax())
    centroid, source_position = (None if curve_T is None else curve_T[: length + 1] for curve_T in curves)
    end = tuple(tokens_T[:limit][length : length + 1].tolist())
    return Decoding(tokens_T[:length].tolist(), length < limit, centroid, source_position, end)


def stack_steps(steps: list[Tensor], batch: int) -> np.ndarray | None:
    """The values of all steps, (B) or (1) each, as curves (B, T); None without steps."""
    return torch.stack([step.expand(batch) for step in steps], 1).cpu().double().numpy() if steps else None
