#!/usr/bin/env python3
"""The page of topkv serve in a browser: it lists the contexts, asks, shows the answer as it comes, stops, and shows errors.

Takes Debian's chromium and chromium-driver; without them it says so and ends with status 77, which ctest counts as skipped.

usage: page.py TOPKV MODEL_DIRECTORY WORK_DIRECTORY [SCREENSHOT.png]
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from browser import MOST_SECONDS, Browser, missing

TOPKV, MODEL, WORK = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
AT = "special magic number for quiet-river mentioned in the provided text"
QUESTION = f" What is the {AT}? The {AT} is"


def check_page(browser, address, picture):
    browser.open(address)
    names = browser.becomes("document.getElementById('context').options.length > 1 && [...document.getElementById('context').options].map(o => o.value)")
    assert names == ["notes", ""], names
    about = browser.run("return document.getElementById('about').textContent")
    assert "tokens, searched by" in about, about
    fill = "document.getElementById(arguments[0]).value = arguments[1]"
    browser.run(fill, "question", QUESTION)
    browser.run(fill, "tokens", "9")
    browser.run("document.getElementById('ask').click()")
    browser.becomes("document.getElementById('figures').textContent.includes('of the answer')")
    answer = browser.run("return document.getElementById('answer').textContent")
    assert answer == " 7281934.", answer
    assert browser.run("return document.getElementById('error').hidden")
    if picture:
        pathlib.Path(picture).write_bytes(browser.picture())
    # Stopped: what came stays.
    browser.run(fill, "tokens", "4000")
    browser.run(fill, "temperature", "1")
    browser.run("document.getElementById('ask').click()")
    browser.becomes("document.getElementById('answer').textContent.length > 10")
    browser.run("document.getElementById('stop').click()")
    browser.becomes("document.getElementById('figures').textContent === 'stopped'")
    assert browser.run("return document.getElementById('answer').textContent.length") > 10
    check_vanished(browser, address)
    # An error of the server's, in its words.
    browser.run(fill, "tokens", "1000000")
    browser.run("document.getElementById('ask').click()")
    message = browser.becomes("!document.getElementById('error').hidden && document.getElementById('error').textContent")
    assert "--room" in message, message


def check_vanished(browser, address):
    """A context that is deleted while it is chosen: nothing else is asked in its place."""
    body = json.dumps({"name": "lake", "text": NOISE}).encode()
    urllib.request.urlopen(urllib.request.Request(address + "/v1/contexts", body, {"Content-Type": "application/json"}), timeout=MOST_SECONDS)
    browser.becomes("[...document.getElementById('context').options].some(o => o.value === 'lake')")
    choose = "const c = document.getElementById('context'); c.value = arguments[0]; c.dispatchEvent(new Event('change'))"
    browser.run(choose, "lake")
    urllib.request.urlopen(urllib.request.Request(address + "/v1/contexts/lake", method="DELETE"), timeout=MOST_SECONDS)
    about = browser.becomes("document.getElementById('about').textContent.includes('no longer there') && document.getElementById('about').textContent")
    assert "lake" in about and "Choose" in about, about
    chosen = browser.run("return document.getElementById('context').selectedOptions[0].textContent")
    assert chosen == "(choose a context)", chosen
    before = browser.run("return document.getElementById('figures').textContent")
    browser.run("document.getElementById('ask').click()")
    assert browser.run("return running === null && !document.getElementById('context').validity.valid")
    assert browser.run("return document.getElementById('figures').textContent") == before
    # Neither does the next look at the list choose for the reader.
    browser.run("return refresh()")
    assert browser.run("return gone") == "lake"
    browser.run(choose, "notes")
    browser.run("return refresh()")
    about = browser.run("return document.getElementById('about').textContent")
    assert "tokens, searched by" in about, about
    assert browser.run("return document.getElementById('context').validity.valid && document.getElementById('context').value") == "notes"


def main():
    if missing():
        return 77
    picture = pathlib.Path(sys.argv[4]).resolve() if len(sys.argv) > 4 else None
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    text = WORK / "notes.txt"
    text.write_text(NOISE * 40 + "One of the special magic numbers for quiet-river is: 7281934.\n" + NOISE * 40)
    subprocess.run([TOPKV, "prefill", "-m", MODEL, "-f", text, "-o", WORK / "notes.tkv", "--device", "cpu"],
                   check=True, capture_output=True, timeout=MOST_SECONDS)
    with open(WORK / "log", "w") as log:
        server = subprocess.Popen([TOPKV, "serve", "-m", MODEL, WORK / "notes.tkv", "--port", "0", "--device", "cpu", "-t", "2"],
                                  stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = server.stdout.readline().strip()
            browser = Browser()
            try:
                check_page(browser, address, picture)
            finally:
                browser.close()
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(timeout=MOST_SECONDS)
    assert status == 0, (WORK / "log").read_text()
    print("all as it should be")
    return 0


sys.exit(main())
