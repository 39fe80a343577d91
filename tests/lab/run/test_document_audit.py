"""The audit of concatenated test sentences: sources and references stay pairs, whichever of them is empty."""

from pathlib import Path

import pytest
import yaml
from support.experiments import ONE_SYSTEM, load

from hf_posenc.lab.data.readers import CorpusSpec
from hf_posenc.lab.run.corpora import CorpusStore
from hf_posenc.lab.run.lengthen import gold_documents
from hf_posenc.lab.run.prepared_run import PreparedTestSet
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer
from hf_posenc.utils.run_folder import RunPaths

SOURCES = [f"Satz s{number} ist da." for number in range(10)]
TARGETS = [f"Sentence t{number} is there." for number in range(10)]
K = 5


def concatenated_test_set(
    folder: Path, emptied: dict[str, dict[int, str]], normalize: list[str], **corpus_keys: object
) -> PreparedTestSet:
    """Ten pairs, `K` of them concatenated; `emptied` has other texts by side and number."""
    for name, texts in (("t.de", SOURCES), ("t.en", TARGETS)):
        lines = [emptied.get(name[-2:], {}).get(number, text) for number, text in enumerate(texts)]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "t.doc").write_text("a\n" * 5 + "b\n" * 5)
    spec: CorpusSpec = {"files": ["t.de", "t.en"], **corpus_keys}
    data = ONE_SYSTEM["data"] | {"data_dir": str(folder), "test": {"t": spec}, "normalize": {"source": normalize}}
    k = 1 if "concatenate" in spec or "min_words" in spec else K
    settings = ONE_SYSTEM | {"data": data, "score": ONE_SYSTEM["score"] | {"concatenate": [k]}}
    settings["systems"] = {"relative": {}, "segmented": {"segment": "relative"}}
    (folder / "c.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    system = load(folder / "c.yaml").systems["segmented"]
    tokenizer = PosEncTokenizer.train(SOURCES + TARGETS, 300).with_normalization(source=normalize)
    name = "t" if k == 1 else f"t-x{k}"
    return PreparedTestSet(name, system, CorpusStore(system.data, tokenizer, RunPaths(folder / "run")))


@pytest.mark.parametrize(
    ("emptied", "corpus_keys"),
    [
        ({}, {}),
        ({"de": {0: "", 4: "", 6: ""}, "en": {5: "", 6: "", 9: ""}}, {}),
        ({"de": {3: "..."}, "en": {2: ""}}, {"concatenate": K}),
        ({"de": {3: " "} | dict.fromkeys(range(5, 10), ""), "en": {4: "\t"}}, {}),
    ],
    ids=["nothing", "one side and both", "punctuation alone", "blank, and a whole document"],
)
def test_sentences_of_both_sides_stay_pairs(emptied, corpus_keys, tmp_path):
    test_set = concatenated_test_set(tmp_path, emptied, ["lowercase", "no_punctuation"], **corpus_keys)
    documents = list(zip(*gold_documents(test_set), strict=True))
    is_empty = {number for texts in emptied.values() for number in texts}
    kept = [[number for number in range(start, start + K) if number not in is_empty] for start in (0, K)]
    assert documents == [
        ([f"satz s{number} ist da" for number in numbers], [TARGETS[number] for number in numbers]) for numbers in kept
    ]
    references = [reference for _, reference in documents]
    result = load_translation_audit().compute(
        predictions=[" ".join(texts) for texts in references], sources=[source for source, _ in documents],
        references=references, scores=False,
    )  # fmt: skip
    assert result["all"]["segments"] == sum(map(len, references))
    # Every source with text is translated, whether or not it has a reference.
    has_text = [[n for n in range(start, start + K) if n not in emptied.get("de", {})] for start in (0, K)]
    assert test_set.segments == [[f"satz s{number} ist da" for number in numbers] or [""] for numbers in has_text]


def test_sentences_of_documents_stay_pairs(tmp_path):
    """Of `document_ids` and `min_words`, whose groups have different numbers of pairs."""
    emptied = {"de": {1: ""}, "en": {2: "", 8: ""}}
    test_set = concatenated_test_set(tmp_path, emptied, [], document_ids="t.doc", min_words=8)
    for source, reference in zip(*gold_documents(test_set), strict=True):
        assert [text.split()[1][1:] for text in source] == [text.split()[1][1:] for text in reference]
        assert source
