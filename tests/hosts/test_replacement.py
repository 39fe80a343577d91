"""Replaced positions of hosts: the identity, references, and what holds for every encoding."""

import copy
import threading

import pytest
import torch
from hosts import CAUSAL_HOSTS, EXACT, host, replaced, tokens
from support.models import SMALL_PARAMETERS
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)

import hf_posenc
from hf_posenc import POSITION_ENCODINGS
from hf_posenc.generation.model_inputs import CACHE_NAME
from hf_posenc.hosts.modeling_posenc_host import stack_of

SMALL = {
    "window_size": 4,
    "window_sinks": 2,
    "t5_buckets": 8,
    "t5_max_distance": 7,
    "fire_threshold": 4.5,
    "log_n_length": 4,
}
# By name, the encoding and the layers; parameters are those of SMALL that it has.
ENCODINGS = {
    "none": None,
    "rotary": None,
    "alibi": None,
    "t5": None,
    "kerple": None,
    "fire": None,
    "xpos": None,
    "rotary+window": "all but every 4th",
    "alibi+log_n": None,
    "rotary+log_n_learned": [1, 3],
}
# These change embeddings or training positions, keep a state, need the attention weights, or have keys for each head.
REFUSED = {
    "sinusoidal", "learned", "relative", "relative_sinusoidal", "lstm", "gru", "forgetting", "shape", "cape",
    "randomized", "pope",
}  # fmt: skip
GREEDY = {"no_repeat_ngram_size": 1, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}  # and no end
pytestmark = pytest.mark.decoding


def small(encoding: str) -> dict:
    return {name: value for name, value in SMALL.items() if name.rpartition("_")[0].removesuffix("_max") in encoding}


def with_encoding(model_type: str, encoding: str):
    return replaced(model_type, encoding, ENCODINGS[encoding], **small(encoding))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_a_host_may_have_few_heads(heads):
    config = LlamaConfig(vocab_size=20, hidden_size=8 * heads, num_attention_heads=heads, num_hidden_layers=1)
    model = hf_posenc.replace_positions(LlamaForCausalLM(config), "alibi")
    assert model.config.position_encoding_type == "alibi"


@pytest.mark.parametrize("model_type", CAUSAL_HOSTS)
@torch.no_grad()
def test_the_host_s_own_encoding_gives_the_same_bits(model_type):
    model = host(model_type)
    own = "learned" if model_type in ("gpt2", "opt") else "rotary"
    same, ids = hf_posenc.replace_positions(copy.deepcopy(model), own), tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    assert type(same).__name__ == f"PosEnc{type(model).__name__}"
    for options in ({}, {"attention_mask": mask}):
        assert torch.equal(same(ids, **options).logits, model(ids, **options).logits)
    assert torch.equal(
        same.generate(ids, attention_mask=mask, max_new_tokens=8),
        model.generate(ids, attention_mask=mask, max_new_tokens=8),
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_caches_padding_batches_and_back_ends_change_nothing(encoding):
    model, ids = with_encoding("llama", encoding), tokens(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :5] = ids[0, :5] = 0
    whole = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(model(ids[:1, 5:]).logits[0], whole[0, 5:], **EXACT)
    torch.testing.assert_close(model(ids[1:]).logits[0], whole[1], **EXACT)
    model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "posenc_eager"
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[mask.bool()], whole[mask.bool()], **EXACT)
    model.set_attn_implementation("sdpa")
    options = GREEDY | {"attention_mask": mask, "max_new_tokens": 9}
    greedy = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, **options), greedy)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **options), greedy)
    beams = [model.generate(ids, num_beams=3, use_cache=use_cache, **options) for use_cache in (True, False)]
    assert torch.equal(*beams)
    single = options | {"attention_mask": None}
    alone = model.generate(ids[:1, 5:], **single)
    assert torch.equal(alone[0, 9:], greedy[0, 14:])
    draft = with_encoding("llama", "none")
    assert torch.equal(model.generate(ids[:1, 5:], assistant_model=draft, **single), alone)
    assert torch.equal(model.generate(ids[:1, 5:], prompt_lookup_num_tokens=2, **single), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_flex_attention_equals_sdpa():
    """torch compiles it."""
    model, ids = with_encoding("llama", "rotary+window"), tokens(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    whole = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("flex_attention")
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[mask.bool()], whole[mask.bool()], **EXACT)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("encoding", ["none", "alibi+log_n", "rotary+window"])
@torch.no_grad()
def test_a_whole_forward_compiles_with_a_static_cache(encoding):
    model, ids = with_encoding("llama", encoding), tokens(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "cache_implementation": "static", "do_sample": False}
    expected = model.generate(ids, disable_compile=True, pad_token_id=0, eos_token_id=None, **options)
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    assert torch.equal(model.generate(ids, pad_token_id=0, eos_token_id=None, **options), expected)


@pytest.mark.parametrize("name", POSITION_ENCODINGS)
@torch.no_grad()
def test_every_encoding_is_refused_or_the_same_with_a_cache(name):
    encoding = f"alibi+{name}" if POSITION_ENCODINGS[name].is_modifier else name
    fields = {parameter.name for parameter in POSITION_ENCODINGS[name].config_parameters} & SMALL_PARAMETERS.keys()
    parameters = {field: SMALL_PARAMETERS[field] for field in sorted(fields)}
    try:
        model = replaced("llama", encoding, **parameters)
    except ValueError as error:
        assert "a host cannot take" in str(error)
        assert name in REFUSED
        return
    assert name not in REFUSED
    ids, cache, steps = tokens(2, 14), DynamicCache(config=model.config), []
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    whole = model(ids, attention_mask=mask).logits
    for end in range(9, 15):
        piece = ids[:, :9] if end == 9 else ids[:, end - 1 : end]
        step = model(piece, attention_mask=mask[:, :end], use_cache=True, **{CACHE_NAME: cache})
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1)[:, 5:], whole[:, 5:], **EXACT)
    torch.testing.assert_close(model(ids[:1, 5:]).logits[0], whole[0, 5:], **EXACT)


@pytest.mark.parametrize("model_type", ["gemma3_text", "mistral", "gpt2", "gpt_neox", "phi3"])
@torch.no_grad()
def test_static_and_sliding_caches_of_other_hosts(model_type):
    """gemma3 has windows of its own in some layers."""
    model, ids = replaced(model_type, "alibi+window", window_size=5, window_sinks=1), tokens(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    options = GREEDY | {"attention_mask": mask, "max_new_tokens": 12}
    greedy = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, **options), greedy)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **options), greedy)


@torch.no_grad()
def test_a_window_is_mistral_s():
    model, ids = host("mistral"), tokens(2, 20)
    assert model.config.sliding_window == 8
    expected = model(ids).logits
    free = host("mistral")
    free.config.sliding_window = None
    ours = hf_posenc.replace_positions(free, "rotary+window", window_size=7)
    torch.testing.assert_close(ours(ids).logits, expected, **EXACT)


@torch.no_grad()
def test_no_rotation_in_every_fourth_layer_is_smollm3_s():
    model, ids = host("smollm3"), tokens(2, 20)
    expected = model(ids).logits
    rotated = host("smollm3")
    for layer in rotated.model.layers:
        layer.self_attn.use_rope = True
    assert not torch.allclose(rotated(ids).logits, expected, **EXACT)
    ours = hf_posenc.replace_positions(rotated, "none", layers="every 4th")
    torch.testing.assert_close(ours(ids).logits, expected, **EXACT)


@torch.no_grad()
def test_a_scaled_rotation_is_transformers_own():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    model, ids = host("llama"), tokens(2, 20)
    ours = hf_posenc.replace_positions(copy.deepcopy(model), "rotary", rope_parameters=rope)
    config = copy.deepcopy(model.config)
    config.rope_parameters = rope | {"rope_theta": 10000.0}
    theirs = type(model)(config).eval()
    theirs.load_state_dict(model.state_dict())
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert not torch.equal(ours(ids).logits, model(ids).logits)


@torch.no_grad()
def test_alibi_in_place_of_a_table_is_the_same_as_a_mask():
    model, ids = host("gpt2"), tokens(2, 12)
    ours = hf_posenc.replace_positions(copy.deepcopy(model), "alibi")
    model.transformer.wpe.weight.zero_()
    distance = torch.arange(12)[None] - torch.arange(12)[:, None]
    slopes = torch.tensor([2 ** (-8 * h / 4) for h in (1, 2, 3, 4)])
    mask = torch.where(distance > 0, float("-inf"), slopes[:, None, None] * distance)[None]
    torch.testing.assert_close(ours(ids).logits, model(ids, attention_mask=mask).logits, **EXACT)
    assert "transformer.wpe.weight" not in ours.state_dict()


@pytest.mark.parametrize("encoding", ["alibi", "rotary+window"])
def test_gradient_checkpointing_gives_the_same_gradients(encoding):
    gradients = []
    for checkpointing in (False, True):
        model, ids = with_encoding("llama", encoding).train(), tokens(2, 12)
        if checkpointing:
            old_name = model.gradient_checkpointing_enable
            getattr(model, "activation_checkpointing_enable", old_name)()
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("encoding", ["t5", "kerple", "fire", "rotary+log_n_learned"])
def test_new_parameters_are_trained(encoding):
    model, ids = with_encoding("llama", encoding), tokens(2, 12)
    model(ids, labels=ids).loss.backward()
    parameters = list(stack_of(model).posenc.parameters())
    assert parameters and all(parameter.grad is not None and parameter.grad.any() for parameter in parameters)


@torch.no_grad()
def test_packed_documents_are_those_in_rows_of_their_own():
    model = with_encoding("llama", "alibi+log_n")
    first, second = tokens(1, 7), tokens(1, 5, seed=1)
    packed = model(torch.cat((first, second), 1), position_ids=torch.tensor([[*range(7), *range(5)]]), use_cache=False)
    apart = [model(document).logits for document in (first, second)]
    torch.testing.assert_close(packed.logits, torch.cat(apart, 1), **EXACT)


@torch.no_grad()
def test_a_second_call_changes_other_layers():
    model, ids = host("llama"), tokens(1, 20)
    once = hf_posenc.replace_positions(copy.deepcopy(model), "rotary+window", "all but every 2nd", window_size=2)
    twice = hf_posenc.replace_positions(copy.deepcopy(once), "none", layers=[1, 3])
    assert twice.config.position_encoding_type == ["rotary+window", "none"] * 2
    assert not torch.equal(once(ids).logits, twice(ids).logits)
    back = hf_posenc.replace_positions(twice, "rotary")
    assert back.config.position_encoding_type == "rotary" and not back.config.position_encoding_parameters
    assert torch.equal(back(ids).logits, model(ids).logits)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
@torch.no_grad()
def test_encoders(model_type):
    """A bias on both sides; a table's end is no limit any more; padding changes nothing."""
    model = host(model_type, AutoModelForMaskedLM)
    if model_type != "modernbert":
        own = hf_posenc.replace_positions(copy.deepcopy(model), "learned")
        assert torch.equal(own(tokens(2, 20)).logits, model(tokens(2, 20)).logits)
    ours = hf_posenc.replace_positions(model, "alibi")
    ids = tokens(2, 100)  # the small tables have 64 rows
    mask = torch.ones_like(ids)
    mask[0, 90:] = 0
    whole = ours(ids, attention_mask=mask).logits
    torch.testing.assert_close(ours(ids[:1, :90]).logits[0], whole[0, :90], **EXACT)
    order = torch.randperm(100)
    assert (ours(ids[1:, order]).logits[0] - whole[1, order]).abs().max() > 1e-2
    if model_type == "modernbert":  # which has windows of its own
        return
    nothing = hf_posenc.replace_positions(ours, "none")
    torch.testing.assert_close(nothing(ids[1:, order]).logits[0], nothing(ids[1:]).logits[0, order], **EXACT)


@torch.no_grad()
def test_classifiers_are_hosts_too():
    model = hf_posenc.replace_positions(host("llama", AutoModelForSequenceClassification), "none")
    assert type(model).__name__ == "PosEncLlamaForSequenceClassification"
    assert model(tokens(1, 6)).logits.shape == (1, 2)


@torch.no_grad()
def test_threads_share_a_model():
    model, rows = with_encoding("llama", "alibi"), [tokens(1, length, seed=length) for length in (5, 9, 12, 17)]
    alone, together = [model(row).logits for row in rows], [None] * 4

    def run(number: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                together[number] = model(rows[number]).logits

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


@torch.no_grad()
def test_a_copy_is_independent():
    model, ids = with_encoding("llama", "t5"), tokens(1, 9)
    copied, before = copy.deepcopy(model), model(ids).logits
    for parameter in stack_of(copied).posenc.parameters():
        parameter.zero_()
    assert torch.equal(model(ids).logits, before) and not torch.equal(copied(ids).logits, before)
