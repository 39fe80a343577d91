"""Tokens a second of training under three ways to cut the same pairs into batches, taking turns in one run.

- random: the stock Seq2SeqTrainer, a fixed number of pairs drawn at random;
- grouped: the same with train_sampling_strategy="group_by_length", transformers' own sampler;
- budget: this project's LengthTrainer, at most --tokens-per-batch tokens a side.

The fixed number of pairs is the mean of the budget's, so that an average batch holds as many tokens whatever the way.
Tokens are those of source and target, special ones included and padding not.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PrinterCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    set_seed,
)

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.data.lengths import lengths
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.trainer import LengthTrainer

# Whatever the config says of evaluations, checkpoints and schedules: a timed step is a step and nothing else.
TIMING_SETTINGS = {
    "early_stopping_patience": None,
    "eval_strategy": "no",
    "evaluations_per_epoch": None,
    "gradient_accumulation_steps": 1,
    "load_best_model_at_end": False,
    "logging_strategy": "no",
    "lr_scheduler_kwargs": None,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
}

STRATEGIES: dict[str, tuple[type[Seq2SeqTrainer], dict[str, Any]]] = {
    "random": (Seq2SeqTrainer, {"train_sampling_strategy": "random"}),
    "grouped": (Seq2SeqTrainer, {"train_sampling_strategy": "group_by_length"}),
    "budget": (LengthTrainer, {}),
}
Batches = list[list[int]]


class StepTimer(TrainerCallback):
    """When each step ended."""

    def __init__(self, clock: str) -> None:
        self.clock = common.CLOCKS[clock]
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(self.clock())


class TimedTrainings:
    """Trainings of one system of a config, by all of its settings but those that make the difference."""

    def __init__(self, run: PreparedRun, options: argparse.Namespace) -> None:
        self.options, self.folder = options, run.paths.folder
        prepared = run.system(options.system or next(iter(run.experiment.systems)))
        self.system, self.tokenizer, self.pairs = prepared.settings, prepared.tokenizer, prepared.training_pairs
        sides = [lengths(self.pairs, side) for side in ("source", "target")]
        self.lengths_N2 = np.stack(sides, axis=1) + self.tokenizer.num_special_tokens_to_add()
        self.settings = self.system.train | TIMING_SETTINGS | {"max_steps": options.steps + 1, "tokens_per_batch": None}
        batches = len(self.first_epoch("budget")[0])
        if batches <= options.steps:
            raise SystemExit(
                f"--steps must be fewer than the batches of an epoch, {batches}, but it is {options.steps}."
            )
        self.settings["per_device_train_batch_size"] = round(len(self.pairs) / batches)

    def trainer(self, strategy: str, seed: int) -> Seq2SeqTrainer:
        kind, changes = STRATEGIES[strategy]
        budget = {} if changes else {"tokens_per_batch": self.options.tokens_per_batch}
        set_seed(seed)
        tokenizer = self.tokenizer
        ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
        sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
        config = self.system.model_config(**sizes, decoder_start_token_id=tokenizer.bos_token_id, **ids)
        model = AutoModelForSeq2SeqLM.from_config(config)
        trainer = kind(
            model=model,
            args=training_arguments(self.settings | changes | budget | {"seed": seed}, self.folder),
            train_dataset=self.pairs,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def first_epoch(self, strategy: str) -> tuple[Batches, float]:
        """The batches of a way's first epoch, as row numbers, and how many seconds its own loader took to draw them."""
        trainer, clock = self.trainer(strategy, 0), common.CLOCKS[self.options.clock]
        start = clock()
        batches = [list(rows) for rows in trainer.get_train_dataloader().batch_sampler]
        return batches, clock() - start

    def tokens_per_second(self, strategy: str, epoch: Batches, number: int) -> float:
        """Tokens a second of a training on batches from anywhere in the epoch: its first ones need not be typical, as
        transformers' sampler goes from long to short. One step before those that are timed finds all cold."""
        excerpt = random.Random(number).sample(epoch, self.options.steps + 1)
        trainer, timer = self.trainer(strategy, number), StepTimer(self.options.clock)
        columns = self.pairs.select_columns(["input_ids", "labels"])
        loader = DataLoader(columns, batch_sampler=excerpt, collate_fn=trainer.data_collator)
        trainer.get_train_dataloader = lambda: loader
        trainer.add_callback(timer)
        trainer.train()
        tokens = sum(int(self.lengths_N2[rows].sum()) for rows in excerpt[1:])
        return tokens / (timer.times[-1] - timer.times[0])

    def measure(self) -> common.Records:
        """A record for each way: its speed over that of `random` in each round, and what is to be known of its epoch,
        which is the share of padding among all places, and the most places that one batch has on a side."""
        epochs: dict[str, Batches] = {}
        records: common.Records = []
        for strategy in STRATEGIES:
            epoch, seconds = self.first_epoch(strategy)
            epochs[strategy] = epoch
            token_slots_N2 = np.array([len(rows) * self.lengths_N2[rows].max(axis=0) for rows in epoch])
            records.append({
                "batching": strategy,
                "batches": len(epoch),
                "pairs_per_batch": round(len(self.pairs) / len(epoch), 1),
                "padding": round(float(1 - self.lengths_N2.sum() / token_slots_N2.sum()), 4),
                "largest": int(token_slots_N2.max()),
                "seconds_to_draw": round(seconds, 2),
            })  # fmt: skip
        with tqdm(total=len(epochs) * self.options.rounds, unit="training") as progress:
            trainings = {
                strategy: partial(self.tokens_per_second, strategy, epoch) for strategy, epoch in epochs.items()
            }
            speeds = common.run_interleaved(trainings, self.options.rounds, progress)
        for record in records:
            mine = speeds[record["batching"]]
            record |= common.ratio_statistics("speed_ratio", mine, speeds["random"])
            record["tokens_per_second"] = round(median(mine))
        return records


def markdown(report: dict[str, Any]) -> str:
    """A row for each way."""
    titles = ("batching", "batches", "pairs in each", "padding", "largest", "drawn in", "tokens a second")
    row = (
        "| `{batching}` | {batches:,} | {pairs_per_batch:.0f} | {padding:.1%} | {largest:,} | {seconds_to_draw:.1f} s |"
    )
    row += " {speed_ratio:.2f} ({speed_ratio_min:.2f}-{speed_ratio_max:.2f}) |"
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [row.format(**record) for record in report["records"]]
    base = f"`random` itself: {report['records'][0]['tokens_per_second']:,} tokens a second"
    what = "{pairs:,} pairs of {tokens:,} tokens, a budget of {tokens_per_batch:,}".format(**report)
    how = "Median (min-max) of {rounds} rounds of {steps} steps, {clock} time".format(**report)
    return "\n".join([*lines, "", f"{base}. {what}. {how}, {common.describe_machine(report['machine'])}."])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.base_parser(__doc__, rounds=5, what="trainings of each way")
    parser.add_argument("config", nargs="?", default="configs/quickstart.yaml", help="of train.py (%(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="settings that replace the file's")
    parser.add_argument("--system", help="of the config; by default its first")
    parser.add_argument("--tokens-per-batch", type=int, default=1000, help="a side, padding included (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="timed in each training (%(default)s)")
    parser.add_argument("--folder", help="where the encoded pairs are kept; by default a temporary one")
    options = common.parse(parser, arguments)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        experiment = load_experiment(options.config, [*options.overrides, f"output_dir={options.folder or temporary}"])
        trainings = TimedTrainings(prepare(experiment), options)
        report = {
            "config": Path(options.config).name,
            "settings": trainings.system.settings(),
            **{name: getattr(options, name) for name in ("tokens_per_batch", "steps", "rounds", "clock")},
            "pairs": len(trainings.pairs),
            "tokens": int(trainings.lengths_N2.sum()),
            "machine": common.machine_info(trainings.trainer("budget", 0).args.device.type),
            "records": trainings.measure(),
        }
    print(markdown(report))
    if options.save:
        common.save(report, markdown(report), options.save)


if __name__ == "__main__":
    main()
