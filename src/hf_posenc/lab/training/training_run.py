"""One training: from the last intact checkpoint in a folder to the trained model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from datasets import Dataset
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from transformers import (
    BatchEncoding,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerState,
)

from ...utils.atomic_io import short_hash
from ...utils.text_io import JsonObject
from ...utils.worker_processes import explain_out_of_memory
from ..data.lengths import lengths
from .arguments import TrainingArguments
from .callbacks import JsonLogger, ProgressBarCallback, optional_callbacks
from .checkpoints import (
    CheckpointManifestCallback,
    SigtermCallback,
    best_checkpoint,
    checkpoint_to_resume,
    load_trainer_state,
    load_weights,
)
from .distributed import FREE_MEMORY, materialize, validate_same_on_all_ranks
from .lora import add_lora, describe_lora
from .trainer import (
    LengthTrainer,
    PromptedPairCollator,
    PromptedTrainer,
    TextBlockCollator,
    TextTrainer,
    validation_metrics,
)

SMALLER_BATCHES = (
    "Or lower train.tokens_per_batch or train.per_device_train_batch_size, raise train.gradient_accumulation_steps, "
    "and train as a run of another name (name=NAME)."
)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    validation: Dataset | None,
    args: TrainingArguments,
    log: JsonLogger,
    *,
    name: str,
    references: Sequence[str] | None = None,
    bleu_tokenize: str = BLEU.TOKENIZER_DEFAULT,
    is_text: bool = False,
) -> tuple[PreTrainedModel, JsonObject]:
    """Train `model` from the last intact checkpoint in the folder that `args` names.

    Returns the trained model, which has its weights in the first process, and the outcome. At SIGTERM everything is
    saved and a SystemExit is raised. `references` are the target texts of `validation`, and `bleu_tokenize` is
    sacrebleu's tokenizer, for BLEU of the validation set. `is_text` says that `pairs` and `validation` are blocks of
    plain text.
    """
    sigterm = SigtermCallback()
    checkpoint = checkpoint_to_resume(Path(args.output_dir), with_best=args.load_best_model_at_end)
    best = None if checkpoint is None else best_checkpoint(checkpoint)
    limit, args.save_total_limit = args.save_total_limit, None  # see delete_old_checkpoints
    progress_bar, manifests = ProgressBarCallback(name), CheckpointManifestCallback(best, limit)
    callbacks = [*optional_callbacks(args), progress_bar, log, sigterm, manifests]
    use_cache = model.config.use_cache
    if args.lora_rank is not None:
        add_lora(model, args.lora_rank)
        if args.process_index == 0:
            print(f"{name}: {describe_lora(model)}", file=sys.stderr, flush=True)
    metrics = partial(validation_metrics, tokenizer=tokenizer, references=references, bleu_tokenize=bleu_tokenize)
    trainer_class, collator = trainer_and_collator(model, tokenizer, is_text)
    trainer = trainer_class(
        model,
        args,
        train_dataset=pairs,
        eval_dataset=validation,
        data_collator=collator,
        processing_class=tokenizer,
        compute_metrics=metrics,
        callbacks=callbacks,
    )
    resumed = None if checkpoint is None else load_trainer_state(checkpoint)
    finished = resumed if resumed is not None and is_finished(resumed, args) else None
    validate_same_data(tokenizer, {"training pairs": pairs, "validation pairs": validation}, checkpoint)
    if checkpoint is not None and finished is not None:  # the interruption came after training
        trainer.state = finished
        if trainer.is_world_process_zero():
            log.restore(finished)
        weights = load_weights(best if best is not None and args.load_best_model_at_end else checkpoint)
    else:
        restore_patience(trainer, resumed)
        weights = fit(trainer, sigterm, checkpoint, name)
    model.config.use_cache = use_cache  # the Trainer has changed it
    return materialize(model, weights, args.lora_rank), training_outcome(trainer.state, log, args)


def trainer_and_collator(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, is_text: bool
) -> tuple[type[LengthTrainer], Callable[..., BatchEncoding]]:
    """The trainer's class and the collator for the architecture and the kind of data."""
    trainer = trainer_class(is_encoder_decoder=model.config.is_encoder_decoder, is_text=is_text)
    if trainer is TextTrainer:
        return trainer, TextBlockCollator(tokenizer)
    if trainer is PromptedTrainer:
        return trainer, PromptedPairCollator(tokenizer)
    return trainer, DataCollatorForSeq2Seq(tokenizer, model=model)


def trainer_class(*, is_encoder_decoder: bool, is_text: bool) -> type[LengthTrainer]:
    """The trainer for the architecture and the kind of data."""
    if is_text:
        return TextTrainer
    return LengthTrainer if is_encoder_decoder else PromptedTrainer


def fit(trainer: LengthTrainer, sigterm: SigtermCallback, checkpoint: str | None, name: str) -> dict[str, Tensor]:
    """Train from a checkpoint, or from the start, to the end. Returns the weights; raises a SystemExit at SIGTERM."""
    with explain_out_of_memory(f"A step of {name}", f"{FREE_MEMORY} {SMALLER_BATCHES}"):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.accelerator.wait_for_everyone()  # until the first process has written everything
    if sigterm.stopped:
        step = trainer.state.global_step
        raise SystemExit(f"SIGTERM stopped {name} at step {step}; the same command goes on from there.")
    weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model)
    return weights


def validate_same_data(
    tokenizer: PreTrainedTokenizerBase, datasets: Mapping[str, Dataset | None], checkpoint: str | None
) -> None:
    """Refuse processes with different tokenizers, pairs or checkpoints."""
    hashes = {name: lengths_hash(dataset) for name, dataset in datasets.items() if dataset is not None}
    validate_same_on_all_ranks({"tokenizer": short_hash(tokenizer.to_str()), **hashes, "checkpoint": checkpoint})


def restore_patience(trainer: LengthTrainer, resumed: TrainerState | None) -> None:
    """Continue early stopping's count of evaluations without improvement."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback) and resumed is not None:
            callback.early_stopping_patience_counter = evals_without_improvement(resumed)


def training_outcome(state: TrainerState, log: JsonLogger, args: TrainingArguments) -> JsonObject:
    """Steps, seconds and last loss, for a TrainingSummary. `best_step` if the best model is loaded at the end."""
    lines = log.read_lines()
    losses = [line["loss"] for line in lines if "loss" in line]
    return {
        "steps": state.global_step,
        "seconds": lines[-1]["seconds"] if lines else 0.0,
        "loss": losses[-1] if losses else None,
        "best_step": state.best_global_step if args.load_best_model_at_end else None,
        "processes": args.world_size,
    }


def is_finished(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether training ended at that state."""
    patience = args.early_stopping_patience
    return state.global_step >= state.max_steps or (
        patience is not None and evals_without_improvement(state) >= patience
    )


def evals_without_improvement(state: TrainerState) -> int:
    """The number of evaluations without improvement when the state was saved."""
    saved: JsonObject = state.stateful_callbacks.get(EarlyStoppingCallback.__name__) or {}
    return int(saved.get("attributes", {}).get("early_stopping_patience_counter", 0))


def lengths_hash(pairs: Dataset) -> str:
    """The number of pairs, and a hash of their lengths."""
    return f"{len(pairs)} {short_hash(lengths(pairs, 'source').tobytes() + lengths(pairs, 'target').tobytes())}"
