"""The command line: what it imports before it has parsed its arguments, its errors of usage, its choices."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.experiments import ROOT

from hf_posenc import __main__, __version__
from hf_posenc.convert.folders import FORMATS
from hf_posenc.lab import cli, commands
from hf_posenc.translator.documents import FORMS

# Packages whose imports take longer than all else that a command line needs in order to be parsed.
SLOW = {"accelerate", "datasets", "evaluate", "huggingface_hub", "numpy", "tokenizers", "torch", "transformers"}


def test_the_console_script_is_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"hf-posenc": "hf_posenc.__main__:main"}
    assert __main__.main is cli.main


@pytest.mark.parametrize(
    ("start", "arguments", "status", "printed"),
    [
        ("script", ["--version"], 0, f"hf-posenc {__version__}\n"),
        ("module", ["--help"], 0, "usage: hf-posenc [-h]"),
        ("script", ["translate", "--help"], 0, "usage: hf-posenc translate"),
        ("module", ["translat"], 2, ""),
        ("script", ["translate", "model", "--num-beam", "3"], 2, ""),
        ("module", ["export", "model", "--engine", "none", "--output", "other"], 2, ""),
        ("train.py", ["--help"], 0, "usage: hf-posenc train"),
        ("train.py", ["a.yaml", "--dryrun"], 2, ""),
    ],
    ids=["version", "help", "help of a command", "command", "option", "choice", "train.py", "option of train.py"],
)
def test_nothing_slow_is_imported_before_the_arguments_are_parsed(
    start: str, arguments: list[str], status: int, printed: str, tmp_path: Path
) -> None:
    program = [str(ROOT / "train.py")] if start == "train.py" else ["-m", "hf_posenc"]
    if start == "script":  # what an installation writes
        (tmp_path / "hf-posenc").write_text("from hf_posenc.__main__ import main\nmain()\n", encoding="utf-8")
        program = [str(tmp_path / "hf-posenc")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-X", "importtime", *program, *arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stdout.startswith(printed) and bool(done.stdout) == bool(printed)
    imports = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip() for line in imports}
    assert "hf_posenc.lab.cli" in modules
    assert {module.partition(".")[0] for module in modules} & SLOW == set()


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line on standard error of arguments that are refused."""
    with pytest.raises(SystemExit) as ended:
        cli.parse_arguments(arguments)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("tranlsate model", "but it is 'tranlsate'; the nearest one is 'translate'; see `hf-posenc --help`."),
        ("--verison", "but '--verison' is none; the nearest one is '--version'; see `hf-posenc --help`."),
        ("translate --num-beem=3", "'--num-beem' is none; the nearest one is '--num-beams'; see `hf-posenc translate"),
        ("train a.yaml --dryrun", "'--dryrun' is none; the nearest one is '--dry-run'; see `hf-posenc train --help`."),
        (
            "figures alibi --ouput x",
            "'--ouput' is none; the nearest one is '--output'; see `hf-posenc figures --help`.",
        ),
        ("report run other", "hf-posenc report: Unknown arguments: other; see `hf-posenc report --help`."),
        ("translate", "hf-posenc translate: The following arguments are required: MODEL; see"),
        ("translate m --batch-size 0", "--batch-size must be a whole number of 1 or more, but it is '0'; see"),
        ("translate m --num-beams=-1", "--num-beams must be a whole number of 1 or more, but it is '-1'; see"),
        ("translate m --max-new-tokens 1.5", "--max-new-tokens must be a whole number of 1 or more, but it is '1.5'"),
        ("translate m --num-processes x", "--num-processes must be a whole number of 1 or more, but it is 'x'; see"),
    ],
)
def test_an_error_of_usage_is_one_line_with_the_remedy(typed: str, error: str, capsys) -> None:
    assert error in usage_error(typed.split(), capsys)


def test_an_unlike_name_suggests_none(capsys) -> None:
    assert "nearest" not in usage_error(["translate", "--xyzw"], capsys)


def test_what_follows_two_dashes_is_no_option() -> None:
    assert cli.parse_arguments(["attention", "model", "--output", "x", "--", "--sentence"]).sentence == "--sentence"


def test_settings_stand_before_and_after_options() -> None:
    options = cli.parse_arguments(["train", "a.yaml", "seeds=[1]", "--dry-run", "train.max_steps=2"])
    assert (options.config, options.overrides, options.dry_run) == ("a.yaml", ["seeds=[1]"], True)
    assert options.extra_arguments == ["train.max_steps=2"]


def test_each_command_has_a_function_and_each_choice_exists() -> None:
    _, parsers = cli.make_parsers()
    assert [name for name in parsers if not callable(getattr(commands, name.replace("-", "_"), None))] == []
    assert tuple(commands.EXPORTERS) == cli.ENGINES
    assert FORMATS == cli.FORMATS
    assert FORMS == cli.DOCUMENT_FORMS


def test_train_reads_the_config_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^FileNotFoundError: .*none\.yaml"):
        cli.main(["train", str(tmp_path / "none.yaml")])
