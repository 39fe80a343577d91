"""Training from the weights of another model: which model, which fields of its config, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.experiments import TINY, load
from support.marian_models import Words, tiny_marian
from transformers import AutoModelForSeq2SeqLM

from hf_posenc import convert_encodings, from_transformers
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun, initial_model, training_config
from hf_posenc.lab.run.train import topological_batches

ENCODINGS = {
    "position_encoding_type": "relative+window",
    "window_size": 4,
    "cross_position_encoding_type": "rotary+window",
    "alignment_type": "length_ratio",
}
SYSTEMS: dict[str, Any] = {
    "absolute": {"model": {"position_encoding_type": "sinusoidal", "dropout": 0.2}},
    "next": {"init_from": "absolute", "model": ENCODINGS},
    "same": {"init_from": "absolute"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": SYSTEMS}), encoding="utf-8")
    return path


def begun(experiment: Any, name: str) -> Any:
    """The model with which a system's training begins."""
    system = PreparedRun(experiment).system(name)
    torch.manual_seed(0)
    return initial_model(system, training_config(system))


@pytest.mark.full
def test_a_system_begins_with_the_weights_of_another(config: Path) -> None:
    experiment = load(config)
    prepare(experiment)
    with pytest.raises(ValueError, match=r"systems\.next: .* absolute, but .*model .*; give"):
        run_system(PreparedRun(experiment), "next")
    run_system(PreparedRun(experiment), "absolute")
    trained = AutoModelForSeq2SeqLM.from_pretrained(experiment.folder / "absolute" / "model")
    torch.testing.assert_close(begun(experiment, "same").state_dict(), trained.state_dict(), rtol=0, atol=0)
    torch.manual_seed(0)
    expected, first = convert_encodings(trained, **ENCODINGS), begun(experiment, "next")
    torch.testing.assert_close(first.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert {name: getattr(first.config, name) for name in ENCODINGS} == ENCODINGS
    assert (first.config.decoder_position_encoding_type, first.config.dropout) == ("relative+window", 0.2)
    assert first.config.length_ratio_step != 1.0, "measured on the system's own pairs"
    run_system(PreparedRun(experiment), "next")
    model = AutoModelForSeq2SeqLM.from_pretrained(experiment.folder / "next" / "model")
    assert not torch.equal(model.lm_head.weight, trained.lm_head.weight)


@pytest.mark.full
def test_an_unset_parameter_of_cross_attention_is_that_of_self_attention(config: Path) -> None:
    cross = {**ENCODINGS, "cross_position_encoding_type": "rotary+window", "cross_window_size": 12}
    path = config.with_name("cross.yaml")
    systems = {
        "origin": {"model": cross},
        "wanted": {"init_from": "origin", "model": cross | {"cross_window_size": None}},
    }
    path.write_text(yaml.safe_dump(TINY | {"systems": systems}), encoding="utf-8")
    experiment = load(path)
    prepare(experiment)
    origin = begun(experiment, "origin")
    origin.save_pretrained(experiment.folder / "origin" / "model")
    assert (origin.config.window_size, origin.config.cross_window_size) == (4, 12)
    assert (begun(experiment, "wanted").config.window_size, begun(experiment, "wanted").config.cross_window_size) == (
        4,
        None,
    )


@pytest.mark.full
def test_settings_record_the_initial_weights(config: Path) -> None:
    experiment = load(config)
    prepare(experiment)
    prepare(load(config))
    saved = yaml.safe_load((experiment.folder / "next" / "settings.yaml").read_text(encoding="utf-8"))
    assert saved["init_from"] == "absolute"
    assert saved["model"] == TINY["model"] | {"dropout": 0.2} | ENCODINGS
    (experiment.folder / "next" / "training.jsonl").touch()
    with pytest.raises(ValueError, match="init_from was 'absolute' and is None"):
        prepare(load(config, "systems.next.init_from=", "systems.next.model.dropout=0.2"))


@pytest.mark.full
def test_a_start_that_is_trained_otherwise_is_another_start(config: Path) -> None:
    experiment = load(config)
    prepare(experiment)
    (experiment.folder / "next" / "training.jsonl").touch()
    prepare(experiment)
    with pytest.raises(ValueError, match="settings of absolute"):
        prepare(load(config, "systems.absolute.train.learning_rate=0.5"))


def test_a_parallel_system_waits_for_its_initial_weights(config: Path) -> None:
    experiment = load(config, "systems.last.init_from=next", "systems.other.model={}")
    assert list(topological_batches(experiment.systems.values())) == [
        ("absolute", "other"),
        ("next", "same"),
        ("last",),
    ]
    assert list(topological_batches(experiment.systems[name] for name in ("next", "last"))) == [("next",), ("last",)]


def test_each_seed_starts_from_its_own(config: Path) -> None:
    experiment = load(config, "seeds=[1, 2]")
    origins = {name: system.dependency for name, system in experiment.systems.items()}
    assert origins["absolute-seed1"] is None
    assert (origins["next-seed1"].name, origins["next-seed2"].name) == ("absolute-seed1", "absolute-seed2")
    with pytest.raises(ValueError, match=r"absolute has none with train\.seed=3"):
        load(config, "seeds=[1, 2]", "systems.next.seeds=[3]")
    experiment = load(config, "systems.absolute.seeds=[1, 2]", "systems.next.init_from=absolute-seed2",
                      "systems.same.seeds=[1, 2]")  # fmt: skip
    assert experiment.systems["next"].dependency.name == "absolute-seed2"


def checkpoint(experiment: Any) -> Path:
    """A trained model of a run."""
    prepare(experiment)
    run_system(PreparedRun(experiment), "absolute")
    return experiment.folder / "absolute" / "model"


@pytest.mark.full
def test_a_system_of_no_steps_is_its_initial_model_and_is_scored(config: Path) -> None:
    folder = config.parent / "marian"
    marian = tiny_marian(dtype=torch.float32, d_model=16)
    marian.save_pretrained(folder)
    Words.tokenizer().save_pretrained(folder)
    given = TINY | {"init_from": str(folder), "systems": {"before": {"train": {"max_steps": 0}}}, "model": {}}
    given["data"] = TINY["data"] | {"tokenizer": str(folder)}
    config.write_text(yaml.safe_dump(given), encoding="utf-8")
    experiment = load(config)
    prepare(experiment)
    run_system(PreparedRun(experiment), "before")
    model = AutoModelForSeq2SeqLM.from_pretrained(experiment.folder / "before" / "model")
    torch.testing.assert_close(model.state_dict(), from_transformers(marian).state_dict(), rtol=0, atol=0)
    results = aggregate(experiment)
    assert list(results.systems) == ["before"]
    assert "before" in str(write_report(results, experiment.tables_folder))
    with pytest.raises(
        ValueError, match=r"train\.max_steps=0 scores a model as it is, but there is no init_from; name"
    ):
        load(config, "init_from=", "data.tokenizer=", "model.d_model=16")


@pytest.mark.slow
def test_a_checkpoint_of_the_family_gives_its_sizes(config: Path) -> None:
    place = checkpoint(load(config))
    other = config.with_name("other.yaml")
    given = {key: value for key, value in TINY.items() if key != "model"} | {"init_from": str(place)}
    given["systems"] = {"next": {"model": ENCODINGS}}
    given["data"] = TINY["data"] | {"tokenizer": str(place)}
    other.write_text(yaml.safe_dump(given), encoding="utf-8")
    experiment = load(other)
    assert experiment.systems["next"].model["d_model"] == 16
    prepare(experiment)
    trained = AutoModelForSeq2SeqLM.from_pretrained(place)
    torch.manual_seed(0)
    expected = convert_encodings(trained, **ENCODINGS)
    torch.testing.assert_close(begun(experiment, "next").state_dict(), expected.state_dict(), rtol=0, atol=0)
    run_system(PreparedRun(experiment), "next")
    assert (experiment.folder / "next" / "scores.json").exists()
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"files\..*model\.safetensors was '\w+' and is"):
        prepare(load(other))


@pytest.mark.full
def test_a_marian_is_translated_into_the_family_and_trained(config: Path) -> None:
    folder = config.parent / "marian"
    marian = tiny_marian(dtype=torch.float32, d_model=16)
    marian.save_pretrained(folder)
    Words.tokenizer().save_pretrained(folder)
    given = TINY | {"systems": {"next": {"init_from": str(folder), "model": ENCODINGS}}, "model": {}}
    given["data"] = TINY["data"] | {"tokenizer": str(folder)}
    config.write_text(yaml.safe_dump(given), encoding="utf-8")
    experiment = load(config)
    with pytest.raises(ValueError, match=r"data\.tokenizer is not set.*; set"):
        load(config, "data.tokenizer=")
    assert experiment.systems["next"].model["encoder_ffn_dim"] == 24
    prepare(experiment)
    torch.manual_seed(0)
    expected = from_transformers(marian, **ENCODINGS)
    torch.testing.assert_close(begun(experiment, "next").state_dict(), expected.state_dict(), rtol=0, atol=0)
    run_system(PreparedRun(experiment), "next")
    model = AutoModelForSeq2SeqLM.from_pretrained(experiment.folder / "next" / "model")
    assert (model.config.decoder_start_token_id, model.config.vocab_size) == (28, 29)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["systems.next.model.d_model=32"], r"systems\.next: init_from='absolute': `d_model` .*16, but d_model=32"),
        (["systems.next.model.windw_size=3"], "'windw_size' is no field of PosEncConfig; the nearest one is 'window"),
        (["systems.next.model.cross_position_encoding_type=none"], "An alignment needs a position encoding"),
        (
            ["systems.rnn={model: {model_type: posenc_rnn_nmt}, init_from: absolute}"],
            "is to become a `posenc_rnn_nmt` one",
        ),
        (
            ["systems.absolute.init_from=next"],
            "='next': .* but above it is no system, and there is no folder .*next; name",
        ),
        (
            ["systems.next.init_from=absolut"],
            "but above it are absolute, and there is no folder .*absolut; name one of them",
        ),
        (["systems.next.init_from=me/missing", "data.tokenizer=x"], "none can be read from me/missing; name a folder"),
    ],
)
def test_what_cannot_start_is_refused_when_the_file_is_read(
    config: Path, overrides: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it would try again and again
    with pytest.raises(ValueError, match=said):
        load(config, *overrides)


def test_a_recurrent_model_is_no_start(config: Path) -> None:
    rnn = "systems={rnn: {model: {model_type: posenc_rnn_nmt, d_model: 16}}, next: {init_from: rnn}}"
    config.write_text(yaml.safe_dump({key: value for key, value in TINY.items() if key != "systems"}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"systems\.next: init_from='rnn': .*a `posenc_rnn_nmt` model is to become .*; start"
    ):
        load(config, rnn)


@pytest.mark.full
def test_a_checkpoint_and_another_tokenizer_are_refused(config: Path) -> None:
    place = checkpoint(load(config))
    other = load(config, "data.vocab_size=720", "name=other")
    prepare(other)
    with pytest.raises(ValueError, match=r"systems\.next: init_from=.*720 source tokens .* model 700"):
        prepare(
            load(config, "name=third", f"systems.next.init_from={place}", f"data.tokenizer={other.folder}/tokenizer")
        )


def test_adapters_need_a_trained_model(config: Path) -> None:
    said = r"systems\.absolute: train\.lora_rank is for a trained model, but there is no init_from; name a checkpoint"
    with pytest.raises(ValueError, match=said):
        prepare(load(config, "systems.absolute.train.lora_rank=4"))
    with pytest.raises(ValueError, match=r"train\.lora_rank must be a whole number from 1 on, but it is 'x'"):
        load(config, "systems.next.train.lora_rank=x")
