"""Gathers what the site shows into one folder: docs/, pages from elsewhere, a page for each saved run.

    python docs/site_pages.py FOLDER        what `make docs` does before it builds the site

Every page is written for the repository, where a link names a file. Here links are turned to where the site has the
file; a link to one that the site has not becomes its text.
"""

import re
import shutil
import sys
from pathlib import Path
from posixpath import dirname, normpath, relpath

sys.path.insert(0, str(Path(__file__).parent))  # for a test that runs this file
from reference_pages import completed, encoding_words
from saved_results import runs, sortable_table

ROOT = Path(__file__).parents[1]
ENCODINGS = ROOT / "docs" / "reference" / "encodings"
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "space/README.md": "space.md",
    "src/hf_posenc/metrics/length_buckets/README.md": "metric.md",
    "src/hf_posenc/metrics/translation_audit/README.md": "translation_audit.md",
    "model_cards/README.md": "model_cards/index.md",
}
NOT_SEARCHED, SEARCHED_FIRST = "---\nsearch:\n  exclude: true\n---\n", "---\nsearch:\n  boost: 5\n---\n"
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?(\s+\"[^\"]*\")?\)")


def places() -> dict[str, str]:
    """Where the site has each file and folder of the repository that it shows."""
    docs, cards = (ROOT / "docs").rglob("*"), (ROOT / "model_cards").glob("*.md")
    found = {path.relative_to(ROOT).as_posix(): path for path in docs if path.suffix not in (".py", ".pyc", ".yaml")}
    found = {name: name.removeprefix("docs/") + "/index.md" * path.is_dir() for name, path in found.items()}
    found |= {f"model_cards/{card.name}": f"model_cards/{card.name}" for card in cards} | ELSEWHERE
    tables = (ROOT / "benchmarks" / "results").glob("*.md")
    found |= {f"benchmarks/results/{table.name}": f"benchmarks/{table.name}" for table in tables}
    return found | {dirname(name): place for name, place in ELSEWHERE.items() if dirname(name)}


def turned(text: str, source: str, places: dict[str, str]) -> str:
    """The text of the file `source`, its links as they are from that file's place in the site."""

    def turn(link: re.Match[str]) -> str:
        mark, words, target, anchor, title = link.groups(default="")
        named = normpath(f"{dirname(source)}/{target}").lstrip("/")
        if re.match(r"[a-z]+:", target) or not (ROOT / named).exists():
            return link.group()  # another site's, or a wrong one, of which the site's builder warns
        if named not in places:
            return words
        return f"{mark}[{words}]({relpath(places[named], dirname(places[source]) or '.')}{anchor}{title})"

    return LINK.sub(turn, text)


def run_page(run: Path) -> str:
    """What GitHub shows of a folder, its files; and, as a page can, the first table and the figures themselves."""
    names = sorted(path.name for path in run.iterdir())
    figures = [name for name in names if name.endswith(".png")]
    overview = run / "table-overview.md"
    return "\n\n".join(
        [
            f"# {run.name}",
            f"The saved tables and figures of one run. Its command is in [the appendix](../appendix.md#{run.name}).",
            overview.read_text(encoding="utf-8") if overview.exists() else "",
            "Files: " + ", ".join(f"[{name}]({name})" for name in names if name not in figures),
            *(f"## {name.removesuffix('.png')}\n\n![{name}]({name})" for name in figures),
            sortable_table([run.name]),
        ]
    )


def page_of(path: Path) -> str:
    """A file's text with the parts made at build time, without front matter, and with a heading, which a saved table
    has not."""
    text = completed(FRONT_MATTER.sub("", path.read_text(encoding="utf-8")).lstrip())
    if path.parent == ENCODINGS and path.stem in encoding_words():
        return f"{SEARCHED_FIRST}{text}"
    headed = re.search("^# ", text, re.MULTILINE)
    return text if headed else f"# {path.parent.name}: {path.stem.removeprefix('table-')}\n\n{text}"


def gather(folder: Path) -> None:
    """Writes the pages into `folder`, in place of what it held."""
    if folder.exists():
        shutil.rmtree(folder)
    known = places()
    for source, place in known.items():
        path, target = ROOT / source, folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.suffix != ".md":
            shutil.copyfile(path, target)
        elif path.is_file():
            target.write_text(turned(page_of(path), source, known), encoding="utf-8")
    for run in runs():
        # 3000 rows of numbers would drown what a reader searches for.
        page = f"{NOT_SEARCHED}{run_page(ROOT / 'docs/results' / run)}"
        (folder / "results" / run / "index.md").write_text(page, encoding="utf-8")
    cards = [f"- [{card.stem}]({card.name})" for card in sorted((ROOT / "model_cards").glob("*-*.md"))]
    with (folder / "model_cards" / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n".join(["", "## The cards", "", *cards, ""]))


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
