"""transformers' own tests of models, taken from the source distribution of the very version that is installed.

Nothing of them is kept in this repository: they are downloaded once and unpacked under `.pytest_cache`, which git
ignores and `make clean` removes.
"""

import importlib
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
import transformers

PACKAGE = "transformers_own_tests"
NEEDED = ("test_modeling_common.py", "test_configuration_common.py", "test_training_mixin.py")
CACHE = Path(__file__).parents[2] / ".pytest_cache" / "upstream"


def unpacked() -> Path:
    """The folder with upstream's files; a RuntimeError that says why if they cannot be had."""
    folder = CACHE / transformers.__version__ / PACKAGE
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        wanted = f"transformers=={transformers.__version__}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--dest", temporary]
        command = [*pip, "--no-deps", "--no-binary", "transformers", wanted]
        answer = subprocess.run(command, capture_output=True, text=True)
        archives = list(Path(temporary).glob("transformers-*.tar.gz"))
        if answer.returncode or not archives:
            last = (answer.stderr.strip() or answer.stdout.strip() or "no source distribution").splitlines()[-1]
            raise RuntimeError(f"the source distribution of {wanted} cannot be downloaded: {last}")
        new = Path(temporary) / transformers.__version__
        (new / PACKAGE).mkdir(parents=True)
        (new / PACKAGE / "__init__.py").touch()
        with tarfile.open(archives[0]) as archive:
            for name in NEEDED:
                member = archive.extractfile(f"transformers-{transformers.__version__}/tests/{name}")
                (new / PACKAGE / name).write_bytes(member.read())
        try:
            new.rename(folder.parent)  # all of it or nothing
        except OSError:
            if not folder.is_dir():  # if it is, another process was faster
                raise
    return folder


def stand_in(name: str, **members: object) -> None:
    """A module of upstream's tests that the source distribution leaves out, with what the others import from it."""
    module = ModuleType(f"{PACKAGE}.{name}")
    module.__path__ = []
    vars(module).update(members)
    sys.modules[module.__name__] = module


def upstream_tests() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Upstream's modules of NEEDED; a RuntimeError that says why if they cannot be had."""
    folder = unpacked()
    stand_in("generation")
    stand_in("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    stand_in("exporters")
    stand_in("exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    stand_in("utils")
    stand_in("utils.test_configuration_utils", config_common_kwargs=COMMON_FIELDS)
    sys.path.insert(0, str(folder.parent))
    try:
        # Upstream's markers are declared in a conftest that is not distributed, and its modules warn when imported.
        with mock.patch.object(pytest.mark, "_config", None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tuple(importlib.import_module(f"{PACKAGE}.{name.removesuffix('.py')}") for name in NEEDED)
    finally:
        sys.path.remove(str(folder.parent))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast tests do not wait for a download of what only the slow ones run."""
    slow = "not slow" not in config.getoption("markexpr")
    return None if slow or collection_path.name != "test_upstream.py" else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of upstream's tests passed, failed and were skipped for every encoding, and why they were skipped."""
    outcomes: dict[str, dict[str, str]] = {}
    skips: dict[str, list[tuple[str, str]]] = {}
    for outcome in ("passed", "skipped", "failed", "error"):  # the worst of a test and its subtests
        for report in terminalreporter.stats.get(outcome, []):
            file, _, test = report.nodeid.partition("::")
            sides, _, test = test.partition("::")
            if not file.endswith("test_upstream.py"):
                continue
            if test:
                outcomes.setdefault(sides, {})[test] = outcome
            if outcome == "skipped":
                reason = re.sub(r"(<class ')?[\w.]*(PosEnc|RnnNmt)\w+('>)?", "The model", report.longrepr[2])
                skips.setdefault(reason.removeprefix("Skipped: "), []).append((test or "all of them", sides or "all"))
    if not outcomes and not skips:
        return
    terminalreporter.section(f"the tests of transformers {transformers.__version__}")
    for sides, tests in outcomes.items():
        counts = Counter(tests.values())
        columns = (f"{counts[name]:6d} {name}" for name in ("passed", "skipped", "failed", "error"))
        terminalreporter.write_line(f"{sides:24}" + "".join(columns))
    terminalreporter.write_line("\nskipped, in how many of these, and why")
    for reason, where in sorted(skips.items()):
        tests = sorted({test for test, _ in where})
        shown = tests if len(tests) <= 3 else [*tests[:2], f"{len(tests) - 2} more"]
        terminalreporter.write_line(f"{len({sides for _, sides in where}):4d}  {reason}\n      ({', '.join(shown)})")


# Fields that every config takes, none at its default: what upstream's test of configs sets and reads back.
COMMON_FIELDS = {
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "dtype": torch.float16,
    "chunk_size_feed_forward": 5,
    "architectures": ["BertModel"],
    "problem_type": "regression",
    "id2label": {0: "label"},
    "label2id": {"label": "0"},
}
