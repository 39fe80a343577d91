"""The Europarl documents of news-small and their saved translations.

The translations are in docs/results/news-small/systems.tar.xz, and those of other systems in the same file of another
run. The documents are not in this repository: FOLDER must
have the text of `python corpora/check.py OTHER --lowercase FOLDER`, and other text is refused.
"""

import json
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.data.corpus import load_pairs
from hf_posenc.lab.data.lengths import stratified_sample
from hf_posenc.lab.data.readers import corpus_file_hashes
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer

RUN = Path(__file__).parent / "results" / "news-small"
ARCHIVE = RUN / "systems.tar.xz"
CONFIG = Path(__file__).parents[1] / "configs" / "news" / "table2-small.yaml"
SETTINGS_OF = "aligned-100-seed1"  # all systems have the same test sets


@dataclass(frozen=True)
class TestSet:
    """The scored documents of a test set: their aligned sentences in both languages, and each source's subwords.

    `longest_sentences` has the subwords of each document's longest source sentence, and `debates` its debate.
    """

    sources: list[list[str]]
    references: list[list[str]]
    source_lengths: list[int]
    longest_sentences: list[int]
    debates: list[str]

    @property
    def reference_texts(self) -> list[str]:
        return [" ".join(sentences) for sentences in self.references]


def extract(archive: Path, names: Iterable[str], folder: Path) -> Path:
    """Extract the members under these names, and return the run's folder."""
    with tarfile.open(archive) as file:
        members = [member for member in file if any(f"{member.name}/".startswith(f"{name}/") for name in names)]
        file.extractall(folder, members, filter="data")
    return folder / "news-small"


def read_test_sets(names: Iterable[str], folder: Path) -> dict[str, TestSet]:
    """The test sets by name; a ValueError if the text in `folder` is not that of the saved run."""
    with tempfile.TemporaryDirectory() as temporary:
        members = ["news-small/tokenizer", f"news-small/{SETTINGS_OF}/settings.yaml"]
        run = extract(ARCHIVE, members, Path(temporary))
        saved = yaml.safe_load((run / SETTINGS_OF / "settings.yaml").read_text(encoding="utf-8"))
        settings = load_experiment(CONFIG).systems[SETTINGS_OF].settings() | {"files": saved["files"]}
        tokenizer = PosEncTokenizer.from_pretrained(run / "tokenizer")
    return {name: read_test_set(name, settings, tokenizer, folder) for name in names}


def read_test_set(name: str, settings: dict[str, Any], tokenizer: PosEncTokenizer, folder: Path) -> TestSet:
    spec, score = settings["data"]["test"][name], settings["score"]
    hashes = corpus_file_hashes(spec, str(folder))
    if other := [file for file, found in hashes.items() if settings["files"][file] != found]:
        raise ValueError(
            f"FOLDER must have the text of the saved run, but {folder / other[0]} has another one. Write it by "
            "`python corpora/check.py OTHER --lowercase FOLDER`."
        )
    pairs = load_pairs(spec, source_language="de", target_language="en", folder=str(folder), separator="\n")
    whole = [row["de"].replace("\n", " ") for row in pairs["translation"]]
    lengths = [len(ids) for ids in tokenizer(whole, add_special_tokens=False)["input_ids"]]
    scored = stratified_sample(
        pairs.add_column("source_length", lengths), score["bucket_edges"], score["max_per_bucket"]
    )
    sources, references = ([row[side].split("\n") for row in scored["translation"]] for side in ("de", "en"))
    longest = [max(map(len, tokenizer(document, add_special_tokens=False)["input_ids"])) for document in sources]
    debates = find_debates(sources, folder / spec["files"][0], folder / spec["document_ids"])
    return TestSet(sources, references, list(scored["source_length"]), longest, debates)


def find_debates(documents: Iterable[list[str]], text: Path, names: Path) -> list[str]:
    """The name of the debate that has each document's lines in a row."""
    lines: dict[str, list[str]] = {}
    for line, name in zip(*(path.read_text(encoding="utf-8").splitlines() for path in (text, names)), strict=True):
        lines.setdefault(name, []).append(line.strip())
    debates = {name: "\n".join(of_debate) for name, of_debate in lines.items()}
    return [next(name for name, whole in debates.items() if "\n".join(document) in whole) for document in documents]


def read_translations(
    systems: Iterable[str], test_sets: Iterable[str], archive: Path = ARCHIVE
) -> dict[tuple[str, str], list[str]]:
    """The saved translations by system, such as `aligned-100-seed1`, and test set."""
    wanted = {f"{system}/translations/{test}.jsonl": (system, test) for system in systems for test in test_sets}
    found = {}
    with tarfile.open(archive) as members:
        for member in members:
            name = "/".join(Path(member.name).parts[-3:])  # the folder of all systems is in some archives alone
            if (key := wanted.get(name)) and (file := members.extractfile(member)):
                found[key] = [json.loads(line)["text"] for line in file]
    if missing := sorted(set(wanted.values()) - found.keys()):
        raise ValueError(f"{archive.name} must have the translations of each system, but it has none of {missing[0]}.")
    return found
