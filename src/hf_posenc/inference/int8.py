"""Linear layers in int8 on a CPU, with a scale for each output channel and each token.

transformers' quantisers need a GPU or a further package. `torch._int_mm`, torch's int8 matrix product, is private
(tested with torch 2.13). If it is renamed, a quantised model raises an AttributeError.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Int8Linear(nn.Module):
    """Linear layer that computes in int8, with exact sums in int32.

    Each output channel and each input token has its own scale: with one scale for a batch a sentence's translation
    would depend on its neighbours.
    """

    weight_IO: Tensor
    scale_1O: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        int8_OI, scale_O1 = quantize_rows(linear.weight.detach())
        self.bias = linear.bias
        self.register_buffer("weight_IO", int8_OI.T)
        self.register_buffer("scale_1O", scale_O1.T)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        int8_NI, scale_N1 = quantize_rows(x.flatten(0, -2))
        y_NO = torch._int_mm(int8_NI, self.weight_IO) * scale_N1 * self.scale_1O
        return (y_NO if self.bias is None else y_NO + self.bias).unflatten(0, x.shape[:-1])


def quantize_rows(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from -127 to 127 (N, I) and the scale of each row (N, 1); their product approximates `x_NI`."""
    scale_N1 = x_NI.abs().amax(1, keepdim=True).clamp_min(torch.finfo(x_NI.dtype).tiny) / 127
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


def quantize_int8(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model whose linear layers compute in int8, on a CPU."""
    model = deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    return model
