"""Seq2SeqTrainers for training by length: of encoder-decoders, and of decoder-only models on pairs and on plain text.

They add token-budget batches, perplexity and BLEU of the validation set, tokens per second and padding in the log, and
a stop at a diverged loss. LengthTrainer overrides private methods of transformers' Trainer where no public hook exists.
Each says why, and tests run on the oldest and the newest supported transformers.

A decoder-only model reads a pair as one sequence, and its loss is that of the target:

    source </s> target </s>

A source and its target follow each other as tokenized, so that a source with its `</s>` is the prompt at test time
(generation/translate.py).

Several documents can follow each other in a block of plain text. No token attends to another document: positions begin
again at each `<s>`, and the attention mask is block-diagonal. The losses of a document are therefore those of the
document in a row of its own.
"""

import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    BatchEncoding,
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
)
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.trainer_utils import seed_worker

from ...alignments.base import Alignment
from ...encodings.positions import document_mask
from ...generation.translate import max_continuation_lengths, validate_tokenizer
from ...transformer.encoder_decoder import ConditionalGeneration
from ...utils.worker_processes import explain_out_of_memory
from ..data.lengths import DistributedBatchSampler, LengthSortedSampler, MaxTokensSampler, lengths
from .arguments import TrainingArguments
from .checkpoints import last_intact_checkpoint
from .distributed import FREE_MEMORY, any_rank, materialize, shard_by_layers, validate_fsdp_arguments

OTHER_RANK_DIVERGED = (
    "Training stops because the loss of another process is not to be trained on; its message says more."
)
DIVERGED_LOSS_RATIO = 10  # times the loss of a uniform guess


class LengthTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with the four arguments of `TrainingArguments`, a fuller log, and a model sharded if FSDP is on.

    Evaluations add `eval_perplexity`, which reduce_lr_on_plateau may follow. With `predict_with_generate` they add
    `eval_bleu`, of greedy translations unless `generation_num_beams` is set. Training logs add `tokens_per_second`,
    source and target tokens of all processes without padding, and `padding`, the fraction of padding in their batches.
    `lengths_known` is logged with the losses of a model that uses the target length. These losses are not comparable
    with those of other models, or with decoding.
    """

    args: TrainingArguments
    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, args: TrainingArguments, **kwargs: object) -> None:
        loss = self.label_smoothed_loss if args.label_smoothing_factor else None
        super().__init__(model, args, compute_loss_func=loss, **kwargs)
        for module in model.modules():
            if isinstance(module, ConditionalGeneration):
                module.length_loss_is_added = True  # by label_smoothed_loss
        self.remove_callback(PrinterCallback)
        validate_tokenizer(self.model.config, self.processing_class)
        self.token_counts = torch.zeros(2, dtype=torch.int64, device=self.args.device)  # tokens, slots
        self.counting_since = 0.0
        if self.is_fsdp_enabled:
            validate_fsdp_arguments(args)
            shard_by_layers(model, self.accelerator.state.fsdp_plugin)

    # What depends on the architecture: an encoder-decoder here, a decoder-only model in the trainers below.

    def predicted_labels(self, labels: Tensor) -> Tensor:
        """The labels (B, T) at the tokens whose logits predict them."""
        return labels

    def count_tokens(self, inputs: dict[str, Tensor]) -> tuple[Tensor, int]:
        """The number of tokens in a batch without padding, and with padding."""
        labels, mask = inputs["labels"], inputs["attention_mask"]
        return mask.sum() + (labels != -100).sum(), mask.numel() + labels.numel()

    @staticmethod
    def budgeted_lengths(pairs: Dataset, num_special_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """The two lengths of each pair that `tokens_per_batch` limits, special tokens included."""
        return lengths(pairs, "source") + num_special_tokens, lengths(pairs, "target") + num_special_tokens

    def generate_targets(self, inputs: dict[str, Tensor]) -> Tensor:
        """A translation of each source in a batch (B, T)."""
        sources = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        translations: Tensor = self.model.generate(**sources, num_beams=self.args.generation_num_beams or 1)
        return translations

    def label_smoothed_loss(
        self, outputs: Seq2SeqLMOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The loss with the arguments' label smoothing."""
        smoothing = self.args.label_smoothing_factor
        return label_smoothed_loss(outputs, self.predicted_labels(labels), num_items_in_batch, smoothing=smoothing)

    @classmethod
    def batch_sampler(
        cls, args: TrainingArguments, pairs: Dataset, num_special_tokens: int, batch_size: int, **rank_options: int
    ) -> DistributedBatchSampler | None:
        """The sampler of training batches by length, None for transformers' own; a ValueError if there are none."""
        rank_options["seed"] = args.seed if args.data_seed is None else args.data_seed
        if args.tokens_per_batch is not None:
            source, target = cls.budgeted_lengths(pairs, num_special_tokens)
            return MaxTokensSampler(source, target, args.tokens_per_batch, **rank_options)
        if args.train_sampling_strategy != "group_by_length":
            return None
        return LengthSortedSampler(lengths(pairs, "source"), batch_size, **rank_options)

    def get_train_dataloader(self) -> DataLoader:
        args, pairs = self.args, self.train_dataset
        num_special_tokens = self.processing_class.num_special_tokens_to_add()
        ranks = {"rank": args.process_index, "num_ranks": args.world_size}
        sampler = self.batch_sampler(args, pairs, num_special_tokens, self._train_batch_size, **ranks)
        if sampler is None:
            return super().get_train_dataloader()
        loader = DataLoader(
            # The Trainer's get_train_dataloader does this, too; its batches have no columns that the model ignores.
            self._remove_unused_columns(pairs, description="training"),
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        loader.set_epoch = sampler.set_epoch  # the Trainer calls it at each epoch
        return loader

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        """Private hook: the order of the validation set, which its references have, in place of the order by length."""
        return SequentialSampler(eval_dataset)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One forward and backward pass. A FloatingPointError with the pairs if the loss is not finite or has
        exploded."""
        tokens, slots = self.count_tokens(inputs)
        self.token_counts += torch.stack((tokens, tokens.new_tensor(slots))).to(self.token_counts.device)
        self.counting_since = self.counting_since or time.monotonic()
        pair_ids = {name: inputs[name] for name in ("input_ids", "labels")}
        loss = super().training_step(model, inputs, num_items_in_batch)
        has_diverged = not loss <= DIVERGED_LOSS_RATIO * math.log(self.model.config.target_vocab_size)
        if any_rank(has_diverged):  # all processes stop before the optimizer step
            raise FloatingPointError(
                self.divergence_message(float(loss), **pair_ids) if has_diverged else OTHER_RANK_DIVERGED
            )
        return loss

    def divergence_message(self, loss: float, input_ids: Tensor, labels: Tensor) -> str:
        """The message for a loss that training cannot continue from."""
        pad = self.processing_class.pad_token_id
        source, target = (
            self.processing_class.decode(
                ids[0].masked_fill(ids[0] == -100, pad), skip_special_tokens=True, use_source_tokenizer=ids is input_ids
            )
            for ids in (input_ids, labels)
        )
        intact = last_intact_checkpoint(Path(self.args.output_dir))
        return (
            f"Training stops where the loss is no number or far worse than guessing, and at step "
            f"{self.state.global_step + 1} it is {loss:.4g}, on {len(input_ids)} pairs, the first of which is "
            f"{source!r} -> {target!r}. The last good checkpoint is {intact or 'none'}. Lower train.learning_rate, "
            "clip harder (train.max_grad_norm), warm up longer, or look at the pairs."
        )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor], Tensor]:
        """The loss in nats per token, and each target's nats and tokens (B, 2), without label smoothing. With
        `predict_with_generate` also a translation of each source (B, T)."""
        inputs = self._prepare_inputs(inputs)  # private: moves a batch to the device, as every step of the Trainer does
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        labels = self.predicted_labels(inputs["labels"])
        nll_BT = nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
        # In float32, which every device has. The metric sums all sentences on the CPU in float64.
        nll_and_tokens_B2 = torch.stack((nll_BT.sum(1), (labels != -100).sum(1).float()), dim=1)
        nll, tokens = nll_and_tokens_B2.sum(0)
        loss = nll / tokens
        if not self.args.predict_with_generate:
            return loss, nll_and_tokens_B2, nll_and_tokens_B2[:, 1]
        return loss, (nll_and_tokens_B2, self.generate_targets(inputs)), labels

    def evaluate(self, *args: object, **kwargs: object) -> dict[str, float]:
        """Evaluate. The time of an evaluation does not count in `tokens_per_second`."""
        start = time.monotonic()
        remedy = "Or lower train.per_device_eval_batch_size and train as a run of another name (name=NAME)."
        with explain_out_of_memory("An evaluation", f"{FREE_MEMORY} {remedy}"):
            metrics = super().evaluate(*args, **kwargs)
        self.counting_since = self.counting_since and self.counting_since + time.monotonic() - start
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: object) -> bool:
        """Private hook: whether the model is the best so far. The best model must be saved, to be loaded at the end.

        With save_strategy "best" the Trainer saves if this is True. Therefore it is also True for a save after SIGTERM.
        """
        is_best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= is_best and self.args.load_best_model_at_end
        return is_best or self.control.should_save

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Private hook: save a checkpoint's model. With FSDP an unsharded model is saved, under its own class."""
        model = self.model
        if self.is_fsdp_enabled and self.args.should_save:
            self.model, state_dict = materialize(model, state_dict or {}), None
        super()._save(output_dir, state_dict)
        self.model = model

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if uses_target_length(self.model.config):
            logs["lengths_known"] = True
        if "loss" in logs:
            tokens, token_slots = self.accelerator.reduce(self.token_counts, "sum").tolist()
            logs["tokens_per_second"] = round(tokens / (time.monotonic() - self.counting_since), 1)
            logs["padding"] = round(1 - tokens / token_slots, 4)
            self.token_counts.zero_()
            self.counting_since = time.monotonic()
        super().log(logs, start_time)


class PromptedPairCollator:
    """Joins the `input_ids` and `labels` of each pair into one sequence, with padding on the right.

    A batch has `input_ids`, `attention_mask` and `labels` (B, T), where labels are -100 at the source and at padding.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.pad = DataCollatorForSeq2Seq(tokenizer)

    def __call__(self, pairs: list[dict[str, list[int]]]) -> BatchEncoding:
        rows = []
        for pair in pairs:
            source, target = list(pair["input_ids"]), list(pair["labels"])
            rows.append({"input_ids": source + target, "labels": [-100] * len(source) + target})
        batch: BatchEncoding = self.pad(rows)
        return batch


class PromptedTrainer(LengthTrainer):
    """LengthTrainer for a decoder-only model and the batches of a PromptedPairCollator.

    `tokens_per_batch` limits the tokens of whole sequences, source and target together.
    """

    def predicted_labels(self, labels: Tensor) -> Tensor:
        return next_token_labels(labels)

    def count_tokens(self, inputs: dict[str, Tensor]) -> tuple[Tensor, int]:
        mask = inputs["attention_mask"]
        return mask.sum(), mask.numel()

    @staticmethod
    def budgeted_lengths(pairs: Dataset, num_special_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        both = lengths(pairs, "source") + lengths(pairs, "target") + 2 * num_special_tokens
        return both, both

    def generate_targets(self, inputs: dict[str, Tensor]) -> Tensor:
        is_source_BT = (inputs["attention_mask"] != 0) & (inputs["labels"] == -100)
        sources = [ids[is_source].tolist() for ids, is_source in zip(inputs["input_ids"], is_source_BT, strict=True)]
        prompts = self.processing_class.pad({"input_ids": sources}, padding_side="left", return_tensors="pt")
        prompts = prompts.to(inputs["input_ids"].device)
        width = prompts["input_ids"].shape[1]
        limit = max(max_continuation_lengths(self.model.config, sources)) + 1
        limit = min(limit, (self.model.config.max_sequence_length or sys.maxsize) - width)
        sequences: Tensor = self.model.generate(
            **prompts, num_beams=self.args.generation_num_beams or 1, max_new_tokens=limit, do_sample=False
        )
        return sequences[:, width:]


class TextBlockCollator:
    """Batches of blocks of one length, with `input_ids` and `labels` (B, T), and labels already at the tokens before.

    `shift_labels` are the same: the name by which models read such labels. Batches in which a document begins after the
    first token have `position_ids` (B, T) and a Boolean `attention_mask` (B, 1, T, T). Other batches have neither,
    because causal attention without a mask takes less time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.bos_token_id = tokenizer.bos_token_id

    def __call__(self, blocks: list[dict[str, list[int]]]) -> BatchEncoding:
        ids_BT = torch.tensor([block["input_ids"] for block in blocks])
        labels_BT = torch.tensor([block["labels"] for block in blocks])
        batch = {"input_ids": ids_BT, "labels": labels_BT, "shift_labels": labels_BT}
        starts_BT = ids_BT == self.bos_token_id
        if starts_BT[:, 1:].any():
            batch |= document_inputs(starts_BT)
        return BatchEncoding(batch)


def document_inputs(starts_BT: Tensor) -> dict[str, Tensor]:
    """Positions (B, T) that begin again at each start, and a causal mask (B, 1, T, T) that no document crosses."""
    index_T = torch.arange(starts_BT.shape[1])
    start_BT = torch.where(starts_BT, index_T, 0).cummax(1).values
    return {"position_ids": index_T - start_BT, "attention_mask": document_mask(starts_BT)}


class TextTrainer(LengthTrainer):
    """LengthTrainer for a decoder-only model and the batches of a TextBlockCollator, which have no padding.

    `tokens_per_batch` limits the tokens of a batch.
    """

    def count_tokens(self, inputs: dict[str, Tensor]) -> tuple[Tensor, int]:
        tokens = inputs["input_ids"]
        return torch.tensor(tokens.numel(), device=tokens.device), tokens.numel()

    @staticmethod
    def budgeted_lengths(pairs: Dataset, num_special_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        return lengths(pairs, "source"), lengths(pairs, "target")  # a block has its special tokens already


def next_token_labels(labels: Tensor) -> Tensor:
    """The labels (B, T) of a decoder-only model, each at the token before it, whose logits predict it."""
    return nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]


def label_smoothed_loss(
    outputs: Seq2SeqLMOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None, *, smoothing: float
) -> Tensor:
    """The Trainer's label-smoothed loss, with fewer passes over the logits, and the alignment's loss.

    `labels` (B, T) are at the tokens whose logits predict them.
    """
    logits_NV = outputs.logits.flatten(0, 1).float()
    nll = nn.functional.cross_entropy(logits_NV, labels.flatten(), label_smoothing=smoothing, reduction="sum")
    length_loss = getattr(outputs, "length_loss", None)
    total = nll if length_loss is None else nll + length_loss
    return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def validation_metrics(
    prediction: EvalPrediction,
    tokenizer: PreTrainedTokenizerBase,
    references: Sequence[str] | None = None,
    bleu_tokenize: str = BLEU.TOKENIZER_DEFAULT,
) -> dict[str, float]:
    """The metrics of an evaluation. `perplexity` is exp of the mean negative log-likelihood per target token, </s>
    included, without label smoothing. `bleu` is added if the validation set was translated. It is computed from
    `references`, as for a test set, because decoding the labels may change a text."""
    predictions = prediction.predictions
    nll_and_tokens_N2, generated_NT = predictions if isinstance(predictions, tuple) else (predictions, None)
    nll, tokens = np.asarray(nll_and_tokens_N2).sum(0, dtype=np.float64)
    scores = {"perplexity": math.exp(min(nll / tokens, 700.0))}
    if generated_NT is not None:
        generated_NT = np.where(generated_NT == -100, tokenizer.pad_token_id, generated_NT)
        hypotheses = tokenizer.batch_decode(generated_NT, skip_special_tokens=True)
        if references is None or len(references) != len(hypotheses):
            raise ValueError(
                f"BLEU of a validation set needs the reference of each pair, but {len(hypotheses)} pairs have "
                f"{len(references or ())}; give them by `references`."
            )
        scores["bleu"] = BLEU(tokenize=bleu_tokenize).corpus_score(hypotheses, [list(references)]).score
    return scores


def uses_target_length(config: PreTrainedConfig) -> bool:
    """Whether the model uses the target length in training, which decoding does not know."""
    return bool(getattr(config, "alignment", Alignment).uses_target_length)
