"""Models and pairs that are analysed."""

import copy
import functools
import json
import random
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pydantic_core import to_jsonable_python

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.analysis.diagnosis import diagnose
from hf_posenc.lab.results.records import Diagnosis
from hf_posenc.lab.results.saved_files import validated
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration
from support.models import tiny_model

EXACT = {"rel": 1e-9, "abs": 1e-11}


EDGES, LIMIT = [2, 5, 6, 30], 5


# In subwords: words of the source are one, as are those of the target. Nothing is in [6,6] and beyond 30.
LENGTHS = [(3, 4), (5, 2), (0, 3), (9, 12), (2, 0), (5, 5), (4, 6), (13, 5), (1, 1), (8, 9)]


@functools.cache
def tokenizer() -> PosEncTokenizer:
    """Two vocabularies, of which every word of the test set is one subword."""
    return PosEncTokenizer.train(["ab cd ef"] * 9, 273, target_texts=["uv wx yz"] * 9)


@functools.cache
def the_pairs() -> Dataset:
    chance = random.Random(0)

    def words(choice: str, number: int) -> str:
        return " ".join(chance.choices(choice.split(), k=number))

    rows = [{"de": words("ab cd ef", source), "en": words("uv wx yz", target)} for source, target in LENGTHS]
    return Dataset.from_dict({"translation": rows, "source_length": [source for source, _ in LENGTHS]})


def model_of(sides: str, **changes: Any) -> ConditionalGeneration:
    sizes = {"vocab_size": len(tokenizer()), "decoder_vocab_size": tokenizer().target_vocab_size}
    return tiny_model(sides, **(sizes | changes))


def diagnosed(model: ConditionalGeneration, test: Dataset | None = None, **changes: Any) -> dict[str, Any]:
    how = {"source_language": "de", "target_language": "en", "edges": EDGES}
    result: dict[str, Any] = to_jsonable_python(
        diagnose(
            model,
            tokenizer(),
            the_pairs() if test is None else test,
            **(how | {"pairs_per_group": None, "decoded_per_group": 0} | changes),
        )
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


@torch.no_grad()
def alone(model: ConditionalGeneration, row: dict[str, str], cut: int | None = None) -> tuple[list[float], Any]:
    """The nats of each target token of one sentence, and the model's outputs; without padding and without masks."""
    source = tokenizer()(row["de"])["input_ids"]
    target = tokenizer()(text_target=row["en"])["input_ids"][:cut]
    inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([[1, *target[:-1]]])}
    outputs = model(**inputs, output_attentions=True)
    nats = [
        float(torch.nn.functional.cross_entropy(outputs.logits[0, position], torch.tensor(token)))
        for position, token in enumerate(target)
    ]
    return nats, outputs


@functools.cache
def all_alone(sides: str) -> list[tuple[list[float], Any]]:
    return [alone(model_of(sides), row) for row in the_pairs()["translation"]]


def saved(seed: int) -> dict[str, Any]:
    """A diagnosis as it is saved, of targets of up to 33 tokens."""
    chance = np.random.default_rng(seed)
    tokens = [200 - 4 * position for position in range(33)]
    return {
        "test_set_sha256": "0" * 64,
        "n": 200,
        "pairs_per_group": 150,
        "targets_cut": 0,
        "loss_by_position": {"nats": [n * float(chance.uniform(1, 3)) for n in tokens], "tokens": tokens},
    }


def read_back(results: dict[str, Any]) -> dict[str, Diagnosis]:
    """Saved diagnoses, read back."""
    return {system: validated(Diagnosis, diagnosis) for system, diagnosis in results.items()}


SAVED = {"relative": saved(1), "rnn-nmt": saved(2), "sinusoidal": saved(3)}


SHARED = dict.fromkeys(SAVED, 12)


def measured(seed: int, *, place: bool = False, cross: bool = True, encoder: bool = True) -> dict[str, Any]:
    """A diagnosis as it is saved, with entropies and decodings."""
    chance, groups = np.random.default_rng(seed), []
    bounds: list[dict[str, Any]] = [
        {"low": 0, "high": 12, "label": "[0,12]", "n": 150},
        {"low": 13, "high": 99, "label": ">12", "n": 50},
        {"low": 100, "high": None, "label": ">99", "n": 0},
    ]
    for size, group in zip((11, 41, 0), bounds, strict=True):
        curve = (np.arange(size) * 0.9).round(2).tolist()
        example = {
            "source": size,
            "target": size + 3,
            "ended": True,
            "centre": curve,
            "place": curve if place else None,
        }
        scores = [{"bleu": float(chance.uniform(5, 40)), "bleu_ci": 3.0, "length_ratio": 1.0} for _ in range(2)]
        found = {"greedy": scores[0], "end_forbidden": scores[1], "ended": 1.0, "examples": [example] * 3}
        found["centre"] = {"steps": 90, "jumps": 0.125, "backwards": 0.1, "final": 0.9} if cross else None
        groups.append(group | (found if group["n"] else {}))
    spread = [
        group
        | {"queries": 10 * group["n"]}
        | ({"mean": [[1.0, 2.0], [0.5, 0.5]], "uniform": 2.0} if group["n"] else {"mean": None, "uniform": None})
        for group in bounds
    ]
    return copy.deepcopy(SAVED["relative"]) | {
        "attention_entropy": {"encoder": spread if encoder else None, "cross": spread if cross else None},
        "decoding": {"pairs_per_group": 20, "tokens_per_group": 20000, "far": 5, "groups": groups},
    }
