"""A tiny MarianMT model and its vocabulary."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

PAD, EOS = 28, 0  # Marian's habits: </s> is the first token, <pad> the last one, and also the start token.


SIZES = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
    "activation_function": "swish", "scale_embedding": True, "pad_token_id": PAD, "decoder_start_token_id": PAD,
    "eos_token_id": EOS, "forced_eos_token_id": EOS, "dropout": 0.0,
}  # fmt: skip


def tiny_marian(*, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> MarianMTModel:
    """A Marian with no parameter at zero or one and opus-mt's way of generating; in evaluation mode."""
    torch.manual_seed(seed)
    marian = MarianMTModel(MarianConfig(**(SIZES | changes)))
    marian.generation_config.update(bad_words_ids=[[PAD]], num_beams=4, max_length=24)
    with torch.no_grad():
        for weight in [*marian.parameters(), marian.final_logits_bias]:
            if weight.requires_grad or weight is marian.final_logits_bias:
                weight.add_(torch.randn_like(weight), alpha=0.2)
    return marian.to(dtype).eval()


class Words:
    """Marian's numbers in a tokenizer that needs no sentencepiece: </s> first, <pad> last, </s> behind each text."""

    LIST = ["</s>", "<unk>", *[f"word{i}" for i in range(2, PAD)], "<pad>"]

    @classmethod
    def tokenizer(cls) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(cls.LIST)}, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", padding_side="right"
        )
