#!/usr/bin/env python3
"""The page of topkv serve in a browser: it lists the contexts, asks, shows the answer as it comes, stops, and shows errors.

Takes Debian's chromium and chromium-driver; without them it says so and ends with status 77, which ctest counts as skipped.

usage: serve_page.py TOPKV MODEL_DIRECTORY WORK_DIRECTORY [SCREENSHOT.png]
"""

import base64
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

TOPKV, MODEL, WORK = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
MOST_SECONDS = 120
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
AT = "special magic number for quiet-river mentioned in the provided text"
QUESTION = f" What is the {AT}? The {AT} is"


class Browser:
    """Chromium by the WebDriver protocol."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = None
        while port is None:
            line = self.driver.stdout.readline()
            assert line, "chromedriver ended"
            if "started successfully on port" in line:
                port = line.rstrip(". \n").rsplit(" ", 1)[1]
        self.base = f"http://127.0.0.1:{port}"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=900,780", "--hide-scrollbars"]}
        opened = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self.session = "/session/" + opened["sessionId"]

    def call(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method, headers={"Content-Type": "application/json"},
                                         data=json.dumps(body).encode() if body is not None else None)
        try:
            with urllib.request.urlopen(request, timeout=MOST_SECONDS) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def run(self, script, *words):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": words})

    def becomes(self, script):
        until = time.monotonic() + MOST_SECONDS
        while time.monotonic() < until:
            found = self.run("return " + script)
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"never: {script}; the page has: {self.run('return document.body.innerText')}")

    def picture(self):
        return base64.b64decode(self.call("GET", self.session + "/screenshot"))

    def close(self):
        self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait(timeout=MOST_SECONDS)


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
    # An error of the server's, in its words.
    browser.run(fill, "tokens", "1000000")
    browser.run("document.getElementById('ask').click()")
    message = browser.becomes("!document.getElementById('error').hidden && document.getElementById('error').textContent")
    assert "--room" in message, message


def main():
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("skipped: no chromium or chromedriver here (Debian: chromium, chromium-driver)")
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
