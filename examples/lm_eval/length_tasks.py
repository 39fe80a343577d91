"""Documents and scores of the tasks in this folder, for lm-evaluation-harness.

The examples in a prompt are short, and the scored inputs are longer: this is length generalization in context. Each
length has its own metric, the share of exact answers.
"""

from random import Random

from datasets import Dataset

from hf_posenc.lab.data.tasks import GENERATORS

EXAMPLE_LENGTHS = (3, 4, 5)
LENGTHS = (5, 10, 20, 40, 80)  # those of the metrics in _common_yaml
INPUTS_PER_LENGTH = 20


def make_dataset(generator: str, inputs: int = INPUTS_PER_LENGTH, **kwargs: object) -> dict[str, Dataset]:
    """Short examples ("train") and `inputs` longer inputs of each length ("test"), the same in every process.

    lm-evaluation-harness passes the keys of `metadata` and `--metadata`; other keys are ignored.
    """
    rng = Random(f"lm_eval {generator}")
    splits = {"train": EXAMPLE_LENGTHS, "test": LENGTHS}
    documents: dict[str, list[dict[str, object]]] = {name: [] for name in splits}
    for name, lengths in splits.items():
        for _ in range(inputs):
            for length in lengths:  # in turns, so that --limit leaves inputs of each length
                symbols, answer = GENERATORS[generator](rng, length)
                documents[name].append({"input": " ".join(symbols), "answer": " ".join(answer), "length": length})
    return {name: Dataset.from_list(rows) for name, rows in documents.items()}


def score(document: dict, results: list[str]) -> dict[str, float]:
    """Whether the first line of the answer is exact, under the name of the input's length."""
    answer = results[0].strip().partition("\n")[0].strip()
    return {f"length_{document['length']:02}": float(answer == document["answer"])}
