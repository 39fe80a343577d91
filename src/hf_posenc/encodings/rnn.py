# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks over padded batches, with padding on any side."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# torch's state: h of a GRU, (h, c) of an LSTM, each (layers x directions, B, N).
RnnState = Tensor | tuple[Tensor, ...]


def run_rnn(rnn: nn.RNNBase, x_BTD: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, RnnState]:
    """Outputs (B, T, N) and last states of `rnn` (batch first), for each sentence as without padding.

    N is the width times the number of directions. Last states have torch's form. `mask_BT` is True for tokens, at any
    positions, and None without padding. A unidirectional network reads the tokens of every sentence before its padding,
    in one dense call; its last states are then those after the padding. A bidirectional network reads torch's packed
    sequences, which have no padding. Outputs at padding are undefined.
    """
    if mask_BT is None:
        return run_dense_rnn(rnn, x_BTD)
    refuse_adapter(rnn)
    tokens_before_BT, num_tokens_B1 = mask_BT.cumsum(1) - 1, mask_BT.sum(1, keepdim=True)
    padding_before_BT = (~mask_BT).cumsum(1) - 1
    # Each sentence's tokens come first, then its padding.
    order_BT1 = torch.where(mask_BT, tokens_before_BT, num_tokens_B1 + padding_before_BT)[..., None]
    tokens_BTD = torch.zeros_like(x_BTD).scatter(1, order_BT1.expand_as(x_BTD), x_BTD)
    if rnn.bidirectional:
        lengths_B = num_tokens_B1[:, 0].clamp(min=1).cpu()
        packed = pack_padded_sequence(tokens_BTD, lengths_B, batch_first=True, enforce_sorted=False)
        outputs, last_state = rnn(packed)
        outputs_BTN, _ = pad_packed_sequence(outputs, batch_first=True, total_length=mask_BT.shape[1])
    else:
        outputs_BTN, last_state = run_dense_rnn(rnn, tokens_BTD)
    return outputs_BTN.gather(1, order_BT1.expand_as(outputs_BTN)), last_state


def run_dense_rnn(rnn: nn.RNNBase, x_BTD: Tensor, state: RnnState | None = None) -> tuple[Tensor, RnnState]:
    """Outputs (B, T, N) and last states of `rnn` for a batch without padding, from the initial `state`.

    Under autocast it computes in the dtype of its weights if the processor has no LSTM in autocast's dtype.
    """
    refuse_adapter(rnn)
    if rnn.mode != "LSTM" or x_BTD.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return rnn(x_BTD, state)
    if supports_lstm(torch.get_autocast_dtype("cpu"), torch.is_grad_enabled()):
        return rnn(x_BTD, state)
    dtype = rnn.all_weights[0][0].dtype
    with torch.autocast("cpu", enabled=False):
        return rnn(x_BTD.to(dtype), None if state is None else tuple(part.to(dtype) for part in state))


def refuse_adapter(rnn: nn.Module) -> None:
    """Raise a ValueError for an adapter in place of a network."""
    if not isinstance(rnn, nn.RNNBase):
        raise ValueError(
            f"A recurrent network must not have adapters of its weights, because torch would not read them, but this "
            f"one has a {type(rnn).__name__}; leave it out of LoRA's target_parameters, or train the encoding whole "
            "with modules_to_save."
        )


@torch.compiler.disable  # tracing cannot run the probe
@cache
def supports_lstm(dtype: torch.dtype, trained: bool) -> bool:
    """Whether this processor has an LSTM in `dtype` under autocast, with gradients if `trained`.

    torch checks the processor for tensors of that dtype, but not for tensors that autocast converts for oneDNN.
    Therefore a tiny LSTM is run. It samples no random number.
    """
    x = torch.ones(1, 1, 1, device="cpu")
    weights = [torch.ones(4, 1, device="cpu", requires_grad=trained) for _ in range(2)]
    try:
        with torch.set_grad_enabled(trained), torch.autocast("cpu", dtype):
            outputs, _, _ = torch.lstm(x, (x, x), weights, False, 1, 0.0, trained, False, True)
            if trained:
                outputs.sum().backward()
    except RuntimeError:
        return False
    return True
