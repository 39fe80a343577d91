"""Training by length: batches of a token budget, the papers' schedules, and the log."""

import itertools
import json
import math
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from support.trainings import LATE, STEPS, facts_of, tiny, trained, weights_of, without_its_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
)
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.trainer_pt_utils import LabelSmoother

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.data.lengths import BIN_WIDTHS, DistributedBatchSampler, LengthSortedSampler, MaxTokensSampler
from hf_posenc.lab.results.saved_files import read_losses
from hf_posenc.lab.run.corpora import read_pairs
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.training.arguments import DEFAULTS, TrainingArguments, training_arguments
from hf_posenc.lab.training.callbacks import ProgressBarCallback
from hf_posenc.lab.training.trainer import LengthTrainer, label_smoothed_loss, validation_metrics

# Batches of a token budget


@pytest.fixture
def lengths() -> tuple[np.ndarray, np.ndarray]:
    """Of 5000 pairs, distributed like those of text: most short, some long, the two sides of a pair alike."""
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(3.0, 0.5, 5000), 1, 100).astype(np.int64)
    target = np.clip(source * generator.normal(1.0, 0.2, 5000), 1, 100).astype(np.int64)
    return source, target


SAMPLERS = {
    "token budget": lambda lengths, **share: MaxTokensSampler(*lengths, 700, **share),
    "length grouped": lambda lengths, **share: LengthSortedSampler(lengths[0], 33, **share),
}


def epoch(sampler: DistributedBatchSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


@pytest.mark.parametrize("tokens", [100, 777, 4700, 10**6])
def test_every_pair_is_in_one_batch_and_no_batch_is_over_the_budget_or_could_hold_the_next(lengths, tokens):
    sampler = MaxTokensSampler(*lengths, tokens, seed=1)
    batches = epoch(sampler, 3)
    assert sorted(row for batch in batches for row in batch) == list(range(5000))
    assert len(batches) == len(sampler)
    longest = [max(side[batch].max() for side in lengths) for batch in batches]
    filled = [len(batch) * most for batch, most in zip(batches, longest, strict=True)]
    assert max(filled) <= tokens
    rows = np.split(sampler.sort_by_length(sampler.bin_width), sampler.batch_ends[:-1])
    for batch, following in itertools.pairwise(rows):
        with_one_more = [*batch, following[0]]
        assert len(with_one_more) * max(side[with_one_more].max() for side in lengths) > tokens


@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_epoch_has_its_own_order_reproducible_by_the_seed(lengths, kind):
    one, same, other = (SAMPLERS[kind](lengths, seed=seed) for seed in (1, 1, 2))
    first, second = epoch(one, 0), epoch(one, 1)
    assert first == epoch(same, 0)
    assert first == epoch(one, 0)
    assert first != second
    assert first != epoch(other, 0)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}, "pairs change places too"
    assert len(one) == len(first) == len(second)


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_ranks_partition_an_epoch_into_equally_many_batches(lengths, num_ranks, kind):
    samplers = [SAMPLERS[kind](lengths, seed=1, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    shares = [epoch(sampler, 2) for sampler in samplers]
    assert {len(share) for share in shares} == {len(samplers[0])}
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(5000))


def test_ranks_take_turns_so_that_two_of_them_see_what_one_accumulating_two_batches_does(lengths):
    alone = next(
        epoch(sampler, 0)
        for sampler in (MaxTokensSampler(*lengths, tokens, seed=1) for tokens in range(700, 720))
        if len(sampler) % 2 == 0
    )
    tokens = max(len(batch) * max(side[batch].max() for side in lengths) for batch in alone)
    ranks = [MaxTokensSampler(*lengths, int(tokens), seed=1, rank=rank, num_ranks=2) for rank in range(2)]
    assert [batch for both in zip(*(epoch(rank, 0) for rank in ranks), strict=True) for batch in both] == alone


@pytest.mark.full
@pytest.mark.parametrize(
    "sampler",
    [
        lambda **share: LengthSortedSampler(np.arange(1, 1002), 1, seed=1, **share),
        lambda **share: MaxTokensSampler(np.full(1001, 100), np.full(1001, 100), 100, seed=1, **share),
    ],
)
def test_batches_of_one_pair_are_shared_out_and_another_one_left_out_each_time(sampler):
    ranks = [sampler(rank=rank, num_ranks=8) for rank in range(8)]
    left_out = []
    for number in range(3):
        batches = [epoch(rank, number) for rank in ranks]
        assert {len(one) for one in batches} == {len(one) for one in ranks} == {125}
        taken = [row for one in batches for (row,) in one]
        assert len(set(taken)) == 1000
        left_out += {*range(1001)} - {*taken}
    assert len(set(left_out)) > 1


def test_little_of_a_batch_is_padding(lengths):
    def padding(batches: list[np.ndarray]) -> float:
        filled = sum(len(batch) * side[batch].max() for batch in batches for side in lengths)
        return 1 - sum(side.sum() for side in lengths) / filled

    sampler = MaxTokensSampler(*lengths, 500, seed=1)
    batches = [np.array(batch) for batch in epoch(sampler, 0)]
    assert padding(batches) < 0.05
    at_random = np.array_split(np.random.default_rng(1).permutation(5000), len(batches))
    assert padding(at_random) > 0.4


@pytest.mark.full
def test_the_fewer_pairs_a_batch_is_chosen_from_the_wider_a_band_of_lengths_is_sorted_as_one(lengths):
    """No other width leaves less padding, and one length at a time leaves much more."""
    few, many = (MaxTokensSampler(*lengths, tokens, seed=1) for tokens in (4700, 100))
    assert few.bin_width > many.bin_width
    for sampler, tokens in ((few, 4700), (many, 100)):
        held = {}
        for band in BIN_WIDTHS:
            _, _, ends = sampler.batch_boundaries(band, tokens)
            batches = np.split(sampler.sort_by_length(band), ends[:-1])
            held[band] = sum(len(batch) * side[batch].max() for batch in batches for side in lengths)
        assert held[sampler.bin_width] == min(held.values())
    tokens, wide, narrow = (
        sum(side.sum() for side in lengths),
        *(few.batch_boundaries(band, 4700)[0] for band in (few.bin_width, 1)),
    )
    assert 1 - tokens / wide < 0.8 * (1 - tokens / narrow)


@pytest.mark.parametrize("band", BIN_WIDTHS)
def test_shuffling_permutes_only_pairs_of_equal_lengths(lengths, band):
    sampler = MaxTokensSampler(*lengths, 700, seed=1)
    plain, drawn = sampler.sort_by_length(band), sampler.sort_by_length(band, np.random.default_rng(3).random(5000))
    assert (plain != drawn).any()
    for side in lengths:
        assert (side[plain] == side[drawn]).all()


def test_batches_of_a_size_have_it_and_are_of_like_length(lengths):
    batches = epoch(LengthSortedSampler(lengths[0], 33, seed=1), 0)
    assert sorted(map(len, batches)) == [5000 % 33, *[33] * (5000 // 33)]
    spread = np.median([lengths[0][batch].max() - lengths[0][batch].min() for batch in batches])
    assert spread <= 2 < np.median(np.ptp(lengths[0][: 33 * 150].reshape(-1, 33), axis=1))


def test_a_budget_that_the_longest_pair_does_not_fit_into_is_refused(lengths):
    longest = max(side.max() for side in lengths)
    MaxTokensSampler(*lengths, longest, seed=1)
    with pytest.raises(
        ValueError, match=f"has {longest} tokens.*tokens_per_batch={longest - 1}; raise it to {longest}"
    ):
        MaxTokensSampler(*lengths, longest - 1, seed=1)


def test_more_processes_than_pairs_are_refused(lengths):
    few = [side[:3] for side in lengths]
    with pytest.raises(ValueError, match="3 pairs and 4 processes; use fewer"):
        MaxTokensSampler(*few, 1000, seed=1, num_ranks=4)


# Real runs


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["train.tokens_per_batch=120", "train.tokens_per_batch=null"])
def test_a_run_interrupted_in_its_second_epoch_resumes_to_the_same_parameters(tmp_path, monkeypatch, batches):
    straight, interrupted = (tiny(tmp_path, f"name={name}", batches) for name in ("straight", "interrupted"))
    log = trained(straight)
    steps = max(line["step"] for line in log)
    stop = steps // 2 + 3 | 1  # not at a checkpoint, which are at even steps

    def interrupt(self: ProgressBarCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ProgressBarCallback, "on_step_end", interrupt)
        trained(interrupted)
    again = trained(interrupted)
    ours, theirs = weights_of(straight), weights_of(interrupted)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [line["loss"] for line in log if "loss" in line] == [line["loss"] for line in again if "loss" in line]


@pytest.mark.full
def test_a_log_line_has_the_rate_the_speed_and_the_padding(tmp_path):
    experiment = tiny(tmp_path)
    lines = [line for line in trained(experiment) if "loss" in line]
    for line in lines:
        assert line["tokens_per_second"] > 0
        assert 0 <= line["padding"] < 0.3
        assert {"learning_rate", "grad_norm", "step", "seconds"} <= line.keys()


@pytest.mark.full
def test_evaluations_are_no_time_of_training(tmp_path, monkeypatch):
    def slowly(*args: Any, **kwargs: Any) -> dict[str, float]:
        time.sleep(1)
        return {"perplexity": 1.0}

    monkeypatch.setattr("hf_posenc.lab.training.training_run.validation_metrics", slowly)
    *_, last = lines = trained(tiny(tmp_path, "train.evaluations_per_epoch=1"))
    spent = [line["eval_runtime"] for line in lines if "eval_loss" in line]
    assert len(spent) == 2
    assert last["seconds"] < last["train_runtime"] - 2
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
def test_an_epoch_has_exactly_the_evaluations_that_were_asked_for(tmp_path, number):
    lines = trained(tiny(tmp_path, f"train.evaluations_per_epoch={number}"))
    epochs = [line["epoch"] for line in lines if "eval_loss" in line]
    assert len(epochs) == 2 * number
    assert [sum(k < epoch <= k + 1 for epoch in epochs) for k in (0, 1)] == [number] * 2
    assert {1.0, 2.0} <= set(epochs)


@pytest.mark.full
def test_more_evaluations_than_an_epoch_has_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"evaluations_per_epoch=800 needs .* there are \d+"):
        trained(tiny(tmp_path, "train.evaluations_per_epoch=800"))


@pytest.mark.parametrize("number", [None, 23, torch.tensor(23)])
def test_the_smoothed_loss_is_transformers_own(number):
    """Value and gradient, padding among the labels, of a batch and of one of several that are a step together."""
    torch.manual_seed(0)
    labels = torch.randint(11, (3, 7)).masked_fill(torch.rand(3, 7) < 0.3, -100)
    found = []
    for loss in (partial(label_smoothed_loss, smoothing=0.2), LabelSmoother(epsilon=0.2)):
        logits = torch.linspace(-3, 3, 3 * 7 * 11).sin().view(3, 7, 11).requires_grad_()
        value = loss(Seq2SeqLMOutput(logits=logits), labels, num_items_in_batch=number)
        value.backward()
        found.append((value.detach(), logits.grad))
    torch.testing.assert_close(*found)
    assert (found[0][1][labels == -100] == 0).all() and found[0][0] > 0


@pytest.mark.full
def test_the_perplexity_is_of_all_tokens_and_unsmoothed(tmp_path):
    experiment = tiny(tmp_path, "train.label_smoothing_factor=0.2", "train.eval_strategy=epoch")
    last = [line for line in trained(experiment) if "eval_perplexity" in line][-1]
    model = AutoModelForSeq2SeqLM.from_pretrained(experiment.folder / "relative" / "model")
    nats = tokens = 0.0
    for row in PreparedRun(experiment).system("relative").validation_pairs:
        labels = torch.tensor([row["labels"]])
        logits = model(input_ids=torch.tensor([row["input_ids"]]), labels=labels).logits
        nats += nn.functional.cross_entropy(logits[0], labels[0], reduction="sum").item()
        tokens += labels.numel()
    assert last["eval_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)


def test_a_validation_set_is_scored_against_its_texts_and_not_what_tokens_keep_of_them():
    """This tokenizer loses capitals and accents, as an existing one may."""
    words = WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "ein": 3, "mann": 4, "schläft": 5, "hier": 6}, "<pad>")
    backend = Tokenizer(words)
    backend.normalizer, backend.pre_tokenizer = Lowercase(), Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    lossy = PosEncTokenizer.from_fast_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **special))
    references = ["Ein Mann schläft hier", "ein Mann schläft"]
    labels = np.array([[3, 4, 5, 6, 2], [3, 4, 5, 2, -100]])
    evaluated = EvalPrediction(predictions=(np.array([[6.0, 5.0], [4.0, 4.0]]), labels), label_ids=labels)
    found = validation_metrics(evaluated, lossy, references)
    written = [text.lower() for text in references]
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(written, [references]).score)
    assert 0 < found["bleu"] < 90
    for missing in (None, references[:1]):
        with pytest.raises(ValueError, match="needs the reference of each pair"):
            validation_metrics(evaluated, lossy, missing)


@pytest.mark.slow
def test_a_validation_set_is_translated_where_it_is_asked_for(tmp_path):
    """Each sentence to its own limit, whatever its neighbours, and with another search if one is given."""
    learned = ["train.max_steps=60", "train.learning_rate=0.01", "model.d_model=48", "train.tokens_per_batch=250"]
    asked = ["train.eval_strategy=steps", "train.eval_steps=60", "train.per_device_eval_batch_size=3"]
    settings = [*learned, *asked, "train.predict_with_generate=true"]
    by_length = ["train.tokens_per_batch=null", "train.train_sampling_strategy=group_by_length"]
    for beams, given in ((1, []), (2, ["train.generation_num_beams=2", *by_length])):
        experiment = tiny(tmp_path, f"name=validated-{len(list(tmp_path.glob('runs/*')))}", *settings, *given)
        last = [line for line in trained(experiment) if "eval_bleu" in line][-1]
        system, folder = experiment.systems["relative"], experiment.folder / "relative" / "model"
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        pairs = read_pairs(system.data, system.data.validation)["translation"]
        translations = model.translate([pair["de"] for pair in pairs], tokenizer, num_beams=beams)
        expected = BLEU().corpus_score(translations, [[pair["en"] for pair in pairs]]).score
        assert expected > 0
        assert last["eval_bleu"] == pytest.approx(expected)
        assert model.generation_config.max_length is None


@pytest.mark.slow
def test_the_log_marks_systems_that_read_the_target_length(tmp_path):
    windows = "model.position_encoding_type=relative+window"
    across = ("model.cross_position_encoding_type=rotary+window", "model.alignment_type=length_ratio")
    for name, settings, told in (("plain", (), False), ("aligned", (windows, *across), True)):
        (tmp_path / name).mkdir()
        experiment = tiny(tmp_path / name, "train.eval_strategy=epoch", *settings)
        lines = [line for line in trained(experiment) if {"loss", "eval_loss", "eval_perplexity"} & line.keys()]
        assert lines and all(line.get("lengths_known", False) == told for line in lines)
        losses = read_losses(experiment.folder / "relative" / "training.jsonl")
        assert losses.lengths_known == told and losses.eval_loss


@pytest.mark.slow
def test_the_rate_decays_after_six_evaluations_without_a_better_perplexity(tmp_path):
    """Nothing is learned at this rate: the first evaluation is the best, the seventh the sixth without a better one."""
    plateau = [
        "train.lr_scheduler_type=reduce_lr_on_plateau", "train.lr_scheduler_kwargs={factor: 0.9, patience: 5}",
        "train.metric_for_best_model=perplexity", "train.greater_is_better=false", "train.evaluations_per_epoch=8",
        "train.learning_rate=1e-12", "train.logging_steps=1",
    ]  # fmt: skip
    lines = trained(tiny(tmp_path, *plateau))
    evaluated = [line["step"] for line in lines if "eval_loss" in line]
    rates = {line["step"]: line["learning_rate"] for line in lines if "loss" in line}
    assert all(rate == pytest.approx(1e-12) for step, rate in rates.items() if step <= evaluated[6])
    after = [rate for step, rate in rates.items() if evaluated[6] < step <= evaluated[12]]
    assert after
    assert all(rate == pytest.approx(0.9e-12) for rate in after)


@pytest.mark.full
def test_training_stops_early_where_nothing_gets_better(tmp_path):
    early = [
        "train.early_stopping_patience=2", "train.evaluations_per_epoch=8", "train.learning_rate=1e-12",
        "train.load_best_model_at_end=true", "train.metric_for_best_model=perplexity", "train.greater_is_better=false",
    ]  # fmt: skip
    experiment = tiny(tmp_path, *early)
    evaluated = [line for line in trained(experiment) if "eval_loss" in line]
    assert len(evaluated) == 3
    facts = json.loads((experiment.folder / "relative" / "model" / "training.json").read_text())
    best = min(evaluated, key=lambda line: line["eval_perplexity"])
    assert facts["steps"] == evaluated[-1]["step"] > facts["best_step"] == best["step"]
    card = (experiment.folder / "relative" / "model" / "README.md").read_text()
    assert f"| steps | {facts['steps']} |" in card
    assert f"| step of the weights | {best['step']}, the best by `perplexity` of the validation set |" in card


@pytest.mark.slow
def test_a_training_that_was_at_its_end_makes_no_further_step(tmp_path):
    experiment = tiny(tmp_path, *LATE)
    losses, weights, facts = trained(experiment), weights_of(experiment), facts_of(experiment)
    assert facts["steps"] == 6
    assert facts["loss"] == [line["loss"] for line in losses if "loss" in line][-1]
    without_its_model(experiment, 6)
    assert trained(experiment) == losses
    assert facts_of(experiment) == facts
    torch.testing.assert_close(weights_of(experiment), weights, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("last", [4, 8])
def test_patience_is_no_longer_after_an_interruption(tmp_path, last):
    early = [
        "train.early_stopping_patience=3", "train.eval_strategy=steps", "train.eval_steps=2", "train.save_steps=2",
        "train.learning_rate=1e-12", "train.load_best_model_at_end=true", "train.metric_for_best_model=loss",
        "train.save_total_limit=9",
    ]  # fmt: skip
    experiment = tiny(tmp_path, *early)
    trained(experiment)
    facts = facts_of(experiment)
    assert facts["steps"] == 8
    without_its_model(experiment, last)
    trained(experiment)
    assert facts_of(experiment)["steps"] == 8
    assert facts_of(experiment)["best_step"] == facts["best_step"] == 2


def interrupted(experiment: Experiment, monkeypatch: pytest.MonkeyPatch, *steps: int) -> list[dict[str, Any]]:
    """The log of a run that SIGTERM stops in each of the steps, and that goes on after each."""
    step = LengthTrainer.training_step
    for told in steps:

        def training_step(trainer: LengthTrainer, *inputs: Any, told: int = told, **options: Any) -> torch.Tensor:
            if trainer.state.global_step == told - 1:
                signal.raise_signal(signal.SIGTERM)
            return step(trainer, *inputs, **options)

        with monkeypatch.context() as patched:
            patched.setattr(LengthTrainer, "training_step", training_step)
            with pytest.raises(SystemExit, match=f"stopped relative at step {told}"):
                trained(experiment)
        assert (experiment.folder / "relative" / "checkpoints" / f"checkpoint-{told}").exists()
    return trained(experiment)


BEST = ["train.load_best_model_at_end=true", "train.metric_for_best_model=loss", "train.greater_is_better=false"]
EPOCHS = ["train.save_strategy=epoch", "train.eval_strategy=epoch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "steps"),
    [
        ([*STEPS, "train.save_steps=4"], [5, 7]),
        ([*EPOCHS, *BEST], [3, 17]),
    ],
    ids=["last by steps", "best by epochs"],
)
def test_a_run_resumed_after_sigterm_equals_an_uninterrupted_one(tmp_path, monkeypatch, saved, steps):
    settings = ["train.max_steps=17", "train.logging_steps=1", *saved]
    straight, stopped = (tiny(tmp_path, f"name={name}", *settings) for name in ("straight", "stopped"))
    logs = trained(straight), interrupted(stopped, monkeypatch, *steps)
    evaluated = [[(line["step"], line["eval_loss"]) for line in log if "eval_loss" in line] for log in logs]
    assert evaluated[0]
    torch.testing.assert_close(*evaluated)
    assert facts_of(stopped)["steps"] == 17
    assert facts_of(stopped).get("best_step") == facts_of(straight).get("best_step")
    torch.testing.assert_close(weights_of(stopped), weights_of(straight))


@pytest.mark.slow
def test_sigterm_at_the_end_of_an_epoch_stops_after_its_evaluation(tmp_path, monkeypatch):
    experiment = tiny(tmp_path, *EPOCHS, "train.num_train_epochs=3")
    straight = trained(experiment)
    saved = [line["step"] for line in straight if "eval_loss" in line]
    assert len(saved) == 3
    stopped = tiny(tmp_path, "name=stopped", *EPOCHS, "train.num_train_epochs=3")
    log = interrupted(stopped, monkeypatch, saved[1])
    assert [line["step"] for line in log if "eval_loss" in line] == saved
    torch.testing.assert_close(weights_of(stopped), weights_of(experiment))


def loaders(experiment: Experiment, **arguments: object) -> tuple[LengthTrainer, DataLoader]:
    """The Trainer of a run with further arguments, and what it takes its batches from."""
    prepared = prepare(experiment).system("relative")
    system, tokenizer = prepared.settings, prepared.tokenizer
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    trainer = LengthTrainer(
        model=AutoModelForSeq2SeqLM.from_config(system.model_config(**sizes)),
        args=replace(training_arguments(system.train, experiment.folder / system.name), **arguments),
        train_dataset=prepared.training_pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
    )
    return trainer, trainer.get_train_dataloader()


@pytest.mark.full
@pytest.mark.parametrize("batches", ["train.tokens_per_batch=120", "train.tokens_per_batch=null"])
def test_the_data_loader_has_the_arguments_of_the_loader_of_transformers(tmp_path, batches):
    told = {"num_workers": 2, "pin_memory": False}
    trainer, ours = loaders(tiny(tmp_path, batches), **{f"dataloader_{name}": value for name, value in told.items()})
    theirs = Seq2SeqTrainer.get_train_dataloader(trainer)
    for loader in (ours, theirs):
        assert {name: getattr(loader, name) for name in told} == told
    assert ours.worker_init_fn.keywords == theirs.worker_init_fn.keywords
    assert ours.worker_init_fn.func is theirs.worker_init_fn.func


@pytest.mark.full
def test_workers_bring_every_epoch_its_own_batches(tmp_path):
    _, ours = loaders(tiny(tmp_path, "name=ours", "train.dataloader_num_workers=1"))
    _, alone = loaders(tiny(tmp_path, "name=alone"))
    seen = []
    for number in range(2):
        for loader in (ours, alone):
            loader.set_epoch(number)
            seen.append([batch["input_ids"].tolist() for batch in loader])
    assert seen[0] == seen[1] != seen[2] == seen[3]


@pytest.mark.full
def test_the_order_of_the_data_has_a_seed_of_its_own_if_it_is_given(tmp_path):
    def order(name: str, *overrides: str) -> list[list[int]]:
        return list(loaders(tiny(tmp_path, f"name={name}", *overrides))[1].batch_sampler)

    assert order("one", "train.seed=1") == order("other", "train.seed=2", "train.data_seed=1")
    assert order("again", "train.seed=1", "train.data_seed=2") == order("two", "train.seed=2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metric_for_best_model": "blue"},
            r"must be one of loss, perplexity, but it is 'blue'; bleu is measured with",
        ),
        ({"metric_for_best_model": "eval_bleu"}, r"it is 'eval_bleu'; bleu is measured with train.predict_with_gen"),
        ({"tokens_per_batch": 9, "train_sampling_strategy": "random"}, r"tokens_per_batch=9 .*'random'; leave one"),
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        training_arguments(settings, tmp_path)


def test_several_gpus_are_not_for_one_process(tmp_path, monkeypatch):
    """transformers would have it split every batch among them, whatever its tokens."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", 8)
    with pytest.raises(ValueError, match=r"sees 8; .*eight_gpus\.yaml .*CUDA_VISIBLE_DEVICES=0"):
        training_arguments({}, tmp_path)


def losses(tmp_path: Path, name: str, *overrides: str) -> list[float]:
    """Of a run of four steps without dropout."""
    experiment = tiny(tmp_path, f"name={name}", "model.dropout=0.0", "train.max_steps=4", *overrides)
    return [line["loss"] for line in trained(experiment) if "loss" in line]


@pytest.mark.slow
def test_bf16_losses_are_close_to_full_precision(tmp_path):
    full, half = losses(tmp_path, "full"), losses(tmp_path, "half", "train.bf16=true")
    assert half == pytest.approx(full, rel=2e-3)
    assert half != full


@pytest.mark.slow
def test_a_compiled_model_has_the_losses_of_one_that_is_not(tmp_path, monkeypatch):
    """Captured alone, because making it into C++ takes minutes."""
    monkeypatch.setitem(DEFAULTS, "torch_compile_backend", "eager")
    before = counters["stats"]["unique_graphs"]
    compiled = losses(tmp_path, "compiled", "train.torch_compile=true")
    monkeypatch.undo()
    assert compiled == pytest.approx(losses(tmp_path, "plain"), rel=1e-5)
    assert counters["stats"]["unique_graphs"] > before


@pytest.mark.full
def test_a_nan_loss_stops_the_run_and_names_step_pairs_and_last_checkpoint(tmp_path, monkeypatch):
    experiment, step = tiny(tmp_path), LengthTrainer.training_step

    def poisoned(self: LengthTrainer, model: nn.Module, *args: Any) -> torch.Tensor:
        if self.state.global_step == 5:
            with torch.no_grad():
                model.lm_head.weight.fill_(float("nan"))
        return step(self, model, *args)

    monkeypatch.setattr(LengthTrainer, "training_step", poisoned)
    with pytest.raises(FloatingPointError, match=r"at step 6 it is nan, on \d+ pairs, .* -> .*checkpoint-4\. Lower"):
        trained(experiment)


@pytest.mark.full
def test_concatenation_adds_training_pairs_of_neighbours(tmp_path):
    counts = {}
    for concatenate in ([1], [1, 2], [3]):
        experiment = tiny(
            tmp_path, f"name=joined-{len(counts)}", f"data.concatenate={concatenate}", "data.max_length=400"
        )
        pairs = prepare(experiment).system("relative").training_pairs
        counts[tuple(concatenate)] = pairs["source_length"][:]
    alone, both, three = counts.values()
    assert (len(alone), len(both), len(three)) == (60, 90, 20)
    assert both[:60] == alone
    assert both[60] in (alone[0] + alone[1], alone[0] + alone[1] + 1)


def test_concatenating_concatenated_pairs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data.concatenate=\[1, 2\] and data.train.concatenate=2"):
        tiny(tmp_path, "data.concatenate=[1, 2]", "data.train.concatenate=2")


def test_training_that_no_terminal_shows_prints_a_line_at_times(capsys: pytest.CaptureFixture[str]) -> None:
    callback, state = ProgressBarCallback("relative"), SimpleNamespace(global_step=100, max_steps=300)
    state.is_world_process_zero = True
    callback.on_train_begin(None, state, None)
    callback.start_time -= 50  # 100 steps later
    state.global_step = 200
    callback.on_step_end(None, state, None)
    callback.on_log(None, state, None, {"loss": 2.5, "grad_norm": 1.0})
    callback.on_log(None, state, None, {"loss": 2.4})
    callback.on_train_end(None, state, None)
    assert capsys.readouterr() == ("", "relative: step 200 of 300, loss 2.500, 00:50 left\n")
