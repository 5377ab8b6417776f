#!/usr/bin/env python3
"""The pages of results in a browser: in a window of 900 pixels no table is wider than the page.

Takes Debian's chromium and chromium-driver; without them it says so and ends with status 77, which ctest counts as skipped.

usage: report_page.py TOPKV MODEL_DIRECTORY WORK_DIRECTORY
"""

import pathlib
import shutil
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from browser import MOST_SECONDS, Browser, missing

TOPKV, MODEL, WORK = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
WIDTHS = """return [...document.querySelectorAll("table")].map(
    table => [table.rows[0].textContent, table.getBoundingClientRect().width, table.parentElement.clientWidth])"""


def run(*words):
    subprocess.run([TOPKV, *words, "-m", MODEL, "--device", "cpu"], check=True, capture_output=True, timeout=MOST_SECONDS)


def check_fits(browser, page):
    browser.open(page.as_uri())
    assert browser.run("return window.innerWidth") == 900
    tables = browser.run(WIDTHS)
    assert len(tables) > 1, tables
    for headings, wide, room in tables:
        assert wide <= room + 0.5, (page.name, headings, wide, room)
    across = browser.run("return document.documentElement.scrollWidth")
    assert across <= 900, (page.name, across)


def main():
    if missing():
        return 77
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    run("needle", "-c", "1K,2K", "--depths", "2", "--kv-index", "codes", "--kv-index", "exact", "--kv-recall", "-o", WORK / "needle")
    run("fidelity", "-c", "1K", "--questions", "1", "--kv-tail", "none", "--kv-tail", "codes", "--html", WORK / "fidelity.html")
    browser = Browser()
    try:
        check_fits(browser, WORK / "needle/report.html")
        check_fits(browser, WORK / "fidelity.html")
    finally:
        browser.close()
    print("all as it should be")
    return 0


sys.exit(main())
