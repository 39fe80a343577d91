# SPDX-License-Identifier: Apache-2.0
"""What a user's class must be to be registered, as an encoding or as an alignment."""


def check_registration(kind: str, name: str, registered: type, base: type, taken: type | None) -> None:
    """Refuse what cannot be registered; `taken` is the class that has the name already, if one has.

    The same class again is welcome, as from a notebook's cell that is run again. A ValueError for a name that is taken
    or not lower-case letters, digits and underscores, a TypeError for a class that does not inherit `base` alone.
    """
    if not (name.isidentifier() and name == name.lower()):
        raise ValueError(f"An {kind}'s name is made of lower-case letters, digits and underscores, not {name!r}.")
    if registered.__bases__ != (base,):
        raise TypeError(
            f"An {kind} inherits {base.__name__} and nothing else, but {registered.__name__} inherits "
            f"{', '.join(one.__name__ for one in registered.__bases__)}; derive it from hf_posenc.{base.__name__}."
        )
    if taken is not None and identity(taken) != identity(registered):
        raise ValueError(f"`{name}` is already the name of {taken.__name__}; choose another name.")


def identity(registered: type) -> tuple[str, str]:
    return registered.__module__, registered.__qualname__
