"""Tables tied in memory are tied in saved checkpoints, whatever the config says; and the reverse."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from support.embeddings import EXACT, FAMILIES, TABLES, inputs, model_of
from torch import nn
from transformers import AutoModel, AutoModelForSeq2SeqLM

from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

FLAGS = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
of_tables = pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
of_families = pytest.mark.parametrize("where", [FAMILIES[0], pytest.param(FAMILIES[-1], marks=pytest.mark.full)])
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings(
        "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # peft asks by the old name
        "ignore:`past_key_values` is deprecated:FutureWarning",  # as peft names the cache of prefix tuning
        "ignore:Input and output embeddings are no longer tied after merging",  # what PEFT makes of separate tables
        "ignore:Model with `tie_word_embeddings=True` and the:UserWarning",
        "ignore:Model has `tie_word_embeddings=True` and a tied layer:UserWarning",
        "ignore:.*was set to `True` but no tied modules were found:UserWarning",
    ),
]


def flags_turned(model: ConditionalGeneration) -> None:
    for flag in FLAGS:
        setattr(model.config, flag, not getattr(model.config, flag))


def own_projection(model: ConditionalGeneration) -> None:
    model.set_output_embeddings(nn.Linear(16, model.config.decoder_vocab_size, bias=False, dtype=torch.float64))


def own_encoder_table(model: ConditionalGeneration) -> None:
    model.model.encoder.embed_tokens = copy.deepcopy(model.model.encoder.embed_tokens)


def own_decoder_table(model: ConditionalGeneration) -> None:
    model.model.decoder.embed_tokens = copy.deepcopy(model.model.decoder.embed_tokens)


def tied_by_hand(model: ConditionalGeneration) -> None:
    model.lm_head.weight = model.model.decoder.embed_tokens.weight


def shared_by_hand(model: ConditionalGeneration) -> None:
    model.model.decoder.embed_tokens = model.model.encoder.embed_tokens


def turned_and_resized(model: ConditionalGeneration) -> None:
    flags_turned(model)
    model.resize_token_embeddings(40)


CHANGES: dict[str, Callable[[ConditionalGeneration], None]] = {
    change.__name__: change
    for change in (
        flags_turned,
        own_projection,
        own_encoder_table,
        own_decoder_table,
        tied_by_hand,
        shared_by_hand,
        turned_and_resized,
    )
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "LoRA": {"target_modules": ["q_proj", "v_proj"]},
    "DoRA": {"target_modules": ["q_proj", "v_proj"], "use_dora": True},
    "LoRA of the projection": {"target_modules": ["q_proj", "lm_head"]},
    "LoRA of the tables": {"target_modules": ["q_proj", "embed_tokens"]},
    "a projection trained whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "tables trained whole": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
}


def one_table(model: ConditionalGeneration) -> tuple[bool, bool]:
    """Whether the output projection is the decoder's table, and whether the encoder's is."""
    decoder = model.model.decoder.embed_tokens.weight
    return model.lm_head.weight is decoder, model.model.encoder.embed_tokens.weight is decoder


@torch.no_grad()
def check_saved(model: ConditionalGeneration, folder: Path, **how: Any) -> None:
    """What is saved loads whole, with the same logits, tables and flags."""
    facts, expected = one_table(model), model(**inputs()).logits
    model.save_pretrained(folder, **how)
    again, found = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=expected.dtype, output_loading_info=True)
    assert not any(found.values()), found
    assert one_table(again) == facts == tuple(getattr(again.config, flag) for flag in FLAGS)
    torch.testing.assert_close(again(**inputs()).logits, expected, **EXACT)
    torch.testing.assert_close(model(**inputs()).logits, expected, **EXACT)
    base = AutoModel.from_pretrained(folder, dtype=expected.dtype)
    torch.testing.assert_close(base(**inputs()).last_hidden_state, model.model(**inputs()).last_hidden_state, **EXACT)


@of_families
@of_tables
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_saved_goes_by_the_tables_in_memory(where, tables, change, tmp_path):
    model = model_of(where, tables)
    change(model)
    if change is own_decoder_table and all(one_table(model_of(where, tables))):
        with pytest.raises(RuntimeError, match="shared tensors"):  # a projection that is the encoder's table alone
            model.save_pretrained(tmp_path)
        return
    check_saved(model, tmp_path)


@of_tables
@pytest.mark.parametrize(
    "adapter",
    [pytest.param(how, id=name, marks=[pytest.mark.full] * (name != "LoRA")) for name, how in ADAPTERS.items()],
)
def test_a_merged_adapter_is_saved_whole(tables, adapter, tmp_path):
    model = model_of("relative", tables)
    adapted = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, **adapter)).double()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        expected = adapted.eval()(**inputs()).logits
    merged = adapted.merge_and_unload()
    if not (any(tables.values()) and {"lm_head", "embed_tokens"} & set(adapter["target_modules"])):
        # What PEFT merges into one table for one of its uses changes the others, and PEFT says so.
        torch.testing.assert_close(merged(**inputs()).logits, expected, **EXACT)
    check_saved(merged, tmp_path)


FORMS: dict[str, Callable[[ConditionalGeneration], dict[str, Any]]] = {
    "in shards": lambda model: {"max_shard_size": "4KB"},
    "by a state": lambda model: {"state_dict": model.state_dict()},
    "by a copied state": lambda model: {"state_dict": {k: v.clone() for k, v in model.state_dict().items()}},
    "in bfloat16": lambda model: model.bfloat16() and {},
}


@pytest.mark.full
@pytest.mark.parametrize("tables", ["a tied projection", "one table"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("change", ["flags_turned", "own_encoder_table"])
def test_tables_go_by_memory_in_every_form_of_saving(tables, form, change, tmp_path):
    model = model_of("relative", TABLES[tables])
    CHANGES[change](model)
    check_saved(model, tmp_path, **form(model))


@of_tables
def test_a_model_trains_on_after_it_was_saved(tables, tmp_path):
    """As tied as before: a step changes tables that are one together, and others apart."""
    model = model_of("relative", tables)
    flags_turned(model)
    model.save_pretrained(tmp_path)
    facts = one_table(model)
    assert tuple(getattr(model.config, flag) for flag in FLAGS) == facts
    model(**inputs(), labels=inputs()["decoder_input_ids"]).loss.backward()
    model.tie_weights()
    assert one_table(model) == facts and model.get_input_embeddings().weight is model.model.encoder.embed_tokens.weight


@pytest.mark.parametrize("where", ["relative", "gru"])
def test_prefix_tuning_is_refused_with_what_works_instead(where):
    batch = inputs() | {"attention_mask": torch.ones_like(inputs()["input_ids"])}

    def adapted(kind: type) -> nn.Module:
        return get_peft_model(model_of(where, {}), kind(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2)).double()

    with pytest.raises(ValueError, match=r"prefix tuning .* take LoRA"):
        adapted(PrefixTuningConfig)(**batch)
    model = adapted(PromptTuningConfig)
    assert model.word_embeddings is model.base_model.model.encoder.embed_tokens
    model(**batch).logits.sum().backward()
    assert all(parameter.grad.any() for parameter in model.parameters() if parameter.requires_grad)
