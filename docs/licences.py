"""The licences of what this package depends on, as a page.

    python docs/licences.py > docs/reference/licences.md

They are those of the installed packages' own metadata, in the environment of `make`, which has every extra.
"""

import re
import tomllib
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LONGEST = 120  # letters of a licence's name; what is longer is its text


def declared() -> dict[str, str]:
    """Each dependency by its name, and the extra that needs it, empty for none. A developer's tools are left out."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"]} | project["optional-dependencies"]
    found: dict[str, str] = {}
    for extra, requirements in groups.items():
        names = [re.split(r"[\s<>=!~;\[]", requirement)[0] for requirement in requirements]
        found |= {name: extra for name in names if name not in found | {project["name"]: ""} and extra != "dev"}
    return found


def licence(package: Message) -> str:
    """What a package's metadata say of its licence: an SPDX expression, a name, or classifiers."""
    named = package.get("License-Expression") or package.get("License") or ""
    classified = [
        line.rpartition(" :: ")[2] for line in package.get_all("Classifier", []) if line.startswith("License")
    ]
    return named if 0 < len(named) <= LONGEST and "\n" not in named else ", ".join(classified) or "see the package"


def page() -> str:
    rows = []
    for name, extra in sorted(declared().items(), key=lambda item: (item[1], item[0].lower())):
        try:
            said = licence(metadata(name))
        except PackageNotFoundError:
            said = "not installed where this page was made"
        rows.append(f"| `{name}` | {extra or 'always'} | {said} |")
    head = ["| package | needed | licence |", "| --- | --- | --- |"]
    start = (
        "# Licences\n\nhf_posenc is under Apache-2.0. It contains none of the packages below, but needs them; `needed` "
        "names the extra.\n`python docs/licences.py > docs/reference/licences.md` makes this page from the metadata of "
        "packages."
    )
    return "\n".join([start, "", *head, *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
