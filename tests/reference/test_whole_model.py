"""The whole model against MarianMT and torch's own layers."""

import warnings

import pytest
import torch
from support.models import sentences, tiny_model
from torch import Tensor, nn
from transformers import (
    MarianConfig,
    MarianModel,
)

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT, halves

from hf_posenc import PosEncConfig, PosEncModel, sinusoids

# The whole model

MARIAN_SIZES = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "dropout": 0.0,
}  # fmt: skip


def marian_like(name: str, scale: bool) -> tuple[PosEncModel, MarianModel]:
    """Our model and Marian with our weights, whose table of positions is ours, or zero for `none`."""
    ours = tiny_model(name, **{**MARIAN_SIZES, "decoder_vocab_size": 29}, scale_embedding=scale).model
    theirs = MarianModel(
        MarianConfig(
            **MARIAN_SIZES, decoder_vocab_size=29, share_encoder_decoder_embeddings=False, scale_embedding=scale,
            activation_function="relu", max_position_embeddings=40, pad_token_id=0, tie_word_embeddings=False,
            attention_dropout=0.0, activation_dropout=0.0, decoder_start_token_id=1,
        )
    )  # fmt: skip
    theirs.double().eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert unexpected == []
    assert [key for key in missing if "embed_positions" not in key] == []
    for stack in (theirs.encoder, theirs.decoder):
        table = sinusoids(torch.arange(40), 16, torch.float64)
        # Marian's own table, in our order of channels; then in float64, since theirs is a float32 one.
        torch.testing.assert_close(
            table.float(), stack.embed_positions.create_weight()[:, halves(16)].float(), rtol=1e-5, atol=1e-6
        )
        stack.embed_positions.weight.data = table if name == "sinusoidal" else torch.zeros_like(table)
    return ours, theirs


@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("name", ["sinusoidal", "none"])
def test_the_model_is_marian(name, scale):
    ours, theirs = marian_like(name, scale)
    inputs = {
        "input_ids": sentences(3, 6, seed=1),
        "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]]),
        "decoder_input_ids": sentences(3, 8, seed=2),
    }  # fmt: skip
    results = []
    for model in (ours, theirs):
        out = model(**inputs, output_hidden_states=True)
        out.last_hidden_state[..., :5].sin().sum().backward()
        results.append(out)
    mine, marians = results
    tokens = inputs["attention_mask"] == 1  # padding stands at position 0 here, and is counted on in Marian
    for one, other in zip(mine.encoder_hidden_states, marians.encoder_hidden_states, strict=True):
        torch.testing.assert_close(one[tokens], other[tokens], **EXACT)
    torch.testing.assert_close(mine.decoder_hidden_states, marians.decoder_hidden_states, **EXACT)
    torch.testing.assert_close(mine.last_hidden_state, marians.last_hidden_state, **EXACT)
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters() if "embed_positions" not in key}
    torch.testing.assert_close({key: parameter.grad for key, parameter in ours.named_parameters()}, gradients, **EXACT)


def torch_attention(attention: nn.Module, prefix: str) -> dict[str, Tensor]:
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    return {
        f"{prefix}.in_proj_weight": torch.cat([p.weight for p in projections]),
        f"{prefix}.in_proj_bias": torch.cat([p.bias for p in projections]),
        f"{prefix}.out_proj.weight": attention.out_proj.weight,
        f"{prefix}.out_proj.bias": attention.out_proj.bias,
    }


def torch_layer(layer: nn.Module, norms: list[str]) -> dict[str, Tensor]:
    weights = torch_attention(layer.self_attn, "self_attn")
    if len(norms) == 3:
        weights |= torch_attention(layer.encoder_attn, "multihead_attn")
    modules = {"linear1": layer.fc1, "linear2": layer.fc2}
    modules |= {f"norm{i + 1}": getattr(layer, norm) for i, norm in enumerate(norms)}
    return weights | {
        f"{name}.{kind}": getattr(module, kind) for name, module in modules.items() for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm after"])
def test_the_layers_are_torchs_own(norm_first):
    ours = tiny_model("none", norm_first=norm_first).model
    common = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    source, target = sentences(3, 6, seed=1), sentences(3, 8, seed=2)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
    outputs = ours(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    memory = ours.encoder.embed_tokens(source) * 4.0
    for layer in ours.encoder.layers:
        reference = nn.TransformerEncoderLayer(16, 2, 24, **common)
        reference.load_state_dict(torch_layer(layer, ["self_attn_layer_norm", "final_layer_norm"]))
        memory = reference(memory, src_key_padding_mask=mask == 0)
    x = ours.decoder.embed_tokens(target) * 4.0
    if norm_first:
        memory = ours.encoder.layer_norm(memory)
    future = torch.ones(8, 8, dtype=torch.bool).triu(1)
    for layer in ours.decoder.layers:
        reference = nn.TransformerDecoderLayer(16, 4, 20, **common)
        reference.load_state_dict(
            torch_layer(layer, ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"])
        )
        x = reference(x, memory, tgt_mask=future, memory_key_padding_mask=mask == 0)
    if norm_first:
        x = ours.decoder.layer_norm(x)
    torch.testing.assert_close(outputs.encoder_last_hidden_state[mask == 1], memory[mask == 1], **EXACT)
    torch.testing.assert_close(outputs.last_hidden_state, x, **EXACT)


def test_the_defaults_are_the_base_transformers():
    config = PosEncConfig()
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (6, 6, 512)
    assert (config.encoder_ffn_dim, config.encoder_attention_heads, config.relative_clip) == (2048, 8, 16)
