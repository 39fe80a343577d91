"""What a training makes less, what its validation set is scored by, and whether these can be compared."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..modeling.alignment import Alignment


def smoothed_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, *, smoothing: float) -> Tensor:
    """What the Trainer's own label smoothing computes, with fewer passes over the logits."""
    logits_NV = outputs.logits.flatten(0, 1).float()
    nats = nn.functional.cross_entropy(logits_NV, labels.flatten(), label_smoothing=smoothing, reduction="sum")
    return nats / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def validation_scores(
    evaluated: EvalPrediction,
    tokenizer: PreTrainedTokenizerBase,
    references: Sequence[str] | None = None,
    bleu_tokenize: str = BLEU.TOKENIZER_DEFAULT,
) -> dict[str, float]:
    """`perplexity`, exp of the mean negative log-likelihood of a target token, </s> among them, never smoothed; and, if
    it was translated, the `bleu` of the validation set, against its texts as they are, like that of a test set: their
    tokens may have lost something of them."""
    predictions = evaluated.predictions
    each_N2, written_NT = predictions if isinstance(predictions, tuple) else (predictions, None)
    nats, tokens = np.asarray(each_N2).sum(0, dtype=np.float64)
    scores = {"perplexity": math.exp(min(nats / tokens, 700.0))}
    if written_NT is not None:
        written_NT = np.where(written_NT == -100, tokenizer.pad_token_id, written_NT)
        written = tokenizer.batch_decode(written_NT, skip_special_tokens=True)
        if references is None or len(references) != len(written):
            raise ValueError(
                f"BLEU of a validation set needs the reference of each pair, but {len(written)} pairs have "
                f"{len(references or ())}; give them by `references`."
            )
        scores["bleu"] = BLEU(tokenize=bleu_tokenize).corpus_score(written, [list(references)]).score
    return scores


def reads_lengths(config: Any) -> bool:
    """Whether a model that is given a whole target knows by it how long the translation is, as decoding cannot."""
    return bool(getattr(config, "alignment", Alignment).reads_lengths)
