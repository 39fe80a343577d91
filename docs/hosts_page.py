"""docs/reference/hosts.md: which models of transformers can have other position encodings.

    python docs/hosts_page.py        checks every decoder-only and masked language model, and writes the page

Each model class is made in a small size with random weights, and `hf_posenc.hosts.host_checks` probes it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from hf_posenc.hosts.host_checks import objection_of_copy

PAGE = Path(__file__).parent / "reference" / "hosts.md"
INTRODUCTION = """# Hosts of other position encodings

Here you see which models of transformers {version} `hf_posenc.replace_positions` accepts, and why it refuses others.
[Replace the positions of a model](../howto/replace_positions.md) says how to use it.

`python docs/hosts_page.py` wrote this page. It makes each class in a small size with random weights, and accepts it if
all of this holds:

- The host's own encoding through our attention function gives the same bits.
- Without positions, and where all tokens see each other, a permutation of the tokens permutes the outputs. With the
  host's own positions it does not.
- A window of one token bounds how far the first token's effect reaches.
- Padding on the left changes nothing, and neither does decoding with a cache.

The same checks run on a small copy of your model before `replace_positions` changes it. A table names the model type of
`config.json` and the class.
"""


def tables() -> dict[str, dict[str, str]]:
    """By heading, the model types with their class."""
    kinds = {
        "Decoder-only": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "Masked language models": MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    return {heading: dict(sorted(own_hosts(names))) for heading, names in kinds.items()}


def own_hosts(names: dict[str, str | tuple[str, ...]]) -> Iterable[tuple[str, str]]:
    """transformers' own model types of a table, each with its class."""
    for model_type, name in names.items():
        class_name = name if isinstance(name, str) else name[0]
        if hasattr(transformers, class_name):  # others are registered from outside
            yield model_type, class_name


def objection(model_type: str, class_name: str) -> str | None:
    """Why this class is refused, None if it is supported."""
    try:
        config = CONFIG_MAPPING[model_type]()
    except Exception as error:  # some defaults are no valid config
        return f"has no default config ({type(error).__name__})"
    return objection_of_copy(getattr(transformers, class_name), config)


def write_page() -> None:
    """Check all classes and write the page."""
    parts = [INTRODUCTION.format(version=transformers.__version__.rpartition(".")[0])]
    for heading, classes in tables().items():
        supported, refused = [], defaultdict(list)
        for model_type, class_name in classes.items():
            reason = objection(model_type, class_name)
            print(model_type, class_name, "supported" if reason is None else reason, sep="\t", file=sys.stderr)
            cell = f"`{model_type}` {class_name}"
            if reason is None:
                supported.append(cell)
            else:
                refused[reason.replace("|", "/")].append(cell)
        lines = [f"## {heading}", "", f"{len(supported)} of {len(classes)} classes are supported."]
        lines += ["", "| supported |", "| --- |", *(f"| {cell} |" for cell in supported)]
        lines += ["", "| refused, because it | class |", "| --- | --- |"]
        for reason, cells in sorted(refused.items(), key=lambda item: -len(item[1])):
            lines += [f"| {reason} | {cell} |" for cell in cells]
        parts.append("\n".join(lines) + "\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    write_page()
