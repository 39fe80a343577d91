"""Where the decoder is in the source: the laws of every alignment, and each one's oracle."""

import math

import pytest
import torch
from conftest import BEFORE_5_18, padded, sentences, tiny_config, tiny_model
from test_laws import EXACT, HOLES, cache_for, decode, gradients
from transformers import AutoModelForSeq2SeqLM

from hf_posenc import ALIGNMENTS, Alignment, Place, PosEncConfig, RnnNmtConfig, register_alignment
from hf_posenc.modeling.alignment import mean_step, source_ends
from hf_posenc.modeling.alignments import build_alignment

ALIGNED = [name for name in ALIGNMENTS if name != "none"]
FOLLOWING = [name for name in ALIGNED if ALIGNMENTS[name].follow is not None]
CROSS = ["rotary+window", "relative+window", "relative_key"]
SMALL = {"window_size": 2, "cross_window_size": 3, "relative_clip": 3, "recurrent_hidden_size": 5, "recurrent_reach": 3}


def aligned_model(alignment: str, cross: str = "rotary+window", **changes):
    fields = {"cross_position_encoding_type": cross, "alignment_type": alignment} | SMALL
    return tiny_model("relative+window", **(fields | changes))


def places_in(model):
    """What the model's alignment answers from now on, one tensor (B, T) a forward."""
    found = []
    hook = lambda module, asked, answer: found.append(answer) if asked[0] == "places" else None  # noqa: E731
    model.model.decoder.alignment.register_forward_hook(hook)
    return found


@pytest.fixture(params=ALIGNED)
def alignment(request):
    return request.param
