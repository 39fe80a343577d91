"""The plan `distance` gives the outputs and gradients of all scores at once, for every encoding that states its bias as
a function of the distance."""

import pytest
import torch
from support.models import REGISTERED, gradients_after_a_step, padded, sentences, tiny_model
from torch import Tensor

from hf_posenc import POSITION_ENCODINGS
from hf_posenc.transformer.plans import selection

EXACT = {"rtol": 1e-10, "atol": 1e-10}
BY_DISTANCE = [name for name in REGISTERED if POSITION_ENCODINGS[name].encoding.distance_bias is not None]
SUMS = ["alibi+window", "t5+kerple", "rotary+window", "sinusoidal+alibi", "gru+t5", "t5+log_n"]


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The plans of a forward pass, in which every length is long for this plan, and short for others."""
    plans: list[object] = []

    def recorded(*arguments: object) -> object:
        plans.append(selection.choose_plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(selection, "MIN_LENGTHS", {"distance": 0, "linear": 10**6, "blocked": 10**6})
    monkeypatch.setattr("hf_posenc.transformer.stack.choose_plan", recorded)
    return plans


def batch_of(lengths: list[int], padding: str | None) -> dict[str, Tensor]:
    ids, mask = padded([sentences(1, length, seed=length)[0] for length in lengths], padding or "right")
    masks = {} if padding is None else {"attention_mask": mask, "decoder_attention_mask": mask}
    return {"input_ids": ids, "decoder_input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), **masks}


@pytest.mark.full
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", [*BY_DISTANCE, *SUMS])
def test_a_vector_of_biases_gives_the_outputs_and_gradients_of_all_scores(name, padding, chosen, monkeypatch):
    for lengths in ([1, 1], [5, 3], [19, 2]):
        batch = batch_of(lengths if padding else [max(lengths)] * 2, padding)
        results = []
        for min_length in (0, 10**6):
            monkeypatch.setitem(selection.MIN_LENGTHS, "distance", min_length)
            chosen.clear()
            model = tiny_model(name)
            logits = model(**batch, use_cache=False).logits
            assert [plan is not None and plan.name for plan in chosen] == ["distance" if min_length == 0 else False] * 2
            results.append((logits[batch["labels"] != -100], gradients_after_a_step(model, **batch)))
        torch.testing.assert_close(results[0], results[1], **EXACT)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_dropout_follows_torchs_seed(name, chosen):
    model, batch = tiny_model(name, attention_dropout=0.4).train(), batch_of([11, 7], "right")
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(**batch).loss.item())
    assert losses[0] == losses[1] != losses[2]
    assert all(plan.name == "distance" for plan in chosen)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_gradient_checkpointing_changes_nothing(name, chosen):
    batch, gradients = batch_of([11, 7], "left"), []
    for is_checkpointed in (False, True):
        model = tiny_model(name).train()
        if is_checkpointed:
            # Its name from 5.24 on, and the older one.
            (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
        torch.manual_seed(0)
        gradients.append(gradients_after_a_step(model, **batch))
    torch.testing.assert_close(gradients[0], gradients[1], **EXACT)


def test_all_scores_are_computed_with_a_cache_weights_gaps_or_values_of_another_width(chosen):
    ids = sentences(2, 7, seed=1)
    tiny_model("alibi")(input_ids=ids, decoder_input_ids=ids, use_cache=False, output_attentions=True)
    tiny_model("alibi")(input_ids=ids, decoder_input_ids=ids, position_ids=2 * torch.arange(7)[None], use_cache=True)
    tiny_model("pope+alibi")(input_ids=ids, decoder_input_ids=ids, use_cache=False)
    assert len(chosen) == 3 and chosen == [None] * 3  # with weights or a cache no plan is asked for
