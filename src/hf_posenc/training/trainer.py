"""What Seq2SeqTrainer lacks for training by length: token-budget batches, the validation set's own perplexity and BLEU,
tokens a second and padding in the log, and a stop where the loss is no number."""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    TrainerState,
)
from transformers.trainer_utils import HubStrategy, seed_worker
from transformers.utils import PushInProgress

from ..data import lengths
from ..data.batches import EpochSampler, LengthGroupedSampler, TokenBudgetSampler
from ..from_checkpoint import from_checkpoint
from ..modeling.translation import check_tokenizer
from ..whole_files import short_hash
from .arguments import TrainingArguments, training_arguments
from .callbacks import LossLog, ProgressBar, StopWhenTold, WholeCheckpoints, asked_for
from .checkpoints import (
    best_checkpoint,
    checkpoint_to_resume,
    delete_old_checkpoints,
    last_whole_checkpoint,
    mean_weights,
    state_of,
)
from .losses import reads_lengths, smoothed_loss, validation_scores
from .processes import any_process, explain_out_of_memory, refuse_unlike_processes
from .pushing import push_checkpoint
from .sharding import shard_by_layers, with_weights

STOPPED_ELSEWHERE = "Training stops because the loss of another process is not to be trained on; its message says more."
SMALLER_BATCHES = (
    "Or lower train.tokens_per_batch or train.per_device_train_batch_size, raise train.gradient_accumulation_steps, "
    "and train as a run of another name (name=NAME)."
)
WORSE_THAN_GUESSING = 10  # times the loss of a uniform guess: what has exploded does not come back


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    validation: Dataset | None,
    settings: dict[str, Any],
    folder: Path,
    *,
    name: str,
    bar: int = 0,
    references: Sequence[str] | None = None,
    bleu_tokenize: str = BLEU.TOKENIZER_DEFAULT,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Train `model` from the last whole checkpoint in `folder`. Returns the trained one, which is whole in the first
    process, and steps, seconds, the last loss and, if the best model was to be loaded, its step. At SIGTERM a
    SystemExit, with everything saved.

    `bar` is the line of the progress bar, for systems that train side by side; `references` are the target texts of
    `validation`, and `bleu_tokenize` is sacrebleu's tokenizer, for BLEU of the validation set.
    """
    args = training_arguments(settings, folder, has_validation=validation is not None)
    stop, log = StopWhenTold(), LossLog(folder / "training.jsonl")
    checkpoint = checkpoint_to_resume(folder / "checkpoints", with_best=args.load_best_model_at_end)
    best = None if checkpoint is None else best_checkpoint(checkpoint)
    use_cache = model.config.use_cache
    trainer = LengthTrainer(
        model=model,
        args=args,
        train_dataset=pairs,
        eval_dataset=validation,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_loss_func=partial(smoothed_loss, smoothing=args.label_smoothing_factor)
        if args.label_smoothing_factor
        else None,
        compute_metrics=partial(
            validation_scores, tokenizer=tokenizer, references=references, bleu_tokenize=bleu_tokenize
        ),
        callbacks=[*asked_for(args), ProgressBar(name, bar), log, stop, WholeCheckpoints(best)],
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.is_fsdp_enabled:
        for argument in ("predict_with_generate", "neftune_noise_alpha"):
            if getattr(args, argument):
                raise ValueError(
                    f"A model that is sharded by FSDP trains without train.{argument}, which needs it, or its "
                    f"embeddings, in one piece; leave train.{argument} out, or train without FSDP."
                )
        shard_by_layers(model, trainer.accelerator.state.fsdp_plugin)
    data = {"training pairs": pairs, "validation pairs": validation}
    hashes = {name: lengths_hash(one) for name, one in data.items() if one is not None}
    refuse_unlike_processes({"tokenizer": short_hash(tokenizer.to_str()), **hashes, "checkpoint": checkpoint})
    before = None if checkpoint is None else state_of(checkpoint)
    if before is not None and is_last(before, args):  # only what comes after the training was interrupted
        trainer.state = before
        if trainer.is_world_process_zero():
            log.restore(before)
        at_end = best if best is not None and args.load_best_model_at_end else checkpoint
        weights = from_checkpoint(AutoModelForSeq2SeqLM, at_end, dtype="auto").state_dict()
    else:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and before is not None:
                callback.early_stopping_patience_counter = patience_lost(before)
        args.eval_on_start &= checkpoint is None  # or patience would count it
        with explain_out_of_memory(f"A step of {name}", SMALLER_BATCHES):
            trainer.train(resume_from_checkpoint=checkpoint)
        trainer.accelerator.wait_for_everyone()  # the first process has written everything
        if stop.stopped:
            step = trainer.state.global_step
            raise SystemExit(f"SIGTERM stopped {name} at step {step}; the same command goes on from there.")
        weights = trainer.accelerator.get_state_dict(trainer.model)
    if args.average_checkpoints is not None:
        weights = mean_weights(Path(args.output_dir), args.average_checkpoints)
    lines = log.lines()
    losses = [line["loss"] for line in lines if "loss" in line]
    facts = {
        "steps": trainer.state.global_step,
        "seconds": lines[-1]["seconds"] if lines else 0.0,
        "loss": losses[-1] if losses else None,
    }
    if args.load_best_model_at_end:
        facts["best_step"] = trainer.state.best_global_step
    model.config.use_cache = use_cache  # the Trainer has set it to its own
    return with_weights(model, weights), facts | {"processes": args.world_size}


def is_last(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether a checkpoint of that state is the end of a training."""
    patience = args.early_stopping_patience
    return state.global_step >= state.max_steps or (patience is not None and patience_lost(state) >= patience)


def patience_lost(state: TrainerState) -> int:
    """After how many evaluations without a better one it was saved."""
    saved: Any = state.stateful_callbacks.get(EarlyStoppingCallback.__name__) or {}
    return int(saved.get("attributes", {}).get("early_stopping_patience_counter", 0))


def lengths_hash(pairs: Dataset) -> str:
    """How many pairs, and a hash of their lengths."""
    return f"{len(pairs)} {short_hash(lengths(pairs, 'source').tobytes() + lengths(pairs, 'target').tobytes())}"


class LengthTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with the four arguments of `TrainingArguments`, and a fuller log.

    An evaluation adds `eval_perplexity`, which may be reduce_lr_on_plateau's metric, and with `predict_with_generate`
    `eval_bleu`, of greedy translations unless `generation_num_beams` says otherwise. A training log adds
    `tokens_per_second`, source and target tokens of all processes without padding, and `padding`, its share of all
    places in their batches. `lengths_known` stands beside losses and perplexities of a model that was told how long
    each target is: they compare with no other model's, nor with what it does in decoding.
    """

    args: TrainingArguments
    model: PreTrainedModel
    push_in_progress: PushInProgress | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_tokenizer(self.model.config, self.processing_class)
        self.seen = torch.zeros(2, dtype=torch.int64, device=self.args.device)  # tokens and places since the last log
        self.seen_since = 0.0
        self.checkpoint_limit, self.args.save_total_limit = self.args.save_total_limit, None  # _save_checkpoint deletes

    def get_train_dataloader(self) -> DataLoader:
        args, pairs = self.args, self.train_dataset
        seed = args.seed if args.data_seed is None else args.data_seed
        share = {"seed": seed, "rank": args.process_index, "num_ranks": args.world_size}
        sampler: EpochSampler
        if args.tokens_per_batch is not None:
            special = self.processing_class.num_special_tokens_to_add()
            source, target = lengths(pairs, "source") + special, lengths(pairs, "target") + special
            sampler = TokenBudgetSampler(source, target, args.tokens_per_batch, **share)
        elif args.train_sampling_strategy == "group_by_length":
            by = lengths(pairs, "target" if args.length_column_name == "target_length" else "source")
            sampler = LengthGroupedSampler(by, self._train_batch_size, drop_last=args.dataloader_drop_last, **share)
        else:
            return super().get_train_dataloader()
        loader = DataLoader(
            self._remove_unused_columns(pairs, description="training"),
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            in_order=args.dataloader_in_order,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        loader.set_epoch = sampler.set_epoch  # by which the Trainer tells a loader the epoch
        return loader

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        """In the order of the validation set, which is that of its references, and not by length."""
        return SequentialSampler(eval_dataset)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One batch forward and back; a FloatingPointError that names the pairs if its loss is not to be trained on."""
        labels, mask = inputs["labels"], inputs["attention_mask"]
        tokens = mask.sum() + (labels != -100).sum()
        self.seen += torch.stack((tokens, tokens.new_tensor(mask.numel() + labels.numel()))).to(self.seen.device)
        self.seen_since = self.seen_since or time.monotonic()
        described = {name: inputs[name] for name in ("input_ids", "labels")}
        loss = super().training_step(model, inputs, num_items_in_batch)
        bad = not loss <= WORSE_THAN_GUESSING * math.log(self.model.config.decoder_vocab_size)
        if any_process(bad):  # all of them stop, before any of them has made a step of it and saved it
            raise FloatingPointError(self.accident(float(loss), **described) if bad else STOPPED_ELSEWHERE)
        return loss

    def accident(self, loss: float, input_ids: Tensor, labels: Tensor) -> str:
        """What to know of a loss that is not to be trained on."""
        pad = self.processing_class.pad_token_id
        source, target = (
            self.processing_class.decode(
                ids[0].masked_fill(ids[0] == -100, pad), skip_special_tokens=True, use_source_tokenizer=ids is input_ids
            )
            for ids in (input_ids, labels)
        )
        good = last_whole_checkpoint(Path(self.args.output_dir))
        return (
            f"Training stops where the loss is no number or far worse than guessing, and at step "
            f"{self.state.global_step + 1} it is {loss:.4g}, on {len(input_ids)} pairs, the first of which is "
            f"{source!r} -> {target!r}. The last good checkpoint is {good or 'none'}. Lower train.learning_rate, clip "
            "harder (train.max_grad_norm), warm up longer, or look at the pairs."
        )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor], Tensor]:
        """The loss in nats a token, and each target's nats and tokens (B, 2): never smoothed. With
        `predict_with_generate` beside these a translation of each source (B, T)."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        labels = inputs["labels"]
        nats_BT = nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
        # In float32, which every device has; those of all sentences are summed on the CPU, in float64.
        each_B2 = torch.stack((nats_BT.sum(1), (labels != -100).sum(1).float()), dim=1)
        nats, tokens = each_B2.sum(0)
        loss = nats / tokens
        if not self.args.predict_with_generate:
            return loss, each_B2, each_B2[:, 1]
        sources = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        search = {"num_beams": self.args.generation_num_beams or 1, "max_length": self.args.generation_max_length}
        return loss, (each_B2, self.model.generate(**sources, **search)), labels

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer's; its time is no time of training."""
        began = time.monotonic()
        remedy = "Or lower train.per_device_eval_batch_size and train as a run of another name (name=NAME)."
        with explain_out_of_memory("An evaluation", remedy):
            found = super().evaluate(*args, **kwargs)
        self.seen_since = self.seen_since and self.seen_since + time.monotonic() - began
        return found

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """All validation pairs: `dataloader_drop_last` is for training alone."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether the model is the best so far. It is then saved, or there would be nothing to load at the end.

        By save_strategy "best" the Trainer saves if this is True, so it is True after SIGTERM as well."""
        is_best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= is_best and self.args.load_best_model_at_end
        return is_best or self.control.should_save

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As the Trainer's; what is too old is deleted here, by its name."""
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            state, folder = self.state, Path(self.args.output_dir)
            delete_old_checkpoints(folder, self.checkpoint_limit, state.global_step, state.best_model_checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """A checkpoint's model, from its gathered weights if it is sharded."""
        model = self.model
        if self.is_fsdp_enabled and self.args.should_save:
            self.model, state_dict = with_weights(model, state_dict or {}), None
        super()._save(output_dir, state_dict)
        self.model = model

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a checkpoint's model, and nothing else of the Trainer's own push: that holds paths of this machine. As
        there, a checkpoint is left out while the one before is on its way, unless hub_always_push."""
        going, args = self.push_in_progress, self.args
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if going is not None and not going.is_done() and not args.hub_always_push:
            return
        self._finish_current_push()  # which reads the files that are about to change
        step, options = self.state.global_step, {"revision": args.hub_revision, "token": args.hub_token}
        self.callback_handler.on_push_begin(args, self.state, self.control)
        beside = Path(args.output_dir) / "pushed"
        message = f"Training in progress, step {step}"
        job = push_checkpoint(Path(checkpoint_folder), beside, self.hub_model_id, message=message, **options)
        self.push_in_progress = PushInProgress([job])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if reads_lengths(self.model.config):
            logs["lengths_known"] = True
        if "loss" in logs:
            tokens, places = self.accelerator.reduce(self.seen, "sum").tolist()
            logs["tokens_per_second"] = round(tokens / (time.monotonic() - self.seen_since), 1)
            logs["padding"] = round(1 - tokens / places, 4)
            self.seen.zero_()
            self.seen_since = time.monotonic()
        super().log(logs, start_time)
