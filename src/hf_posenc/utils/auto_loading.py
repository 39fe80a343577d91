"""Loading by transformers' Auto classes, without code from checkpoints."""

from os import PathLike
from typing import Any


def auto_from_pretrained(auto: Any, name: str | PathLike[str] | None, **options: object) -> Any:
    """The object that `auto`, an Auto class, loads from a checkpoint: a folder or a name on the Hub.

    Raises a ValueError for a checkpoint that needs its own code: a model or a tokenizer of another family.
    """
    try:
        return auto.from_pretrained(name, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"Code of a checkpoint must not run, but {name} needs code of its own ({auto.__name__}). Name a model of "
            "this family, whose tokenizer is PosEncTokenizer or one of transformers; or load it in a script of yours."
        ) from None
