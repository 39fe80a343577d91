# SPDX-License-Identifier: Apache-2.0
"""What a user's class must be to be registered, as an encoding or as an alignment."""


def validate_registration(kind: str, name: str, new_class: type, base: type, existing: type | None) -> None:
    """Refuse what cannot be registered; `existing` is the class that has the name already, if one has.

    The same class again is welcome, as from a notebook's cell that is run again. A ValueError for a name that is taken
    or not lower-case letters, digits and underscores, a TypeError for a class that does not inherit `base` alone.
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


def qualified_name(new_class: type) -> tuple[str, str]:
    return new_class.__module__, new_class.__qualname__
