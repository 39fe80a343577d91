"""The files of code that saving writes: how many, that they can be read, and that a name means one thing in each."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.models import REGISTERED, SUMS, tiny_config, tiny_model

from hf_posenc import (
    ALIGNMENTS,
    POSITION_ENCODINGS,
    PosEncCausalConfig,
    PosEncConfig,
    RnnNmtConfig,
)
from hf_posenc.auto_classes import possible_plans
from hf_posenc.hub.checkpoint_code import (
    FILES,
    PACKAGE,
    MergedModules,
    Name,
    carried_modules,
    read_carried,
    read_module,
    write_checkpoint_code,
)
from hf_posenc.transformer.plans.selection import PLANS, plan_name

ALIGNED = {"position_encoding_type": "rotary", "cross_position_encoding_type": "rotary+window"}
EVERYTHING = {
    "encodings.registry": {name: entry.encoding for name, entry in POSITION_ENCODINGS.items()},
    "alignments.registry": dict(ALIGNMENTS),
}
ENTRIES = {
    "encoder-decoder": ["configuration_posenc", "modeling_posenc"],
    "decoder-only": ["configuration_posenc_causal", "modeling_posenc_causal"],
    "RNN-NMT": ["configuration_rnn_nmt", "modeling_rnn_nmt"],
    "tokenizer": ["tokenization_posenc"],
}


@pytest.fixture
def written(tmp_path: Path, entries: str) -> dict[str, str]:
    """The files of a checkpoint that uses every encoding and alignment, by name."""
    write_checkpoint_code(tmp_path, ENTRIES[entries], EVERYTHING)
    return {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}


# Files and lines without a tokenizer, which adds one file.
SIZES = {
    "relative": (PosEncConfig(), 13, 5950),
    "no encoding": (PosEncConfig(position_encoding_type="none"), 11, 5250),
    "a sum": (PosEncConfig(position_encoding_type="relative+window"), 13, 6050),
    "fertility": (PosEncConfig(alignment_type="fertility", **ALIGNED), 11, 5870),
    "recurrent": (PosEncConfig(alignment_type="recurrent", **ALIGNED), 11, 5710),
    "decoder-only": (PosEncCausalConfig(position_encoding_type="relative"), 12, 4600),
    "RNN-NMT": (RnnNmtConfig(), 8, 3050),
}


@pytest.mark.parametrize("what", SIZES)
def test_a_checkpoint_has_few_files_of_few_lines(tmp_path, what):
    config, files, lines = SIZES[what]
    config.save_pretrained(tmp_path)
    sources = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.py")]
    assert len(sources) <= files
    assert sum(source.count("\n") for source in sources) <= lines


@pytest.mark.parametrize(
    ("encoding", "plans"), [("rotary", []), ("alibi", ["distance"]), ("relative", ["blocked", "linear"])]
)
def test_a_checkpoint_has_the_plans_that_its_encodings_can_take(tmp_path, encoding, plans):
    tiny_config(encoding).save_pretrained(tmp_path)
    assert sorted(name for name in PLANS if (tmp_path / f"{name}_attention.py").exists()) == plans
    names = re.findall(r'^    "(\w+)": \w+_plan,$', (tmp_path / "attention_plans.py").read_text(), flags=re.MULTILINE)
    assert sorted(names) == plans


@pytest.mark.parametrize("encodings", [*REGISTERED, *SUMS])
def test_no_length_takes_a_plan_that_a_checkpoint_lacks(encodings):
    model = tiny_model(encodings)
    for positions in (model.model.encoder.positions, model.model.decoder.positions):
        lengths = [2**power for power in range(8, 20)]
        taken = {plan_name(positions, length, dropout) for length in lengths for dropout in (0.0, 0.1)}
        assert taken - {None} <= set(possible_plans(model.config))


@pytest.mark.parametrize("entries", ENTRIES)
def test_all_modules_of_a_file_give_a_name_one_meaning_and_import_without_a_circle(written, entries):
    """Two meanings are an error of writing. Files import each other at their tops, and must be in an order."""
    imported = {name: imports_of(source) for name, source in written.items()}
    while imported:
        ready = {name for name, others in imported.items() if not others & imported.keys()}
        assert ready, f"a circle among {sorted(imported)}"
        imported = {name: others for name, others in imported.items() if name not in ready}


def imports_of(source: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {node.module for node in nodes if node.level}


@pytest.mark.parametrize("entries", ENTRIES)
def test_imports_are_of_other_files_one_by_one(written, entries):
    """As transformers finds them, with a regular expression that also reads docstrings."""
    for name, source in written.items():
        assert imports_of(source) <= written.keys() - {name}
        found = set(re.findall(r"^\s*from\s+\.(\S+)\s+import", source, flags=re.MULTILINE))
        found |= set(re.findall(r"^\s*import\s+\.(\S+)\s*$", source, flags=re.MULTILINE))
        assert found == imports_of(source), name
        assert not re.search(r"^\s*(?:from|import)\s+hf_posenc", source, flags=re.MULTILINE), name


@pytest.mark.parametrize("entries", ENTRIES)
def test_a_file_says_under_which_licence_what_it_is_and_from_which_modules(written, entries):
    for name, source in written.items():
        assert source.startswith("# SPDX-License-Identifier: Apache-2.0\n# Written by hf_posenc "), name
        assert source.count("SPDX") == 1
        assert ast.get_docstring(ast.parse(source)), name
        headings = re.findall(r"^# (\S+)\.py -+$", source, flags=re.MULTILINE)
        modules = {f"{PACKAGE}.{heading.replace('/', '.')}" for heading in headings}
        assert len(modules) == len(headings) and modules <= set(carried_modules())


@pytest.mark.parametrize("entries", ENTRIES)
def test_ruff_finds_nothing_to_change(written, entries, tmp_path):
    pytest.importorskip("ruff")
    config = Path(__file__).parents[2] / "pyproject.toml"
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(config), str(tmp_path)]
        ran = subprocess.run(ruff, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout


def test_each_config_has_one_text(tmp_path):
    for folder in ("first", "second"):
        PosEncConfig(position_encoding_type="t5+window").save_pretrained(tmp_path / folder)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("first", "second")
    )
    assert first == second


def test_a_tokenizer_shares_no_file_with_a_model(tmp_path):
    """Each is saved without the other, in one folder, and would leave out what the other needs."""
    written = {}
    for name, entries in ENTRIES.items():
        (tmp_path / name).mkdir()
        write_checkpoint_code(tmp_path / name, entries, EVERYTHING)
        written[name] = {path.name for path in (tmp_path / name).iterdir()}
    assert written.pop("tokenizer") == {"tokenization_posenc.py"}
    assert all("tokenization_posenc.py" not in files for files in written.values())


def test_every_prefix_of_a_module_that_has_a_file_is_needed():
    modules = [module.removeprefix(f"{PACKAGE}.") for module in carried_modules()]
    assert all(any(f"{module}.".startswith(f"{prefix}.") for module in modules) for prefix in FILES)


# Merging


def merged(sources: dict[str, str], wanted: list[str]) -> str:
    """What the wanted names of the first module need, as one file."""

    def read(module: str):
        return read_module(module, f'"""The module {module}."""\n\n{sources[module]}')

    first = next(iter(sources))
    needed = MergedModules([Name(first, name) for name in wanted], read, lambda module: "file")
    [(file, modules)] = needed.files().items()
    return needed.source_of(file, modules, read(first).docstring)


TURN = "import math\nfrom .used import half\n\nFULL = 2 * math.pi\n\n\ndef turn(x):\n    return half(x) * FULL\n"
HALF = """import cmath
import math

# A comment.
HALF = 0.5


def half(x):
    return HALF * x


def phase(x):
    return cmath.phase(x) / math.pi
"""
TWO_MODULES = {"pack.user": TURN, "pack.used": HALF}


def test_what_is_not_read_is_left_out_with_its_imports():
    source = merged(TWO_MODULES, ["turn"])
    assert "phase" not in source and "cmath" not in source
    assert source.count("import math\n") == 1 and "from .used" not in source
    assert source.index("# A comment.\nHALF") < source.index("def half") < source.index("def turn")
    module = ModuleType("merged")
    exec(source, vars(module))
    assert module.turn(2) == 2 * module.FULL / 2


@pytest.mark.parametrize(
    "meaning", ["HALF = 0.4", "def half(x):\n    return x", "from math import tau as HALF", "import half", "max = 3"]
)
def test_a_name_with_two_meanings_is_refused(meaning):
    """Where one of them is needed, whether the other is or not."""
    sources = TWO_MODULES | {
        "pack.user": f"from .used import phase\n{meaning}\n\n\ndef turn(x):\n    return phase(x)\n"
    }
    with pytest.raises(ValueError, match=r"one meaning in file\.py of a checkpoint, but \w+ is .* and .*; rename"):
        merged(sources, ["turn"])


@pytest.mark.parametrize(
    "line", ["from .used import half as h", "from . import used", "def f():\n    from .used import half"]
)
def test_an_import_that_cannot_vanish_is_refused(line):
    with pytest.raises(ValueError, match=r"pack\.user:[34] must be `from \.module import name` at the top"):
        merged({"pack.user": f"{line}\n"}, ["f"])


def test_names_in_annotations_that_are_strings_are_read():
    source = merged(
        {"pack.user": 'class A:\n    pass\n\n\ndef f(x: "list[A]") -> None:\n    """A sentence, not A."""\n'}, ["f"]
    )
    assert "class A" in source


def test_a_class_that_is_registered_where_it_is_defined_is_kept():
    """transformers makes cache layers by a name in the config, and no code reads their classes."""
    cache = read_carried(f"{PACKAGE}.encodings.cache", {})
    always = {name for statement in cache.statements if statement.is_always_needed for name in statement.defined}
    assert {"StaticEvictingLayer", "EvictingLayer", "StaticStatefulLayer"} <= always
