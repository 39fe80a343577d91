"""A window with sinks: the first tokens are visible at every distance."""

import math

import pytest
import torch
from support.models import padded, sentences, tiny_config, tiny_model
from support.reference import EXACT, attended
from torch import nn

from hf_posenc import PosEncCausalConfig, PosEncForCausalLM
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.generation.model_inputs import CACHE_NAME
from hf_posenc.transformer.attention import Attention

pytestmark = pytest.mark.invariant
SINKS = pytest.mark.parametrize("sinks", [1, 3])


@SINKS
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_attends_to_the_window_and_the_first_tokens_and_to_nothing_else(causal, sinks):
    """Against a softmax over those keys alone."""
    torch.manual_seed(0)
    config = tiny_config("window", window_size=2, window_sinks=sinks, decoder_attention_heads=2)
    attention = Attention(config, num_heads=2, is_causal=causal, layer=0).double().eval()
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder"))
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    ours = attended(attention, x, positions, mask.tril() if causal else mask)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (project(x).unflatten(2, (-1, attention.head_dim)).transpose(1, 2) for project in projections)
    rows = []
    for i in range(9):
        visible = [j for j in range(i + 1 if causal else 9) if abs(j - i) <= 2 or j < sinks]
        weights = (q[:, :, i, None] @ k[:, :, visible].transpose(2, 3) / math.sqrt(8)).softmax(-1)
        rows.append((weights @ v[:, :, visible]).flatten(1))
    torch.testing.assert_close(ours, attention.out_proj(torch.stack(rows, 1)), **EXACT)


def language_model(**changes) -> PosEncForCausalLM:
    """A tiny one with a window of 3 tokens and 2 sinks, whose logits vary."""
    torch.manual_seed(0)
    config = PosEncCausalConfig(
        vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        position_encoding_type="rotary+window", window_size=3, window_sinks=2, dropout=0.0, **changes,
    )  # fmt: skip
    return PosEncForCausalLM(config).double().eval()


@torch.no_grad()
def test_cached_padded_and_long_inputs_give_the_same_logits():
    """A cache of 600 tokens is longer than those that a window without sinks prunes, and takes another plan."""
    model, tokens = language_model(), sentences(1, 600)
    whole = model(tokens).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(tokens).logits, whole, **EXACT)
    rows, mask = padded([tokens[0], tokens[0, :300]], "left")
    torch.testing.assert_close(model(rows, attention_mask=mask).logits[1, 300:], whole[0, :300], **EXACT)
    model.set_attn_implementation("sdpa")
    cache, steps = None, []
    for piece in tokens.split([590, *[1] * 10], dim=1):
        step = model(piece, use_cache=True, **{CACHE_NAME: cache})
        cache = step[CACHE_NAME]
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **EXACT)


@torch.no_grad()
def test_the_first_tokens_reach_the_last_one():
    tokens = sentences(1, 40)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 20 + 3
    for sinks, is_reached in ((0, False), (1, True)):
        model = language_model()
        model = (
            PosEncForCausalLM(PosEncCausalConfig(**model.config.to_dict() | {"window_sinks": sinks})).double().eval()
        )
        nn.init.normal_(model.lm_head.weight)
        assert bool((model(tokens).logits - model(changed).logits)[:, -1].abs().max() > 1e-6) == is_reached


def test_beams_are_those_without_a_cache():
    model, source = tiny_model("rotary+window", window_sinks=1), sentences(2, 9)
    options = {"num_beams": 3, "max_new_tokens": 12, "no_repeat_ngram_size": 1}
    with_cache, without = (model.generate(source, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(with_cache, without)
