#!/usr/bin/env bash
# langchain-openai 1.7.4 with openai 3.57.0: a prompt that is too long is no ContextOverflowError.
#
# LangChain looks for the code `context_length_exceeded` in the text of openai's error. Since openai writes only the
# message into that text, the code is never there. It is in the attribute `code`, where LangChain does not look. An error
# in OpenAI's own words for its chat models, with OpenAI's own code, is therefore an OpenAIInvalidRequestError. Chains
# that shorten a conversation on ContextOverflowError do not do so. The words "prompt is too long" are recognised.
#
# Seen on 2026-11-27:
#   code of the error: context_length_exceeded
#   OpenAI's words: OpenAIInvalidRequestError, a ContextOverflowError: False
#   with "prompt is too long": OpenAIContextOverflowError, a ContextOverflowError: True
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 langchain-openai==1.7.4 langchain-core==1.8.3
cat >"$work/try.py" <<'PYTHON'
import http.server
import json
import threading

from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

WORDS = "This model's maximum context length is 8192 tokens. However, your messages resulted in 12531 tokens. Please reduce the length of the messages."


class Server(http.server.BaseHTTPRequestHandler):
    message = WORDS

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        error = {"message": Server.message, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
        body = json.dumps({"error": error}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
chat = ChatOpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", model="any", max_retries=0)


def raised():
    try:
        chat.invoke("a text that is too long")
    except Exception as error:
        return error


def told(error):
    return f"{type(error).__name__}, a ContextOverflowError: {isinstance(error, ContextOverflowError)}"


error = raised()
print("code of the error:", error.code)
print("OpenAI's words:", told(error))
Server.message = WORDS + " The prompt is too long."
print('with "prompt is too long":', told(raised()))
PYTHON
"$work/venv/bin/python" "$work/try.py" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
code of the error: context_length_exceeded
OpenAI's words: OpenAIInvalidRequestError, a ContextOverflowError: False
with "prompt is too long": OpenAIContextOverflowError, a ContextOverflowError: True
SEEN
