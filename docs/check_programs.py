"""Fails when a whole program in a page does not compile.

    python docs/check_programs.py docs/*.md docs/*/*.md

C++: a block of ```cpp with a main, against the public headers alone; nothing is linked. Python: a
block of ```python that imports topkv; the package must have the names that it uses.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
INCLUDE = ROOT / "include"
PACKAGE = ROOT / "bindings/topkv/__init__.py"
COMMAND = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-Werror",
           "-fsyntax-only", f"-I{INCLUDE}", "-xc++", "-"]  # fmt: skip


def blocks(language, whole):
    """(page, line, program) of the blocks that have the text `whole`."""
    found = [
        (page, text[: block.start()].count("\n") + 2, block[1])
        for page in sys.argv[1:]
        for text in [pathlib.Path(page).read_text()]
        for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
        if whole in block[1]
    ]
    if not found:
        raise SystemExit(f"check_programs: found no ```{language} block with {whole!r} in these pages")
    return found


def compiles_as_cpp(page, line, program):
    placed = f'#line {line} "{page}"\n{program}'
    return subprocess.run(COMMAND, input=placed, text=True).returncode == 0


def compiles_as_python(page, line, program):
    package = PACKAGE.read_text()
    lists = re.findall(r"^(?:__all__|_ON_DEMAND) = ([(\[].*?[)\]])$", package, re.M | re.S)
    names = [name for text in lists for name in ast.literal_eval(text)]
    try:
        tree = ast.parse("\n" * (line - 1) + program, page)
    except SyntaxError as error:
        print(f"{page}:{error.lineno}: {error.msg}", file=sys.stderr)
        return False
    used = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "topkv"
    ]
    unknown = [node for node in used if node.attr not in names]
    for node in unknown:
        print(f"{page}:{node.lineno}: topkv has no {node.attr}", file=sys.stderr)
    return not unknown


def main():
    cpp, python = blocks("cpp", "int main("), blocks("python", "import topkv")
    failed = [block[:2] for block in cpp if not compiles_as_cpp(*block)]
    failed += [block[:2] for block in python if not compiles_as_python(*block)]
    if failed:
        raise SystemExit(f"check_programs: {len(failed)} programs do not compile")
    print(f"check_programs: {len(cpp)} C++ and {len(python)} Python programs compile")


if __name__ == "__main__":
    main()
