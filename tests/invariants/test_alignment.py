"""Source positions of the decoder: invariants of every alignment, a reference implementation of each, and refusals.

Alignments that do not use the target length are in test_invariants.py too, and all are in test_generation.py."""

import copy
import math

import pytest
import torch
from support.decoding import EXACT, HOLES, cache_for, decode
from support.models import ALIGNED, padded, sentences, tiny_config, tiny_model, translator
from torch import Tensor, nn

from hf_posenc import (
    ALIGNMENTS,
    Alignment,
    AttentionContext,
    PosEncConfig,
    RnnNmtConfig,
    register_alignment,
)
from hf_posenc.alignments.base import source_bounds
from hf_posenc.alignments.registry import build_alignment
from hf_posenc.alignments.tracking import mean_length_ratio

pytestmark = pytest.mark.invariant

CROSS = ["rotary+window", "relative+window", "relative_key"]


def aligned_model(family: str = "relative+window by length_ratio", cross: str = "rotary+window", **changes):
    changes = {"window_size": 2, "relative_clip": 3, "length_ratio_gain": 0.4} | changes
    return tiny_model(family, cross_position_encoding_type=cross, **changes)


def places_given_by(model) -> list[Tensor]:
    """What the model's alignment answers from now on, (B, T) a forward."""
    found: list[Tensor] = []

    def listen(module, asked, answer):
        if asked[0] == "source_positions":
            found.append(answer)

    model.model.decoder.alignment.register_forward_hook(listen)
    return found


@pytest.fixture(params=ALIGNED)
def aligned(request) -> str:
    return request.param


# Invariants


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("cross", CROSS)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_at_given_source_positions(aligned, cross, kind, source, target):
    model, places = aligned_model(aligned, cross), torch.rand(3, 9, dtype=torch.float64) * 5
    full = model(input_ids=source, decoder_input_ids=target, cross_position_ids=places).logits
    memory, cache, logits = model.model.encoder(source), cache_for(model, kind), []
    for start, end in ((0, 4), (4, 5), (5, 9)):
        new = {"decoder_input_ids": target[:, start:end], "cross_position_ids": places[:, start:end]}
        logits.append(model(encoder_outputs=memory, cache=cache, **new).logits)
    torch.testing.assert_close(torch.cat(logits, 1), full, **EXACT)
    moved = model(input_ids=source, decoder_input_ids=target, cross_position_ids=5 - places).logits
    assert (moved - full).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1]], ids=["token by token", "in chunks"])
@pytest.mark.parametrize("mask", [None, HOLES], ids=["whole", "holes"])
@torch.no_grad()
@pytest.mark.full
def test_source_positions_do_not_depend_on_the_chunks_of_a_cached_target(aligned, mask, chunks, kind, source, target):
    model = aligned_model(aligned)
    inputs = {"input_ids": source, "decoder_input_ids": target, "decoder_attention_mask": mask}
    whole = model(**inputs, track_attention=True, use_cache=False)
    assert whole.past_key_values is None
    cached, tokens = decode(model, source, target, chunks, cache_for(model, kind), mask=mask), mask
    tokens = torch.ones_like(target) == 1 if mask is None else mask == 1
    torch.testing.assert_close(cached[tokens], whole.logits[tokens], **EXACT)
    again = model(**inputs, use_cache=True)
    torch.testing.assert_close(again.logits[tokens], whole.logits[tokens], **EXACT)
    assert again.past_key_values.get_seq_length() == 9


@pytest.mark.parametrize("asked", [{}, {"use_cache": None}, {"use_cache": True}])
@torch.no_grad()
def test_a_forward_without_use_cache_has_the_source_positions_of_decoding(aligned, asked, source, target):
    """A config's `use_cache` is True, as transformers has it."""
    model = aligned_model(aligned)
    expected = model(input_ids=source, decoder_input_ids=target, track_attention=True).logits
    outputs = model(input_ids=source, decoder_input_ids=target, **asked)
    torch.testing.assert_close(outputs.logits, expected, **EXACT)
    assert outputs.past_key_values.get_seq_length() == 9


@pytest.mark.filterwarnings("ignore:This alignment is trained only")
def test_a_target_is_trained_on_as_a_whole_whoever_computes_the_loss(aligned, source, target):
    """With labels or, as where a trainer smooths them, without; no cache is made that nobody asked for."""
    model = aligned_model(aligned, dropout=0.0).train()
    start = model.prepare_decoder_input_ids_from_labels(target)
    expected = model(input_ids=source, labels=target).logits
    plain = model(input_ids=source, decoder_input_ids=start)
    torch.testing.assert_close(plain.logits, expected, **EXACT)
    assert plain.past_key_values is None


def test_a_decoder_alone_requires_source_positions(source, target):
    model = aligned_model().model
    given = {"encoder_hidden_states": torch.zeros(3, 6, 16).double(), "use_cache": True}
    with pytest.raises(ValueError, match=r"one token at a time.*given 9;"):
        model.decoder(target, **given)
    model.decoder(target, **given, cross_position_ids=torch.ones(3, 9).double())
    model.decoder(target[:, :1], **given)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_reading_token_by_token_takes_a_mask_of_four_dimensions(aligned, kind, source, target):
    """A row for each target token, a column for each key that the cache will hold."""
    model, tokens = aligned_model(aligned), HOLES == 1
    inputs = {"input_ids": source, "decoder_input_ids": target}
    expected = model(**inputs, decoder_attention_mask=HOLES, use_cache=True).logits
    cache = cache_for(model, kind, room=12)
    rows = (tokens[:, None] & torch.ones(9, 9).tril().bool())[:, None]
    mask = nn.functional.pad(rows, (0, 12 - 9)) if kind == "static" else rows
    found = model(**inputs, decoder_attention_mask=mask, cache=cache).logits
    torch.testing.assert_close(found[tokens], expected[tokens], **EXACT)


def test_a_forward_without_target_is_refused(aligned, source):
    with pytest.raises(ValueError, match=r"has none: give .* decoder_input_ids"):
        aligned_model(aligned)(input_ids=source)


@torch.no_grad()
def test_reading_token_by_token_equals_one_forward(source, target):
    """At the places that were found, with a mask of 2 dimensions."""
    model = aligned_model()
    found, wanted = places_given_by(model), {"output_attentions": True, "output_hidden_states": True}
    inputs = {"input_ids": source, "decoder_input_ids": target, "decoder_attention_mask": HOLES} | wanted
    read = model(**inputs, track_attention=True)
    whole = model(**inputs, cross_position_ids=torch.cat(found, 1))
    for name in ("logits", "decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        ours, expected = getattr(read, name), getattr(whole, name)
        pairs = [(ours, expected)] if name == "logits" else list(zip(ours, expected, strict=True))
        for one, other in pairs:
            tokens = HOLES == 1
            one, other = (x if x.ndim == 3 else x.transpose(1, 2) for x in (one, other))
            torch.testing.assert_close(one[tokens], other[tokens], **EXACT)


@pytest.mark.parametrize(
    ("move", "moved"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), lambda rows: rows[[2, 0, 0]]),
        (lambda cache: cache.batch_select_indices(torch.tensor([2, 0])), lambda rows: rows[[2, 0]]),
        (lambda cache: cache.batch_repeat_interleave(2), lambda rows: rows.repeat_interleave(2, 0)),
        (lambda cache: cache.crop(-2), lambda rows: rows),
        (lambda cache: cache.reset(), lambda rows: rows.flip(0)),
    ],
    ids=["reordered", "selected", "repeated", "cropped", "reset"],
)
@torch.no_grad()
@pytest.mark.full
def test_source_positions_move_with_the_keys(aligned, move, moved, source, target):
    model = aligned_model(aligned)
    cache = cache_for(model, "dynamic")
    decode(model, source, torch.cat((target[:, :4], target[:, 6:8]), 1), [4, 1, 1], cache)
    if "reset" in str(move.__code__.co_names):
        pytest.importorskip("transformers", minversion="5.18")
    move(cache)
    start = int(cache.get_seq_length())
    target = torch.cat((target[:, :4], target[:, 6:8], target[:, 4:]), 1) if start == 6 else target
    source, target = moved(source), moved(target)
    continued = decode(model, source, target, [2, 3][: 2 if start < 6 else 1], cache, start=start)
    fresh = decode(
        model,
        source,
        target[:, : start + continued.shape[1]],
        [start + continued.shape[1]],
        cache_for(model, "dynamic"),
    )
    torch.testing.assert_close(continued, fresh[:, start:], **EXACT)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", [{"use_cache": False}, {"track_attention": True}], ids=["at once", "following"])
@torch.no_grad()
def test_padding_changes_no_source_position(aligned, how, side):
    model = aligned_model(aligned)
    sources, targets = [sentences(n, seed=n) for n in (7, 3, 5)], [sentences(n, seed=10 + n) for n in (4, 8, 1)]
    (source, source_mask), (target, target_mask) = padded(sources, side), padded(targets, side)
    masks = {"attention_mask": source_mask, "decoder_attention_mask": target_mask}
    batch = model(input_ids=source, decoder_input_ids=target, **masks, **how).logits
    for i, (one_source, one_target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(input_ids=one_source[None], decoder_input_ids=one_target[None], **how).logits[0]
        torch.testing.assert_close(batch[i][target_mask[i] == 1], alone, **EXACT)


@torch.no_grad()
def test_without_a_mask_the_padding_of_a_target_is_not_counted(aligned):
    """As a collator pads on the right and gives no mask."""
    model, source, read = aligned_model(aligned), sentences(2, 6), {"use_cache": False}
    target = sentences(2, 8, seed=3)
    target[0, 5:] = model.config.pad_token_id
    batch = model(input_ids=source, decoder_input_ids=target, **read).logits
    alone = model(input_ids=source[:1], decoder_input_ids=target[:1, :5], **read).logits
    torch.testing.assert_close(batch[:1, :5], alone, **EXACT)
    labels = target.clone()
    labels[0, 4:] = torch.tensor([model.config.eos_token_id, -100, -100, -100])
    batch = model(input_ids=source, labels=labels, **read).logits
    alone = model(input_ids=source[:1], labels=labels[:1, :5], **read).logits
    torch.testing.assert_close(batch[:1, :5], alone, **EXACT)


@pytest.mark.filterwarnings("ignore:This alignment is trained only")
@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_source_positions_stay_within_their_source(aligned, training):
    model = aligned_model(aligned, length_ratio_step=3.0, length_ratio_offset=50.0, length_ratio_jitter=9.0)
    found, (source, mask) = (
        places_given_by(model.train(training)),
        padded([sentences(n, seed=n) for n in (9, 2)], "left"),
    )
    for how in ({"use_cache": False}, {"track_attention": True}):
        model(input_ids=source, attention_mask=mask, decoder_input_ids=sentences(2, 12), **how)
    places = torch.cat(found, 1)
    half = 0.5  # a token occupies half a position on either side
    assert places.min() >= -half
    assert (places[0] <= 8 + half).all() and (places[1] <= 1 + half).all()
    assert places.unique().numel() > 4


@torch.no_grad()
def test_source_positions_are_not_target_positions(source, target):
    model = tiny_model("relative", cross_position_encoding_type="rotary")
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 5, 4, 3]])
    expected = model(input_ids=source, decoder_input_ids=target, decoder_position_ids=positions).logits
    given = {"decoder_position_ids": positions, "cross_position_ids": positions.double()}
    torch.testing.assert_close(model(input_ids=source, decoder_input_ids=target, **given).logits, expected, **EXACT)


@torch.no_grad()
def test_half_precision_keeps_large_source_positions_exact(aligned):
    """Places of a source of 600 tokens, which bfloat16 would round to multiples of 4."""
    model = aligned_model(aligned, dtype=torch.bfloat16, recurrent_step=1.3)
    found = places_given_by(model)
    model(input_ids=sentences(1, 600), decoder_input_ids=sentences(1, 400, seed=2), use_cache=False)
    assert found[0].dtype == torch.float32
    assert found[0].max() > 300
    assert found[0].diff().min() >= 0
    assert found[0][0, 200:].unique().numel() > 150


# Length ratio


def length_ratio(**parameters) -> Alignment:
    config = tiny_config("relative by length_ratio", **parameters)
    return build_alignment(config).double()


def place_of(source: int, target: int, **more) -> AttentionContext:
    return AttentionContext(torch.arange(target)[None], torch.arange(source)[None], is_cross=True, **more)


def test_length_ratio_positions_of_a_known_target_are_evenly_spaced():
    x = torch.zeros(1, 5, 16, dtype=torch.float64)
    places = length_ratio().eval()("source_positions", x, None, place_of(9, 5))
    assert places.tolist() == [[0, 2, 4, 6, 8]]
    one = length_ratio().eval()("source_positions", x[:, :1], None, place_of(9, 1))
    assert one.tolist() == [[0]]


def test_training_adds_an_offset_per_sentence_and_a_jitter_per_token():
    x, ctx = torch.zeros(4000, 41, 16, dtype=torch.float64), place_of(81, 41)
    spread = 2 * torch.arange(41, dtype=torch.float64)[10:31]  # far enough from the ends
    torch.manual_seed(0)
    moved = (
        length_ratio(length_ratio_offset=3.0, length_ratio_jitter=0.0).train()("source_positions", x, None, ctx)[
            :, 10:31
        ]
        - spread
    )
    torch.testing.assert_close(moved, moved[:, :1].expand(-1, 21), **EXACT)
    assert moved.abs().max() <= 3
    assert abs(moved.mean()) < 0.1 and abs(moved.std() - 3 / math.sqrt(3)) < 0.1
    jittered = (
        length_ratio(length_ratio_offset=0.0, length_ratio_jitter=1.5).train()("source_positions", x, None, ctx)[
            :, 10:31
        ]
        - spread
    )
    assert abs(jittered.mean()) < 0.05 and abs(jittered.std() - 1.5) < 0.05
    assert abs(torch.corrcoef(jittered.T)[0, 1]) < 0.1


class Kept:
    """A memory that shows what was kept."""

    def append(self, name: str, new: Tensor) -> Tensor:
        self.new = new
        return new


def test_recurrent_alignment_equals_loops_over_its_formula():
    torch.manual_seed(0)
    weights = [torch.rand(2, 3, 4, 6, dtype=torch.float64).softmax(-1) ** 3 for _ in range(2)]
    weights = [p / p.sum(-1, keepdim=True) for p in weights]
    places, memory = torch.rand(2, 4, dtype=torch.float64) * 5, Kept()
    alignment = length_ratio(length_ratio_step=0.9, length_ratio_gain=0.5, length_ratio_min_step=0.7)
    least = 0
    states = torch.zeros(2, 6, 16)  # which this alignment does not read
    alignment("update", weights, states, AttentionContext(places, torch.arange(6)[None], state=memory, is_cross=True))
    for b in range(2):
        for t in range(4):
            above = below = 0.0
            for p in (layer[b, h, t] for layer in weights for h in range(3)):
                mean = sum(j * float(p[j]) for j in range(6))
                variance = sum(float(p[j]) * (j - mean) ** 2 for j in range(6))
                above, below = above + mean / (variance + 0.25), below + 1 / (variance + 0.25)
            g = float(places[b, t])
            on = 0.9 + 0.5 * (above / below - g)
            least += on < 0.63
            assert float(memory.new[b, t, 0]) == pytest.approx(g + max(on, 0.63), abs=1e-12)
    assert 0 < least < 8


def test_a_decoder_whose_window_trails_its_source_position_reaches_the_end_of_the_source():
    """Without a least step it would stand still six tokens before the place, and say the same again and again."""
    key_pos_BS, looks_at = torch.arange(40)[None].double(), 3
    alignment, memory = length_ratio(length_ratio_gain=0.15, length_ratio_min_step=0.2), Kept()
    places = [torch.zeros(1, 1, dtype=torch.float64)]
    for _ in range(60):
        weights = nn.functional.one_hot(torch.tensor(looks_at), 40).double().expand(1, 1, 1, 40)
        ctx = AttentionContext(places[-1], key_pos_BS, state=memory, is_cross=True)
        alignment("update", [weights], torch.zeros(1, 40, 16), ctx)
        places.append(memory.new[..., 0])
    steps = torch.cat(places).diff(dim=0)
    assert steps.min() == pytest.approx(0.2) and float(places[-1]) > 15
    assert 3 + 1 / 0.15 < 10 < float(places[30]), "where it would stand"


def test_the_length_ratio_is_estimated_on_the_training_data():
    assert mean_length_ratio([5, 9], [3, 5]) == 2.0  # 12 steps through the sources, 6 through the targets
    assert ALIGNMENTS["length_ratio"].estimate(iter([5, 9]), iter([3, 5])) == {"length_ratio_step": 2.0}
    assert ALIGNMENTS["recurrent"].estimate([4], [4]) == {"recurrent_step": 1.0}
    assert mean_length_ratio([1], [1]) == 1.0
    assert Alignment.estimate([5], [3]) == {}


# Recurrent


def test_recurrent_is_its_equations_as_loops_in_values_and_gradients():
    torch.manual_seed(1)
    config = tiny_config("relative by recurrent", recurrent_reach=2)
    alignment = build_alignment(config).double()
    with torch.no_grad():
        for parameter in alignment.parameters():
            parameter.normal_(std=0.4)
        alignment.step_bias.fill_(0.9)
    reference = copy.deepcopy(alignment)
    x, memory = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    places = alignment("source_positions", x, memory, place_of(7, 5, mask=mask))

    def beta(head: int, distance: Tensor) -> Tensor:
        row = distance.clamp(-2, 2) + 2
        low = min(int(row), 3)
        share = row - low
        inside = reference.beta[head, low] * (1 - share) + reference.beta[head, low + 1] * share
        return inside - (distance.abs() - 2).clamp(min=0)

    rows = []
    for b, length in enumerate((7, 5)):
        g, state = torch.zeros((), dtype=torch.float64), (torch.zeros(1, 5).double(), torch.zeros(1, 5).double())
        values = reference.v_proj(memory[b]).view(7, 4, 32)
        for t in range(5):
            heads = []
            for head in range(4):
                w = torch.stack([beta(head, j - g) for j in range(length)]).softmax(0)
                heads.append(sum(w[j] * values[j, head] for j in range(length)))
            state = reference.cell(torch.cat((x[b, t], *heads))[None], state)
            g = (g + nn.functional.softplus(state[0][0] @ reference.step_weight[0] + reference.step_bias[0])).clamp(
                max=length - 1
            )
            rows.append(g)
    expected = torch.stack(rows).view(2, 5)
    assert expected[1, -1] == 4 and expected[0, 1] < 6  # one of them ends, and not all
    torch.testing.assert_close(places, expected, **EXACT)
    weight = torch.randn_like(places)
    (places * weight).sum().backward()
    (expected * weight).sum().backward()
    for (name, ours), theirs in zip(alignment.named_parameters(), reference.parameters(), strict=True):
        assert theirs.grad.any(), name
        torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)


def test_a_new_recurrent_alignment_advances_by_its_step():
    alignment = tiny_model("relative by recurrent", recurrent_step=0.7).model.decoder.alignment
    alignment.init_weights()
    x, memory = torch.randn(1, 6, 16, dtype=torch.float64), torch.randn(1, 9, 16, dtype=torch.float64)
    places = alignment("source_positions", x, memory, place_of(9, 6))
    torch.testing.assert_close(places, 0.7 * torch.arange(1, 7, dtype=torch.float64)[None], rtol=1e-6, atol=1e-6)


# The registry


class Halfway(Alignment):
    summary = "Always in the middle."

    def source_positions(self, x_BTD, encoder_states_BSD, ctx):
        first_B1, last_B1 = source_bounds(ctx)
        return ((first_B1 + last_B1) / 2).expand(len(x_BTD), x_BTD.shape[1]).to(x_BTD.dtype)


@torch.no_grad()
def test_an_alignment_of_ones_own_is_named_in_the_config(unregistered_after, source, target):
    register_alignment("halfway", Halfway)
    register_alignment("halfway", Halfway)  # as a notebook's cell does that is run again
    model = tiny_model("relative by halfway")
    given = model(input_ids=source, decoder_input_ids=target, cross_position_ids=torch.full((1, 9), 2.5).double())
    torch.testing.assert_close(model(input_ids=source, decoder_input_ids=target).logits, given.logits, **EXACT)


def test_what_cannot_be_registered_is_refused(unregistered_after):
    with pytest.raises(ValueError, match=r"lower-case .*, not 'Half Way'"):
        register_alignment("Half Way", Halfway)
    with pytest.raises(ValueError, match=r"`recurrent` .* RecurrentAlignment"):
        register_alignment("recurrent", Halfway)
    with pytest.raises(TypeError, match=r"Alignment .*, but Two inherits Halfway"):
        register_alignment("two", type("Two", (Halfway,), {}))


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_an_alignment_says_which_idea_it_is_and_whose(name):
    alignment = ALIGNMENTS[name]
    assert alignment.summary.endswith(".") and alignment.formula and alignment.__doc__
    assert alignment is Alignment or alignment.__bases__ == (Alignment,)
    assert alignment is Alignment or all(one.url.startswith("https://") for one in alignment.references)
    assert all(field.name.startswith(f"{name}_") for field in alignment.config_parameters)


@pytest.mark.full
@pytest.mark.parametrize("cross", [*CROSS, "relative_sinusoidal", "t5", "deberta"])
def test_autocast_is_near_full_precision_between_two_tokens(aligned, cross, source, target):
    model = aligned_model(aligned, cross, dtype=torch.float32)
    exact = model(input_ids=source, labels=target).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=source, labels=target).loss
    loss.backward()
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


# Refusals


@pytest.mark.parametrize("back_end", ["flex_attention", "flash_attention_2"])
def test_alignments_that_follow_attention_weights_refuse_a_backend_without_weights(back_end):
    stack = aligned_model("rotary by length_ratio", cross="rotary").model.decoder
    stack.config._attn_implementation_internal = back_end
    with pytest.raises(ValueError, match=f"'{back_end}' .*'length_ratio' follows"):
        stack.validate_attn_implementation()
    aligned_model("relative+window by recurrent", cross="rotary").set_attn_implementation("eager")


def test_following_without_a_cache_is_refused(source, target):
    model = aligned_model().train()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    with pytest.raises(ValueError, match=r"without a cache.*leave track_attention out"):
        model(input_ids=source, decoder_input_ids=target, track_attention=True)
    model(input_ids=source, labels=target).loss.backward()


def test_a_config_that_could_not_work_is_refused():
    aligned = {"alignment_type": "length_ratio", "cross_position_encoding_type": "rotary+window"}
    with pytest.raises(ValueError, match=r"alignment_type='lenght_ratio' .* nearest is 'length_ratio'"):
        PosEncConfig(**aligned | {"alignment_type": "lenght_ratio"})
    with pytest.raises(ValueError, match=r"alignment_type='length_ratio' cross_position_encoding_type is 'none'"):
        PosEncConfig(alignment_type="length_ratio")
    with pytest.raises(ValueError, match=r"`cross_window_size` must be .*1 or more, .* 0"):
        PosEncConfig(**aligned, cross_window_size=0)
    with pytest.raises(ValueError, match=r"`length_ratio_step` must be .* above 0, .* 0"):
        PosEncConfig(**aligned, length_ratio_step=0.0)
    with pytest.raises(ValueError, match=r"RNN-NMT has no .*alignment_type='recurrent'"):
        RnnNmtConfig(alignment_type="recurrent")
    with pytest.raises(ValueError, match="nearest one is 'cross_window_size'"):
        PosEncConfig(cross_windowsize=3)


def test_cross_attention_has_parameters_of_its_own(source, target):
    config = tiny_config("window by length_ratio", cross_position_encoding_type="window", cross_window_size=1)
    assert config.config_for(config.side("cross")).window_size == 1
    assert config.config_for(config.side("decoder")).window_size == 2
    assert PosEncConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert {"cross_window_size", "window_size"} <= set(config.to_dict())
    plain = tiny_config("window by length_ratio", cross_position_encoding_type="window", cross_window_size=None)
    assert "cross_window_size" not in plain.to_dict()
    assert plain.config_for(plain.side("cross")).window_size == 2


GIVEN = [
    (torch.zeros(3, 8), r"shape is \(3, 8\) for 9 tokens in 3 sentences"),
    (torch.zeros(2, 9), r"shape is \(2, 9\) for 9 tokens in 3 sentences"),
    (torch.full((1, 9), 5.6), "go from 5.6 to 5.6 and the shortest source ends at 5"),
    (torch.full((1, 9), -1), "go from -1 to -1"),
]


@pytest.mark.parametrize(("places", "message"), GIVEN)
def test_given_source_positions_of_the_wrong_shape_are_refused(places, message, source, target):
    with pytest.raises(ValueError, match=message):
        aligned_model()(input_ids=source, decoder_input_ids=target, cross_position_ids=places)
    with pytest.raises(ValueError, match=message):
        aligned_model()(input_ids=source, decoder_input_ids=target, cross_position_ids=places, use_cache=False)


def test_given_source_positions_need_neither_mask_nor_cache(source, target):
    model, places = aligned_model(), torch.rand(3, 9).double() * 5
    given = {"input_ids": source, "decoder_input_ids": target, "cross_position_ids": places}
    masked = model(**given, attention_mask=torch.ones_like(source), use_cache=False).logits
    for use_cache in (True, False):
        torch.testing.assert_close(model(**given, use_cache=use_cache).logits, masked, **EXACT)


def test_unused_source_positions_are_refused(source, target):
    with pytest.raises(ValueError, match=r"cross_position_encoding_type='none', .*; leave"):
        tiny_model("relative")(input_ids=source, decoder_input_ids=target, cross_position_ids=torch.zeros(3, 9))


def test_a_source_of_padding_alone_is_refused(source, target):
    mask = torch.ones_like(source)
    mask[1] = 0
    with pytest.raises(ValueError, match=r"attention_mask of sentence 1 .* all"):
        aligned_model()(input_ids=source, attention_mask=mask, decoder_input_ids=target)


def test_a_mask_without_the_end_of_a_source_is_refused(aligned, source, target):
    mask = torch.ones(3, 1, 9, 6, dtype=torch.bool)
    model, memory = aligned_model(aligned).model, torch.zeros(3, 6, 16).double()
    given = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
    with pytest.raises(ValueError, match=r"mask .* of shape \(3, 1, 9, 6\)"):
        model.decoder(target, **given, use_cache=False)
    model.decoder(target, **given, use_cache=False, cross_position_ids=torch.ones(1, 9))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("other", ["relative+window", "gru"])
def test_continuing_from_the_cache_of_another_model_is_refused(aligned, other, kind, source, target):
    stranger = tiny_model(other)
    cache = cache_for(stranger, kind)
    decode(stranger, source, target, [4], cache)
    with pytest.raises(ValueError, match="another model filled the cache"):
        decode(aligned_model(aligned), source, target, [1], cache, start=4)


@pytest.mark.slow
@torch.no_grad()
def test_a_source_100_times_longer_is_translated_or_stopped_at_its_limit(aligned, tokenizer):
    model = translator(aligned).float()
    made = model.translations(["Ein Hund. " * 700, "Ein Hund."], tokenizer, num_beams=1, max_new_tokens=300)
    assert len(made.texts) == 2
