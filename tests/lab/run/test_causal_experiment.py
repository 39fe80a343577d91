"""Decoder-only models in experiments: pairs as one sequence, training, scores, and what is refused before training."""

import json
import re
from dataclasses import replace

import pytest
import torch
import yaml
from datasets import Dataset
from support.causal import tiny_causal_model
from support.experiments import load
from support.models import TEXTS_VOCABULARY
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_posenc.lab.figures.attention_figures import save_attention_figures
from hf_posenc.lab.reports.report import next_steps
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.callbacks import JsonLogger
from hf_posenc.lab.training.trainer import PromptedPairCollator, next_token_labels
from hf_posenc.lab.training.training_run import train
from hf_posenc.utils.run_folder import SystemPaths

CAUSAL = {
    "model_type": "posenc_causal",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "dropout": 0.0,
    "learned_max_positions": 64,
}
SEQ2SEQ = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
SEQ2SEQ |= dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
CONFIG = {
    "data": {
        "source_language": "input",
        "target_language": "output",
        "train": {"task": {"name": "reverse", "seed": 1, "pairs": 400, "min_length": 1, "max_length": 4}},
        "validation": {"task": {"name": "reverse", "seed": 3, "pairs": 8, "min_length": 3, "max_length": 4}},
        "test": {"reverse": {"task": {"name": "reverse", "seed": 2, "pairs": 12, "min_length": 9, "max_length": 10}}},
        "vocab_size": 281,
        "allow_overlap": ["validation"],
    },
    "train": {"max_steps": 4, "per_device_train_batch_size": 8, "use_cpu": True, "logging_steps": 1},
    "score": {"bucket_edges": [9], "metrics": ["bleu", "exact_match", "token_accuracy"], "num_beams": 1},
    "systems": {
        "rotary": {"model": CAUSAL | {"position_encoding_type": "rotary"}},
        "learned": {"model": CAUSAL | {"position_encoding_type": "learned"}},
        "seq2seq": {"model": SEQ2SEQ},
    },
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "reverse.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return path


def test_a_pair_is_one_sequence_with_the_loss_on_its_target(tokenizer):
    sources, targets = tokenizer(["Ein Hund.", "Zwei"])["input_ids"], tokenizer(["Schnee", "Ein Hund."])["input_ids"]
    rows = [{"input_ids": s, "labels": t} for s, t in zip(sources, targets, strict=True)]
    batch = PromptedPairCollator(tokenizer)(rows)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        length = len(source) + len(target)
        assert batch["input_ids"][i, :length].tolist() == source + target
        assert batch["attention_mask"][i].tolist() == [1] * length + [0] * (batch["input_ids"].shape[1] - length)
        assert batch["labels"][i, :length].tolist() == [-100] * len(source) + target
        assert (batch["labels"][i, length:] == -100).all()
    model = tiny_causal_model("relative", vocab_size=TEXTS_VOCABULARY)
    outputs = model(**batch)
    nll = nn.functional.cross_entropy(outputs.logits.float().transpose(1, 2), next_token_labels(batch["labels"]))
    torch.testing.assert_close(outputs.loss, nll, rtol=1e-6, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"label_smoothing_factor": 0.1}, {"tokens_per_batch": 64}], ids=str)
def test_training_learns_a_target_and_evaluates_it(tokenizer, tmp_path, settings):
    """Perplexity is that of the targets, and translations are compared with the references."""
    ids = tokenizer(["Ein Hund.", "Zwei Kinder im Schnee"] * 8)["input_ids"]
    sizes = [len(row) - 1 for row in ids]
    pairs = Dataset.from_dict({"input_ids": ids, "labels": ids, "source_length": sizes, "target_length": sizes})
    model = tiny_causal_model("relative", vocab_size=TEXTS_VOCABULARY, dtype=torch.float32, dropout=0.0)
    steps = {"max_steps": 40, "learning_rate": 1e-2, "per_device_train_batch_size": 8, "logging_steps": 10}
    evaluation = {"eval_strategy": "steps", "eval_steps": 40, "predict_with_generate": True, "save_strategy": "no"}
    references = ["Ein Hund.", "Zwei Kinder im Schnee"] * 8
    args = training_arguments({"use_cpu": True} | steps | evaluation | settings, tmp_path)
    log = JsonLogger(SystemPaths(tmp_path).training_log)
    trained, _ = train(model, tokenizer, pairs, pairs, args, log, name="s", references=references)
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    [scores] = [line for line in lines if "eval_perplexity" in line]
    assert losses[-1] < 0.5 * losses[0]
    batch = PromptedPairCollator(tokenizer)([pairs[0], pairs[1]])
    with torch.no_grad():
        logits = trained.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    perplexity = nn.functional.cross_entropy(logits.transpose(1, 2), next_token_labels(batch["labels"])).exp()
    assert scores["eval_perplexity"] == pytest.approx(float(perplexity), rel=1e-3)
    exact = [text == reference for text, reference in zip(
        trained.translate(references[:2], tokenizer, num_beams=1), references[:2], strict=True
    )]  # fmt: skip
    assert (scores["eval_bleu"] > 99) == all(exact)


@pytest.mark.full
def test_an_evaluation_generates_no_token_beyond_a_table(tokenizer, tmp_path):
    ids = tokenizer(["Ein Hund.", "Zwei Kinder im Schnee"])["input_ids"]
    sizes = [len(row) - 1 for row in ids]
    pairs = Dataset.from_dict({"input_ids": ids, "labels": ids, "source_length": sizes, "target_length": sizes})
    table = {"learned_max_positions": 2 * max(map(len, ids))}
    model = tiny_causal_model("learned", vocab_size=TEXTS_VOCABULARY, dtype=torch.float32, **table)
    settings = {"use_cpu": True, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no"}
    settings |= {"predict_with_generate": True, "learning_rate": 0.0}
    args = training_arguments(settings, tmp_path)
    log = JsonLogger(SystemPaths(tmp_path).training_log)
    train(model, tokenizer, pairs, pairs, args, log, name="s", references=["Ein Hund."] * 2)
    assert "eval_bleu" in (tmp_path / "training.jsonl").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.vocab_size=275"], r"one token, but '\d' of data.train is 2 tokens; raise data.vocab_size"),
        (["data.test.reverse.task.name=lookup"], "one token, but '000' of data.test.reverse is 3 tokens"),
        (["data.test.reverse={corpora: [{task: {name: lookup, seed: 1, pairs: 9, min_length: 1, max_length: 2}}]}"],
         "one token, but '000' of data.test.reverse is 3 tokens"),
        (["score.max_new_tokens=10"], "longer than each answer, but test set reverse has .* 10 symbols, .* 10 tokens"),
        (["data.test.reverse.task.name=recopy", "data.test.reverse.task.max_length=60",
          "systems.learned.model.learned_max_positions=999"], "the limit is 1.. tokens"),
        (["score.max_new_tokens=13", "score.concatenate=[1,2]"], "test set reverse-x2 has .* the limit is 13 tokens"),
        (["systems.learned.model.learned_max_positions=22"],
         "learned: .* 10 symbols, .* 10 tokens; .*learned_max_positions"),
        (["systems.seq2seq.model={position_encoding_type: learned, learned_max_positions: 11}"],
         "seq2seq: .* 10 symbols, .* 10 tokens; .*learned_max_positions"),
    ],
)  # fmt: skip
def test_a_tokenizer_or_a_limit_that_does_not_fit_a_task_is_refused_before_training(config, overrides, message):
    with pytest.raises(ValueError, match=message):
        prepare(load(config, *overrides))


@pytest.mark.slow
def test_both_architectures_are_trained_and_scored_on_one_task(config):
    experiment = load(config)
    run = prepare(experiment)
    for name in ("rotary", "seq2seq"):
        run_system(run, name)
        scores = json.loads((experiment.folder / name / "scores.json").read_text())["tests"]["reverse"]
        assert {"bleu", "exact_match", "token_accuracy"} <= scores["overall"]["scores"].keys()
    folder = experiment.folder / "rotary" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.padding_side == "left"
    sources = [row["input"] for row in run.system("rotary").test_sets["reverse"].pairs["translation"]]
    lines = (experiment.folder / "rotary" / "translations" / "reverse.jsonl").read_text().splitlines()
    assert model.translate(sources, tokenizer, num_beams=1) == [json.loads(line)["text"] for line in lines]
    with pytest.raises(ValueError, match=r"that of an encoder-decoder to be drawn, but .* \(posenc_causal\); choose"):
        next(save_attention_figures(model, tokenizer, sources[0], experiment.folder / "maps"))
    decoder_only = {"rotary": experiment.systems["rotary"]}
    both = {**decoder_only, "seq2seq": experiment.systems["seq2seq"]}
    for systems, hints in ((decoder_only, ["translate"]), (both, ["translate", "explorer"])):
        results = aggregate(replace(experiment, systems=systems, baseline="rotary"))
        commands = next_steps(results, experiment.folder, experiment.folder)
        assert re.findall(r"hf-posenc (\w+)", commands) == hints
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-generation" in card
    assert "AutoModelForCausalLM.from_pretrained" in card and "AutoModelForSeq2SeqLM" not in card
    assert "| position encoding of the decoder | `rotary` |" in card and "| width | 32 |" in card


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("systems.rotary.model.alignment_type=fertility", "systems.rotary.model.*decoder-only model.*alignment_type"),
        ("systems.rotary.model.encoder_layers=2", "systems.rotary.model.*decoder-only model.*encoder_layers"),
        ("systems.rotary.model.hidden_size=0", "systems.rotary.model.hidden_size must be a whole number from 1"),
        ("systems.rotary.model.position_encoding_type=rotery", "nearest is 'rotary'"),
        (
            "score.stride=4",
            "score.stride is of plain text, but data.train has pairs and score.stride is 4; leave it out",
        ),
        ("score.max_context=64", "score.max_context is of plain text, but data.train has pairs"),
        ("data.joint_vocabulary=false", "systems.learned: .* one vocabulary, but data.joint_vocabulary is false"),
        (
            "systems.next={init_from: rotary, model: {model_type: posenc}}",
            "a `posenc_causal` model is to become a `posenc`",
        ),
        (
            "systems.next={init_from: rotary, model: {hidden_size: 16}}",
            "`hidden_size` must be .*32, but hidden_size=16",
        ),
    ],
)
def test_what_a_decoder_only_model_lacks_is_refused_before_training(config, override, message):
    with pytest.raises(ValueError, match=message):
        load(config, override)


@pytest.mark.full
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("systems.learned.model.learned_max_positions=8", "has 8 positions, but a pair has"),
        ("systems.learned.model.learned_max_positions=11", "has 11 positions, but a test source.* has"),
    ],
)
def test_a_table_that_is_shorter_than_a_sequence_is_refused_before_training(config, override, message):
    with pytest.raises(ValueError, match=f"systems.learned: its encoding {message}"):
        prepare(load(config, override))
