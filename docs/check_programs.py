"""Fails when a whole C++ program in a page, a block of ```cpp with a main, does not compile.

    python docs/check_programs.py docs/*.md docs/*/*.md

Against the public headers alone; nothing is linked.
"""

import os
import pathlib
import re
import subprocess
import sys

INCLUDE = pathlib.Path(__file__).parent.parent / "include"
COMMAND = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-Werror",
           "-fsyntax-only", f"-I{INCLUDE}", "-xc++", "-"]  # fmt: skip


def main():
    programs = [
        (page, text[: block.start()].count("\n") + 2, block[1])
        for page in sys.argv[1:]
        for text in [pathlib.Path(page).read_text()]
        for block in re.finditer(r"^```cpp\n(.*?)^```$", text, re.M | re.S)
        if "int main(" in block[1]
    ]
    if not programs:
        raise SystemExit("check_programs: found no ```cpp block with a main in these pages")
    failed = 0
    for page, line, program in programs:
        placed = f'#line {line} "{page}"\n{program}'
        failed += subprocess.run(COMMAND, input=placed, text=True).returncode != 0
    if failed:
        raise SystemExit(f"check_programs: {failed} of {len(programs)} programs do not compile")
    print(f"check_programs: {len(programs)} programs compile")


if __name__ == "__main__":
    main()
