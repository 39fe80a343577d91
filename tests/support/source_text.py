"""The words of source files."""

import ast
import re
from pathlib import Path


def words_of_the_code(path: Path) -> set[str]:
    """A file's identifiers, and the words of its strings that are no prose: that hold no blank."""
    words = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            words.update(re.findall(r"\w+", node.value))
        words.update(
            value
            for field in ("id", "attr", "name", "arg", "module")
            if isinstance(value := getattr(node, field, None), str)
        )
    return {word.lower() for word in words}
