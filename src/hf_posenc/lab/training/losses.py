"""Label-smoothed loss, and metrics of the validation set."""

import math
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import Seq2SeqLMOutput

from ...alignments.base import Alignment


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
