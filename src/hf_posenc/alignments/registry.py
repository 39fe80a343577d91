# SPDX-License-Identifier: Apache-2.0
"""The registry of alignments: one import and one line for each. `alignment_type` is a key of `ALIGNMENTS`."""

from ..encodings.base import EncodingConfig, validate_registration
from ..hub.errors import closest_name
from .base import Alignment
from .fertility import Fertility
from .length_ratio import LengthRatio
from .recurrent import RecurrentAlignment

ALIGNMENTS: dict[str, type[Alignment]] = {
    "none": Alignment,
    "length_ratio": LengthRatio,
    "fertility": Fertility,
    "recurrent": RecurrentAlignment,
}


def register_alignment(name: str, alignment: type[Alignment]) -> None:
    """Register an alignment at run time, under a name that `alignment_type` then accepts.

    Call it at the foot of the file that defines the class: checkpoints that use the alignment then contain that file,
    as for an encoding. Raises a ValueError for a name that is taken or not lower-case letters, digits and underscores.
    Raises a TypeError for a class that inherits anything but Alignment.
    """
    validate_registration("alignment", name, alignment, Alignment, ALIGNMENTS.get(name))
    ALIGNMENTS[name] = alignment


def get_alignment(name: str) -> type[Alignment]:
    """The class registered as `name`; a ValueError with the nearest name for an unknown one."""
    if name not in ALIGNMENTS:
        raise ValueError(
            f"alignment_type={name!r} is no registered alignment (the nearest is {closest_name(name, ALIGNMENTS)!r}); "
            f"choose from {', '.join(ALIGNMENTS)}."
        )
    return ALIGNMENTS[name]


def build_alignment(config: EncodingConfig) -> Alignment:
    """The module of the alignment that the config names."""
    return get_alignment(config.alignment_type)(config, config.side("cross"))
