# SPDX-License-Identifier: Apache-2.0
"""Validation of registered classes, a user's encoding or alignment."""

from collections.abc import Iterable

# Hooks and properties by their names in hf_posenc 0.2. They are optional, so without this table the model would ignore
# an old name, and train without it.
RENAMED_IN_0_3 = {
    "encoding": {
        "training_positions": "augment_positions",
        "check": "validate",
        "order_blind": "permutation_equivariant",
        "reversal_blind": "reversal_equivariant",
        "has_state": "is_stateful",
        "needs_another": "is_modifier",
        "silent_at_zero": "zero_init_is_identity",
        "longest": "max_length_field",
        "knobs": "config_parameters",
        "also_called": "aliases",
        "clip_distance": "max_distance",
        "sees_far": "is_global",
        "keeps_width": "preserves_head_dim",
    },
    "alignment": {
        "places": "source_positions",
        "follow": "update",
        "reads_lengths": "uses_target_length",
        "measured": "estimate",
        "knobs": "config_parameters",
    },
}


def validate_registration(kind: str, name: str, new_class: type, base: type, existing: type | None) -> None:
    """Raise an error unless `new_class` can be registered as `name`; `kind` is "encoding" or "alignment".

    `existing` is the class that has the name already, if one has. The same class may be registered again, as by a
    notebook cell that runs twice. Raises a ValueError for a name that is taken or not lower-case letters, digits and
    underscores. Raises a TypeError for a class that does not inherit `base` alone, or has names of hf_posenc 0.2.
    """
    if not (name.isidentifier() and name == name.lower()):
        raise ValueError(f"An {kind}'s name is made of lower-case letters, digits and underscores, not {name!r}.")
    if new_class.__bases__ != (base,):
        raise TypeError(
            f"An {kind} inherits {base.__name__} and nothing else, but {new_class.__name__} inherits "
            f"{', '.join(cls.__name__ for cls in new_class.__bases__)}; derive it from hf_posenc.{base.__name__}."
        )
    if existing is not None and qualified_name(existing) != qualified_name(new_class):
        raise ValueError(f"`{name}` is already the name of {existing.__name__}; choose another name.")
    validate_attribute_names(kind, new_class, vars(new_class))


def validate_attribute_names(kind: str, new_class: type, names: Iterable[str]) -> None:
    """Raise a TypeError, with the new names, if the attributes `names` of a class include names of hf_posenc 0.2."""
    renamed = RENAMED_IN_0_3[kind]
    outdated = [name for name in names if name in renamed]
    if outdated:
        instructions = ", ".join(f"`{name}` to `{renamed[name]}`" for name in outdated)
        raise TypeError(
            f"An {kind} must use the names of hf_posenc 0.3, but {new_class.__name__} has names of 0.2, which are "
            f"ignored; rename {instructions}."
        )


def qualified_name(new_class: type) -> tuple[str, str]:
    """Module and name of a class, which identify it when its code runs again."""
    return new_class.__module__, new_class.__qualname__
