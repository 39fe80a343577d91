"""Saved checkpoints load with this package, and without it or a user's own file."""

import json
import subprocess
import sys
import types

import pytest
import torch
from support.causal import tiny_causal_model
from support.hub_files import (
    EXACT,
    HIDDEN,
    assert_found,
    assert_loads_again,
    code_of,
    inputs,
    stranger,
    without_package,
)
from support.models import (
    ALIGNED,
    EVERY_ENCODING,
    REGISTERED,
    SINGLE,
    SUMS,
    sentences,
    tiny_config,
    tiny_model,
    translator,
)
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncConfig,
    PosEncForConditionalGeneration,
    PosEncModel,
    PositionEncoding,
    RnnNmtConfig,
    RnnNmtForConditionalGeneration,
    RnnNmtModel,
    register_position_encoding,
)

SHARED = [*(SINGLE if EVERY_ENCODING else ["forgetting"]), "sinusoidal+relative", "rotary to learned", "rnn_nmt"]
FAMILIES = ["relative", "rnn_nmt"]
ENTRIES = POSITION_ENCODINGS.values()


# Loads each checkpoint of a folder by the code that it carries, and computes.
LOADS_ALL = """
import sys
import torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

torch.set_num_threads(1)
folder = Path(sys.argv[1])
logits = {}
for place in sorted(path.parent for path in folder.glob("*/config.json")):
    config = AutoConfig.from_pretrained(place, trust_remote_code=True)
    type(config)()  # as transformers 5.17 does to print a config
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto_class.from_pretrained(place, dtype=torch.float64, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules")
    # Long enough for each plan of attention.
    ids = 3 + torch.arange(min(600, config.max_source_length or 600))[None] % 20
    inputs = {"decoder_input_ids": ids[:, :6]} if config.is_encoder_decoder else {}
    with torch.no_grad():
        logits[place.name] = model(input_ids=ids, **inputs).logits
torch.save(logits, folder / "logits.pt")
"""


@pytest.mark.slow
@torch.no_grad()
def test_the_code_of_each_encoding_and_alignment_is_enough(tmp_path):
    """As a checkpoint carries no others, each needs a load of its own; also of decoder-only models."""
    folder = tmp_path / "saved"
    models = {sides: tiny_model(sides) for sides in [*REGISTERED, *SUMS, *ALIGNED, "rnn_nmt"]}
    models |= {f"causal {sides}": tiny_causal_model(sides) for sides in SINGLE}
    for name, model in models.items():
        model.save_pretrained(folder / name)
    without_package(HIDDEN + LOADS_ALL, str(folder), home=tmp_path / "home")
    found = torch.load(folder / "logits.pt")
    assert found.keys() == models.keys()
    for name, model in models.items():
        ids = 3 + torch.arange(min(600, model.config.max_source_length or 600))[None] % 20
        inputs = {"decoder_input_ids": ids[:, :6]} if model.config.is_encoder_decoder else {}
        torch.testing.assert_close(found[name], model(input_ids=ids, **inputs).logits, **EXACT)


@pytest.mark.slow
def test_a_process_without_the_package_gives_equal_logits_and_tokens(tokenizer, tmp_path):
    models, places = {}, {}
    for where in SHARED:
        models[where], places[where] = translator(where), tmp_path / "saved" / where
        models[where].save_pretrained(places[where])
        tokenizer.save_pretrained(places[where])
    found = stranger(tmp_path, places)
    assert set(found) == set(models)
    for name, model in models.items():
        assert_found(found[name], model, tokenizer)
        assert_loads_again(tmp_path / "again" / name, found[name], model)


@pytest.mark.full
@torch.no_grad()
def test_the_auto_classes_know_what_was_saved(family, tmp_path):
    transformer = (PosEncConfig, PosEncModel, PosEncForConditionalGeneration)
    recurrent = (RnnNmtConfig, RnnNmtModel, RnnNmtForConditionalGeneration)
    model = tiny_model(family)
    model.save_pretrained(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model")
    base = AutoModel.from_pretrained(tmp_path / "model", dtype=torch.float64)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    assert (type(config), type(base), type(whole)) == (recurrent if family == "rnn_nmt" else transformer)
    torch.testing.assert_close(whole(**inputs()).logits, model(**inputs()).logits, **EXACT)
    torch.testing.assert_close(base(**inputs()).last_hidden_state, model.model(**inputs()).last_hidden_state, **EXACT)


@pytest.mark.parametrize("part", ["whole", "base"])
@pytest.mark.parametrize(("where", "stem"), [("sinusoidal+relative", "posenc"), ("rnn_nmt", "rnn_nmt")])
def test_a_saved_folder_holds_the_code_it_needs_and_nothing_else(tmp_path, where, stem, part):
    model = tiny_model(where)
    (model if part == "whole" else model.model).save_pretrained(tmp_path)
    code = code_of(model.config)
    expected = code | {"config.json", "model.safetensors"} | ({"generation_config.json"} if part == "whole" else set())
    assert {path.name for path in tmp_path.iterdir()} == expected
    other = {"posenc": "rnn_nmt", "rnn_nmt": "posenc"}[stem]
    assert not code & {"tokenization_posenc.py", f"configuration_{other}.py", f"modeling_{other}.py"}
    # Of the encodings a checkpoint has those of its config alone.
    encodings = (tmp_path / "encodings.py").read_text()
    classes = {entry.encoding.__name__ for entry in ENTRIES if f"class {entry.encoding.__name__}(" in encodings}
    assert classes == ({"PositionEncoding", "Relative", "Sinusoidal"} if stem == "posenc" else set())
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert all(f"{target.partition('.')[0]}.py" in code for target in auto_map.values())


@pytest.mark.full
@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("tied", [False, True], ids=["own projection", "tied projection"])
@pytest.mark.parametrize("shared", [False, True], ids=["own embeddings", "shared embeddings"])
@pytest.mark.parametrize("where", FAMILIES)
@torch.no_grad()
def test_tied_and_shared_tables_stay_so_and_equal(tmp_path, where, shared, tied, output_bias):
    model = tiny_model(
        where,
        vocab_size=31,
        decoder_vocab_size=31,
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=tied,
        output_bias=output_bias,
    )
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is type(model)
    torch.testing.assert_close(again(**inputs()).logits, model(**inputs()).logits, **EXACT)
    for one in (
        model,
        again,
        tiny_model(
            where,
            seed=9,
            vocab_size=31,
            decoder_vocab_size=31,
            share_encoder_decoder_embeddings=shared,
            tie_word_embeddings=tied,
        ),
    ):
        encoder, decoder = one.model.encoder.embed_tokens.weight, one.model.decoder.embed_tokens.weight
        assert (encoder is decoder) == shared
        assert (one.lm_head.weight is decoder) == tied
        assert not shared or one.model.shared.weight is encoder
    assert (again.final_logits_bias is not None) == output_bias
    base = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(base(**inputs()).last_hidden_state, model.model(**inputs()).last_hidden_state, **EXACT)


@pytest.mark.parametrize("shared", [False, True], ids=["own embeddings", "shared embeddings"])
@pytest.mark.parametrize("where", FAMILIES)
def test_given_embeddings_are_those_of_both_sides_where_they_share(where, shared):
    model = tiny_model(where, vocab_size=31, decoder_vocab_size=31, share_encoder_decoder_embeddings=shared)
    assert model.get_input_embeddings() is (model.model.shared if shared else model.model.encoder.embed_tokens)
    model.set_input_embeddings(torch.nn.Embedding(31, 16, dtype=torch.float64))
    assert (model.model.encoder.embed_tokens is model.model.decoder.embed_tokens) == shared


# A user's own encoding

LINEAR_BIAS = '''
"""Attention falls off with the distance: ALiBi, https://arxiv.org/abs/2108.12409, here for both directions."""

import torch
from torch import nn
from hf_posenc import (
    PositionEncoding,
    distance,
    register_position_encoding,
)


class LinearBias(PositionEncoding):
    summary = "A slope."
    shift_invariant = True

    def __init__(self, config, side):
        super().__init__(config, side)
        self.slopes = nn.Parameter(torch.empty(side.heads))

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        return -distance(ctx.query_pos_BQ, ctx.key_pos_BS).abs()[:, None] * self.slopes[:, None, None]

    def init_weights(self):
        from transformers import initialization as init
        init.ones_(self.slopes)


register_position_encoding("linear_bias", LinearBias)
'''


@pytest.fixture
def linear_bias(tmp_path, monkeypatch, unregistered_after):
    """The user's file, imported from where Python finds it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_linear_bias.py").write_text(LINEAR_BIAS)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    import my_linear_bias

    yield my_linear_bias
    del sys.modules["my_linear_bias"]


MIDDLE = """
import torch
from hf_posenc import Alignment, register_alignment


class Middle(Alignment):
    summary = "Always the middle of the source."

    def source_positions(self, x_BTD, encoder_states_BSD, ctx):
        return ctx.key_pos_BS.amax(1, keepdim=True).expand(len(x_BTD), x_BTD.shape[1]).to(x_BTD.dtype) / 2


register_alignment("middle", Middle)
"""


@pytest.mark.slow
def test_a_file_that_registers_both_travels_with_its_checkpoint(tokenizer, tmp_path, monkeypatch, unregistered_after):
    (tmp_path / "my_pair.py").write_text(LINEAR_BIAS + MIDDLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_pair  # noqa: F401

    model, folder = translator("linear_bias by middle"), tmp_path / "saved"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = stranger(tmp_path, {"pair": folder})
    assert_found(found["pair"], model, tokenizer)


@pytest.mark.slow
def test_a_users_own_alignment_travels_with_its_checkpoint(tokenizer, tmp_path, monkeypatch, unregistered_after):
    (tmp_path / "my_middle.py").write_text(MIDDLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_middle  # noqa: F401

    model, folder = translator("relative by middle"), tmp_path / "saved"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert "hf_posenc" not in (folder / "registered_my_middle.py").read_text()
    assert (folder / "configuration_posenc.py").read_text().count("from .registered_") == 1
    found = stranger(tmp_path, {"middle": folder})
    assert_found(found["middle"], model, tokenizer)


def test_an_output_bias_is_not_dropped_in_silence(tmp_path):
    tiny_model("relative", output_bias=True).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"output_bias": False}))
    with pytest.raises(ValueError, match=r"fit the config.* unexpected: final_logits_bias\."):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path), "which has none"


@pytest.mark.full
def test_a_users_own_encoding_trains_and_travels_with_its_checkpoint(linear_bias, tokenizer, tmp_path):
    models, places = {}, {}
    for where in ("linear_bias", "sinusoidal+linear_bias", "rotary to linear_bias"):
        model = translator(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        model.train()(input_ids=inputs()["input_ids"], labels=sentences(2, 5, seed=4)).loss.backward()
        optimizer.step()
        slopes = [name for name, _ in model.named_parameters() if "slopes" in name]
        assert slopes
        assert all(not torch.equal(before[name], model.get_parameter(name)) for name in slopes)
        places[where] = folder = tmp_path / "saved" / where
        models[where] = model.eval()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        carried = (folder / "registered_my_linear_bias.py").read_text()
        assert "hf_posenc" not in carried
        # A second save changes nothing.
        code = {path: path.read_text() for path in folder.glob("*.py")}
        model.save_pretrained(folder)
        assert {path: path.read_text() for path in folder.glob("*.py")} == code
        assert type(AutoModelForSeq2SeqLM.from_pretrained(folder)) is PosEncForConditionalGeneration
    found = stranger(tmp_path, places)
    for name, model in models.items():
        assert_found(found[name], model, tokenizer)
        # What a stranger saved again still carries the file.
        assert (tmp_path / "again" / name / "registered_my_linear_bias.py").exists()


@pytest.mark.full
@pytest.mark.parametrize("how", ["model", "config", "saved model", "saved config"])
def test_a_users_own_encoding_is_pushed_with_its_file(linear_bias, hub, tmp_path, how):
    model = tiny_model("sinusoidal+linear_bias")
    pushing = model if how.endswith("model") else model.config
    if how.startswith("saved"):
        pushing.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="someone/biased")
    else:
        pushing.push_to_hub("someone/biased")
    pushed = hub.repositories["someone/biased"].files()
    assert b"class LinearBias(PositionEncoding)" in pushed["registered_my_linear_bias.py"]
    assert b"from .registered_my_linear_bias import LinearBias" in pushed["configuration_posenc.py"]


def test_a_checkpoint_that_does_not_use_it_does_not_carry_a_users_file(linear_bias, tmp_path):
    tiny_model("none").save_pretrained(tmp_path / "model")
    assert not list((tmp_path / "model").glob("registered_*"))
    assert all("linear_bias" not in path.read_text().lower() for path in (tmp_path / "model").glob("*.py"))


def test_a_checkpoint_carries_encodings_whose_parameters_it_saves(tmp_path):
    """Its config would otherwise name a field that its code does not have."""
    tiny_config("none", t5_buckets=8).save_pretrained(tmp_path)
    encodings = (tmp_path / "encodings.py").read_text()
    assert "class T5(" in encodings and "class Relative(" not in encodings


def test_an_encoding_of_a_notebook_is_not_carried_and_a_warning_says_so(unregistered_after, tmp_path):
    notebook = types.ModuleType("a_notebook")
    exec(compile(LINEAR_BIAS, "<cell>", "exec"), notebook.__dict__)
    model = tiny_model("linear_bias")
    with pytest.warns(
        UserWarning,
        match="the code of `linear_bias`.*; move it",
    ):
        model.save_pretrained(tmp_path / "model")
    again = PosEncForConditionalGeneration.from_pretrained(tmp_path / "model", dtype=torch.float64)
    torch.testing.assert_close(again(**inputs()).logits, model(**inputs()).logits, **EXACT)


@pytest.mark.full
def test_a_scripts_own_encoding_is_not_carried_and_a_warning_says_so(tmp_path):
    """The script would run again wherever the checkpoint is loaded."""
    saving = """
from hf_posenc import PosEncConfig, PosEncModel
sizes = {name: 8 for name in ("vocab_size", "d_model", "encoder_ffn_dim", "decoder_ffn_dim")}
PosEncModel(PosEncConfig(position_encoding_type="linear_bias", **sizes)).save_pretrained("model")
"""
    (tmp_path / "script.py").write_text(LINEAR_BIAS + saving)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "does not carry the code of `linear_bias`" in ran.stderr
    assert "was not defined in a file that can be imported; move it" in ran.stderr
    assert not list((tmp_path / "model").glob("registered_*"))


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        ("from hf_posenc import (", "import hf_posenc\nfrom hf_posenc import (", "imports hf_posenc as a whole"),
        (
            "    distance,",
            "    distance,\n    load_length_buckets,",
            "`load_length_buckets` of hf_posenc is not copied",
        ),
        (
            "    distance,",
            "    distance,\n    PosEncConfig,",
            "`PosEncConfig` of hf_posenc is not copied",
        ),
        (
            "    distance,",
            "    distance,\n)\nfrom .neighbour import X as X\nfrom hf_posenc import (",
            "from its neighbours",
        ),
        ("    distance,", "    distance,\n)\nfrom hf_posenc import *\nfrom hf_posenc import (", r"imports \* from"),
        (
            'register_position_encoding("',
            'import hf_posenc as h; h.register_position_encoding("',
            "imports hf_posenc as a whole|call it at its foot",
        ),
        (
            'register_position_encoding("linear_bias", LinearBias)',
            'register_position_encoding("linear_bias", LinearBias)\ndel LinearBias',
            "has no LinearBias at its top",
        ),
    ],
    ids=[
        "a whole import",
        "an import of what is not copied",
        "an import of what imports it",
        "an import of a neighbour",
        "an import of everything",
        "no call of its own",
        "a class that cannot be imported",
    ],
)
def test_a_file_that_cannot_travel_is_not_carried_and_a_warning_says_why(
    tmp_path, monkeypatch, unregistered_after, line, instead, reason
):
    (tmp_path / "mine_too").mkdir()
    (tmp_path / "mine_too" / "neighbour.py").write_text("X = 1\n")
    (tmp_path / "mine_too" / "my_other_bias.py").write_text(LINEAR_BIAS.replace(line, instead))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        __import__("mine_too.my_other_bias")
        with pytest.warns(UserWarning, match=f"code of `linear_bias`.*({reason})"):
            tiny_model("linear_bias").save_pretrained(tmp_path / "model")
        assert not list((tmp_path / "model").glob("registered_*"))
    finally:
        for name in [name for name in sys.modules if name.startswith("mine_too")]:
            del sys.modules[name]


FACTS = {"summary": "A fact.", "shift_invariant": True}


class Own(PositionEncoding):
    """An encoding that answers nothing."""


class Derived(Own):
    """Derived from an encoding, which the house forbids."""


class Twofold(PositionEncoding, dict):
    """Derived from two classes."""


@pytest.mark.parametrize("taken", REGISTERED)
def test_a_taken_name_is_refused(unregistered_after, taken):
    with pytest.raises(ValueError, match=f"`{taken}` is already .*; choose"):
        register_position_encoding(taken, Own, **FACTS)


@pytest.mark.parametrize("taken", ["learned", "rotary"])
def test_a_taken_name_is_refused_even_to_a_class_of_the_same_name(unregistered_after, taken):
    namesake = type(POSITION_ENCODINGS[taken].encoding.__name__, (PositionEncoding,), {"__module__": __name__})
    with pytest.raises(ValueError, match=f"`{taken}` is already .*; choose"):
        register_position_encoding(taken, namesake, **FACTS)


@pytest.mark.parametrize("bad", ["", "Own", "my own", "my-own", "1st", "a+b", "a to b"])
def test_a_bad_name_is_refused(unregistered_after, bad):
    with pytest.raises(ValueError, match=r"lower-case letters, digits and underscores"):
        register_position_encoding(bad, Own, **FACTS)


@pytest.mark.parametrize("bad", [Derived, Twofold, torch.nn.Module])
def test_a_class_that_inherits_anything_else_is_refused(unregistered_after, bad):
    with pytest.raises(TypeError, match=r"inherits PositionEncoding .*derive"):
        register_position_encoding("own", bad, **FACTS)
    assert "own" not in POSITION_ENCODINGS


def test_a_file_may_be_run_twice_as_a_notebooks_cell_is(unregistered_after):
    register_position_encoding("own", Own, **FACTS)
    register_position_encoding("own", Own, **FACTS | {"summary": "Another."})
    assert POSITION_ENCODINGS["own"].summary == "Another."
    assert tiny_config("own").position_encoding_type == "own"


def test_a_bias_that_is_stated_twice_is_refused():
    with pytest.raises(TypeError, match="Twice has distance_bias and score_bias; leave one"):

        class Twice(PositionEncoding):
            def distance_bias(self, distance_N):
                return -distance_N.abs()[None]

            def score_bias(self, q_BHQK, k_BHSK, ctx):
                return -ctx.distance_BQS.abs()[:, None]
