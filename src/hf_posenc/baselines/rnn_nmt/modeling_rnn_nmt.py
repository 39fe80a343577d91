# SPDX-License-Identifier: Apache-2.0
"""RNN-NMT: recurrent encoder and decoder, with attention between them and no position encoding.

    m_s = BiLSTM(x_1 ... x_S)_s,    (h_t, c_t) = LSTM([y_t ; a_(t-1)], (h, c)_(t-1))
    p_ts = softmax_s(h_t . W_a m_s),    a_t = tanh(W_c [h_t ; sum_s p_ts m_s]),    logits_t = W a_t

where h_t is the concatenation of the outputs of all decoder layers. The initial (h, c) are the encoder's last ones, of
all layers and directions, each through a linear map and tanh (the bridges); a_0 is zero.

The "general" score and input feeding (a_(t-1) is an input of step t) are Luong et al.'s. The sizes, the bridges and the
score over all layers are those of the baseline in Neishi & Yoshinaga (2019).

Departure: the output projection has no bias unless `output_bias=True`; theirs has one. With input feeding each step
depends on the one before it. Therefore the decoder is a loop over the target's tokens, in training too. Shape letters
are those of encodings/base.py; N is the width of all decoder layers together.
"""

from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults

from ...encodings.base import LUONG, NEISHI
from ...encodings.cache import state_of_cache
from ...encodings.positions import new_valid_mask
from ...encodings.rnn import run_dense_rnn, run_rnn
from ...generation.model_inputs import CACHE_NAME, encoder_states_error, normalize_model_inputs
from ...transformer.encoder_decoder import (
    ConditionalGeneration,
    DecoderOutput,
    EncoderDecoder,
    EncoderDecoderOutput,
)
from ...transformer.pretrained import PosEncPreTrainedModel, Stack
from .configuration_rnn_nmt import RnnNmtConfig

ModelT = TypeVar("ModelT", bound=type[PosEncPreTrainedModel])


@dataclass
class RnnNmtEncoderOutput(BaseModelOutput):
    """Encoder states `last_hidden_state` (B, S, 2D), and the last h and c of all layers and directions, concatenated
    (B, 2 x layers x D each)."""

    last_h: Tensor | None = None
    last_c: Tensor | None = None


def with_recurrent_flags(model_class: ModelT) -> ModelT:
    """Class decorator: the flags of a model that has no attention back ends, no gradient checkpointing, and no layers
    that must stay on one device."""
    model_class.supports_gradient_checkpointing = model_class._can_compile_fullgraph = False
    model_class._supports_sdpa = model_class._supports_flex_attn = model_class._supports_flash_attn = False
    model_class._no_split_modules = None
    return model_class


def lstm(config: RnnNmtConfig, input_size: int, num_layers: int, **options: bool) -> nn.LSTM:
    """An LSTM with dropout between its layers, and none after the last."""
    dropout = config.dropout if num_layers > 1 else 0.0
    return nn.LSTM(input_size, config.d_model, num_layers, batch_first=True, dropout=dropout, **options)


@with_recurrent_flags
class RnnNmtEncoder(Stack):
    """Encoder: source tokens (B, S) to encoder states (B, S, 2D), and the LSTM's last states."""

    config: RnnNmtConfig

    def __init__(self, config: RnnNmtConfig) -> None:
        super().__init__(config, vocab_size=config.vocab_size)
        self.lstm = lstm(config, config.d_model, config.encoder_layers, bidirectional=True)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> RnnNmtEncoderOutput:
        """Source (B, S) to encoder states (B, S, 2D)."""
        x_BSD = self.embed(input_ids, inputs_embeds)
        encoder_states, (h, c) = run_rnn(self.lstm, x_BSD, new_valid_mask(attention_mask, x_BSD.shape[1]))
        return RnnNmtEncoderOutput(
            last_hidden_state=encoder_states, last_h=h.transpose(0, 1).flatten(1), last_c=c.transpose(0, 1).flatten(1)
        )


@with_recurrent_flags
class RnnNmtDecoder(Stack):
    """Decoder: target tokens (B, T) and encoder states (B, S, 2D) to hidden states (B, T, D).

    Its state is the concatenation of h, c and the input feed a_t (B, 2N + D).
    """

    config: RnnNmtConfig

    def __init__(self, config: RnnNmtConfig) -> None:
        super().__init__(config, vocab_size=config.target_vocab_size)
        encoder_dim, self.layers_dim = 2 * config.d_model, config.decoder_layers * config.d_model
        self.lstm = lstm(config, 2 * config.d_model, config.decoder_layers)
        self.h_bridge = nn.Linear(config.encoder_layers * encoder_dim, self.layers_dim)
        self.c_bridge = nn.Linear(config.encoder_layers * encoder_dim, self.layers_dim)
        self.score = nn.Linear(encoder_dim, self.layers_dim, bias=False)
        self.combine = nn.Linear(self.layers_dim + encoder_dim, config.d_model, bias=False)
        self.post_init()

    @normalize_model_inputs
    @merge_with_config_defaults
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        encoder_last: tuple[Tensor, Tensor] | None = None,
        **kwargs: object,
    ) -> DecoderOutput:
        """Target (B, T) and encoder states (B, S, 2D) to hidden states (B, T, D), token by token.

        `encoder_last` are the encoder's last h and c; the first step of a decoding needs them.
        """
        if encoder_hidden_states is None or 0 in encoder_hidden_states.shape[:2]:
            raise encoder_states_error(encoder_hidden_states)
        output_attentions = kwargs.get("output_attentions", self.config.output_attentions)
        x_BTD = self.embed(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        cached = None if cache is None else state_of_cache(cache.self_attention_cache)
        num_new, num_cached = x_BTD.shape[1], 0 if cache is None else cache.get_seq_length()
        mask_BT = new_valid_mask(attention_mask, num_new, num_cached)
        keys_BSN = self.keys(encoder_hidden_states, cache)
        mask_BS = new_valid_mask(encoder_attention_mask, keys_BSN.shape[1])
        if cached is None or num_cached == 0:
            state_BM = self.initial_state(encoder_last)
        else:
            state_BM = cast(Tensor, cached.last("states", 2 * self.layers_dim + self.config.d_model))
        states, weights = [], []
        for token, x_BD in enumerate(x_BTD.unbind(1)):
            new_BM, p_BS = self.step(x_BD, state_BM, keys_BSN, encoder_hidden_states, mask_BS)
            state_BM = new_BM if mask_BT is None else torch.where(mask_BT[:, token, None], new_BM, state_BM)
            states.append(state_BM)
            weights.append(p_BS)
        states_BTM = torch.stack(states, dim=1)
        if cache is not None and cached is not None:
            cached.append("states", states_BTM)
            placeholder_B1T1 = states_BTM[:, None, :, :1]  # a cache counts tokens by its keys
            cache.self_attention_cache.update(placeholder_B1T1, placeholder_B1T1, 0)
        return DecoderOutput(
            last_hidden_state=states_BTM[..., -self.config.d_model :],
            **{CACHE_NAME: cache},
            cross_attentions=(torch.stack(weights, dim=1)[:, None],) if output_attentions else None,
        )

    def step(
        self, x_BD: Tensor, state_BM: Tensor, keys_BSN: Tensor, encoder_states: Tensor, mask_BS: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The state after one more token (B, 2N + D), and the attention weights (B, S)."""
        h_BN, c_BN, input_feed_BD = state_BM.split((self.layers_dim, self.layers_dim, x_BD.shape[-1]), dim=-1)
        by_layer = [s.unflatten(-1, (-1, x_BD.shape[-1])).transpose(0, 1).contiguous() for s in (h_BN, c_BN)]
        _, last = run_dense_rnn(self.lstm, torch.cat((x_BD, input_feed_BD), dim=-1)[:, None], tuple(by_layer))
        h_BN, c_BN = (s.transpose(0, 1).flatten(1) for s in last)
        scores_BS = (keys_BSN @ h_BN[..., None])[..., 0]
        if mask_BS is not None:
            scores_BS = scores_BS.masked_fill(~mask_BS, torch.finfo(scores_BS.dtype).min)
        softmax_dtype = torch.promote_types(scores_BS.dtype, torch.float32)
        p_BS = nn.functional.softmax(scores_BS, dim=-1, dtype=softmax_dtype).to(scores_BS.dtype)
        context = (p_BS[:, None] @ encoder_states)[:, 0]
        return torch.cat((h_BN, c_BN, self.combine(torch.cat((h_BN, context), dim=-1)).tanh()), dim=-1), p_BS

    def initial_state(self, encoder_last: tuple[Tensor, Tensor] | None) -> Tensor:
        """The state before the first token (B, 2N + D): the bridges of h and c, and a zero input feed."""
        if encoder_last is None or encoder_last[0] is None:
            raise ValueError(
                "RNN-NMT's decoder starts from the last states of its encoder, but encoder_outputs has none; give "
                "encoder_outputs as model.model.encoder(...) returned them."
            )
        last_h, last_c = encoder_last
        input_feed_BD = last_h.new_zeros(len(last_h), self.config.d_model)
        return torch.cat((self.h_bridge(last_h).tanh(), self.c_bridge(last_c).tanh(), input_feed_BD), dim=-1)

    def keys(self, encoder_states: Tensor, cache: EncoderDecoderCache | None) -> Tensor:
        """Keys W_a m of the encoder states (B, S, N), computed at the first step of cached decoding only."""
        if cache is None:
            return self.score(encoder_states)
        if not cache.is_updated.get(0):
            keys = self.score(encoder_states)[:, None]
            cache.cross_attention_cache.update(keys, keys[..., :0], 0)
            cache.is_updated[0] = True
        return cache.cross_attention_cache.layers[0].keys[:, 0]


@with_recurrent_flags
class RnnNmtModel(EncoderDecoder):
    """RNN-NMT without an output projection.

    It has no positions and no alignment. `position_ids`, `decoder_position_ids` and `track_attention`, which are inputs
    of the Transformer, are accepted and have no effect.
    """

    config: RnnNmtConfig
    encoder_class = RnnNmtEncoder
    decoder_class = RnnNmtDecoder

    @normalize_model_inputs
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        track_attention: bool = False,
        **kwargs: object,
    ) -> Seq2SeqModelOutput:
        """Source (B, S) and target (B, T) to hidden states (B, T, D)."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            encoder_last=tuple(encoder_outputs.get(name) for name in ("last_h", "last_c")),
            **kwargs,
        )
        return EncoderDecoderOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        )


@with_recurrent_flags
class RnnNmtForConditionalGeneration(ConditionalGeneration):
    """Translation model: an RnnNmtModel and the projection on the target vocabulary."""

    config: RnnNmtConfig
    base_model_class = RnnNmtModel
    summary = "RNN-NMT: recurrent encoder and decoder, with attention between them and no position encoding."
    references = (LUONG, NEISHI)

    @normalize_model_inputs
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        track_attention: bool = False,
        **kwargs: object,
    ) -> Seq2SeqLMOutput:
        """The inputs of RnnNmtModel to logits (B, T, V); with `labels` (B, T), -100 where ignored, also to a loss."""
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache,
            inputs_embeds,
            decoder_inputs_embeds,
            use_cache,
            **kwargs,
        )
        return self.logits_and_loss(outputs, labels, kwargs)


__all__ = ["RnnNmtForConditionalGeneration", "RnnNmtModel"]
