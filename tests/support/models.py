"""Tiny models for every registered encoding, for combinations, and for stacks that differ."""

import os

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncConfig, PositionEncodingEntry, RnnNmtConfig
from hf_posenc.encodings.base import HOOKS
from hf_posenc.encodings.registry import build_position_encodings, side_entries
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

# Before 5.18 transformers' beam search took the encoder's vocabulary for the decoder's, and a dynamic cache's `reset`
# left its length; both hold for any model, so there the tests have one vocabulary and do not reset that cache.
BEFORE_5_18 = Version(transformers.__version__) < Version("5.18")


# Encodings that can be used alone; the others are in combinations.
REGISTERED = [name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier]


SUMS = [
    "relative+log_n",
    "rotary+log_n_learned",
    "sinusoidal+randomized",
    "sinusoidal+relative",
    "rotary+relative_key",
    "learned+rotary",
    "gru+relative",
    "lstm+rotary",
    "sinusoidal+gru",
]


MIXED = [
    "none to relative",
    "relative to none",
    "rotary to sinusoidal",
    "relative_key to learned",
    "gru to sinusoidal",
    "none to lstm",
]


# By system: one for each alignment. Those that do not use the target length are in all invariants, because their source
# positions do not depend on how a target is read. The others are in those of decoding.
ALIGNED = {f"relative+window by {name}": alignment for name, alignment in ALIGNMENTS.items() if name != "none"}


WITHOUT_LENGTHS = [sides for sides, alignment in ALIGNED.items() if not alignment.uses_target_length]


# Small enough that a tiny input exceeds the clip, the window and the table.
SMALL_PARAMETERS = {
    "relative_clip": 3,
    "learned_max_positions": 64,
    "window_size": 2,
    "t5_buckets": 8,
    "t5_max_distance": 7,
    "fire_hidden_size": 5,
    "fire_threshold": 4.5,
    "sandwich_width": 12,
    "deberta_clip": 3,
    "xpos_scale_base": 200.0,
    "pope_theta": 100.0,
    "log_n_length": 4,
    "cope_positions": 4,
    "cross_window_size": 3,
    "recurrent_hidden_size": 5,
    "recurrent_reach": 3,
    "fertility_max_step": 2.0,
}


# No random augmentation in training.
SMALL_PARAMETERS |= {
    "length_ratio_offset": 0.0,
    "length_ratio_jitter": 0.0,
    "fertility_offset": 0.0,
    "fertility_jitter": 0.0,
    "shape_shifts": 1,
    "cape_shift": 0.0,
    "cape_jitter": 0.0,
    "cape_stretch": 1.0,
    "randomized_positions": 1,
}


# Parameters whose defaults suit tiny inputs: sizes that follow the model's, directions, and steps in tokens.
DEFAULTS_SUIT = {
    "lstm_hidden_size",
    "lstm_bidirectional",
    "gru_hidden_size",
    "gru_bidirectional",
    "length_ratio_step",
    "length_ratio_gain",
    "length_ratio_min_step",
    "fertility_step",
    "fertility_gain",
    "fertility_min_step",
    "fertility_loss_weight",
    "recurrent_step",
    "window_lookahead",
    "window_sinks",
    "sinusoidal_offset",
    "sinusoidal_base",
}

# The training text of the test tokenizer.
TEXTS = ["Ein Hund.", "Zwei Kinder im Schnee"]


TEXTS_VOCABULARY = 290


def tiny_config(sides: str, **changes) -> PosEncConfig | RnnNmtConfig:
    """A config whose encoder and decoder differ in every size; `sides` is a sum, "sum to sum" if they differ, "sum by
    alignment" for one with positions in cross-attention too, or rnn_nmt."""
    own, _, alignment = sides.partition(" by ")
    encoder, _, decoder = own.partition(" to ")
    fields = {
        "vocab_size": 29,
        "decoder_vocab_size": 29 if BEFORE_5_18 else 31,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
    }
    if sides == "rnn_nmt":
        return RnnNmtConfig(**(fields | changes))
    cross = {"cross_position_encoding_type": "rotary+window", "alignment_type": alignment} if alignment else {}
    used = {
        parameter.name
        for one in (*entries(own), *([ALIGNMENTS[alignment]] if alignment else []))
        for parameter in one.config_parameters
    }
    used |= {"cross_window_size"} if alignment else set()
    fields |= {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 20,
        "position_encoding_type": encoder,
        "decoder_position_encoding_type": decoder or encoder,
    }
    fields |= cross | {name: value for name, value in SMALL_PARAMETERS.items() if name in used}
    return PosEncConfig(**(fields | changes))


def tiny_model(sides: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> ConditionalGeneration:
    """A model in evaluation mode, with noise added to every parameter, so that each has an effect."""
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(tiny_config(sides, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    if sides != "rnn_nmt":  # a window leaves hidden keys out however few are cached
        model.model.decoder.min_keys_to_prune = 0
    return model.to(dtype).eval()


def translator(sides: str, **changes) -> ConditionalGeneration:
    """A tiny model whose vocabularies are the tokenizer's."""
    return tiny_model(sides, **{"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY} | changes)


def entries(sides: str) -> list[PositionEncodingEntry]:
    """The registry's entries of both sides."""
    own, _, _ = sides.partition(" by ")
    return [POSITION_ENCODINGS[name] for name in own.replace(" to ", "+").split("+")]


def kind(name: str) -> tuple:
    """The properties by which a model treats an encoding: hooks of each side, parameters, state, maximum length."""
    config, found = tiny_config(name), []
    for side in map(config.side, ("encoder", "decoder")):
        [encoding] = build_position_encodings(config, side)
        answered = [hook for hook in (*HOOKS, "prepare", "augment_positions") if getattr(encoding, hook) is not None]
        found.append((tuple(answered), any(True for _ in encoding.parameters()), encoding.is_stateful))
    return *found, POSITION_ENCODINGS[name].max_length_field


# One encoding of each kind and some combinations, for slow tests of what torch and transformers do with a model. All
# encodings if the environment has EVERY_ENCODING.
EVERY_ENCODING = "EVERY_ENCODING" in os.environ


FIRST = {kind(name): name for name in reversed(REGISTERED)}.values()


SINGLE = [name for name in REGISTERED if EVERY_ENCODING or name in FIRST]


KINDS = [*SINGLE, "sinusoidal+relative", "gru+relative", "relative+log_n", "relative to none"]


# The systems of `make test`: biases of keys and values, rotations, a recurrent state in a sum, an alignment, RNN-NMT.
FAST = {"relative", "rotary", "gru+relative", "relative+window by length_ratio", "rnn_nmt"}
CAUSAL_FAST = {"rotary", "gru+relative"}


def zero_init_parameters(model: ConditionalGeneration) -> set[str]:
    """The names of the parameters of all encodings that are the identity when they are zero."""
    stacks = {"encoder": "encoder.positions", "decoder": "decoder.positions", "cross": "decoder.cross_positions"}
    return {
        f"model.{stack}.{number}.{name}"
        for side, stack in stacks.items()
        for number, entry in enumerate(side_entries(model.config.side(side)).values())
        if entry.zero_init_is_identity
        for name, _ in model.get_submodule(f"model.{stack}")[number].named_parameters()
    }


def gradients_after_a_step(model: ConditionalGeneration, **batch) -> dict[str, Tensor]:
    """Gradients by name, after one step: a factor of a product has no gradient while the other factor is zero."""
    for _ in range(2):
        model.zero_grad()
        model(**batch).loss.backward()
        found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return found


class RecordedState:
    """Encoding state with one initial value for each sentence, which records the next value."""

    def __init__(self, before: Tensor) -> None:
        self.before, self.kept = before, None

    def scoped(self, *scope) -> "RecordedState":
        return self

    def last(self, name: str, width: int) -> Tensor:
        return self.before[:, :width]

    def append(self, name: str, new: Tensor) -> Tensor:
        self.kept = new
        return new


def sentences(*shape: int, seed: int = 1, vocab_size: int = 29) -> Tensor:
    """Random token ids without special ones."""
    return torch.randint(4, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch, and its mask."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), None) if side == "left" else slice(None, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask
