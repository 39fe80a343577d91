"""Tiny translation models of transformers' families, and what tests of their conversion have in common."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.convert.checkpoints import FAMILIES, LearnedPositions
from support.models import padded, sentences

SIZES = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
    "dropout": 0.0, "attention_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
# The target's language tag in tests: the last token.
TAG = 28
# mBART's default is no start token; Marian's padding token is beyond this vocabulary, and its end token is 0.
MARIAN_TOKENS = {"pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2, "decoder_start_token_id": 1}
DEFAULTS = {"mbart": {"decoder_start_token_id": 2}, "marian": MARIAN_TOKENS}


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


def ragged_batch(model: PreTrainedModel, side: str = "right") -> dict[str, Tensor]:
    """Sources of three lengths and targets of two with their ends, without other special tokens from 0 to 5."""
    ids, mask = padded([6 + sentences(length, seed=length, vocab_size=20) for length in (9, 4, 7)], side)
    labels = 6 + sentences(3, 6, seed=2, vocab_size=20)
    labels[1, 4:] = -100
    labels[[0, 1, 2], [5, 3, 5]] = model.config.eos_token_id
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def generation_options(model: PreTrainedModel, num_beams: int) -> dict[str, object]:
    """A language tag first; then no token twice, so that a random model writes different tokens.

    Padding is none of them, because M2M-100 does not count it.
    """
    return {
        "num_beams": num_beams, "no_repeat_ngram_size": 1, "min_length": 6, "max_length": 13,
        "forced_bos_token_id": TAG, "forced_eos_token_id": model.config.eos_token_id,
        "bad_words_ids": [[model.config.pad_token_id]],
    }  # fmt: skip


def named_gradients(theirs: PreTrainedModel) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights of a model of transformers that have gradients, with them, by this family's names."""
    named = {name: (weight, weight.grad) for name, weight in theirs.named_parameters() if weight.grad is not None}
    for stack in ("encoder", "decoder"):
        weight, gradient = named.pop(f"model.{stack}.embed_positions.weight", (None, None))
        if weight is not None:
            assert not gradient[:2].any()  # no input reads these rows
            named[f"model.{stack}.positions.0.table"] = (weight[2:], gradient[2:])
    return named


def stacks(model: PreTrainedModel) -> list[nn.Module]:
    return [model.get_encoder(), model.get_decoder()]


def has_learned_positions(model: PreTrainedModel) -> bool:
    return isinstance(FAMILIES[model.config.model_type].positions, LearnedPositions)


def read_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """All weights of a model of transformers that a checkpoint decides and an input can reach."""
    weights = model.state_dict()
    if not model.config.tie_word_embeddings:
        weights.pop("model.shared.weight")
    for name in [name for name in weights if "embed_positions" in name]:
        if has_learned_positions(model):
            weights[name] = weights[name][2:]
        else:
            del weights[name]
    return weights


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
