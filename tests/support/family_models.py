"""Tiny translation models of transformers' families, and what tests of their conversion have in common."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.convert.families import FAMILIES, LearnedPositions

SIZES = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
    "dropout": 0.0, "attention_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
# The target's language tag in tests, the last token; `padded` fills with token 0, which is no token of a sentence.
TAG = 28
# mBART's default is no start token.
DEFAULTS = {"mbart": {"decoder_start_token_id": 2}}


def tiny_family(model_type: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> PreTrainedModel:
    """A model with no parameter at zero or one, in evaluation mode; encoder and decoder differ in every size."""
    torch.manual_seed(seed)
    family = FAMILIES[model_type]
    model = family.model_class(family.config_class(**(SIZES | DEFAULTS.get(model_type, {}) | changes))).double()
    bias = getattr(model, "final_logits_bias", None)
    with torch.no_grad():
        for weight in [*model.parameters(), *([] if bias is None else [bias])]:
            if weight.requires_grad or weight is bias:
                weight.add_(torch.randn_like(weight), alpha=0.3)
    return model.to(dtype).eval()


def stacks(model: PreTrainedModel) -> list[nn.Module]:
    return [model.get_encoder(), model.get_decoder()]


def has_learned_positions(model: PreTrainedModel) -> bool:
    return isinstance(FAMILIES[model.config.model_type].positions, LearnedPositions)


def with_exact_tables(model: PreTrainedModel) -> PreTrainedModel:
    """Tables of sinusoids are rounded to float32 even in a float64 model; here they are the formula's."""
    for stack in stacks(model):
        table = stack.embed_positions
        if hasattr(table, "weights"):  # M2M-100's: fairseq's wavelengths, and zeros for padding
            rows, width = table.weights.shape
            wavelengths = 10000.0 ** (torch.arange(width // 2).double() / (width // 2 - 1))
            angles = torch.arange(rows).double()[:, None] / wavelengths
            exact = torch.cat((angles.sin(), angles.cos()), dim=1)
            exact[table.padding_idx] = 0
            torch.testing.assert_close(table.weights.double(), exact, rtol=0, atol=1e-4)
            table.weights = exact.to(model.dtype)
        elif not has_learned_positions(model):
            rows, width = table.weight.shape
            pos, channel = torch.arange(rows).double()[:, None], torch.arange(width).double()
            angles = pos / 10000.0 ** (2 * (channel // 2) / width)
            exact = torch.cat((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=1)
            torch.testing.assert_close(table.weight.data.double(), exact, rtol=0, atol=1e-6)
            table.weight.data = exact.to(model.dtype)
    return model


def at_labels(values_BTX: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """What a loss counts: behind a target's last label transformers reads that label, and this family padding."""
    return values_BTX[batch["labels"] != -100]


def rearranged(ours: Tensor, theirs: Tensor, gradients: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two gradients in the order of the values they belong to: whatever moved the values must have moved them, too.

    The values are random, so no two of a tensor are equal and the order is one.
    """
    orders = [weight.detach().flatten().argsort() for weight in (ours, theirs)]
    assert torch.equal(ours.flatten()[orders[0]], theirs.flatten()[orders[1]])
    mine, other = (gradient.flatten()[order] for gradient, order in zip(gradients, orders, strict=True))
    return mine, other
