# SPDX-License-Identifier: Apache-2.0
"""A longer table of absolute positions for a model of transformers, made from its own.

The model's class and type stay, so that every program that loads the model loads it with the longer table too.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .modeling_posenc_host import stack_of, table_name

# Buffers with an entry for each position: the positions themselves, and types of tokens where none are given.
BUFFERS = ("position_ids", "token_type_ids")


def interpolated_rows(table_PD: Tensor, length: int) -> Tensor:
    """`length` rows that divide the distance from the first row to the last equally, by linear interpolation."""
    rows_1DN = nn.functional.interpolate(table_PD.T[None], size=length, mode="linear", align_corners=True)
    return rows_1DN[0].T


def repeated_rows(table_PD: Tensor, length: int) -> Tensor:
    """`length` rows that repeat the table from its start as often as needed."""
    return table_PD[torch.arange(length, device=table_PD.device) % len(table_PD)]


METHODS = {"interpolate": interpolated_rows, "repeat": repeated_rows}


def lengthen_table(
    model: PreTrainedModel, max_position_embeddings: int, method: str = "interpolate"
) -> PreTrainedModel:
    """Lengthen the table of absolute positions of a model such as BERT, RoBERTa or GPT-2, in place.

    Args:
        model: a model of transformers with a table of positions.
        max_position_embeddings: the new value of this field of its config.
        method: "interpolate" spreads the trained rows over the new length, so that all positions change. "repeat"
            begins the table again after its end, so that inputs up to the old length give the same outputs.

    Returns the same model. Its class is unchanged, and it is saved and loaded as before. Rows that no token has as its
    position, such as the first two of RoBERTa, stay where they are.

    Raises a ValueError for a model without a table, a length that is not larger, and an unknown method.

    "repeat" is from Iz Beltagy et al. Longformer: The Long-Document Transformer. 2020. https://arxiv.org/abs/2004.05150
    """
    base, name = stack_of(model), table_name(model)
    table = None if name is None else model.get_submodule(name)
    if name is None or not isinstance(table, nn.Embedding):
        raise ValueError(
            f"{type(model).__name__} must have a table of positions, but it has none; call replace_positions with "
            "rope_parameters for a model with a rotation."
        )
    old_length = base.config.max_position_embeddings
    if not max_position_embeddings > old_length:
        raise ValueError(
            f"max_position_embeddings must exceed {old_length}, which the model has, but it is "
            f"{max_position_embeddings}; give a larger one."
        )
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, but it is {method!r}; choose one of them.")
    rows_PD, num_added = table.weight.detach(), max_position_embeddings - old_length
    # RoBERTa's positions begin behind its padding index, OPT's at 2 in a table that has two rows more.
    first = len(rows_PD) - old_length if table.padding_idx is None else table.padding_idx + 1
    new_PD = METHODS[method](rows_PD[first:], len(rows_PD) - first + num_added)
    table.weight = nn.Parameter(torch.cat([rows_PD[:first], new_PD]), requires_grad=table.weight.requires_grad)
    table.num_embeddings = len(table.weight)
    for module in model.modules():
        for buffer_name, values in list(module.named_buffers(recurse=False)):
            if buffer_name in BUFFERS and values.shape[-1] == old_length:
                longer = nn.functional.pad(values, (0, num_added))
                if buffer_name == "position_ids":
                    longer = torch.arange(longer.shape[-1], device=values.device).expand_as(longer).clone()
                setattr(module, buffer_name, longer)
    base.config.max_position_embeddings = max_position_embeddings
    return model
