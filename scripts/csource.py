"""C sources as the checks see them: which there are, and their text without comments and strings."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent

_TOKENS = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def files(*folders):
    """All .c and .h files beneath the folders that exist, in order."""
    found = []
    for folder in folders:
        found += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".c", ".h")]
    return sorted(found)


def code(path):
    """The text of a file, comments and the insides of literals blanked, lines kept."""
    def blank(match):
        token = match.group()
        if token[0] == "/":
            return " " + "\n" * token.count("\n")
        return token[0] + token[0]
    return _TOKENS.sub(blank, path.read_text())


def where(path, text, offset):
    """FILE:LINE of an offset, as compilers write it."""
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, offset) + 1}"
