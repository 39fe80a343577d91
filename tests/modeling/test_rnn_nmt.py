"""RNN-NMT against its equations, one token at a time; its refusals; and an overfitting test."""

import json
import warnings

import pytest
import torch
from support.models import padded, sentences, tiny_config, tiny_model
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hf_posenc import RnnNmtConfig, RnnNmtForConditionalGeneration

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SOURCE_LENGTHS, TARGET_LENGTHS = (7, 3, 5, 1), (4, 8, 1, 6)


# The equations

Parameters = dict[str, Tensor]


def cell(p: Parameters, lstm: str, ending: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f c + i g,  h' = o tanh(c')."""
    weight_x, weight_h, bias_x, bias_h = (
        p[f"model.{lstm}.lstm.{name}_{ending}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    i, f, g, o = (weight_x @ x + bias_x + weight_h @ h + bias_h).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def embedded(p: Parameters, config: RnnNmtConfig, side: str, token: int) -> Tensor:
    return p[f"model.{side}.embed_tokens.weight"][token] * (config.d_model**0.5 if config.scale_embedding else 1)


def encoded(p: Parameters, config: RnnNmtConfig, source: list[int]) -> tuple[list[Tensor], Tensor, Tensor]:
    """The memory of each token, and the last h and c of layer 0 from the left, from the right, of layer 1, ..."""
    memory, last_h, last_c = [embedded(p, config, "encoder", token) for token in source], [], []
    for layer in range(config.encoder_layers):
        read = {}
        for ending, step in ((f"l{layer}", 1), (f"l{layer}_reverse", -1)):
            h = c = torch.zeros(config.d_model, dtype=torch.float64)
            outputs = []
            for x in memory[::step]:
                h, c = cell(p, "encoder", ending, x, h, c)
                outputs.append(h)
            read[step] = outputs[::step]
            last_h.append(h)
            last_c.append(c)
        memory = [torch.cat(both) for both in zip(read[1], read[-1], strict=True)]
    return memory, torch.cat(last_h), torch.cat(last_c)


def translated(p: Parameters, config: RnnNmtConfig, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """The logits (T, V) and attention weights (T, S) of one sentence."""
    memory, last_h, last_c = encoded(p, config, source)
    bridges = (("h_bridge", last_h), ("c_bridge", last_c))
    hs, cs = (
        list((p[f"model.decoder.{name}.weight"] @ last + p[f"model.decoder.{name}.bias"]).tanh().split(config.d_model))
        for name, last in bridges
    )
    fed, logits, weights = torch.zeros(config.d_model, dtype=torch.float64), [], []
    for token in target:
        x = torch.cat((embedded(p, config, "decoder", token), fed))
        for layer in range(config.decoder_layers):
            hs[layer], cs[layer] = cell(p, "decoder", f"l{layer}", x, hs[layer], cs[layer])
            x = hs[layer]
        h = torch.cat(hs)
        weight = torch.stack([h @ (p["model.decoder.score.weight"] @ m) for m in memory]).softmax(0)
        context = sum(w * m for w, m in zip(weight, memory, strict=True))
        fed = (p["model.decoder.combine.weight"] @ torch.cat((h, context))).tanh()
        logits.append(p["lm_head.weight"] @ fed + p["final_logits_bias"][0])
        weights.append(weight)
    return torch.stack(logits), torch.stack(weights)


@pytest.mark.parametrize(("encoder_layers", "decoder_layers", "scale"), [(2, 3, True), (3, 1, False), (1, 2, True)])
def test_rnn_nmt_is_its_equations_over_each_sentence_in_values_and_gradients(encoder_layers, decoder_layers, scale):
    sizes = {"d_model": 6, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    model = tiny_model("rnn_nmt", output_bias=True, scale_embedding=scale, **sizes)
    sources, targets = ([sentences(n, seed=n + k) for n in ns] for k, ns in enumerate((SOURCE_LENGTHS, TARGET_LENGTHS)))
    source, source_mask = padded(sources, "right")
    labels, target_mask = padded(targets, "right")
    labels, real = labels.masked_fill(target_mask == 0, -100), target_mask == 1
    outputs = model(input_ids=source, attention_mask=source_mask, labels=labels, output_attentions=True)
    p = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    pairs = [
        translated(p, model.config, one.tolist(), [1, *other[:-1].tolist()])
        for one, other in zip(sources, targets, strict=True)
    ]
    logits = torch.cat([rows for rows, _ in pairs])
    torch.testing.assert_close(outputs.logits[real], logits, **EXACT)
    # transformers computes the loss in float32.
    loss = nn.functional.cross_entropy(logits, torch.cat(targets))
    torch.testing.assert_close(outputs.loss.double(), loss, rtol=1e-6, atol=1e-6)
    ours = dict(model.named_parameters())
    for expected, found, tolerance in (
        (loss, outputs.loss, {"rtol": 1e-5, "atol": 1e-6}),
        (logits.sin().sum(), outputs.logits[real].sin().sum(), EXACT),
    ):
        theirs = dict(zip(p, torch.autograd.grad(expected, list(p.values()), retain_graph=True), strict=True))
        mine = dict(zip(ours, torch.autograd.grad(found, list(ours.values()), retain_graph=True), strict=True))
        torch.testing.assert_close(mine, theirs, **tolerance)
        assert all(gradient.any() for gradient in theirs.values())
    (attention,) = outputs.cross_attentions
    assert attention.shape == (4, 1, 8, 7)
    torch.testing.assert_close(attention.sum(-1), torch.ones(4, 1, 8, dtype=torch.float64), **EXACT)
    assert not attention[(source_mask == 0)[:, None, None, :].expand_as(attention)].any()
    for i, (_, weights) in enumerate(pairs):
        torch.testing.assert_close(attention[i, 0, real[i], : len(sources[i])], weights, **EXACT)


def test_attention_weights_are_returned_on_request():
    model, source = tiny_model("rnn_nmt"), sentences(3, 6, seed=1)
    assert model(input_ids=source, decoder_input_ids=source).cross_attentions is None
    generated = model.generate(source, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True)
    assert [step[0].shape for step in generated.cross_attentions] == [(3, 1, 1, 6)] * 4
    whole = model(input_ids=source, decoder_input_ids=generated.sequences[:, :-1], output_attentions=True)
    steps = torch.cat([step[0] for step in generated.cross_attentions], dim=2)
    torch.testing.assert_close(steps, whole.cross_attentions[0], **EXACT)


# What the decoder starts from


@torch.no_grad()
def test_the_encoders_outputs_may_be_given_as_the_encoder_returned_them():
    model, source, target = tiny_model("rnn_nmt"), sentences(2, 6, seed=1), sentences(2, 5, seed=2)
    full = model(input_ids=source, decoder_input_ids=target).logits
    given = model(encoder_outputs=model.model.encoder(source), decoder_input_ids=target).logits
    torch.testing.assert_close(given, full, **EXACT)


@pytest.mark.parametrize(
    "container", [lambda memory: BaseModelOutput(last_hidden_state=memory), lambda memory: (memory,)]
)
def test_encoder_outputs_without_last_states_are_refused_with_a_remedy(container):
    model, source = tiny_model("rnn_nmt"), sentences(2, 6, seed=1)
    memory = model.model.encoder(source).last_hidden_state
    with pytest.raises(ValueError, match=r"encoder_outputs has none; give .*model\.model\.encoder\("):
        model(encoder_outputs=container(memory), decoder_input_ids=source)


# Dropout


def with_dropout(**changes) -> RnnNmtForConditionalGeneration:
    return tiny_model("rnn_nmt", dropout=0.5, **changes).train()


def logits_twice(model: RnnNmtForConditionalGeneration) -> tuple[Tensor, Tensor]:
    source, target = sentences(2, 6, seed=1), sentences(2, 5, seed=2)
    first, second = (model(input_ids=source, decoder_input_ids=target).logits for _ in range(2))
    return first, second


def test_dropout_acts_in_training_and_not_in_evaluation():
    one, other = logits_twice(with_dropout())
    assert (one - other).abs().max() > 1e-3
    one, other = logits_twice(with_dropout().eval())
    assert torch.equal(one, other)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_dropout_is_on_the_embeddings_and_between_the_layers_and_nowhere_else(side):
    model = with_dropout(encoder_layers=1, decoder_layers=1)
    for stack in (model.model.encoder, model.model.decoder):
        stack.dropout.p = 0.0
    one, other = logits_twice(model)
    assert torch.equal(one, other)
    getattr(model.model, side).dropout.p = 0.5
    one, other = logits_twice(model)
    assert (one - other).abs().max() > 1e-3
    model = with_dropout(**{"encoder_layers": 1, "decoder_layers": 1} | {f"{side}_layers": 2})
    for stack in (model.model.encoder, model.model.decoder):
        stack.dropout.p = 0.0
    one, other = logits_twice(model)
    assert (one - other).abs().max() > 1e-3


def test_one_layer_with_dropout_warns_of_nothing():
    """torch warns of a dropout between the layers of a network that has but one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = with_dropout(encoder_layers=1, decoder_layers=1)
    assert model.config.dropout == 0.5


# The config

REFUSED = {
    "a position encoding": (
        {"position_encoding_type": "relative"},
        r"no position encoding.*position_encoding_type='relative' was given; leave it out, or use PosEncConfig",
    ),
    "a position encoding of the decoder": (
        {"decoder_position_encoding_type": "none"},
        r"no position encoding.*decoder_position_encoding_type='none' was given; leave it out",
    ),
    "an unknown keyword": ({"droput": 0.1}, r"'droput' is no field of RnnNmtConfig; the nearest one is 'dropout'"),
    "a keyword of the Transformer": (
        {"encoder_attention_heads": 2},
        r"'encoder_attention_heads' is no field of RnnNmtConfig; the nearest one is 'encoder_layers'",
    ),
    "a parameter of an encoding": ({"relative_clip": 4}, r"'relative_clip' is no field of RnnNmtConfig; the nearest"),
    "no width": ({"d_model": 0}, r"d_model must be from 1 to 16777216, but it is 0"),
    "no layers of the encoder": ({"encoder_layers": 0}, r"encoder_layers must be from 1 to 1000, but it is 0"),
    "no layers of the decoder": ({"decoder_layers": 0}, r"decoder_layers must be from 1 to 1000, but it is 0"),
    "unknown first weights": ({"initializer": "x"}, r"initializer must be one of xavier, torch, but it is 'x'"),
    "shared embeddings of two vocabularies": (
        {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 31},
        r"one vocabulary.*vocab_size=29.*decoder_vocab_size=31; make them equal",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_with_rule_value_and_remedy(fields, message):
    with pytest.raises(ValueError, match=message) as raised:
        tiny_config("rnn_nmt", **fields)
    assert "\n" not in str(raised.value)


def test_a_config_survives_a_dictionary_and_a_folder(tmp_path):
    config = tiny_config("rnn_nmt", dropout=0.3, initializer="torch", output_bias=True)
    assert RnnNmtConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert RnnNmtConfig(**json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    again = RnnNmtConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert (again.encoder_layers, again.decoder_layers, again.d_model) == (2, 3, 16)
    assert (again.dropout, again.initializer, again.output_bias) == (0.3, "torch", True)


def test_the_defaults_are_neishi_and_yoshinagas():
    config = RnnNmtConfig()
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.dropout) == (4, 3, 512, 0.2)
    assert (config.max_source_length, config.max_target_length) == (None, None)


# Training


@pytest.mark.full
def test_it_overfits_eight_pairs_and_translates_them():
    torch.manual_seed(0)
    lengths = [(2, 5), (3, 3), (4, 6), (5, 2), (6, 4), (7, 5), (3, 6), (5, 4)]
    sources = [sentences(s, seed=i, vocab_size=12) for i, (s, _) in enumerate(lengths)]
    targets = [sentences(t, seed=50 + i, vocab_size=14) for i, (_, t) in enumerate(lengths)]
    source, mask = padded(sources, "right")
    labels, target_mask = padded([torch.cat((target, torch.tensor([2]))) for target in targets], "right")
    labels = labels.masked_fill(target_mask == 0, -100)
    config = RnnNmtConfig(
        vocab_size=12, decoder_vocab_size=14, d_model=32, encoder_layers=2, decoder_layers=2, dropout=0.0
    )
    model = RnnNmtForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = model(input_ids=source, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    outputs = model.eval().generate(source, attention_mask=mask, do_sample=False, max_new_tokens=10)
    expected, _ = padded([torch.cat((torch.tensor([1]), t, torch.tensor([2]))) for t in targets], "right")
    assert torch.equal(outputs, expected)
