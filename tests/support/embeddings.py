"""Models with tied, shared and separate tables."""

from torch import Tensor

from hf_posenc.transformer.encoder_decoder import ConditionalGeneration
from support.models import sentences, tiny_model

# A weight that moved in memory may change the last bit of a product.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


OLD = 31


TABLES = {
    "three tables": {},
    "a tied projection": {"tie_word_embeddings": True},
    "shared embeddings": {"share_encoder_decoder_embeddings": True},
    "one table": {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
}


FAMILIES = ["relative", "gru+relative", "rnn_nmt"]


def model_of(where: str, tables: dict) -> ConditionalGeneration:
    return tiny_model(where, vocab_size=OLD, decoder_vocab_size=OLD, output_bias=True, **tables)


def inputs(vocab_size: int = 25) -> dict[str, Tensor]:
    """Tokens that every vocabulary here has."""
    return {
        "input_ids": sentences(3, 6, seed=1, vocab_size=vocab_size),
        "decoder_input_ids": sentences(3, 5, seed=2, vocab_size=vocab_size),
    }
