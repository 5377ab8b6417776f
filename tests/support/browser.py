"""Chromium, as the tests of pages use it: Debian's chromium and chromium-driver."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

MOST_SECONDS = 120  # of any wait


def missing():
    """Whether there is no browser here, which is then said: a test ends with status 77, which ctest counts as skipped."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return False
    print("skipped: no chromium or chromedriver here (Debian: chromium, chromium-driver)")
    return True


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
