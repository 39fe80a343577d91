# SPDX-License-Identifier: Apache-2.0
"""Base classes of both encoder-decoders: tied and resized vocabularies, logits and loss."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)

from ..encodings.positions import positions_from_mask
from ..generation.generate import Seq2SeqGenerationMixin
from ..generation.model_inputs import rename_cache, require_tokens
from .configuration_base import SharedConfig
from .pretrained import PosEncPreTrainedModel


class EncoderDecoder(PosEncPreTrainedModel):
    """Encoder and decoder without an output projection; they may share their token embeddings.

    `resize_token_embeddings(n)` resizes the source's vocabulary, and the target's too where both sides share one table.
    `resize_decoder_token_embeddings(n)` resizes the target's where it has its own. Both keep the rows of remaining
    tokens, in place: tied or frozen weights stay tied or frozen.

    The config decides at construction which tables are shared. Afterwards the modules do: saving writes their sharing
    into the config, whatever was changed since.
    """

    config: SharedConfig
    encoder_class: type[PosEncPreTrainedModel]
    decoder_class: type[PosEncPreTrainedModel]

    def __init__(self, config: SharedConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self._tied_weights_keys = self.tied_weight_keys()
        self.post_init()

    def tied_weight_keys(self) -> dict[str, str]:
        sides = ("encoder", "decoder") if hasattr(self, "shared") else ()
        return {f"{side}.embed_tokens.weight": "shared.weight" for side in sides}

    @property
    def shares_embeddings(self) -> bool:
        """Whether encoder and decoder share one embedding table."""
        return self.encoder.embed_tokens.weight is self.decoder.embed_tokens.weight

    def sync_tying_config(self) -> None:
        self.config.share_encoder_decoder_embeddings = self.shares_embeddings
        if not self.shares_embeddings:
            self._modules.pop("shared", None)
        else:
            self.shared = self.encoder.embed_tokens
        self._keys_to_ignore_on_save = None if self.shares_embeddings else ["shared.weight"]
        super().sync_tying_config()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.shared if hasattr(self, "shared") else self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if hasattr(self, "shared"):
            self.shared = self.decoder.embed_tokens = value
        self.encoder.embed_tokens = value

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """The resized source table.

        A private hook of transformers (5.17 to 5.24 have it): `resize_token_embeddings` calls it before it writes the
        new size into the config. If it is renamed, a shared table leaves the output projection at its old size.
        """
        table = self.get_input_embeddings()
        table = self._get_resized_embeddings(table, new_num_tokens, pad_to_multiple_of, mean_resizing)
        is_shared = self.shares_embeddings
        self.set_input_embeddings(table)
        self.config.vocab_size = table.num_embeddings
        if is_shared:
            self.config.decoder_vocab_size = table.num_embeddings
        return table

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target's vocabulary; returns the decoder's table.

        Arguments are those of `resize_token_embeddings`. Raises a ValueError if both sides share one table.
        """
        if self.shares_embeddings:
            raise ValueError(
                "The target's vocabulary has a size of its own only if the decoder has its own embeddings, but "
                "share_encoder_decoder_embeddings=True; call resize_token_embeddings, which resizes both."
            )
        table = self.decoder.embed_tokens
        table = self._get_resized_embeddings(table, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.decoder_vocab_size = table.num_embeddings
        return table


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """transformers' output with `source_positions` (B or 1, T), the source position of each new token.

    It is the position of the token's query in the cross-attention; None if no encoding reads positions there.
    """

    source_positions: Tensor | None = None


@dataclass
class EncoderDecoderOutput(Seq2SeqModelOutput):
    """transformers' output with the source positions of DecoderOutput."""

    source_positions: Tensor | None = None


LENGTH_LOSS_WARNING = (
    "This alignment is trained only by outputs.length_loss, which a loss of the logits does not contain: give the "
    "model labels, or, for smoothed labels, train with hf_posenc's LengthTrainer or train.py. With a loss of your own, "
    "add outputs.length_loss to it and set model.length_loss_is_added = True."
)


@dataclass
class TranslationModelOutput(Seq2SeqLMOutput):
    """transformers' output with the alignment's loss and source positions (as in DecoderOutput).

    `length_loss`: the sum over sentences of the alignment's own loss; None outside of training and for an alignment
    without one. `loss` holds it, divided by the number of target tokens. A loss computed from `logits` must add it.
    """

    length_loss: Tensor | None = None
    source_positions: Tensor | None = None


class ConditionalGeneration(PosEncPreTrainedModel, Seq2SeqGenerationMixin):
    """Base class of translation models: an encoder-decoder and the projection on the target vocabulary."""

    config: SharedConfig
    base_model_class: type[EncoderDecoder]
    # Set by a trainer whose own loss, computed from logits, adds an output's `length_loss`.
    length_loss_is_added = False

    def __init__(self, config: SharedConfig) -> None:
        super().__init__(config)
        self.model = self.base_model_class(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        self.final_logits_bias = nn.Parameter(torch.empty(1, config.target_vocab_size)) if config.output_bias else None
        self._tied_weights_keys = self.tied_weight_keys()
        self.post_init()

    def tied_weight_keys(self) -> dict[str, str]:
        tied = {f"model.{name}": f"model.{table}" for name, table in self.model.tied_weight_keys().items()}
        if self.config.tie_word_embeddings:
            table = "shared" if hasattr(self.model, "shared") else "decoder.embed_tokens"
            tied["lm_head.weight"] = f"model.{table}.weight"
        return tied

    def sync_tying_config(self) -> None:
        self.model.sync_tying_config()
        self._keys_to_ignore_on_save = [f"model.{key}" for key in self.model._keys_to_ignore_on_save or ()]
        self.config.tie_word_embeddings = self.lm_head.weight is self.model.decoder.embed_tokens.weight
        super().sync_tying_config()

    def logits_and_loss(
        self,
        outputs: Seq2SeqModelOutput,
        labels: Tensor | None,
        kwargs: Mapping[str, Any],
        length_loss: Tensor | None = None,
    ) -> TranslationModelOutput:
        """Logits (B, T, V) of hidden states (B, T, D); with `labels` (B, T), -100 where ignored, also their loss.

        The loss is the cross-entropy in nats: the mean over label tokens, or the sum over the Trainer's
        `num_items_in_batch`. `length_loss`, a sum over sentences, is divided by the same number and added.
        """
        logits = self.lm_head(outputs.last_hidden_state)
        if self.final_logits_bias is not None:
            logits = logits + self.final_logits_bias
        loss = None
        if labels is not None:
            targets = labels.contiguous()  # transformers' loss cannot take a view, such as a slice
            loss = self.loss_function(
                logits, labels=None, shift_labels=targets, vocab_size=self.config.decoder_vocab_size, **kwargs
            )
            if length_loss is not None:
                num_items = kwargs.get("num_items_in_batch")
                loss = loss + length_loss / ((labels != -100).sum() if num_items is None else num_items)
        elif length_loss is not None and not self.length_loss_is_added and not torch.compiler.is_compiling():
            warnings.warn(LENGTH_LOSS_WARNING, stacklevel=3)
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return TranslationModelOutput(loss=loss, logits=logits, length_loss=length_loss, **rest)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """The resized source table; resizes the output projection with a shared one."""
        table = self.model._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.model.shares_embeddings:
            self.resize_outputs(table.num_embeddings, mean_resizing)
        return table

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """The model's, with the output projection and its bias."""
        table = self.model.resize_decoder_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.resize_outputs(table.num_embeddings, mean_resizing)
        return table

    @torch.no_grad()
    def resize_outputs(self, num_tokens: int, mean_resizing: bool) -> None:
        """Resize the output projection and its bias to `num_tokens`, in place."""
        resized = self._get_resized_lm_head(self.lm_head, num_tokens, mean_resizing=mean_resizing)
        self.lm_head.weight.data, self.lm_head.out_features = resized.weight.data, num_tokens
        bias = self.final_logits_bias
        if bias is not None:
            new = bias.mean() if mean_resizing else bias.new_zeros(())
            bias.data = torch.cat((bias[:, :num_tokens], new.expand(1, max(0, num_tokens - bias.shape[1]))), dim=1)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs (B, T): the start token, then the labels without the last one of each target.

        After a target's last label there is padding, not `</s>`: as an input `</s>` would make a target in a batch one
        token longer than alone.
        """
        require_tokens(labels)
        # The config refuses None for either.
        start_id, pad_id = cast(int, self.config.decoder_start_token_id), cast(int, self.config.pad_token_id)
        start = labels.new_full((len(labels), 1), start_id)
        has_later_label = (labels != -100).flip(1).cumsum(1).flip(1)[:, 1:] > 0
        shifted = torch.cat((start, labels[:, :-1].masked_fill(~has_later_label, -100)), dim=1)
        return shifted.masked_fill(shifted == -100, pad_id)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, object]:
        """transformers' inputs of a step, with positions computed from the mask before a static cache makes it 4-D.

        With `track_attention`, because the target's length is unknown.
        """
        kwargs.pop("tokenizer", None)  # `generate` reads stop strings with it and passes it on
        mask = kwargs.get("decoder_attention_mask")
        if kwargs.get("decoder_position_ids") is None and mask is not None and mask.ndim == 2:
            kwargs["decoder_position_ids"] = positions_from_mask(mask, mask.shape[1])
        inputs = super().prepare_inputs_for_generation(input_ids, **rename_cache(kwargs))
        return inputs | {"track_attention": True}
