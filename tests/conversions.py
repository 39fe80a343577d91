"""How exact conversions are: each family of transformers, both ways, on random models in float64.

python tests/conversions.py        writes the table of docs/reference/compatibility.md

Columns: the largest difference of a logit and of a gradient, sentences with equal generated tokens (greedy search and a
beam of 4, after a forced language tag), and whether a model that comes back has the same weights, bit for bit.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from support.family_models import (  # noqa: E402 (tests/ is no package of the project)
    at_labels,
    generation_options,
    named_gradients,
    ragged_batch,
    read_weights,
    tiny_family,
    with_exact_tables,
)

from hf_posenc import PosEncForConditionalGeneration, from_transformers, to_transformers  # noqa: E402
from hf_posenc.convert.checkpoints import FAMILIES  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- made by tests/conversions.py -->\n", "<!-- end -->\n"
HEADER = ("family", "direction", "logits", "gradients", "generated", "weights after the way back")
MODELS = 5  # of each family


def max_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def logits_and_gradients(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """The logits at labels, and gradients of the cross-entropy in the model's weights."""
    model.zero_grad()
    out = model(**batch, use_cache=False)
    nn.functional.cross_entropy(out.logits.transpose(1, 2), batch["labels"]).backward()
    return at_labels(out.logits.detach(), batch)


def gradient_difference(ours: PosEncForConditionalGeneration, theirs: PreTrainedModel) -> float:
    """The largest difference of two gradients; values say which belong together, because channels are permuted."""
    twins, differences = named_gradients(theirs), []
    for name, weight in ours.named_parameters():
        if name in twins:
            twin, gradient = twins[name]
            order, twin_order = (values.detach().flatten().argsort() for values in (weight, twin))
            differences.append(max_difference(weight.grad.flatten()[order], gradient.flatten()[twin_order]))
    assert len(differences) == len(twins)
    return max(differences)


def compare(ours: PosEncForConditionalGeneration, theirs: PreTrainedModel) -> tuple[float, float, int, int]:
    """Differences of logits and gradients, and the number of equal generated sentences of all."""
    batch = ragged_batch(theirs)
    logits = max_difference(*(logits_and_gradients(model, batch) for model in (ours, theirs)))
    batch.pop("labels")
    equal = total = 0
    for num_beams in (1, 4):
        options = generation_options(theirs, num_beams)
        generated = [model.generate(**batch, **options) for model in (ours, theirs)]
        equal += int((generated[0] == generated[1]).all(1).sum())
        total += len(generated[0])
    return logits, gradient_difference(ours, theirs), equal, total


def same_weights(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Whether both have the same names and values, bit for bit."""
    return weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in expected)


def rows_of(model_type: str) -> list[tuple[str, ...]]:
    """A row for each direction."""
    name, outcomes = FAMILIES[model_type].name, {"from transformers": [], "to transformers": []}
    for seed in range(MODELS):
        theirs = with_exact_tables(tiny_family(model_type, seed=seed))
        ours = from_transformers(theirs)
        back = to_transformers(ours)
        outcomes["from transformers"].append(
            (*compare(ours, theirs), same_weights(read_weights(back), read_weights(theirs)))
        )
        again = from_transformers(back)
        outcomes["to transformers"].append(
            (*compare(ours, with_exact_tables(back)), same_weights(again.state_dict(), ours.state_dict()))
        )
    rows = []
    for direction, found in outcomes.items():
        logits, gradients, equal, total, same = zip(*found, strict=True)
        differences = [f"{max(values):.0e}".replace("0e+00", "0") for values in (logits, gradients)]
        rows.append(
            (name, direction, *differences, f"{sum(equal)} of {sum(total)}", "equal" if all(same) else "differ")
        )
    return rows


def table() -> str:
    """The table in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for model_type in FAMILIES:
        lines += rows_of(model_type)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(BEGIN)[2].partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
