# SPDX-License-Identifier: Apache-2.0
"""The model card of a host with other positions: what was changed, how it is loaded, and which programs refuse it."""

from pathlib import Path
from typing import Any

from huggingface_hub.constants import REPOCARD_NAME

CARD = """---
library_name: transformers
tags:
- hf_posenc
---

# {architecture}

The position encoding of this model was replaced by the Python package hf_posenc. In `config.json`,
`position_encoding_type` is `{encoding}`; `host` stands for a layer's own positions.

The checkpoint loads with `import hf_posenc` before transformers' Auto classes, or without the package with
`trust_remote_code=True`, because it carries its code.

vLLM, llama.cpp and other programs with model code of their own do not have the model type `{model_type}`, and
refuse the checkpoint. Do not rename the type. Under the host's type, such a program would ignore the change and
compute the host's own positions, without an error and with wrong results.
"""


def write_host_card(folder: Path, config: Any) -> None:
    """Write the card into the folder of a saved host, unless it has one. `config` is a HostConfig."""
    path = folder / REPOCARD_NAME
    if path.exists():
        return
    encodings = ", ".join(dict.fromkeys(config.layer_encodings))
    architecture = next(iter(config.architectures or ()), type(config).__name__)
    text = CARD.format(architecture=architecture, encoding=encodings, model_type=config.to_dict()["model_type"])
    path.write_text(text, encoding="utf-8")
