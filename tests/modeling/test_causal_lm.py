"""The decoder-only model among its users: configs, Auto classes, checkpoints, Trainer, adapters, compilation."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from support.causal import tiny_causal_config, tiny_causal_model
from support.decoding import EXACT
from support.hub_files import HIDDEN, code_of, without_package
from support.models import (
    EVERY_ENCODING,
    REGISTERED,
    SINGLE,
    SMALL_PARAMETERS,
    SUMS,
    TEXTS,
    TEXTS_VOCABULARY,
    entries,
    sentences,
    tiny_config,
    tiny_model,
)
from torch import nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    CompileConfig,
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    StoppingCriteria,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncCausalConfig,
    PosEncCausalModel,
    PosEncConfig,
    PosEncForCausalLM,
    PosEncForConditionalGeneration,
)
from hf_posenc.convert.encodings import override_config
from hf_posenc.generation.translate import continue_prompts, max_continuation_lengths
from hf_posenc.lab.run.pipeline import prompting_tokenizer

RECURRENT = [name for name in REGISTERED + SUMS if any(entry.is_sequential for entry in entries(name))]
# A compilation takes long.
COMPILED = [name for name in REGISTERED + SUMS if name not in RECURRENT and (EVERY_ENCODING or name == "relative")]
IN_PARTS = RECURRENT if EVERY_ENCODING else ["lstm"]

ignore_torch_warnings = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore::DeprecationWarning:torch",
    "ignore::FutureWarning:torch",
    "ignore:.*:UserWarning:torch._inductor",
)


# Configs


def test_every_encoding_is_accepted_and_a_modifier_alone_is_refused(entry_name):
    """Each encoding acts in the causal self-attention of a decoder, and so in a decoder-only model."""
    if POSITION_ENCODINGS[entry_name].is_modifier:
        with pytest.raises(ValueError, match="position_encoding_type must have an encoding with position information"):
            tiny_causal_config(entry_name)
    else:
        assert tiny_causal_config(entry_name).side().is_causal


@pytest.mark.parametrize(
    "field",
    ["alignment_type", "cross_position_encoding_type", "decoder_position_encoding_type", "encoder_layers"],
)
def test_fields_of_an_encoder_decoder_are_refused_by_one_message(field):
    message = f"decoder-only model, which has neither encoder .* but {field} is given; .* or use PosEncConfig"
    with pytest.raises(ValueError, match=message):
        tiny_causal_config("relative", **{field: "none"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 18}, "hidden_size must be a multiple .* num_attention_heads=4; change one of them"),
        ({"num_attention_heads": 0}, "num_attention_heads must be from 1 to 1000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be from 1 to 1000"),
        ({"intermediate_size": 0}, "intermediate_size must be from 1 to"),
        ({"hidden_sise": 16}, "no field of PosEncCausalConfig; the nearest one is 'hidden_size'"),
        ({"position_encoding_type": "rotery"}, "nearest is 'rotary'"),
        ({"relative_clip": 0}, "`relative_clip` must be"),
        ({"is_encoder_decoder": True}, "decoder-only model, but is_encoder_decoder=True is given"),
        ({"hidden_act": "gulu"}, "hidden_act must be a name of .* nearest one is 'gelu'"),
    ],
)
def test_bad_values_are_refused_by_the_name_that_was_typed(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_causal_config("relative", **changes)


def test_an_encoder_decoders_names_of_shared_fields_are_read():
    config = PosEncCausalConfig(d_model=32, activation_function="gelu")
    assert (config.hidden_size, config.hidden_act) == (config.d_model, config.activation_function) == (32, "gelu")


@pytest.mark.full
def test_a_config_of_the_other_architecture_is_refused(tmp_path):
    causal, seq2seq = tiny_causal_config("relative"), tiny_config("relative")
    with pytest.raises(ValueError, match=r"PosEncForConditionalGeneration must be given .*'posenc'.*'posenc_causal'"):
        PosEncForConditionalGeneration(causal)
    for model_class in (PosEncForCausalLM, PosEncCausalModel):
        with pytest.raises(ValueError, match=r"must be given a config of model_type='posenc_causal'.*Auto class"):
            model_class(seq2seq)
    tiny_causal_model("relative").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"PosEncConfig reads configs of model_type='posenc'.*'posenc_causal'"):
        PosEncForConditionalGeneration.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"PosEncConfig reads configs of model_type='posenc'"):
        PosEncConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_a_saved_config_has_the_parameters_in_use_alone(tmp_path):
    config = tiny_causal_config("relative")
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["relative_clip"] == 3 and "window_size" not in saved
    assert not [name for name in saved if name.startswith(("encoder_", "decoder_", "cross_", "alignment"))]
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is PosEncCausalConfig
    assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


# Checkpoints


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_saved_model_loads_with_equal_logits(decoder_only, tied, target, tmp_path):
    model = tiny_causal_model(decoder_only, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    base = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert (type(whole), type(base)) == (PosEncForCausalLM, PosEncCausalModel)
    assert (whole.lm_head.weight is whole.model.embed_tokens.weight) == tied
    torch.testing.assert_close(whole(target).logits, model(target).logits, **EXACT)
    torch.testing.assert_close(base(target).last_hidden_state, model.model(target).last_hidden_state, **EXACT)


def flag_turned(model: PosEncForCausalLM) -> None:
    model.config.tie_word_embeddings = not model.config.tie_word_embeddings


def flag_turned_and_resized(model: PosEncForCausalLM) -> None:
    flag_turned(model)
    model.resize_token_embeddings(50)


def tied_by_hand(model: PosEncForCausalLM) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def untied_by_hand(model: PosEncForCausalLM) -> None:
    model.lm_head.weight = nn.Parameter(2 * model.model.embed_tokens.weight)


@pytest.mark.full
@pytest.mark.parametrize("change", [flag_turned, flag_turned_and_resized, tied_by_hand, untied_by_hand])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_what_is_saved_goes_by_the_tables_in_memory(change, tied, tmp_path):
    model, ids = tiny_causal_model("rotary", tie_word_embeddings=tied), sentences(2, 6)
    change(model)
    expected, is_tied = model(ids).logits, model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    loaded, found = PosEncForCausalLM.from_pretrained(tmp_path, dtype=model.dtype, output_loading_info=True)
    assert not any(found.values()), found
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied == loaded.config.tie_word_embeddings
    torch.testing.assert_close(loaded(ids).logits, expected, **EXACT)


@pytest.mark.parametrize("make", [tiny_causal_model, tiny_model])
def test_a_tied_projection_is_not_untied_at_random_by_a_keyword(make, tmp_path):
    model = make("rotary", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is its embedding table, and tie_word_embeddings=False .*; load it tied"):
        type(model).from_pretrained(tmp_path, tie_word_embeddings=False)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    tiny_causal_model("relative").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, problem in (
        ({"num_hidden_layers": 4}, r"missing: model\.layers\.3"),
        ({"num_hidden_layers": 2}, r"unexpected: model\.layers\.2"),
        ({"position_encoding_type": "t5"}, r"missing: model\.positions\.0\.table"),
        ({"intermediate_size": 24}, r"of another shape: model\.layers\.0\.fc1"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ValueError, match=f"weights must fit the config.*{problem}"):
            PosEncForCausalLM.from_pretrained(tmp_path)


@pytest.mark.full
def test_a_saved_folder_has_the_code_that_it_needs_and_nothing_else(tmp_path):
    tiny_causal_model("rotary").save_pretrained(tmp_path)
    code = code_of(tiny_causal_model("rotary").config)
    assert {path.name for path in tmp_path.iterdir()} == code | {
        "config.json",
        "model.safetensors",
        "generation_config.json",
    }
    assert not code & {"tokenization_posenc.py", "configuration_rnn_nmt.py", "modeling_rnn_nmt.py"}
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}


STRANGER = """
import sys, torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
found = {}
for place in sys.argv[2:]:
    trust = {"trust_remote_code": True}
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64, **trust).eval()
    base = AutoModel.from_pretrained(place, dtype=torch.float64, **trust).eval()
    tokenizer = AutoTokenizer.from_pretrained(place, **trust)
    prompt = tokenizer("Ein Hund.", return_tensors="pt")
    assert type(model).__module__.startswith("transformers_modules") and "hf_posenc" not in type(base).__module__
    with torch.no_grad():
        logits = model(**prompt).logits
        assert torch.equal(model.lm_head(base(**prompt).last_hidden_state), logits)
    tokens = model.generate(**prompt, num_beams=2, do_sample=False, max_new_tokens=6)
    model.save_pretrained(place + "-again")
    found[place] = {"logits": logits, "tokens": tokens, "text": model.translate(["Ein Hund."], tokenizer, num_beams=1)}
torch.save(found, sys.argv[1])
"""


@pytest.mark.capability("remote code, elsewhere", model="decoder-only")
@pytest.mark.slow
def test_a_process_without_the_package_gives_equal_logits_and_tokens(tokenizer, tmp_path):
    models, places = {}, {}
    for name in SINGLE if EVERY_ENCODING else ["rotary", "gru"]:
        models[name] = tiny_causal_model(name, vocab_size=TEXTS_VOCABULARY)
        places[name] = str(tmp_path / name)
        models[name].save_pretrained(places[name])
        tokenizer.save_pretrained(places[name])
    without_package(HIDDEN + STRANGER, str(tmp_path / "found.pt"), *places.values(), home=tmp_path / "home")
    found = torch.load(tmp_path / "found.pt")
    prompt = tokenizer("Ein Hund.", return_tensors="pt")
    for name, model in models.items():
        again = AutoModelForCausalLM.from_pretrained(places[name] + "-again", dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(found[places[name]]["logits"], model(**prompt).logits, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(again(**prompt).logits, model(**prompt).logits, rtol=1e-12, atol=1e-12)
        tokens = model.generate(**prompt, num_beams=2, do_sample=False, max_new_tokens=6)
        assert torch.equal(found[places[name]]["tokens"], tokens)
        assert found[places[name]]["text"] == model.translate(["Ein Hund."], tokenizer, num_beams=1)


# Tokenizer


def test_the_tokenizer_is_loaded_and_gives_prompts(tokenizer, tmp_path):
    model = tiny_causal_model("relative", vocab_size=TEXTS_VOCABULARY)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    prompts = loaded(TEXTS, padding=True, padding_side="left", return_tensors="pt")
    assert set(prompts) == {"input_ids", "attention_mask"}
    assert (prompts["input_ids"][:, -1] == loaded.eos_token_id).all()
    assert loaded(TEXTS[0], add_special_tokens=False)["input_ids"] == loaded(TEXTS[0])["input_ids"][:-1]
    assert model.generate(**prompts, max_new_tokens=3, do_sample=False).shape[0] == 2


@pytest.mark.parametrize("saved_with", ["pairs", "plain text"])
def test_what_bounds_an_input_stands_where_harnesses_read_it(entry_name, saved_with, tokenizer, tmp_path):
    """A table's length, in the config and in the saved tokenizer; no length without a table, and no prompt is cut."""
    entry = POSITION_ENCODINGS[entry_name]
    encoding = f"rotary+{entry_name}" if entry.is_modifier else entry_name
    config = tiny_causal_config(encoding)
    bound = None if entry.max_length_field is None else SMALL_PARAMETERS[entry.max_length_field]
    config.save_pretrained(tmp_path)
    for found in (config, PosEncCausalConfig.from_pretrained(tmp_path)):
        assert found.max_position_embeddings == found.max_sequence_length == bound
    prompting = prompting_tokenizer(tokenizer, config, is_text=saved_with == "plain text")
    prompting.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == (tokenizer.model_max_length if bound is None else bound)
    assert override_config(config, {"position_encoding_type": "rotary"}).max_position_embeddings is None


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_a_long_prompt_is_continued_by_a_default_number_of_tokens():
    model = tiny_causal_model("rotary", num_hidden_layers=1)
    ids = sentences(1, 1100)
    assert model.generate(ids, do_sample=False, eos_token_id=None).shape[1] == 1120
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    assert PosEncCausalConfig(rope_parameters=rope).max_position_embeddings == 256


@pytest.mark.decoding
def test_a_text_is_translated_in_a_batch_as_alone_and_as_generated(decoder_only, tokenizer):
    model = tiny_causal_model(decoder_only, vocab_size=TEXTS_VOCABULARY, seed=3)
    texts, options = [*TEXTS, ""], {"num_beams": 1, "max_new_tokens": 5}
    together = model.translations(texts, tokenizer, **options)
    assert together.texts == [model.translate([text], tokenizer, **options)[0] for text in texts]
    prompt = tokenizer(TEXTS[0], return_tensors="pt")
    generated = model.generate(**prompt, do_sample=False, max_new_tokens=5)[0, prompt["input_ids"].shape[1] :]
    assert together.texts[0] == tokenizer.decode(generated, skip_special_tokens=True)
    assert together.texts[2] == "" and not together.truncated[2]
    length = prompt["input_ids"].shape[1] + 5  # of source and target together, as in `generate`
    assert model.translate(TEXTS[:1], tokenizer, num_beams=1, max_length=length) == together.texts[:1]


@pytest.mark.decoding
def test_a_translation_ends_where_a_table_does_whatever_limit_is_given(tokenizer):
    model = tiny_causal_model("learned", vocab_size=TEXTS_VOCABULARY, learned_max_positions=24)
    never = {"num_beams": 1, "suppress_tokens": [tokenizer.eos_token_id]}
    made = model.translations(TEXTS[:2], tokenizer, max_new_tokens=100, **never)
    assert made.truncated == [True, True]
    assert made == model.translations(TEXTS[:2], tokenizer, **never)


@pytest.mark.full
@pytest.mark.decoding
def test_what_stops_a_sentence_does_not_truncate_it(tokenizer):
    class FirstStops(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.arange(len(input_ids)) == 0

    model = tiny_causal_model("rotary", vocab_size=TEXTS_VOCABULARY)
    never = {"num_beams": 1, "max_new_tokens": 6, "suppress_tokens": [tokenizer.eos_token_id, tokenizer.pad_token_id]}
    texts = sorted(TEXTS[:2], key=len, reverse=True)
    assert model.translations(texts, tokenizer, stopping_criteria=[FirstStops()], **never).truncated == [False, True]


@pytest.mark.full
@pytest.mark.decoding
def test_a_translation_ends_at_its_own_limit_whatever_the_batch(tokenizer):
    model = tiny_causal_model("rotary", vocab_size=TEXTS_VOCABULARY)
    texts = ["Ein Hund.", "Ein Hund. " * 4]
    sources = [tokenizer(text)["input_ids"] for text in texts]
    limits = max_continuation_lengths(model.config, sources)
    assert limits == [2 * (len(source) - 1) + 50 for source in sources]
    with torch.no_grad():  # a model that never writes an end token
        model.lm_head.weight[tokenizer.eos_token_id] = 0
        model.model.layer_norm.bias[:] = 0
    outputs = continue_prompts(model, sources, tokenizer, num_beams=1)
    alone = [continue_prompts(model, [source], tokenizer, num_beams=1)[0] for source in sources]
    assert outputs == alone


# Training


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_transformers_trainer_learns(tokenizer, tmp_path):
    model = tiny_causal_model("relative", vocab_size=TEXTS_VOCABULARY, dtype=torch.float32, dropout=0.0).train()
    rows = Dataset.from_dict({"input_ids": tokenizer(TEXTS)["input_ids"] * 4})
    options = {"max_steps": 8, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "report_to": "none"}
    trainer = Trainer(
        model,
        TrainingArguments(
            str(tmp_path), logging_steps=1, save_strategy="no", disable_tqdm=True, use_cpu=True, **options
        ),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]


def test_an_input_that_nothing_reads_is_refused(target):
    with pytest.raises(TypeError, match=r"reads no input 'atention_mask'.*nearest one is 'attention_mask'"):
        tiny_causal_model("relative")(target, atention_mask=torch.ones_like(target))


def test_a_cache_under_gradient_checkpointing_is_refused(target):
    model = tiny_causal_model("relative").train()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    with pytest.raises(ValueError, match="turn gradient checkpointing off"):
        model(target, cache=model(target, use_cache=True).past_key_values or object())


@pytest.mark.capability("LoRA", model="decoder-only")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@torch.enable_grad()
def test_low_rank_adapters_are_trained_saved_and_merged(decoder_only, target, tmp_path):
    model = tiny_causal_model(decoder_only, dropout=0.0)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    how = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules=linear)
    adapted = get_peft_model(copy.deepcopy(model), how).double()
    before = model(target).logits
    torch.testing.assert_close(adapted(target).logits, before, **EXACT)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # the second factor of an adapter begins at zero, so that the first learns a step later
        optimizer.zero_grad()
        adapted(target, labels=target).loss.backward()
        optimizer.step()
    after = adapted.eval()(target).logits
    assert (after - before).abs().max() > 1e-3
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double()
    torch.testing.assert_close(again(target).logits, after, **EXACT)
    torch.testing.assert_close(again.merge_and_unload()(target).logits, after, **EXACT)


@pytest.mark.capability("packed", model="decoder-only")
@pytest.mark.parametrize("form", ["Boolean", "additive"])
@torch.no_grad()
def test_packed_documents_equal_separate_ones(decoder_only, form):
    """By a mask of four dimensions, block by block, and positions that begin again."""
    if decoder_only in RECURRENT:
        pytest.skip("a recurrent layer reads over the end of a document")
    model, documents = tiny_causal_model(decoder_only), [sentences(1, n, seed=n) for n in (5, 3)]
    mask = torch.block_diag(*(torch.ones(row.shape[1], row.shape[1]) for row in documents)).tril()[None, None] > 0
    if form == "additive":
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e30)
    positions = torch.cat([torch.arange(row.shape[1]) for row in documents])[None]
    packed = model(torch.cat(documents, 1), attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(packed, torch.cat([model(row).logits for row in documents], 1), **EXACT)


@torch.no_grad()
def test_positions_that_begin_again_pack_documents_as_in_transformers(decoder_only):
    """As DataCollatorWithFlattening gives them: no mask, one row."""
    model, documents = tiny_causal_model(decoder_only), [sentences(1, n, seed=n) for n in (5, 1, 3)]
    features = [{"input_ids": row[0].tolist(), "labels": row[0].tolist()} for row in documents]
    batch = DataCollatorWithFlattening()(features)
    batch = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    if decoder_only in RECURRENT:
        with pytest.raises(ValueError, match=r"several documents in a row, but a recurrent layer.* row of its own"):
            model(**batch)
        return
    packed = model(**batch)
    torch.testing.assert_close(packed.logits, torch.cat([model(row).logits for row in documents], 1), **EXACT)
    losses = [(row.shape[1] - 1) * model(row, labels=row).loss for row in documents if row.shape[1] > 1]
    torch.testing.assert_close(packed.loss, sum(losses) / 6, rtol=1e-6, atol=1e-6)
    # A gap between positions begins no document.
    ids, gaps = sentences(2, 6), torch.tensor([[0, 1, 4, 5, 9, 10]])
    given = model(ids, position_ids=gaps).logits
    causal = torch.ones(6, 6).tril().bool().expand(2, 1, 6, 6)
    torch.testing.assert_close(given, model(ids, position_ids=gaps, attention_mask=causal).logits, **EXACT)


@pytest.mark.parametrize(
    "mask", [torch.ones(2, 1, 4, 4).tril().long(), torch.ones(2, 4, 4).tril() > 0], ids=["long", "3-D"]
)
def test_a_mask_that_would_hide_nothing_is_refused(mask):
    with pytest.raises(ValueError, match=r"must be \(batch, tokens\), .* it is of shape \(2, .*mask\.bool\(\) makes"):
        tiny_causal_model("alibi")(sentences(2, 4), attention_mask=mask)


# Training by transformers' own Trainer


def trained_by_transformers(model: PosEncForCausalLM, folder: Path, **settings: Any) -> Trainer:
    """Three sequences of six tokens, evaluated on themselves."""
    ids = sentences(3, 6).tolist()
    rows = Dataset.from_dict({"input_ids": ids, "labels": ids})
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=3, use_cpu=True, report_to="none", disable_tqdm=True, **settings
    )
    trainer = Trainer(
        model, args, train_dataset=rows, eval_dataset=rows, data_collator=default_data_collator,
        compute_metrics=lambda prediction: {"shape": list(prediction.predictions.shape)},
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.mark.full
def test_an_evaluation_of_transformers_has_a_loss_and_metrics(tmp_path):
    model = tiny_causal_model("rotary", dtype=torch.float32)
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}
    found = trained_by_transformers(model, tmp_path, max_steps=2, **best).evaluate()
    with torch.no_grad():
        assert found["eval_loss"] == pytest.approx(model(sentences(3, 6), labels=sentences(3, 6)).loss.item(), rel=1e-5)
    assert found["eval_shape"] == [3, 6, 29]


@pytest.mark.full
def test_smoothed_labels_are_those_of_the_next_token(tmp_path):
    model = tiny_causal_model("rotary", dtype=torch.float32, dropout=0.0)
    before = copy.deepcopy(model)
    settings = {"max_steps": 1, "learning_rate": 0.0, "label_smoothing_factor": 0.1, "logging_steps": 1}
    trainer = trained_by_transformers(model, tmp_path, **settings)
    logits, labels = before(sentences(3, 6)).logits[:, :-1], sentences(3, 6)[:, 1:]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks by the old name
@pytest.mark.full
def test_an_adapter_is_loaded_by_transformers(tmp_path):
    model, ids = tiny_causal_model("relative", dtype=torch.float32), sentences(2, 5)
    model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(TaskType.CAUSAL_LM, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model, lora)
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted.eval()(ids).logits
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded.load_adapter(str(tmp_path / "adapter"))
    for found in (loaded, AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")):
        torch.testing.assert_close(found(ids).logits, expected)


@pytest.mark.full
def test_generation_begins_with_embeddings_or_drafts_by_an_early_exit(decoder_only):
    model, ids = tiny_causal_model(decoder_only), sentences(1, 5)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **options)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, **options), expected[:, 5:])
    assert torch.equal(model.generate(ids, assistant_early_exit=1, **options), expected)
    assert model.config.num_hidden_layers == 3


# Compilation


@pytest.fixture
def forgetful():
    """torch forgets what it has compiled, before and after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def training_step(run, model, ids):
    """The loss and all gradients, by a model or by what torch compiled of it."""
    model.zero_grad()
    loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


@ignore_torch_warnings
@pytest.mark.capability("compile", "whole", model="decoder-only")
@pytest.mark.slow
@pytest.mark.parametrize("system", COMPILED)
def test_a_training_step_compiles_whole_and_twice_for_all_lengths(system, forgetful):
    model = tiny_causal_model(system, dropout=0.0, num_hidden_layers=1).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for length in (6, 7, 13, 17):
        ids = sentences(3, length)
        torch.testing.assert_close(training_step(compiled, model, ids), training_step(model, model, ids), **EXACT)
    assert counter.frame_count == 2


@ignore_torch_warnings
@pytest.mark.capability("compile", "in parts", model="decoder-only")
@pytest.mark.slow
@pytest.mark.parametrize("system", IN_PARTS)
def test_models_with_graph_breaks_compile_in_parts(system, forgetful):
    model, ids = tiny_causal_model(system, dropout=0.0, num_hidden_layers=1).train(), sentences(3, 6)
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        torch.compile(model, backend="eager", fullgraph=True)(ids)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(training_step(compiled, model, ids), training_step(model, model, ids), **EXACT)


@ignore_torch_warnings
@pytest.mark.capability("compiled decoding", model="decoder-only")
@pytest.mark.slow
@pytest.mark.parametrize("system", [*COMPILED, *IN_PARTS])
def test_a_static_cache_is_decoded_from_one_graph(system, forgetful, target):
    model, options = tiny_causal_model(system), {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    plain = model.generate(target, **options)
    counter, whole = CompileCounterWithBackend("eager"), system in COMPILED
    how = CompileConfig(backend=lambda graph, inputs, **_: counter(graph, inputs), mode=None, fullgraph=whole)
    how._compile_all_devices = True  # transformers compiles on accelerators only, unless it is told
    assert torch.equal(model.generate(target, **options, cache_implementation="static", compile_config=how), plain)
    assert counter.frame_count == 1 if whole else counter.frame_count > 1


@ignore_torch_warnings
@pytest.mark.capability("export", model="decoder-only")
@pytest.mark.slow
@pytest.mark.parametrize("system", COMPILED)
@torch.no_grad()
def test_an_exported_model_is_right_at_other_sizes(system):
    model, open_ = tiny_causal_model(system), {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = {"input_ids": sentences(3, 6), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    shapes = dict.fromkeys(inputs, open_) | {"use_cache": None}
    exported = torch.export.export(model, (), inputs | {"use_cache": False}, dynamic_shapes=shapes).module()
    for length in (7, 13):
        ids = sentences(5, length)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        torch.testing.assert_close(exported(**given).logits, model(**given).logits, **EXACT)
