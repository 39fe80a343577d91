"""File names of a run stand in `run_folder.py` alone, and earlier runs are found under them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import CONFIG_NAME

import hf_posenc
from hf_posenc.utils import run_folder
from hf_posenc.utils.run_folder import Entry, ReportPaths, RunPaths, SystemPaths, translation_time

PACKAGE = Path(hf_posenc.__file__).parent
SOURCES = [*PACKAGE.rglob("*.py"), PACKAGE.parents[1] / "train.py"]
PATH_METHODS = {"glob", "rglob", "joinpath", "with_name"}

SYSTEM, RUN, REPORT = SystemPaths(Path("s")), RunPaths(Path("r")), ReportPaths(Path("t"))
# What stands in run folders that users have.
PLACES = {
    SYSTEM.settings: "s/settings.yaml",
    SYSTEM.lock: "s/.lock",
    SYSTEM.checkpoints: "s/checkpoints",
    SYSTEM.training_log: "s/training.jsonl",
    SYSTEM.model: "s/model",
    SYSTEM.model_config: "s/model/config.json",
    SYSTEM.training_summary: "s/model/training.json",
    SYSTEM.card: "s/model/README.md",
    SYSTEM.translation("news"): "s/translations/news.jsonl",
    translation_time(SYSTEM.translation("news")): "s/translations/news.time.json",
    SYSTEM.statistic("news"): "s/statistics/news.npz",
    SYSTEM.diagnosis("news"): "s/diagnostics/news.json",
    SYSTEM.scores: "s/scores.json",
    SYSTEM.push_record: "s/pushed.json",
    RUN.lock: "r/.lock",
    RUN.tokenizer: "r/tokenizer",
    RUN.tokenizer_provenance: "r/tokenizer/made_from.json",
    RUN.encoded_pairs("0a"): "r/data/encoded-0a",
    RUN.test_set("news", "0a"): "r/data/test-news-0a",
    RUN.overlap("0a"): "r/data/overlap-0a.json",
    RUN.segments("known", "news", "0a"): "r/data/pieces-known-news-0a",
    RUN.system("alibi").folder: "r/alibi",
    REPORT.results: "t/results.json",
    REPORT.scores: "t/scores.csv",
    REPORT.audit: "t/audit.json",
    REPORT.finished: "t/.finished.json",
    REPORT.table("fall", "md"): "t/table-fall.md",
    REPORT.figure("loss"): "t/loss.png",
}
# `config.json` is transformers' name, and what is written in a run's file names beside the names is no name.
NAMES = {part for path in PLACES.values() for part in path.split("/")[1:]} - {CONFIG_NAME, "alibi"}
PREFIXES = ("encoded-", "test-", "overlap-", "pieces-", "table-")


def test_files_lie_where_earlier_versions_have_put_them():
    assert {path.as_posix(): place for path, place in PLACES.items()} == {place: place for place in PLACES.values()}


def test_every_path_property_is_tested():
    known = {*PLACES, *(path.parent for path in PLACES)}
    for paths in (SYSTEM, RUN, REPORT):
        names = [name for name, value in vars(type(paths)).items() if isinstance(value, Entry)]
        assert names and {getattr(paths, name) for name in names} <= known


def text_of(node: ast.expr) -> str | None:
    """A literal text, with `{}` for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def path_literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that become parts of paths: behind a `/`, or given to a method of paths."""
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATH_METHODS:
            operands = list(node.args)
        for operand in operands:
            if text := text_of(operand):
                yield operand.lineno, text


def file_literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that are nothing but the name of a file, wherever they stand. Those in sentences are for people."""
    parts_of_others = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_others:
            files = {part for part in node.value.split("/") if "." in part}
            if not NAMES.isdisjoint(files) and not any(map(str.isspace, node.value)):
                yield node.lineno, node.value


def literals_of(source: str) -> list[tuple[int, str]]:
    """Where names of a run's files stand in a module, with their lines."""
    tree = ast.parse(source)
    in_paths = [
        (line, text)
        for line, text in path_literals(tree)
        if text.startswith(PREFIXES) or not NAMES.isdisjoint(text.split("/"))
    ]
    return sorted({*in_paths, *file_literals(tree)})


@pytest.mark.full
def test_no_other_module_has_a_name_of_a_runs_file():
    others = [path for path in SOURCES if path != Path(run_folder.__file__)]
    found = {str(path): literals_of(path.read_text(encoding="utf-8")) for path in others}
    assert {path: literals for path, literals in found.items() if literals} == {}


def test_a_name_elsewhere_is_found():
    lines = [
        'folder / "model"',
        'folder / f"encoded-{digest}"',
        'run.glob("*/model/*")',
        'OUTPUTS = ("scores.json",)',
        'PATTERN = "model/README.md"',
        '(folder / "translations") / name',
    ]
    assert [line for line in lines if not literals_of(line)] == []


def test_what_is_no_path_is_not_found():
    lines = ['settings["model"]', 'raise ValueError("delete scores.json")', 'a / "weights"']
    assert [line for line in lines if literals_of(line)] == []


def test_a_system_has_outputs_once_something_stands_beside_its_settings(tmp_path):
    paths = RunPaths(tmp_path).system("alibi")
    paths.model.mkdir(parents=True)
    assert not paths.has_outputs and not RunPaths(tmp_path).has_outputs
    paths.settings.write_text("", encoding="utf-8")
    assert paths.has_outputs and RunPaths(tmp_path).has_outputs


def test_models_of_a_run_by_their_systems(tmp_path):
    run = RunPaths(tmp_path)
    for name in ("b", "a", "c"):
        run.system(name).model.mkdir(parents=True)
    for name in ("b", "a"):
        run.system(name).model_config.touch()
    assert list(run.model_folders().items()) == [(name, run.system(name).model) for name in ("a", "b")]
