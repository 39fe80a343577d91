"""Losses in pieces are those of `model(...).loss`; intervals are those of documents."""

import pytest
import torch
from support.causal import tiny_causal_model
from support.measured import LENGTHS, character_tokenizer, copy_model, periodic_texts
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_posenc import replace_positions
from hf_posenc.measure import scoring
from hf_posenc.measure.parts import DEPTHS, Job, context_loss, loss_by_position, retrieval
from hf_posenc.measure.scoring import mean_with_interval, score_tokens
from hf_posenc.measure.text import key_value_prompt, make_blocks

ARCHITECTURES = {
    "llama": {},
    "gemma2": {"final_logit_softcapping": 2.0, "head_dim": 8, "layer_types": ["full_attention", "sliding_attention"]},
    "cohere": {"logit_scale": 0.5},
    "gpt_neox": {},
    "gpt2": {},
    "opt": {"ffn_dim": 16, "word_embed_proj_dim": 8},
    "bart": {"is_decoder": True, "decoder_layers": 2, "d_model": 16, "decoder_attention_heads": 2},
    "mamba": {"state_size": 4},
}
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def tiny_model(architecture: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if architecture == "ours":
        return tiny_causal_model("rotary+window", dtype=torch.float32)
    sizes = SIZES | {"num_key_value_heads": 2} if architecture in ("llama", "gemma2", "cohere") else SIZES
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(architecture, **(sizes | special | ARCHITECTURES[architecture]))
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("architecture", ["ours", *ARCHITECTURES])
def test_losses_in_pieces_are_those_of_the_model(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(architecture)
    ids_T = torch.randint(3, 29, (23,))
    with torch.no_grad():
        outputs = model(ids_T[None], labels=ids_T[None])
    reference_N = nn.functional.cross_entropy(outputs.logits[0, :-1], ids_T[1:], reduction="none")
    monkeypatch.setattr(scoring, "MAX_LOGITS", 5 * model.config.vocab_size)
    losses_N, is_top_N = score_tokens(model, ids_T)
    torch.testing.assert_close(losses_N, reference_N, atol=1e-5, rtol=1e-5)
    if architecture != "bart":  # whose labels are those of the next token already
        torch.testing.assert_close(losses_N.mean(), outputs.loss, atol=1e-5, rtol=1e-5)
    assert is_top_N.tolist() == (outputs.logits[0, :-1].argmax(-1) == ids_T[1:]).tolist()
    torch.testing.assert_close(score_tokens(model, ids_T, 9)[0], reference_N[8:], atol=1e-5, rtol=1e-5)
    with torch.no_grad():  # the model is whole again
        torch.testing.assert_close(model(ids_T[None]).logits, outputs.logits)


def test_a_model_with_replaced_positions_is_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks compute positions for all tokens, not for a piece of them."""
    model = replace_positions(tiny_model("llama"), "rotary+window", window_size=3, window_sinks=1)
    ids_T = torch.randint(3, 29, (23,))
    whole_N, _ = score_tokens(model, ids_T)
    monkeypatch.setattr(scoring, "MAX_LOGITS", 5 * model.config.vocab_size)
    torch.testing.assert_close(score_tokens(model, ids_T)[0], whole_N, atol=1e-5, rtol=1e-5)
    assert type(model.base_model).__name__ == "LlamaModel"  # whole again


def make_job(model: PreTrainedModel, prefix: list[int]) -> Job:
    tokenizer = character_tokenizer()
    documents = [tokenizer(text)["input_ids"] for text in periodic_texts(LENGTHS[-1])]
    blocks = make_blocks(documents, prefix, LENGTHS[-1], max_blocks=3)
    return Job(model, tokenizer, blocks, LENGTHS, prefix, list(range(3, 100)), 1, progress=False)


@pytest.mark.parametrize("prefix", [[], [1]])
def test_context_is_cut_behind_the_special_tokens(prefix: list[int]) -> None:
    """A plain loop: the same last 16 tokens, from inputs of so many tokens."""
    job = make_job(copy_model(window=100), prefix)
    for length in LENGTHS:
        record = context_loss(job, length)
        for block, loss in zip(job.blocks, record["loss"], strict=True):
            cut = block.ids_T[len(block.ids_T) - length + len(prefix) :].tolist()
            ids_1T = torch.tensor([prefix + cut])
            logits_TV = job.model(ids_1T).logits[0]
            reference = nn.functional.cross_entropy(logits_TV[-17:-1], ids_1T[0, -16:])
            assert ids_1T.shape[1] == length
            assert loss == pytest.approx(reference.item(), abs=1e-5)


def test_loss_by_position_has_the_mean_of_the_models_loss() -> None:
    job = make_job(copy_model(window=100), [])
    for block, losses in zip(job.blocks, loss_by_position(job, LENGTHS[-1])["loss"], strict=True):
        logits_TV = job.model(block.ids_T[None]).logits[0]
        reference = nn.functional.cross_entropy(logits_TV[:-1], block.ids_T[1:])
        assert sum(losses) / len(losses) == pytest.approx(reference.item(), abs=1e-3)


def test_greedy_decoding_generates_the_answers_that_are_found() -> None:
    """Retrieval looks at the most likely tokens; `generate` of the same prompt must agree."""
    job = make_job(copy_model(window=64), [])
    found = retrieval(job, 128)["values"]
    assert found == [0, 0, 1, 1, 1]
    for depth, hit in zip(DEPTHS, found, strict=True):
        rng = job.random("values", 128, depth, 0)
        ids, size = key_value_prompt(job.tokenizer, [], rng, 128, depth) or ([], 0)
        asked = torch.tensor([ids[:-size]])
        answer = job.model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=size)[0, -size:]
        assert (answer.tolist() == ids[-size:]) == bool(hit)


def test_an_interval_is_that_of_documents() -> None:
    """Values of one document are resampled together: repeating them makes no interval shorter."""
    once = mean_with_interval([1.0, 2.0, 3.0], [0, 1, 2])
    many = mean_with_interval([1.0] * 9 + [2.0] * 9 + [3.0] * 9, [0] * 9 + [1] * 9 + [2] * 9)
    assert once["mean"] == many["mean"] == 2.0
    assert once["interval"] == many["interval"] == [1.0, 3.0]
    assert mean_with_interval([1.0, 2.0], [5, 5]) == {"mean": 1.5, "interval": None}
