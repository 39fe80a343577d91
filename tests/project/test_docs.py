"""The pages: links resolve, every page is reachable, and every file named exists."""

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
BELOW = ["docs", "model_cards", "benchmarks", "space", "src"]
PAGES = sorted([*HERE, *(page for folder in BELOW for page in (ROOT / folder).rglob("*.md"))])
PAGES = [page for page in PAGES if not page.name.endswith("_template.md")]  # links only once it is filled in

FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
FOLDERS = r"src|docs|configs|corpora|tests|examples|benchmarks|model_cards|space|\.ci"


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """What a page links to or shows of its own repository, as it is written."""
    targets = LINK.findall(SPAN.sub("code", prose(page)))
    return [unquote(target) for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings, and those that the page gives itself."""
    text, found, seen = prose(page), set(re.findall(r"""<a (?:id|name)=["'](.+?)["']""", prose(page))), Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def broken(page: Path, root: Path = ROOT) -> list[str]:
    """The links of a page that lead nowhere or out of `root`, each with the reason."""
    reasons = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(root):
            reasons.append(f"{link}: outside the repository")
        elif not target.exists():
            reasons.append(f"{link}: no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            reasons.append(f"{link}: no heading of that name")
    return reasons


def test_every_link_leads_somewhere() -> None:
    assert {str(page.relative_to(ROOT)): found for page in PAGES if (found := broken(page))} == {}


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.md").write_text(
        "# The `other` page, twice\n\n```\n# no heading\n```\n\n# The other page, twice\n"
    )
    (page := tmp_path / "page.md").write_text(
        "[a](other.md) [b](other.md#the-other-page-twice) [c](other.md#the-other-page-twice-1) [d](folder/)\n"
        "`[e](gone)` [f](https://example.org/gone) [g](#here) ![h](gone.png) [i](other.md#no-heading)\n"
        "[j](../other.md)\n\n# Here\n\n"
        "```\n[k](gone)\n```\n"
    )
    assert broken(page, tmp_path) == [
        "gone.png: no such file",
        "other.md#no-heading: no heading of that name",
        "../other.md: outside the repository",
    ]


@pytest.mark.full
def test_what_the_site_gathers_has_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["gather"](tmp_path)
    gathered = sorted(tmp_path.rglob("*.md"))
    assert len(gathered) > len(PAGES) - 3
    assert {
        page.relative_to(tmp_path).as_posix(): found for page in gathered if (found := broken(page, tmp_path))
    } == {}


def test_every_page_can_be_found_from_the_readme() -> None:
    """By links; who is led to a folder is led to all that it holds."""
    found: set[Path] = set()
    ways = [ROOT / "README.md"]
    while ways:
        if (place := ways.pop()) not in found:
            found.add(place)
            if place.is_dir():
                ways += place.rglob("*.md")
            elif place.suffix == ".md" and place.exists():
                ways += [(place.parent / link.partition("#")[0]).resolve() for link in links(place) if link[0] != "#"]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in found] == []


def test_the_list_of_all_pages_has_each_page_of_a_folder_that_readers_visit() -> None:
    listed = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links(ROOT / "docs" / "all_pages.md")}
    pages = {page for name in ("start", "howto", "explain", "results") for page in (ROOT / "docs" / name).glob("*.md")}
    assert {str(page.relative_to(ROOT)) for page in pages - listed} == set()


def test_every_file_named_in_code_exists() -> None:
    """Those whose name begins with a folder of this repository; a star stands for several."""
    pages: dict[str, list[str]] = {}
    for page in PAGES:
        for _, name in SPAN.findall(prose(page)):
            if re.fullmatch(rf"(?:{FOLDERS})/[\w./*+-]*", name):
                pages.setdefault(name, []).append(str(page.relative_to(ROOT)))
    assert {name: named_on for name, named_on in pages.items() if not any(ROOT.glob(name.rstrip("/")))} == {}


def test_the_readme_is_short_and_has_few_links() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(LINK.findall(text)) <= 30


def test_the_map_of_the_code_lists_every_package_and_names_what_exists() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n```\ntrain.py")[2].partition("\n```")[0]
    above, _, below = tree.partition("src/hf_posenc/\n")
    package = ROOT / "src" / "hf_posenc"
    for folder, indent in ((package, "  "), (package / "lab", "    ")):
        listed = re.findall(rf"^{indent}(\w+)/", below, re.MULTILINE)
        assert sorted(listed) == sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    others = re.findall(r"^(\w\S+)", f"{above}{below}", re.MULTILINE)
    assert [name for name in others if not (ROOT / name).exists()] == []


@pytest.mark.full
def test_the_example_of_an_encoding_of_ones_own_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "own_encoding.md").read_text(encoding="utf-8")
    example = page.partition("Save it as `nearness.py`:\n\n```python\n")[2].partition("```")[0]
    (tmp_path / "nearness.py").write_text(example)
    program = (
        "import nearness, torch\n"
        "from hf_posenc import PosEncConfig, PosEncForConditionalGeneration\n"
        "def logits(encoding):\n"
        "    torch.manual_seed(1)\n"
        "    small = dict(vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,\n"
        "        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, position_encoding_type=encoding)\n"
        "    model = PosEncForConditionalGeneration(PosEncConfig(**small)).eval()\n"
        "    ids = torch.arange(4, 12)[None]\n"
        "    return model(input_ids=ids, decoder_input_ids=ids).logits\n"
        "assert not torch.equal(logits('nearness'), logits('none'))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
