"""Compare text with that of the saved tables, and fetch what can be fetched.

    python corpora/check.py FOLDER                          compare every file of FOLDER that corpora.yaml names
    python corpora/check.py FOLDER --fetch multi30k         first download the files of a corpus into FOLDER
    python corpora/check.py FOLDER --lowercase OTHER        also write lower-cased copies to OTHER

Other text is refused: exit status 1. A file may be plain or have the suffix .gz. sacrebleu fetches the WMT test sets.
"""

import argparse
import gzip
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

CORPORA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("corpora.yaml").read_text(encoding="utf-8"))


def read_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def lowercase(content: bytes) -> bytes:
    return content.decode("utf-8").lower().encode("utf-8")


def local_file(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or packed."""
    paths = [folder / name, folder / f"{name}.gz"]
    return next((path for path in paths if path.is_file()), None)


def complaint(path: Path, expected: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is wrong with a file; `expected` are the texts that it may have, by corpus."""
    content = read_bytes(path)
    hashes = {entry.get(key) for entry in expected.values() for key in ("sha256", "sha256_lowercased")}
    if sha256(content) in hashes:
        return None
    num_lines = content.count(b"\n")
    texts = " or ".join(f"{entry['lines']} lines of {corpus}" for corpus, entry in expected.items())
    return (
        f"{path} must have the text of the saved tables, {texts}, but it has {num_lines} lines with SHA-256 "
        f"{sha256(content)[:12]}. Replace it, or give your run another name and compare no scores."
    )


def download(url: str, folder: Path) -> bytes:
    """The content of a URL; an OSError if it cannot be had."""
    try:
        with urlopen(url) as answer:
            return answer.read()
    except OSError as error:
        raise OSError(
            f"{url} must be within reach, but: {error}. Run this where it is, or put the file into {folder}; what is "
            "there already is kept."
        ) from error


def fetch(corpus: str, folder: Path) -> None:
    """Download the files of a corpus; a ValueError if it has no place to download from."""
    description = CORPORA[corpus]
    for name in description["files"]:
        if local_file(folder, name):
            continue
        if urls := description.get("urls"):
            (folder / f"{name}.gz").write_bytes(download(urls.format(name=name), folder))
        elif test_set := description.get("sacrebleu", {}).get(name.rpartition(".")[0]):
            from sacrebleu.utils import get_reference_files, get_source_file

            path = (
                get_source_file(test_set, "de-en")
                if name.endswith(".de")
                else get_reference_files(test_set, "de-en")[0]
            )
            (folder / name).write_bytes(Path(path).read_bytes())
        else:
            raise ValueError(
                f"A corpus must have `urls` or `sacrebleu` to be fetched, but {corpus} has neither for {name}. Get it "
                f"from its source ({description['source']}) and put it into {folder}."
            )
        print(f"fetched {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--fetch", choices=list(CORPORA), metavar="CORPUS", help=f"one of {', '.join(CORPORA)}")
    parser.add_argument("--lowercase", type=Path, metavar="OTHER", help="a folder for lower-cased copies")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        if options.fetch:
            fetch(options.fetch, options.folder)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    expected: dict[str, dict[str, Any]] = {}
    for corpus, description in CORPORA.items():
        for name, entry in description["files"].items():
            expected.setdefault(name, {})[corpus] = entry
    present = {name: path for name in expected if (path := local_file(options.folder, name))}
    complaints = [text for name, path in present.items() if (text := complaint(path, expected[name]))]
    print(
        "\n".join(complaints) or f"{len(present)} of {len(expected)} files are here, with the text of the saved tables."
    )
    if complaints or not present:
        return 1
    if options.lowercase:
        options.lowercase.mkdir(parents=True, exist_ok=True)
        for name, path in present.items():
            (options.lowercase / name).write_bytes(lowercase(read_bytes(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
