# SPDX-License-Identifier: Apache-2.0
"""The decoder-only Transformer, with hooks for position encodings: PosEncModel's layers without cross-attention.

It calls hooks, never an encoding by name. The shape letters are those of encodings/base.py.
"""

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..encodings.base import VASWANI
from ..encodings.cache import cached_seq_length
from ..encodings.positions import document_mask, positions_from_mask
from ..generation.model_inputs import CACHE_NAME, normalize_model_inputs, rename_cache, require_tokens
from ..generation.translate import TranslationOutput, translate
from .attention import Attention
from .configuration_posenc_causal import PosEncCausalConfig
from .pretrained import PosEncPreTrainedModel
from .stack import PosEncEncoderLayer, PosEncStack


# `super().__init__` makes all modules; post_init follows. trf-ignore: TRF013
class PosEncCausalModel(PosEncStack):
    """Decoder-only Transformer without an output projection: tokens (B, T) to hidden states (B, T, D)."""

    # accelerate looks for each of these names, and refuses to shard a model without one.
    _no_split_modules = ["PosEncEncoderLayer"]
    config: PosEncCausalConfig
    layer_class = PosEncEncoderLayer
    _can_record_outputs = {"hidden_states": PosEncEncoderLayer, "attentions": Attention}

    def __init__(self, config: PosEncCausalConfig) -> None:
        super().__init__(config, config.side("decoder"))
        self.needs_state_cache = config.decoder_needs_state_cache
        self.validate_attn_implementation()
        self.post_init()

    @normalize_model_inputs
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> BaseModelOutputWithPast:
        """Tokens (B, T) to hidden states (B, T, D).

        `position_ids` (B, T) are used if given; else a token's position is the number of unmasked tokens before it. A
        2-D `attention_mask` covers the cached tokens and the new ones. Without a mask, a document begins wherever
        positions do not increase, and no token attends to another one; a ValueError before a recurrent layer.
        """
        x_BTD = self.embed(input_ids, inputs_embeds)
        if attention_mask is None and cache is None and position_ids is not None:
            attention_mask = self.packed_mask(position_ids.expand(x_BTD.shape[0], -1))
        self.refuse_cache_under_checkpointing(cache)
        if cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        num_cached = cached_seq_length(cache)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, x_BTD.shape[1], num_cached, x_BTD.device)
        output_attentions = kwargs.get("output_attentions")
        x_BTD, inputs = self.self_attention(x_BTD, attention_mask, position_ids, output_attentions, cache, num_cached)
        for layer in self.layers[: self.config.num_hidden_layers]:  # `generate` sets fewer, to draft by an early exit
            x_BTD = layer(x_BTD, inputs, cache=cache, **kwargs)
        x_BTD = x_BTD if self.layer_norm is None else self.layer_norm(x_BTD)
        return BaseModelOutputWithPast(last_hidden_state=x_BTD, **{CACHE_NAME: cache})

    def packed_mask(self, position_ids: Tensor) -> Tensor | None:
        """The mask of documents that follow each other in a row, from their positions (B, T); None for one document a
        row. While compiling, which may not look at positions, a mask in either case."""
        starts_BT = nn.functional.pad(position_ids.diff(dim=1) <= 0, (1, 0), value=True)
        if not torch.compiler.is_compiling():
            if not starts_BT[:, 1:].any():
                return None
            if self.config.decoder_is_sequential:
                raise ValueError(
                    "position_ids that begin again are those of several documents in a row, but a recurrent layer, as "
                    f"in {self.side.encoding!r}, reads over the end of a document; give each document a row of its own."
                )
        return document_mask(starts_BT)


class PosEncForCausalLM(PosEncPreTrainedModel, GenerationMixin):
    """Language model: a PosEncCausalModel and the projection on the vocabulary."""

    _no_split_modules = ["PosEncEncoderLayer"]
    config: PosEncCausalConfig
    base_model_class = PosEncCausalModel
    # Not an argument of `forward`: transformers' Trainer would look for labels of that name in every batch.
    loss_keywords = ("shift_labels",)
    summary = "The decoder-only Transformer."
    references = (VASWANI,)

    def __init__(self, config: PosEncCausalConfig) -> None:
        super().__init__(config)
        self.model = PosEncCausalModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._tied_weights_keys = self.tied_weight_keys()
        self.post_init()

    def tied_weight_keys(self) -> dict[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tie_word_embeddings else {}

    def sync_tying_config(self) -> None:
        self.config.tie_word_embeddings = self.lm_head.weight is self.model.embed_tokens.weight
        super().sync_tying_config()

    @normalize_model_inputs
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> CausalLMOutputWithPast:
        """The inputs of PosEncCausalModel to logits (B, T, V); with `labels` (B, T), -100 where ignored, to a loss too.

        The label of a token is the token itself: the loss compares it with the logits of the token before, in nats. It
        is the mean over label tokens, or the sum over the Trainer's `num_items_in_batch`. The keyword `shift_labels`
        (B, T) gives labels at the tokens whose logits predict them. `logits_to_keep` gives the last so many tokens'
        logits, or those at given indices; 0 for all. In training a cache is made only with `use_cache=True`.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None and shift_labels is None
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if shift_labels is not None:
            shift_labels = shift_labels.contiguous()  # transformers' loss cannot take a view, such as a slice
        if labels is not None or shift_labels is not None:
            loss = self.loss_function(
                logits, labels=labels, shift_labels=shift_labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def generate(self, inputs: Tensor | None = None, *args: Any, **options: Any) -> Any:
        """transformers' `generate`; a ValueError for a prompt without tokens."""
        prompt = options.get("inputs_embeds")
        if prompt is None:
            prompt = options.get("input_ids") if inputs is None else inputs
        require_tokens(prompt)
        return super().generate(inputs, *args, **options)

    def translations(
        self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, **options: Any
    ) -> TranslationOutput:
        """The continuations of `texts`, as PosEncForConditionalGeneration translates them, with the same options."""
        return translate(self, texts, tokenizer, **options)

    def translate(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, **options: Any) -> list[str]:
        """The texts of `translations`, which has the same options."""
        return self.translations(texts, tokenizer, **options).texts

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, object]:
        """transformers' inputs of a step, with the cache under the name that the installed version reads.

        `generate` takes `inputs_embeds` where it finds an argument of that name here.
        """
        kwargs.pop("tokenizer", None)  # `generate` reads stop strings with it and passes it on
        return super().prepare_inputs_for_generation(input_ids, inputs_embeds=inputs_embeds, **rename_cache(kwargs))


# transformers' Trainer shifts smoothed labels for the names in this table alone, and registration adds none.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[PosEncCausalConfig.model_type] = PosEncForCausalLM.__name__


__all__ = ["PosEncCausalModel", "PosEncForCausalLM"]
