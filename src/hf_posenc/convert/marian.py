"""Conversion of MarianMT checkpoints (the opus-mt models of the Hub) to this family, and back.

Marian is Vaswani et al.'s Transformer with the LayerNorm after each sub-layer and a bias on the logits. It is one of
the families of checkpoints.py, and the only one whose source and target may have vocabularies of their own.

Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (ACL 2018), https://aclanthology.org/P18-4020;
logits equal those of transformers' MarianMTModel. checkpoints.py lists the departures from it.
"""

import os

from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .checkpoints import from_transformers, to_transformers
from .encodings import load_config_dict


def from_marian(
    marian: str | os.PathLike | MarianMTModel,
    position_encoding_type: str | None = None,
    decoder_position_encoding_type: str | None = None,
    cross_position_encoding_type: str | None = None,
    alignment_type: str | None = None,
    **overrides: object,
) -> PosEncForConditionalGeneration:
    """Convert a MarianMT model, such as an opus-mt model of the Hub: `from_transformers` for this family alone.

    Args:
        marian: a folder, a name on the Hub, or a loaded MarianMTModel.
        position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type,
        **overrides: as in `from_transformers`.

    Returns a new model with Marian's precision, device, mode and generation config. Load the tokenizer from Marian's
    folder.

    Raises a ValueError if there is no Marian checkpoint, or if it has what this family lacks.

    Source: Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", ACL 2018.
    """
    validate_marian(marian)
    return from_transformers(
        marian, position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type,
        **overrides,
    )  # fmt: skip


def to_marian(model: PosEncForConditionalGeneration) -> PreTrainedModel:
    """Convert a model with `sinusoidal` position encoding to transformers' MarianMTModel, with equal logits.

    `to_marian(model).save_pretrained(folder)` writes a checkpoint that needs transformers alone.

    Raises a ValueError for a model that Marian cannot represent, such as one with another encoding, and a TypeError for
    another kind of model.
    """
    return to_transformers(model, MarianConfig.model_type)


def validate_marian(marian: object) -> None:
    """Raise a ValueError for a checkpoint that is not Marian's, and a TypeError for another object."""
    if isinstance(marian, MarianMTModel):
        return
    if not isinstance(marian, str | os.PathLike):
        raise TypeError(
            "from_marian takes a folder, a name on the Hub or a MarianMTModel, but it was given a "
            f"{type(marian).__name__}; load a Marian with MarianMTModel.from_pretrained."
        )
    rule = "from_marian needs a MarianMT checkpoint"
    fields = load_config_dict(marian, rule, "a model on the Hub such as Helsinki-NLP/opus-mt-de-en")
    if (family := fields["model_type"]) != MarianConfig.model_type:
        raise ValueError(
            f"{rule}, but {marian} holds a `{family}` model; load that with AutoModelForSeq2SeqLM.from_pretrained."
        )


__all__ = ["from_marian", "to_marian"]
