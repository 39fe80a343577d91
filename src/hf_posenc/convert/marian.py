"""Conversion of MarianMT checkpoints (the opus-mt models of the Hub) to this family, and back.

    ours[..., i] = marian's[..., order[i]],    order = 0, h, 1, h+1, 2, h+2, ...,    h = ceil(D/2)

Marian is Vaswani et al.'s Transformer with the LayerNorm after each sub-layer and a bias on the logits. Its sinusoids
have all sines before all cosines. In Vaswani et al. and here, sine and cosine of one wavelength are neighbours. Only
weights read and write the D channels between the layers, and LayerNorm treats all channels alike. Therefore both models
are the same function after a permutation of channels: of the columns of weights that read them (embeddings, queries,
keys, values, fc1, output projection), and of the rows of weights that write them (out_proj, fc2, LayerNorm). Channels
inside heads and feed-forward networks keep their order.

Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (ACL 2018), https://aclanthology.org/P18-4020;
logits equal those of transformers' MarianMTModel. Departures from it, in both directions of conversion:
    - in training, dropout comes before the sinusoids, and the bias of the logits is trained; Marian has dropout after
      them and a fixed bias;
    - padding on the left, and holes in a mask, are no positions; Marian counts them;
    - `inputs_embeds` are scaled by `scale_embedding` on both sides; Marian scales the decoder's only;
    - inputs have any length; Marian's have at most `max_position_embeddings` tokens;
    - infinite activations of the encoder in float16 are kept; Marian clamps them.
"""

import os

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.modeling_posenc import PosEncForConditionalGeneration
from ..modeling.position_sinusoidal import sinusoids
from .encodings import (
    NEW_WEIGHT_PREFIXES,
    PRESERVED_FIELDS,
    STRUCTURAL_FIELDS,
    TUNABLE_FIELDS,
    load_config_dict,
    load_into,
    validate_weight_names,
    zero_init_model,
)

# Fields of this family that have one value in every Marian model.
FIXED_FIELDS = {"norm_first": False, "layer_norm_eps": 1e-5}
# Fields of a Marian config with a required value. transformers no longer reads the last four.
REQUIRED_MARIAN = {
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False, "static_position_embeddings": True,
}  # fmt: skip
# Marian's tables of sinusoids, which a formula replaces.
POSITION_TABLES = ("model.encoder.embed_positions.", "model.decoder.embed_positions.")
INPUT_WEIGHTS = tuple(
    f"{name}.weight" for name in ("embed_tokens", "shared", "lm_head", "q_proj", "k_proj", "v_proj", "fc1")
)
OUTPUT_WEIGHTS = tuple(f"{name}.{kind}" for name in ("out_proj", "fc2", "layer_norm") for kind in ("weight", "bias"))


def from_marian(
    marian: str | os.PathLike | MarianMTModel,
    position_encoding_type: str = "sinusoidal",
    decoder_position_encoding_type: str | None = None,
    cross_position_encoding_type: str = "none",
    alignment_type: str = "none",
    **overrides: object,
) -> PosEncForConditionalGeneration:
    """Convert a MarianMT model, such as an opus-mt model of the Hub, to a model of this family.

    Args:
        marian: a folder, a name on the Hub, or a loaded MarianMTModel.
        position_encoding_type: `sinusoidal` is Marian's own, and the logits are then equal. Any other replaces it and
            starts as in `convert_encodings`: fine-tune afterwards.
        decoder_position_encoding_type, cross_position_encoding_type, alignment_type: as in PosEncConfig.
        **overrides: parameters of encodings and alignment (`relative_clip`), and fields that affect training only
            (`dropout`).

    Returns a new model with Marian's precision, device, mode and generation config. It has no bias of the output
    projection where Marian's is all zeros. Load the tokenizer from Marian's folder.

    Raises a ValueError if there is no Marian checkpoint, or if it has what this family lacks.

    Source: Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", ACL 2018.
    """
    config = posenc_config_from_marian(
        load_marian_config(marian),
        position_encoding_type=position_encoding_type,
        decoder_position_encoding_type=decoder_position_encoding_type,
        cross_position_encoding_type=cross_position_encoding_type,
        alignment_type=alignment_type,
        **overrides,
    )
    origin = load_marian_model(marian)
    validate_sinusoidal_tables(origin)
    config.output_bias = bool(origin.final_logits_bias.any())
    weights = permute_channels(origin, channel_order(config.d_model))
    left_out = {
        *(f"{table}weight" for table in POSITION_TABLES),
        "final_logits_bias" if not config.output_bias else None,
        "model.shared.weight" if not config.share_encoder_decoder_embeddings else None,  # unused
    }
    transferred = {name: weight for name, weight in weights.items() if name not in left_out}
    return load_into(zero_init_model(config), transferred, origin, new_weight_prefixes=NEW_WEIGHT_PREFIXES)


def to_marian(model: PosEncForConditionalGeneration) -> MarianMTModel:
    """Convert a model with `sinusoidal` position encoding to transformers' MarianMTModel, with equal logits.

    `to_marian(model).save_pretrained(folder)` writes a checkpoint that needs transformers alone.

    Raises a ValueError for a model that Marian cannot represent, such as one with another encoding, and a TypeError for
    another kind of model.
    """
    if not isinstance(model, PosEncForConditionalGeneration):
        raise TypeError(
            f"to_marian takes a PosEncForConditionalGeneration, but it was given a {type(model).__name__}; give it "
            "a whole Transformer of this family."
        )
    validate_marian_representable(model.config)
    fields = {name: getattr(model.config, name) for name in STRUCTURAL_FIELDS + TUNABLE_FIELDS}
    marian = MarianMTModel(MarianConfig(**fields, forced_eos_token_id=model.generation_config.forced_eos_token_id))
    weights = permute_channels(model, channel_order(model.config.d_model).argsort())
    weights.setdefault("final_logits_bias", marian.final_logits_bias)
    return load_into(marian, weights, model, new_weight_prefixes=POSITION_TABLES)


def channel_order(width: int) -> Tensor:
    """The index of each of our channels among Marian's (D)."""
    num_sines = (width + 1) // 2
    return torch.arange(2 * num_sines).view(2, num_sines).T.flatten()[:width]


def permute_channels(model: PreTrainedModel, order: Tensor) -> dict[str, Tensor]:
    """All weights of a model with their channels permuted by `order` (D)."""
    weights = model.state_dict()
    for name, weight in weights.items():
        if name.endswith(INPUT_WEIGHTS):
            weights[name] = weight[:, order]
        elif name.endswith(OUTPUT_WEIGHTS):
            weights[name] = weight[order]
    return weights


def load_marian_config(marian: object) -> MarianConfig:
    """The config, before any weight is read; a ValueError unless it is a Marian model's."""
    if isinstance(marian, MarianMTModel):
        return marian.config
    if not isinstance(marian, str | os.PathLike):
        raise TypeError(
            "from_marian takes a folder, a name on the Hub or a MarianMTModel, but it was given a "
            f"{type(marian).__name__}; load a Marian with MarianMTModel.from_pretrained."
        )
    fields = load_config_dict(
        marian, "from_marian needs a MarianMT checkpoint", "a model on the Hub such as Helsinki-NLP/opus-mt-de-en"
    )
    if (family := fields["model_type"]) != MarianConfig.model_type:
        raise ValueError(
            f"from_marian needs a MarianMT checkpoint, but {marian} holds a `{family}` model; load that with "
            "AutoModelForSeq2SeqLM.from_pretrained."
        )
    return MarianConfig.from_dict(fields)


def load_marian_model(marian: str | os.PathLike | MarianMTModel) -> MarianMTModel:
    """The model; a ValueError for missing or unexpected weights."""
    if isinstance(marian, MarianMTModel):
        return marian
    model, loading_info = MarianMTModel.from_pretrained(marian, output_loading_info=True)
    validate_weight_names(str(marian), loading_info["unexpected_keys"], loading_info["missing_keys"])
    return model


def posenc_config_from_marian(marian: MarianConfig, **overrides: object) -> PosEncConfig:
    """The config of this family for a Marian model; a ValueError if this family cannot represent it."""
    for name in PRESERVED_FIELDS:
        if name in overrides:
            raise ValueError(f"`{name}` must be Marian's, but {name}={overrides[name]!r} was given; leave it out.")
    for name, required in REQUIRED_MARIAN.items():
        if (value := getattr(marian, name, required)) != required:
            raise ValueError(
                f"A Marian model must have {name}={required} to be converted, but has {name}={value}; if that has no "
                f"effect, load it with MarianMTModel.from_pretrained(..., {name}={required}) and convert that."
            )
    fields = {name: getattr(marian, name) for name in STRUCTURAL_FIELDS + TUNABLE_FIELDS} | FIXED_FIELDS
    if marian.vocab_size == marian.decoder_vocab_size:  # else PosEncConfig refuses to share
        # A Marian model that does not tie its output projection shares no table, even if its config says so.
        fields["share_encoder_decoder_embeddings"] &= marian.tie_word_embeddings
    return PosEncConfig(**(fields | overrides))


def validate_sinusoidal_tables(marian: MarianMTModel) -> None:
    """Raise a ValueError for a table of positions that is not the sinusoids."""
    for side in ("encoder", "decoder"):
        table = getattr(marian.model, side).embed_positions.weight.detach().cpu().double()
        formula = sinusoids(torch.arange(len(table)), table.shape[1], torch.float64)
        max_error = float((table[:, channel_order(table.shape[1])] - formula).abs().max())
        if not max_error < 0.01:  # half precision rounds by less
            raise ValueError(
                f"A Marian model's positions must be sinusoids, but the {side}'s table of positions differs by "
                f"{max_error:.2g}; fill it with its create_weight(), or do not convert the model."
            )


def validate_marian_representable(config: PosEncConfig) -> None:
    """Raise a ValueError for a config that Marian cannot represent."""
    encodings = dict.fromkeys(("position_encoding_type", "decoder_position_encoding_type"), "sinusoidal")
    cross_fields = dict.fromkeys(("cross_position_encoding_type", "alignment_type"), "none")
    for name, required in (encodings | cross_fields | FIXED_FIELDS).items():
        if (value := getattr(config, name)) != required:
            raise ValueError(
                f"Marian has {name}={required!r}, but this model has {name}={value!r}; save it with its own "
                "save_pretrained, which includes its code."
            )
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        raise ValueError(
            "Marian shares embeddings only along with the output projection, but this model has "
            "share_encoder_decoder_embeddings=True and tie_word_embeddings=False; save it with its own save_pretrained."
        )


__all__ = ["from_marian", "to_marian"]
