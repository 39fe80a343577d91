"""The translation_audit metric: planted errors are found, and its decoder takes the best path."""

from __future__ import annotations

import doctest
import json
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest

import hf_posenc.metrics
from hf_posenc.lab.cli import format_warning
from hf_posenc.lab.reports.audit import audit_files, audit_table
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.metrics.translation_audit import decoding
from hf_posenc.metrics.translation_audit.decoding import COSTS, Document, find_paths, segment_folds
from hf_posenc.metrics.translation_audit.findings import find
from hf_posenc.metrics.translation_audit.lexicon import tokenize

FOLDER = Path(hf_posenc.metrics.__file__).parent / "translation_audit"
SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))


def documents(
    number: int, seed: int = 0, num_segments: int = 10, words_of_one: tuple[int, int] = (7, 14), end: str = "."
) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences of a made-up language with Zipf's frequencies, and their translations word by word, reversed."""
    rng, numbers = random.Random(seed), random.Random(seed)
    words = ["".join(rng.sample(SYLLABLES, 3)) for _ in range(300)]
    other = ["".join(rng.sample(SYLLABLES, 3)).upper() + "x" for _ in range(300)]
    weights = [1 / (rank + 3) for rank in range(300)]
    sources, targets = [], []
    for _ in range(number):
        ends = [end.format(*numbers.sample(range(10, 100), 2)) for _ in range(num_segments)]
        drawn = [rng.choices(range(300), weights, k=rng.randint(*words_of_one)) for _ in range(num_segments)]
        sources.append(
            [" ".join(words[index] for index in sentence) + last for sentence, last in zip(drawn, ends, strict=True)]
        )
        targets.append(
            [
                " ".join(other[index] for index in reversed(sentence)) + last
                for sentence, last in zip(drawn, ends, strict=True)
            ]
        )
    return sources, targets


def audit(predictions: Any, sources: Any, references: Any = None, **options: Any) -> dict[str, Any]:
    result = load_translation_audit().compute(
        predictions=predictions, sources=sources, references=references, scores=options.pop("scores", False), **options
    )
    assert result is not None
    return result


def found(record: dict[str, Any]) -> dict[str, Any]:
    kinds = ("dropped", "repeated", "moved")
    indices = {kind: [finding["segment"] for finding in record[kind]] for kind in kinds}
    return indices | {"invented": [finding["text"].rstrip(".") for finding in record["invented"]]}


NOTHING: dict[str, Any] = {"dropped": [], "repeated": [], "moved": [], "invented": []}


@pytest.mark.parametrize("with_references", [True, False])
@pytest.mark.parametrize("separator", [" ", pytest.param("\n", marks=pytest.mark.full)])
def test_planted_errors_are_found(with_references: bool, separator: str) -> None:
    sources, targets = documents(60)
    invented = documents(1, seed=0, num_segments=700)[1][0][-1]
    texts = [list(target) for target in targets]
    del texts[1][4]
    texts[2] = texts[2][:6]
    texts[3].insert(3, texts[3][3])
    texts[4].insert(8, texts[4][1])
    texts[5].insert(5, invented)
    texts[6][2], texts[6][3] = texts[6][3], texts[6][2]
    texts[7] = [sentence for sentence in texts[7] for _ in range(3)]
    result = audit([separator.join(text) for text in texts], sources, targets if with_references else None)
    records = [found(record) for record in result["documents"]]
    assert records[1] == NOTHING | {"dropped": [4]}
    assert records[2] == NOTHING | {"dropped": [6, 7, 8, 9]}
    assert records[3] == NOTHING | {"repeated": [3]}
    assert records[4] == NOTHING | {"repeated": [1]}
    assert records[5] == NOTHING | {"invented": [invented.rstrip(".")]}
    assert records[6] in (NOTHING | {"moved": [2]}, NOTHING | {"moved": [3]})
    assert records[7] == NOTHING | {"repeated": list(range(10))}
    assert {finding["copies"] for finding in result["documents"][7]["repeated"]} == {3}
    assert records[8:] == [NOTHING] * 52 and records[0] == NOTHING
    assert result["evidence"] == ("references" if with_references else "sources")
    assert result["all"]["dropped"] == 5 and result["positions"][4]["dropped"] == 2
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("with_references", [True, False])
@pytest.mark.parametrize(
    ("words_of_one", "end"),
    [((4, 8), ""), ((6, 10), ","), ((4, 6), " {} | 3.{} % |")],
    ids=["headlines", "verse", "table"],
)
def test_errors_in_one_line_without_sentence_ends_are_found(
    words_of_one: tuple[int, int], end: str, with_references: bool
) -> None:
    sources, targets = documents(100, words_of_one=words_of_one, end=end)
    invented = documents(1, seed=0, num_segments=1200, words_of_one=words_of_one, end=end)[1][0][-4:]
    texts = [list(target) for target in targets]
    del texts[1][4]
    texts[2].insert(3, texts[2][3])
    texts[3][5:5] = invented
    texts[4][2], texts[4][7] = texts[4][7], texts[4][2]
    records = audit([" ".join(text) for text in texts], sources, targets if with_references else None)["documents"]
    assert found(records[1]) == NOTHING | {"dropped": [4]}
    assert found(records[2]) == NOTHING | {"repeated": [3]}
    assert len(records[3]["invented"]) == 1 and records[3]["dropped"] == []
    assert set(found(records[4])["moved"]) & {2, 7}
    assert sum(record[kind] != [] for record in records[5:] for kind in NOTHING) <= 2


@pytest.mark.full
@pytest.mark.parametrize("with_references", [True, False])
def test_a_wrong_language_has_no_counterparts(with_references: bool) -> None:
    sources, targets = documents(60)
    texts = [" ".join(target) for target in targets]
    texts[3] = " ".join(documents(1, seed=5)[0][0])
    result = audit(texts, sources, targets if with_references else None)
    wrong = result["documents"][3]
    assert found(wrong)["dropped"] == list(range(10)) and wrong["coverage"] == 0 and wrong["invented"]
    assert result["all"]["dropped"] == 10


@pytest.mark.parametrize("with_references", [True, pytest.param(False, marks=pytest.mark.full)])
def test_empty_documents(with_references: bool) -> None:
    sources, targets = documents(60)
    texts: list[Any] = [" ".join(target) for target in targets]
    texts[0], texts[1] = "", []
    sources[2], targets[2] = [], []
    sources[3] = targets[3] = [""]
    texts[3] = ""
    records = audit(texts, sources, targets if with_references else None)["documents"]
    assert [len(record["dropped"]) for record in records[:5]] == [10, 10, 0, 0, 0]
    assert records[2]["coverage"] is None and len(records[2]["invented"]) == 1


def test_no_documents() -> None:
    with pytest.warns(UserWarning, match="500 or more segments, but there are 0"):
        assert audit([], [])["all"]["coverage"] is None


@pytest.mark.full
def test_a_source_as_its_own_translation_is_covered() -> None:
    """Equal words count as counterparts: names and numbers are such. So an untranslated text is not found."""
    sources, _ = documents(60)
    assert audit([" ".join(source) for source in sources], sources)["all"]["coverage"] == 1


def test_scripts_without_spaces() -> None:
    rng = random.Random(3)
    characters = [chr(0x4E00 + number) for number in range(400)]
    references = [["".join(rng.choices(characters, k=12)) + "\u3002" for _ in range(8)] for _ in range(5)]
    texts = ["".join(reference) for reference in references]
    texts[2] = "".join(references[2][:3] + references[2][4:])
    records = audit(texts, references, references)["documents"]
    assert [found(record)["dropped"] for record in records] == [[], [], [3], [], []]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("One two. Three", [2, 0, 0, 1]),
        ("See e. g. 3.5 at x.org now", [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ('He said "no." Then', [2, 0, 0, 0, 0, 1, 1]),
        ("a\nb", [2, 2]),
    ],
)
def test_starts_of_sentences_and_lines(text: str, starts: list[int]) -> None:
    assert tokenize(text).starts == starts


def random_document(rng: np.random.Generator, num_tokens: int, num_segments: int) -> Document:
    tokens = tokenize("word " * num_tokens)._replace(starts=rng.integers(0, 3, num_tokens).tolist())
    document = Document(
        [np.ones(3, dtype=int)] * num_segments, tokens, np.arange(6), rng.integers(0, 6, num_tokens), []
    )
    document.scores = (3 * rng.standard_normal((6, num_segments))).astype(np.float32)
    return document


def best_score(document: Document) -> float:
    """The score of the best path, by the definition: every state before every other one."""
    assert document.scores is not None
    num_segments = len(document.segments)
    states = [(segment, is_none) for is_none in (False, True) for segment in range(num_segments)]

    def word(step: int, state: tuple[int, bool]) -> float:
        return 0.0 if state[1] else float(document.scores[document.rows[step], state[0]])  # type: ignore[index]

    scores = {state: word(0, state) - path_start(state) for state in states}
    for step in range(1, len(document.rows)):
        start = document.tokens.starts[step]
        scores = {
            state: word(step, state) + max(scores[other] - price(other, state, start) for other in states)
            for state in states
        }
    return max(scores.values())


def path_start(state: tuple[int, bool]) -> float:
    if state[1]:
        return COSTS.none[2] if state[0] == 0 else 1e9
    return COSTS.advance[2] if state[0] == 0 else COSTS.jump[2]


def price(before: tuple[int, bool], after: tuple[int, bool], start: int) -> float:
    if after[1]:
        if before[0] != after[0]:
            return 1e9
        return 0.0 if before[1] else COSTS.none[start]
    costs = [COSTS.jump[start]]
    if after[0] == before[0]:
        costs.append(COSTS.leave[start] if before[1] else COSTS.stay[start])
    if after[0] == before[0] + 1:
        costs.append(COSTS.leave[start] if before[1] else COSTS.advance[start])
    return min(costs)


def path_score(document: Document) -> float:
    states = [(int(segment), bool(none)) for segment, none in zip(document.path, document.is_none, strict=True)]
    total = -path_start(states[0])
    for step, state in enumerate(states):
        total += 0.0 if state[1] else float(document.scores[document.rows[step], state[0]])
        total -= price(states[step - 1], state, document.tokens.starts[step]) if step else 0.0
    return total


def test_the_decoder_takes_the_best_path() -> None:
    """Documents of several lengths in one batch."""
    rng = np.random.default_rng(0)
    batch = [random_document(rng, num_tokens, num_segments) for num_tokens in (1, 7, 20) for num_segments in (1, 2, 5)]
    find_paths(batch, COSTS, use_positions=False)
    for document in batch:
        assert path_score(document) == pytest.approx(best_score(document), abs=1e-3)


@pytest.mark.full
def test_findings_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = documents(50)
    texts = [" ".join(target[:7]) for target in targets]
    together = audit(texts, sources)
    monkeypatch.setattr(decoding, "MAX_BATCH_CELLS", 1)
    assert audit(texts, sources) == together


def test_folds_leave_out_the_document_or_a_block_of_it() -> None:
    assert segment_folds(9, 3, 100) == [1, 1, 1]
    assert segment_folds(0, 11, 1) == [0] * 5 + [1] * 5 + [2]


def test_a_document_without_evidence_is_all_dropped() -> None:
    document = random_document(np.random.default_rng(1), 6, 3)
    document.scores = np.full((6, 3), -1.0, dtype=np.float32)
    find_paths([document], COSTS, use_positions=False)
    assert find(document, 1.0).dropped == [0, 1, 2]


def test_a_long_document_is_audited_in_parts() -> None:
    """Also what is moved or repeated from far, or left out over many segments."""
    (source,), (target,) = documents(1, num_segments=2 * decoding.MAX_SEGMENTS)
    last = len(target) - 1
    text = [*target[:100], target[last], *target[100:300], *target[360:700], target[50], *target[700:last]]
    record = audit([" ".join(text)], [source], [target])["documents"][0]
    assert found(record) == NOTHING | {"dropped": list(range(300, 360)), "repeated": [50], "moved": [last]}


@pytest.mark.full
def test_the_work_on_a_document_grows_as_its_words_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[int] = []
    decode = decoding.decode

    def counted(batch: decoding.Batch, costs: decoding.Costs) -> None:
        cells[-1] += batch.rows_TB.size * batch.scores.shape[1]
        decode(batch, costs)

    monkeypatch.setattr(decoding, "decode", counted)
    for length in (2, 8):
        cells.append(0)
        (source,), (target,) = documents(1, num_segments=length * decoding.MAX_SEGMENTS)
        audit([" ".join(target[1:])], [source], [target])
    assert cells[1] < 2 * 4 * cells[0]


@pytest.mark.slow
def test_a_document_of_100_000_words_is_audited() -> None:
    """As one text, with a part of it cut out; its segments are too long for the lexical model."""
    segments = [" ".join(documents(1, seed, num_segments=100)[1][0]) for seed in range(100)]
    assert sum(len(text.split()) for text in segments) > 100_000
    record = audit([" ".join(segments[:9] + segments[10:])], [segments], [segments])["documents"][0]
    assert found(record) == NOTHING | {"dropped": [9]}


def test_scores_by_position() -> None:
    pytest.importorskip("mweralign")
    sources, targets = documents(6)
    texts = [" ".join(target[:6]) for target in targets]
    result = audit(texts, sources, targets, scores=True)
    assert [row["bleu"] > 99 for row in result["positions"]] == [True, True, True, False, False]
    assert result["positions"][4]["bleu"] == 0 and 0 < result["all"]["document_bleu"] < 70
    assert result["all"]["chrf"] == pytest.approx(result["all"]["document_chrf"], abs=15)


@pytest.mark.full
def test_scores_by_length_are_those_of_the_documents_of_each_length() -> None:
    pytest.importorskip("mweralign")
    short, long = documents(3, num_segments=3), documents(3, seed=1, num_segments=12)
    texts = [*(" ".join(target) for target in short[1]), *(" ".join(target[:6]) for target in long[1])]
    result = audit(texts, short[0] + long[0], short[1] + long[1], scores=True)
    alone = audit(texts[3:], *long, scores=True)["all"]
    first, second = result["lengths"]
    assert (first["documents"], second["documents"]) == (3, 3) and first["bleu"] > 99
    for name in ("bleu", "chrf", "document_bleu", "document_chrf"):
        assert second[name] == pytest.approx(alone[name])
        assert second[name] < result["all"][name] < first[name]
    assert f"| {first['bleu']:.1f} | {first['chrf']:.1f} |" in audit_table(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predictions": ["one"]}, "one entry for each document, but there are 1 predictions, 2 sources, 2 references"),
        ({"references": [["a"], ["b", "c"]]}, "document 1 has 1 source and 2 reference segments; align them"),
        ({"references": [["a"], []]}, "document 1 has 1 source and 0 reference segments"),
        ({"sources": ["a", "b"]}, r"sources\[0\] is of type str; split it into sentences"),
        ({"sources": None}, "sources must be a list .* it is missing"),
        ({"predictions": [1, "x"]}, r"predictions\[0\] is of type int"),
        ({"predictions": [["a", None], "x"]}, r"predictions\[0\] has an entry of type NoneType"),
        ({"references": None, "scores": True}, "scores=True needs references, but there are none"),
        ({"pairs": [("a",)]}, r"pairs\[0\] has 1 texts"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"predictions": ["one", "two"], "sources": [["a"], ["b"]], "references": [["one"], ["two"]]}
    with pytest.raises(ValueError, match=message), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_translation_audit().compute(**(good | change))


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.full
def test_files_become_a_table_and_a_figure(tmp_path: Path) -> None:
    sources, targets = documents(20)
    ids = write(tmp_path / "ids", [f"d{number}" for number in range(20) for _ in range(10)])
    source = write(tmp_path / "source", [text for document in sources for text in document])
    reference = write(tmp_path / "reference", [text for document in targets for text in document])
    texts = write(tmp_path / "texts", [" ".join(document[:8]) for document in targets])
    options = {"references": reference, "document_ids": ids}
    table = audit_files(source, texts, output=tmp_path / "new" / "out", **options)
    assert "| all | 200 | 40 | 0 | 0 | 0 | " in table
    assert f"d0, line 9: dropped: {sources[0][8]}" in table and "and 20 more" in table
    saved = json.loads((tmp_path / "new" / "out" / "audit.json").read_text(encoding="utf-8"))
    assert saved["all"]["dropped"] == 40
    assert {path.name for path in (tmp_path / "new" / "out").iterdir()} == {"audit.json", "audit.md", "coverage.png"}
    lines = write(tmp_path / "lines", [text for document in targets for text in [*document[:8], "", ""]])
    assert "| all | 200 | 40 |" in audit_files(source, lines, **options)
    short = write(tmp_path / "short", [text for document in targets for text in document[:8]])
    own_ids = write(tmp_path / "own", [f"d{number}" for number in range(20) for _ in range(8)])
    assert "| all | 200 | 40 |" in audit_files(source, short, translation_ids=own_ids, **options)
    with pytest.raises(ValueError, match=r"segment \(200\) or for each document \(20\), but .* has 160 lines"):
        audit_files(source, short, **options)
    with pytest.raises(ValueError, match=r"ids has 200 lines and .*short has 160"):
        audit_files(short, short, document_ids=ids)


@pytest.mark.full
def test_blank_lines_separate_documents(tmp_path: Path) -> None:
    sources, targets = documents(60)
    source = write(tmp_path / "source", [text for document in sources for text in [*document, ""]])
    texts = write(tmp_path / "texts", [text for document in targets for text in [*document[:8], ""]])
    assert "| all | 600 | 120 |" in audit_files(source, texts)


def test_the_cards_example_runs() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    example = example.replace("src/hf_posenc/metrics/translation_audit", str(FOLDER))
    test = doctest.DocTestParser().get_doctest(example, {}, "README", None, 0)
    said: list[str] = []
    outcome = doctest.DocTestRunner().run(test, out=said.append)
    assert (outcome.failed, outcome.attempted) == (0, 7), "".join(said)


@pytest.mark.full
def test_evaluate_loads_the_folder_offline(tmp_path: Path) -> None:
    code = (
        "import evaluate, json, socket, sys\n"
        "def refuse(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = refuse\n"
        "print(json.dumps(evaluate.load(sys.argv[1]).compute(**json.loads(sys.argv[2]))))\n"
        "assert 'hf_posenc' not in sys.modules\n"
    )
    folder = tmp_path / "translation_audit"
    folder.mkdir()
    for file in FOLDER.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    sources, targets = documents(3)
    columns = {"predictions": [" ".join(target[:6]) for target in targets], "sources": sources, "references": targets}
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    for name in ("HF_METRICS_CACHE", "HF_EVALUATE_CACHE", "HF_MODULES_CACHE", "PYTHONPATH"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code, str(folder), json.dumps(columns)]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == load_translation_audit().compute(**columns)


def test_the_command_warns_in_one_line():
    """Without the line of code that `warnings` would print."""
    line = format_warning("Give more text.", UserWarning, "audit.py", 113, "return audit()")
    assert line == "Warning: Give more text.\n"
