"""Loading by transformers' Auto classes, without ever running code of what is loaded."""

from os import PathLike
from typing import Any


def auto_from_pretrained(auto: Any, name: str | PathLike[str] | None, **options: object) -> Any:
    """What `auto`, an Auto class, makes of a checkpoint, which is a folder or a name on the Hub.

    A ValueError for one that cannot be loaded without code of its own: it is of another family, or its tokenizer is.
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
