"""Where LengthTrainer differs from Seq2SeqTrainer: names of checkpoints, the best model, evaluation of all pairs, no
float64 on a device, and one error line when memory runs out."""

import re
import signal
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from support.models import tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_posenc import PosEncConfig, PosEncForConditionalGeneration, PosEncTokenizer, RnnNmtConfig
from hf_posenc.lab.analysis.diagnosis import sum_entropies
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.callbacks import JsonLogger, ProgressBarCallback, WandbFinishCallback
from hf_posenc.lab.training.checkpoints import delete_old_checkpoints, last_intact_checkpoint, list_checkpoints
from hf_posenc.lab.training.trainer import LengthTrainer
from hf_posenc.lab.training.training_run import train
from hf_posenc.utils.run_folder import SystemPaths
from hf_posenc.utils.worker_processes import OutOfMemory

ROOT = Path(__file__).parents[3]


def encoded(tokenizer: PosEncTokenizer, number: int) -> Dataset:
    texts = ["Ein Hund.", "Zwei Kinder im Schnee"] * number
    ids = tokenizer(texts[:number])["input_ids"]
    sizes = [len(row) - 1 for row in ids]
    rows = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "labels": ids}
    return Dataset.from_dict(rows | {"source_length": sizes, "target_length": sizes})


def run(tokenizer: PosEncTokenizer, folder: Path, *, pairs: int = 8, validation: int = 3, **settings: Any) -> Any:
    """The trained model and its facts, after ten steps unless they are set."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = PosEncForConditionalGeneration(PosEncConfig(vocab_size=len(tokenizer), **sizes, **heads))
    common = {"use_cpu": True, "max_steps": 10, "per_device_train_batch_size": 2, "save_strategy": "no"}
    args = training_arguments(common | settings, folder)
    log = JsonLogger(SystemPaths(folder).training_log)
    return train(model, tokenizer, encoded(tokenizer, pairs), encoded(tokenizer, validation), args, log, name="s")


def measured(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the evaluations have these perplexities, one after the other."""
    following = iter(scores)
    monkeypatch.setattr(
        "hf_posenc.lab.training.training_run.validation_metrics", lambda *_, **__: {"perplexity": next(following)}
    )


def steps_of(folder: Path) -> list[int]:
    return [int(checkpoint.name.split("-")[1]) for checkpoint in list_checkpoints(folder / "checkpoints")]


EVERY = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "metric_for_best_model": "perplexity"}


# The best model


@pytest.mark.slow
@pytest.mark.parametrize("save", [{"save_steps": 5}, {"save_strategy": "best"}], ids=str)
def test_the_best_model_is_that_of_the_best_evaluation_whenever_it_comes(tokenizer, tmp_path, monkeypatch, save):
    measured(monkeypatch, [9.0, 8.0, 7.0, 8.0, 7.5, 6.5, 5.0, 6.0, 6.1, 6.2])
    model, facts = run(tokenizer, tmp_path, **(EVERY | {"load_best_model_at_end": True} | save))
    assert facts["best_step"] == 7
    best = load_file(tmp_path / "checkpoints" / "checkpoint-7" / "model.safetensors")
    for name, weight in model.state_dict().items():
        if name in best:
            torch.testing.assert_close(weight, best[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("scores", "steps"),
    [([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.9, 1.8], 10), ([9.0, 8.0, 8.5, 8.6], 4)],
    ids=["better", "worse"],
)
@pytest.mark.full
def test_training_stops_early_when_perplexity_rises(tokenizer, tmp_path, monkeypatch, scores, steps):
    measured(monkeypatch, scores)
    _, facts = run(tokenizer, tmp_path, **(EVERY | {"early_stopping_patience": 2, "save_strategy": "no"}))
    assert facts["steps"] == steps


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training be killed in that step."""

    def interrupt(self: ProgressBarCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBarCallback, "on_step_end", interrupt)


def test_a_trained_model_says_of_its_cache_what_it_said_before(tokenizer, tmp_path):
    model, _ = run(tokenizer, tmp_path, max_steps=1)
    assert model.config.use_cache


@pytest.mark.full
def test_sigterm_saves_where_only_the_best_is_saved(tokenizer, tmp_path, monkeypatch):
    measured(monkeypatch, [5.0, 6.0, 7.0])
    step = LengthTrainer.training_step

    def told(self: LengthTrainer, *args: Any, **kwargs: Any) -> Tensor:
        if self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(LengthTrainer, "training_step", told)
    with pytest.raises(SystemExit, match="SIGTERM stopped s at step 3"):
        run(tokenizer, tmp_path, **(EVERY | {"save_strategy": "best"}))
    assert steps_of(tmp_path) == [1, 3]


# A killed run resumes to the same bits


EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
CHECKPOINTING = next(  # by the name that this transformers has without a warning
    name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(Seq2SeqTrainingArguments, name)
)
TOGETHER: dict[str, dict[str, Any]] = {
    "regularised": {
        "neftune_noise_alpha": 5.0, "label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine", "warmup_steps": 0.2, "weight_decay": 0.01, "max_grad_norm": 0.5,
        CHECKPOINTING: True, "include_num_input_tokens_seen": "all",
    },
    "plateau": EVALUATED | {
        "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0},
        "optim": "sgd", "optim_args": "momentum=0.9", "torch_empty_cache_steps": 1,
    },
    "greedy": EVALUATED | {
        "lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 0}, "optim": "rmsprop",
        "logging_strategy": "no",
    },
    "random": EVALUATED | {"train_sampling_strategy": "random", "optim": "adafactor"},
    "sequential": {
        "train_sampling_strategy": "sequential", "bf16": True, "optim": "adagrad", "data_seed": 7,
        "accelerator_config": {"split_batches": True, "dispatch_batches": True},
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("settings", TOGETHER.values(), ids=TOGETHER)
def test_a_killed_run_resumes_to_the_same_bits_whatever_its_arguments(tokenizer, tmp_path, monkeypatch, settings):
    saved = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 1, "learning_rate": 1e-2}
    straight, _ = run(tokenizer, tmp_path / "straight", pairs=9, **(saved | settings))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stopped_at(5, patched)
        run(tokenizer, tmp_path / "killed", pairs=9, **(saved | settings))
    killed, _ = run(tokenizer, tmp_path / "killed", pairs=9, **(saved | settings))
    for name, weight in killed.state_dict().items():
        torch.testing.assert_close(weight, straight.state_dict()[name], rtol=0, atol=0)


# Checkpoints by their names


OTHERS = [
    "checkpoint-4.bak",
    "checkpoint-",
    "checkpoint-best",
    "checkpoint-2-copy",
    "old-checkpoint-2",
    "checkpoint--1",
]


def folder_of(tmp_path: Path, *steps: int) -> Path:
    for name in [*OTHERS, *(f"checkpoint-{step}" for step in steps)]:
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-10.tar.gz").touch()
    (tmp_path / "checkpoint-77").touch()  # no folder
    return tmp_path


def test_what_has_another_name_is_no_checkpoint(tmp_path):
    names = [checkpoint.name for checkpoint in list_checkpoints(folder_of(tmp_path, 100, 4, 20))]
    assert names == ["checkpoint-4", "checkpoint-20", "checkpoint-100"]
    assert last_intact_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (2, None, [4, 5]),
        (2, "checkpoint-1", [1, 5]),
        (1, "checkpoint-1", [1, 5]),
        (1, None, [5]),
        (3, "checkpoint-5", [3, 4, 5]),
        (9, None, [1, 2, 3, 4, 5]),
        (0, None, [1, 2, 3, 4, 5]),
        (None, None, [1, 2, 3, 4, 5]),
    ],
)
def test_the_newest_checkpoints_and_the_best_stay_and_what_has_another_name(tmp_path, limit, best, kept):
    folder = folder_of(tmp_path, 1, 2, 3, 4, 5)
    delete_old_checkpoints(folder, limit, best)
    assert [int(path.name.split("-")[1]) for path in list_checkpoints(folder)] == kept
    assert all((folder / name).is_dir() for name in OTHERS)


@pytest.mark.slow
def test_a_copy_of_a_checkpoint_stops_no_training_and_no_training_deletes_it(tokenizer, tmp_path, monkeypatch):
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stopped_at(5, patched)
        run(tokenizer, tmp_path, **settings)
    copy = tmp_path / "checkpoints" / "checkpoint-4.bak"
    (tmp_path / "checkpoints" / "checkpoint-3").rename(copy)
    files = sorted(file.name for file in copy.iterdir())
    _, facts = run(tokenizer, tmp_path, **settings)
    assert facts["steps"] == 10 and steps_of(tmp_path) == [9, 10]
    assert sorted(file.name for file in copy.iterdir()) == files


# Devices


class NoFloat64(TorchDispatchMode):
    """As on a device that has no float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float64 and tensor.ndim:
                raise TypeError(f"{func} makes float64, which this device has not")
        return made


@pytest.mark.full
def test_training_and_evaluation_need_no_float64_on_their_device(tokenizer, tmp_path):
    with NoFloat64():
        run(
            tokenizer,
            tmp_path,
            max_steps=2,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            label_smoothing_factor=0.1,
        )


# float64 is made on the CPU: after .cpu(), or where nothing is ever on another device.
ON_THE_CPU = {
    "lab/explorer/views.py", "convert/checkpoints.py", "lab/figures/encoding_plots.py", "lab/analysis/probes.py",
    "inference/streaming.py",
}  # fmt: skip


def test_float64_is_made_on_the_cpu_alone():
    package = ROOT / "src" / "hf_posenc"
    made = re.compile(r"(?<!\.cpu\(\))\.double\(\)|torch\.(float64|double)\b")
    files = {str(file.relative_to(package)) for file in package.rglob("*.py") if made.search(file.read_text("utf-8"))}
    assert files == ON_THE_CPU


def test_entropies_are_summed_in_float64():
    torch.manual_seed(0)
    p_BHQS = torch.rand(2, 3, 50, 7).softmax(-1)
    mask_BQ = torch.ones(2, 50, dtype=torch.bool)
    (first, _), each = sum_entropies([p_BHQS], mask_BQ), torch.special.entr(p_BHQS).sum(-1)
    assert first.dtype == "float64"
    torch.testing.assert_close(torch.from_numpy(first)[0, 0], each[0].double().sum(-1), rtol=1e-12, atol=0)


# Memory that runs out


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")


@pytest.mark.slow
def test_a_training_whose_memory_ran_out_goes_on(tokenizer, tmp_path, monkeypatch):
    settings = {"save_strategy": "steps", "save_steps": 4}
    straight, _ = run(tokenizer, tmp_path / "straight", **settings)
    step = LengthTrainer.training_step

    def full(self: LengthTrainer, *args: Any, **kwargs: Any) -> Tensor:
        if self.state.global_step == 6:
            raise OUT_OF_MEMORY
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched, pytest.raises(OutOfMemory, match=r"A step of s must .*tokens_per_batch"):
        patched.setattr(LengthTrainer, "training_step", full)
        run(tokenizer, tmp_path / "full", **settings)
    model, facts = run(tokenizer, tmp_path / "full", **settings)
    assert facts["steps"] == 10
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, straight.state_dict()[name], rtol=0, atol=0)


def test_an_evaluation_whose_memory_ran_out_names_its_batch(tokenizer, tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OUT_OF_MEMORY

    monkeypatch.setattr(LengthTrainer, "prediction_step", full)
    with pytest.raises(OutOfMemory, match=r"An evaluation must .*per_device_eval_batch_size"):
        run(tokenizer, tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1)


# A plain Trainer of transformers


@pytest.mark.full
@pytest.mark.parametrize("kind", [PosEncConfig, RnnNmtConfig])
def test_smoothed_labels_without_decoder_inputs_are_refused_with_a_remedy_that_there_is(tokenizer, tmp_path, kind):
    model = AutoModelForSeq2SeqLM.from_config(kind(vocab_size=len(tokenizer), d_model=16))
    smoothed = {"label_smoothing_factor": 0.1, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    args = Seq2SeqTrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, **smoothed)

    def trainer(**collated: Any) -> Seq2SeqTrainer:
        collator = DataCollatorForSeq2Seq(tokenizer, **collated)
        return Seq2SeqTrainer(model=model, args=args, train_dataset=encoded(tokenizer, 8), data_collator=collator)

    with pytest.raises(ValueError, match=r"decoder_input_ids, .* DataCollatorForSeq2Seq the model"):
        trainer().train()
    trainer(model=model).train()


@pytest.mark.full
def test_a_loss_without_the_length_loss_is_warned_of_and_ours_has_it(tokenizer, tmp_path):
    size = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer)}
    model = tiny_model("relative+window by fertility", dtype=torch.float32, **size)
    smoothed = {"label_smoothing_factor": 0.1, "max_steps": 2, "use_cpu": True, "save_strategy": "no"}
    quiet = {"report_to": "none", "disable_tqdm": True}
    data = {
        "train_dataset": encoded(tokenizer, 8),
        "data_collator": DataCollatorForSeq2Seq(tokenizer, model=model),
    }
    bias = model.model.decoder.alignment.bias
    before = bias.detach().clone()
    with pytest.warns(UserWarning, match=r"trained only by outputs.length_loss.* LengthTrainer"):
        Seq2SeqTrainer(model, Seq2SeqTrainingArguments(str(tmp_path), **smoothed, **quiet), **data).train()
    assert torch.equal(bias, before)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "This alignment is trained only")
        LengthTrainer(model, training_arguments(smoothed, tmp_path), processing_class=tokenizer, **data).train()
    assert not torch.equal(bias, before)


def test_each_training_of_a_process_has_a_wandb_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback of transformers starts a run only if there is none, so ours ends it in the first process."""
    finished = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: finished.append(True)))
    for is_first in (True, False):
        state = SimpleNamespace(is_world_process_zero=is_first)
        WandbFinishCallback().on_train_end(None, state, None)  # type: ignore[arg-type]
    assert finished == [True]
