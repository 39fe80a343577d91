"""Pushing and loading over HTTP: pushed checkpoints are complete and load by name and revision; broken ones are refused
with one clear error; no code of a checkpoint runs without trust."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.environments import LIGHT, linked_environment
from support.experiments import TINY
from support.hub_files import (
    EXACT,
    HIDDEN,
    MODEL_FILES,
    TOKENIZER_FILES,
    assert_found,
    assert_loads_again,
    code_of,
    inputs,
    stranger,
    without_package,
)
from support.hub_server import TOKEN, Hub
from support.models import ALIGNED, EVERY_ENCODING, KINDS, TEXTS, tiny_model, translator
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc
from hf_posenc import PosEncConfig, PosEncForConditionalGeneration, PosEncModel, PosEncTokenizer
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.run.pipeline import run_system, unfinished_systems
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.push_to_hub import pushed_files

pytestmark = pytest.mark.full


# By hand


@pytest.mark.parametrize(("where", "stem"), [("sinusoidal+relative", "posenc"), ("rnn_nmt", "rnn_nmt")])
@torch.no_grad()
def test_what_is_pushed_is_whole_and_loads_by_its_name(hub: Hub, tokenizer: PosEncTokenizer, where: str, stem: str):
    model = translator(where)
    model.push_to_hub("someone/tiny")
    tokenizer.push_to_hub("someone/tiny")
    code = code_of(model.config, with_tokenizer=True)
    pushed = {".gitattributes", "README.md", *code, *MODEL_FILES, *TOKENIZER_FILES}
    assert set(hub.repositories["someone/tiny"].files()) == pushed
    loaded = AutoModelForSeq2SeqLM.from_pretrained("someone/tiny", dtype=torch.float64)
    assert type(loaded) is type(model)
    assert type(AutoConfig.from_pretrained("someone/tiny")) is type(model.config)
    torch.testing.assert_close(loaded(**inputs()).logits, model(**inputs()).logits, **EXACT)
    base = AutoModel.from_pretrained("someone/tiny", dtype=torch.float64)
    torch.testing.assert_close(base(**inputs()).last_hidden_state, model.model(**inputs()).last_hidden_state, **EXACT)
    again = AutoTokenizer.from_pretrained("someone/tiny")
    assert type(again) is PosEncTokenizer
    assert again(TEXTS) == tokenizer(TEXTS)


@torch.no_grad()
@pytest.mark.full
def test_a_branch_a_tag_and_a_commit_each_have_their_own_weights(hub: Hub):
    first, second = tiny_model("relative"), tiny_model("relative", seed=5)
    first.push_to_hub("someone/tiny")
    repository = hub.repositories["someone/tiny"]
    repository.revisions["v1"] = repository.revisions["main"]
    first.push_to_hub("someone/tiny", revision="other")
    second.push_to_hub("someone/tiny", revision="other")
    second.push_to_hub("someone/tiny")
    commit = list(repository.commits)[1]
    for revision, model in ((None, second), ("main", second), ("other", second), ("v1", first), (commit, first)):
        loaded = AutoModelForSeq2SeqLM.from_pretrained("someone/tiny", revision=revision, dtype=torch.float64)
        torch.testing.assert_close(loaded(**inputs()).logits, model(**inputs()).logits, **EXACT)


def test_a_config_pushed_by_itself_reads_back(hub: Hub):
    PosEncConfig(relative_clip=7).push_to_hub("someone/config")
    assert AutoConfig.from_pretrained("someone/config").relative_clip == 7


# By train.py


def experiment(tmp_path: Path, *overrides: str, **systems: Any) -> Experiment:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": systems or {"gru+relative": {}}}), encoding="utf-8")
    return load_experiment(path, [f"output_dir={tmp_path / 'runs'}", "train.push_to_hub=true", *overrides])


@pytest.mark.full
def test_a_run_pushes_its_scored_model_with_its_card(hub: Hub, tmp_path: Path):
    run = experiment(tmp_path, "train.hub_private_repo=true")
    prepare(run)
    run_system(PreparedRun(run), "gru+relative")
    repository = hub.repositories["someone/tiny-gru-relative"]
    assert hub.asked["/api/repos/create"][0]["visibility"] == "private"
    assert repository.messages == ["initial commit", "Trained and scored"]
    folder = run.folder / "gru+relative" / "model"
    code = code_of(AutoConfig.from_pretrained(folder), with_tokenizer=True)
    for commit in repository.commits:
        for name, content in repository.files(commit).items():
            assert name == ".gitattributes" or name in pushed_files(folder), "nothing else of the Trainer's"
            assert str(tmp_path).encode() not in content, name
    # At the end there is what the run's folder holds, the card among it.
    pushed = repository.files()
    held = [path for path in folder.iterdir() if path.name != "manifest.json"]
    assert pushed.keys() - {".gitattributes"} == {path.name for path in held}
    assert pushed.keys() >= {"README.md", "training.json"} | code | MODEL_FILES | TOKENIZER_FILES
    assert all(pushed[path.name] == path.read_bytes() for path in held)
    card = pushed["README.md"].decode()
    assert 'from_pretrained("someone/tiny-gru-relative")' in card
    assert "name: BLEU" in card
    assert hub.asked["/api/validate-yaml"][0]["content"] == card
    model, tokenizer = (
        auto.from_pretrained("someone/tiny-gru-relative") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    assert model.translate(["Der Hund"], tokenizer) == AutoModelForSeq2SeqLM.from_pretrained(folder).translate(
        ["Der Hund"], tokenizer
    )
    record = json.loads((run.folder / "gru+relative" / "pushed.json").read_text(encoding="utf-8"))
    assert record == {"repository": "someone/tiny-gru-relative", "commit": repository.revisions["main"]}
    asked = len(repository.commits)
    run_system(PreparedRun(run), "gru+relative")
    assert len(repository.commits) == asked
    # What else lies there, or is linked, stays there.
    (tmp_path / "id_rsa").write_text("PRIVATE KEY")
    (folder / "notes.txt").symlink_to(tmp_path / "id_rsa")
    (folder / "id_rsa").write_text("PRIVATE KEY")
    (folder / "more").symlink_to(tmp_path)
    (run.folder / "gru+relative" / "pushed.json").unlink()
    run_system(PreparedRun(run), "gru+relative")
    assert repository.files().keys() == pushed.keys()


@pytest.mark.full
def test_a_run_whose_card_the_hub_refuses_keeps_all_and_pushes_when_asked_again(hub: Hub, tmp_path: Path, monkeypatch):
    run = experiment(tmp_path, "train.hub_model_id=lab/tiny")
    prepare(run)
    hub.refusal = '"license" must be one of ...'
    with pytest.raises(ValueError, match="must be one of"):
        run_system(PreparedRun(run), "gru+relative")
    repository = hub.repositories["lab/tiny"]
    assert repository.messages == ["initial commit"]
    assert unfinished_systems(PreparedRun(run)) == ["gru+relative"]
    scores = (run.folder / "gru+relative" / "scores.json").stat().st_mtime_ns
    hub.refusal = None
    run_system(PreparedRun(run), "gru+relative")
    assert repository.messages == ["initial commit", "Trained and scored"]
    assert not unfinished_systems(PreparedRun(run))
    assert (run.folder / "gru+relative" / "scores.json").stat().st_mtime_ns == scores


def test_no_repository_is_made_without_the_right_token_and_nothing_is_trained(hub: Hub, tmp_path: Path, monkeypatch):
    run = experiment(tmp_path)
    prepare(run)
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    with pytest.raises(OSError, match="401"):
        run_system(PreparedRun(run), "gru+relative")
    assert not (run.folder / "gru+relative" / "model").exists()


def test_a_token_in_a_config_is_refused(tmp_path: Path):
    """It would be saved in settings.yaml and shown by the card."""
    with pytest.raises(ValueError, match=r"train has no key 'hub_token'") as refused:
        prepare(experiment(tmp_path, f"train.hub_token={TOKEN}"))
    assert TOKEN not in str(refused.value)
    assert not list((tmp_path / "runs").rglob("settings.yaml"))


def test_two_systems_with_one_repository_are_refused(tmp_path: Path):
    shared = experiment(tmp_path, "train.hub_model_id=lab/tiny", one={}, other={})
    with pytest.raises(ValueError, match=r"one and other .* lab/tiny; .*train\.hub_mod"):
        prepare(shared)
    own = experiment(tmp_path, one={}, other={})
    names = [training_arguments(system.train, own.folder / name).hub_model_id for name, system in own.systems.items()]
    assert names == ["tiny-one", "tiny-other"]


# Code from a checkpoint


MARKER = 'open(__import__("os").environ["PLANTED"], "a").write(__file__ + chr(10))\n'


@pytest.fixture
def planted(tokenizer: PosEncTokenizer, tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A checkpoint whose every file of code would leave a trace."""
    folder = tmp_path / "planted"
    translator("relative").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.py"):
        file.write_text(MARKER + file.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setenv("PLANTED", str(tmp_path / "trace"))
    yield folder
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("trust", [None, False, True])
def test_where_the_package_is_no_code_of_a_checkpoint_runs_trusted_or_not(hub: Hub, planted: Path, trust: bool | None):
    hub_files = {path.name: path.read_bytes() for path in planted.iterdir()}
    translator("relative").push_to_hub("someone/planted")
    hub.repositories["someone/planted"].commit("main", hub_files, "planted")
    for place in (planted, "someone/planted"):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(place, trust_remote_code=trust)
        assert type(loaded) is PosEncForConditionalGeneration
        assert type(AutoModel.from_pretrained(place, trust_remote_code=trust)) is PosEncModel
        assert type(AutoConfig.from_pretrained(place, trust_remote_code=trust)) is PosEncConfig
        assert type(AutoTokenizer.from_pretrained(place, trust_remote_code=trust)) is PosEncTokenizer


UNTRUSTED = """
import os
import sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

for trust in ({}, {"trust_remote_code": False}):
    for auto in (AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer):
        try:
            auto.from_pretrained(sys.argv[1], **trust)
        except ValueError as error:
            print(error)
assert not os.path.exists(os.environ["PLANTED"])
AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert os.path.exists(os.environ["PLANTED"])
os.remove(os.environ["PLANTED"])
"""


@pytest.mark.slow
def test_where_the_package_is_not_a_checkpoints_code_runs_only_where_it_is_trusted(planted: Path, tmp_path: Path):
    printed = without_package(HIDDEN + UNTRUSTED, str(planted), home=tmp_path / "home")
    assert printed.count("trust_remote_code=True") >= 8


# What is broken


def edited(folder: Path, sides: str, **fields: Any) -> Path:
    """A saved model whose config.json has been changed by hand."""
    tiny_model(sides).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")
    return folder


def both(position_encoding_type: str) -> dict[str, str]:
    return dict.fromkeys(("position_encoding_type", "decoder_position_encoding_type"), position_encoding_type)


def pickled(folder: Path) -> Path:
    """A saved model whose weights are a pickle."""
    model = tiny_model("rotary")
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


NEWER = {"hf_posenc_version": "9.9.0"}
VERSIONS = rf"written by hf_posenc 9\.9\.0 and is read by {re.escape(hf_posenc.__version__)}: install the version that "
BROKEN = {
    "an encoding of a newer version": (
        lambda folder: edited(folder, "none", **both("tomorrow"), **NEWER),
        rf"'tomorrow' is no registered position encoding .*choose from none, .*{VERSIONS}",
    ),
    "an encoding of one's own": (
        lambda folder: edited(folder, "none", **both("nearness+rotary")),
        r"'nearness' is no registered position encoding .* of your own, import the file that registers it first",
    ),
    "an impossible pair": (
        lambda folder: edited(folder, "relative", **both("relative+relative_key")),
        r"'relative\+relative_key': `relative` and `relative_key` are presets of one encoding.*leave one of them out",
    ),
    "an impossible pair by another version": (
        lambda folder: edited(folder, "lstm to gru", **both("gru+lstm"), **NEWER),
        rf"both read the embeddings in order.*leave one of them out\. .*{VERSIONS}",
    ),
    "a field of a newer version": (
        lambda folder: edited(folder, "relative", relative_window=4, **NEWER),
        rf"'relative_window' is no field of PosEncConfig; the nearest one is 'relative_clip'\. .*{VERSIONS}",
    ),
    "a field of another type in a newer version": (
        lambda folder: edited(folder, "relative", encoder_layers=[2, 4], **NEWER),
        rf"encoder_layers[\s\S]*{VERSIONS}",
    ),
    "weights that nobody asks for": (
        lambda folder: edited(folder, "relative", **both("none")),
        r"weights must fit the config.*position_encoding_type='none'.* unexpected: "
        r"model\.decoder\.positions\.0\.keys, .* and 1 more\. Correct config\.json.*ignore_mismatched_sizes=True",
    ),
    "weights that are missing": (
        lambda folder: edited(folder, "sinusoidal to gru", **both("gru")),
        r"decoder_position_encoding_type='gru', .* missing: model\.encoder\.positions\.0\.\S+",
    ),
    "weights of other shapes": (
        lambda folder: edited(folder, "relative", relative_clip=5),
        r"'relative', .* of another shape: model\.decoder\.positions\.0\.keys \(3, 7, 4\) for \(3, 11, 4\)",
    ),
    "fewer layers than there are": (
        lambda folder: edited(folder, "rnn_nmt", decoder_layers=2),
        r"for model_type='posenc_rnn_nmt' those .* of another shape: .*; unexpected: model\.decoder\.lstm\S+_l2, ",
    ),
    "a pickle": (
        pickled,
        r"safetensors only.* has no model\.safetensors; .*pytorch_model\.bin.*weights_only=True.*save_pretrained",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_refused_with_one_clear_message(tmp_path: Path, what: str):
    break_it, message = BROKEN[what]
    with pytest.raises((ValueError, OSError), match=message):
        AutoModelForSeq2SeqLM.from_pretrained(break_it(tmp_path / "broken"))


REFUSED = """
import json
import sys
from pathlib import Path
from transformers import AutoModelForSeq2SeqLM

said = {}
for place in Path(sys.argv[1]).iterdir():
    try:
        AutoModelForSeq2SeqLM.from_pretrained(place, trust_remote_code=True)
    except (ValueError, OSError) as error:
        said[place.name] = str(error)
print(json.dumps(said))
"""


@pytest.mark.slow
def test_the_code_that_a_checkpoint_carries_says_the_same(tmp_path: Path):
    for what, (break_it, _) in BROKEN.items():
        break_it(tmp_path / "broken" / what)
    said = json.loads(without_package(HIDDEN + REFUSED, str(tmp_path / "broken"), home=tmp_path / "home"))
    for what, (_, message) in BROKEN.items():
        assert re.search(message, said.get(what, "it loads")), f"{what}: {said.get(what)}"


def test_a_pickle_on_the_hub_is_not_read_either(hub: Hub, tmp_path: Path):
    files = {path.name: path.read_bytes() for path in pickled(tmp_path / "pickled").iterdir()}
    tiny_model("rotary").push_to_hub("someone/pickled")
    hub.repositories["someone/pickled"].commit("main", files, "a pickle")
    with pytest.raises(OSError, match=BROKEN["a pickle"][1]):
        AutoModelForSeq2SeqLM.from_pretrained("someone/pickled")
    with pytest.raises(OSError, match=r"safetensors only, .*use_safetensors=False"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "pickled", use_safetensors=False)


def test_what_is_not_there_is_said_by_transformers_itself(hub: Hub, tmp_path: Path):
    with pytest.raises(OSError, match="is not a local folder and is not a valid model identifier"):
        AutoModelForSeq2SeqLM.from_pretrained("someone/absent")
    tiny_model("rotary").push_to_hub("someone/tiny")
    with pytest.raises(OSError, match="absent is not a valid git identifier"):
        AutoModelForSeq2SeqLM.from_pretrained("someone/tiny", revision="absent")


# What is asked for otherwise than it was saved


def test_another_encoding_than_the_saved_one_is_for_both_sides_and_starts_afresh(tmp_path: Path):
    saved = tiny_model("sinusoidal")
    saved.save_pretrained(tmp_path / "model")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", position_encoding_type="relative")
    assert loaded.config.position_encoding_type == loaded.config.decoder_position_encoding_type == "relative"
    config = AutoConfig.from_pretrained(
        tmp_path / "model", position_encoding_type="gru", decoder_position_encoding_type="none"
    )
    assert (config.position_encoding_type, config.decoder_position_encoding_type) == ("gru", "none")
    other = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", config=config)
    for one in (loaded, other):
        assert torch.equal(one.lm_head.weight, saved.lm_head.weight)
        assert len(list(one.parameters())) > len(list(saved.parameters()))


def test_a_keyword_is_checked_like_what_is_saved(tmp_path: Path):
    tiny_model("relative").save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="`gru` and `lstm` both"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", position_encoding_type="gru+lstm")
    with pytest.raises(ValueError, match="d_model must be a multiple"):
        AutoConfig.from_pretrained(tmp_path / "model", num_attention_heads=3)
    with pytest.raises(ValueError, match=r"relative_clip=5.* of another shape: .*ignore_mismatched_sizes=True"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", relative_clip=5)


@pytest.mark.parametrize("what", [what for what in BROKEN if what.startswith("weights")])
def test_ignore_mismatched_sizes_loads_the_matching_weights(tmp_path: Path, what: str):
    broken = BROKEN[what][0](tmp_path / "broken")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(broken, ignore_mismatched_sizes=True)
    assert torch.isfinite(loaded(**inputs()).logits).all()


def test_output_loading_info_lists_missing_keys(tmp_path: Path):
    broken = BROKEN["weights that are missing"][0](tmp_path / "broken")
    _, found = AutoModelForSeq2SeqLM.from_pretrained(broken, output_loading_info=True)
    assert any("positions" in name for name in found["missing_keys"])


@torch.no_grad()
def test_the_model_without_a_projection_gets_one_and_the_whole_one_loses_it(tmp_path: Path):
    model = tiny_model("relative", output_bias=True)
    model.save_pretrained(tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "base")
    base = AutoModel.from_pretrained(tmp_path / "whole", dtype=torch.float64)
    torch.testing.assert_close(base(**inputs()).last_hidden_state, model.model(**inputs()).last_hidden_state, **EXACT)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base", dtype=torch.float64)
    assert torch.equal(whole.model.encoder.embed_tokens.weight, model.model.encoder.embed_tokens.weight)


@pytest.mark.parametrize("where", ["relative", "rnn_nmt"])
def test_a_saved_config_says_which_version_wrote_it(tmp_path: Path, where: str):
    folder = edited(tmp_path / "model", where, hf_posenc_version="0.0.1")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.hf_posenc_version == "0.0.1"
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert saved["hf_posenc_version"] == hf_posenc.__version__


# Where the package has never been


ALONE = """
import importlib.util
assert importlib.util.find_spec("hf_posenc") is None
assert importlib.util.find_spec("datasets") is None
"""


@pytest.mark.capability("remote code, elsewhere")
@pytest.mark.slow
def test_an_environment_without_the_package_translates_the_same(hub: Hub, tokenizer: PosEncTokenizer, tmp_path: Path):
    python = linked_environment(tmp_path / "environment", LIGHT)
    models, places = {}, {}
    systems = [*KINDS, *ALIGNED] if EVERY_ENCODING else ["gru+relative"]
    for number, where in enumerate([*systems, "rnn_nmt"]):
        model, folder = translator(where), tmp_path / "saved" / where
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model.push_to_hub(f"someone/tiny-{number}")
        tokenizer.push_to_hub(f"someone/tiny-{number}")
        models[where], places[where] = model, f"someone/tiny-{number}"
    models["from a folder"], places["from a folder"] = model, folder
    environment = hub.environment(tmp_path / "home")
    del environment["HF_TOKEN"]  # what is public is anybody's
    found = stranger(tmp_path, places, translate=1, python=python, hide=ALONE, **environment)
    assert set(found) == set(models)
    for name, model in models.items():
        assert_found(found[name], model, tokenizer)
        assert_loads_again(tmp_path / "again" / name, found[name], model)
