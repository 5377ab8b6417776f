#!/usr/bin/env python3
"""topkv serve as its clients meet it: answers equal those of topkv ask, streamed or not, alone or together; what is
malformed, too large or too slow is refused while others are answered; who is gone is answered no further; it ends when
it is told to.

usage: server.py TOPKV MODEL_DIRECTORY WORK_DIRECTORY
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

from served import MODEL, MOST_SECONDS, NOISE, NUMBERS, TOPKV, WORK, Server, holds, prepare, question, result, run


def streamed(server, path, body):
    """The events of a stream."""
    _, headers, text = server.request("POST", path, {**body, "stream": True})
    holds("a stream is server-sent events", headers["Content-Type"] == "text/event-stream")
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event and not event.startswith(":")]
    holds("a stream ends with [DONE]", events[-1] == "[DONE]", events[-1])
    return [json.loads(event) for event in events[:-1]]


def together(calls):
    results = [None] * len(calls)

    def call(i):
        results[i] = calls[i]()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
    return results


def check_answers(server):
    for name, number in NUMBERS.items():
        body = {"context": "notes", "prompt": question(name), "max_tokens": 9, "temperature": 0}
        asked = run("ask", "notes.tkv", "-m", "chat", "--device", "cpu", "--kv-window", "64", "-n", "9", "--temp", "0", "-p", question(name))
        status, answer = server.post("/v1/completions", body)
        holds("an answer", status == 200 and answer["object"] == "text_completion", answer)
        text = answer["choices"][0]["text"]
        holds("what topkv ask answers", text + "\n" == asked and text == f" {number}.", (text, asked))
        holds("it ended at max_tokens", answer["choices"][0]["finish_reason"] == "length")
        usage = answer["usage"]
        holds("tokens are counted", usage["completion_tokens"] == 9, usage)
        holds("those of the context, too", 700 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"], usage)
        events = streamed(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
        pieces = [event["choices"][0]["text"] for event in events if event["choices"]]
        holds("streamed, the same", "".join(pieces) == text and len(pieces) > 5, pieces)
        again = events[-1]["usage"]
        holds("a stream tells its usage", {**again, "prompt_tokens_details": usage["prompt_tokens_details"]} == usage, events[-1])
        holds("the same prompt is not read again, but for a token", again["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1, again)
    asked = run("ask", "talk.tkv", "-m", "chat", "--device", "cpu", "--kv-window", "64", "-n", "9", "-p", question("tall-tower"))
    body = {"context": "talk", "messages": [{"role": "user", "content": question("tall-tower")}], "max_tokens": 9}
    status, answer = server.post("/v1/chat/completions", body)
    holds("a chat, as topkv ask", status == 200 and answer["choices"][0]["message"]["content"] + "\n" == asked, (answer, asked))
    first = answer["usage"]["prompt_tokens"]
    events = streamed(server, "/v1/chat/completions", body)
    holds("whose turn it is comes first", events[0]["choices"][0]["delta"]["role"] == "assistant")
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    holds("a chat, streamed", text + "\n" == asked, text)
    body["messages"] += [{"role": "assistant", "content": text}, {"role": "user", "content": question("quiet-river")}]
    status, answer = server.post("/v1/chat/completions", body)
    usage = answer["usage"]
    holds("its next turn", status == 200, answer)
    holds("of which the turns before are not read again", usage["prompt_tokens_details"]["cached_tokens"] > first - 5, (first, usage))
    before = server.metric("topkv_kept_tokens_total")
    body = {"messages": [{"role": "user", "content": NOISE * 3 + question("tall-tower")}], "max_tokens": 9, "temperature": 0}
    usage = server.post("/v1/chat/completions", body)[1]["usage"]
    holds("without a context all of a first turn is read", usage["prompt_tokens_details"]["cached_tokens"] < 60 < usage["prompt_tokens"], usage)
    body["messages"] += [{"role": "assistant", "content": "."}, {"role": "user", "content": "a"}]
    later = server.post("/v1/chat/completions", body)[1]["usage"]
    holds("and not again", later["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 5, later)
    holds("metrics count it", server.metric("topkv_kept_tokens_total") > before + 60)

    body = {"context": "notes", "prompt": question("quiet-river"), "max_tokens": 9, "stop": ["?", "."]}
    status, answer = server.post("/v1/completions", body)
    holds("it stops before a stop text", answer["choices"][0]["text"] == " 7281934" and answer["choices"][0]["finish_reason"] == "stop", answer)
    text = "".join(event["choices"][0]["text"] for event in streamed(server, "/v1/completions", body))
    holds("streamed, too", text == " 7281934", text)
    status, answer = server.post("/v1/completions", {**body, "stop": None, "logprobs": 2})
    told = answer["choices"][0]["logprobs"]
    holds("logprobs are of the tokens", "".join(told["tokens"]) == " 7281934." and told["text_offset"] == list(range(9)), told)
    holds("the greedy one is the likeliest", all(top[token] == max(top.values()) == value <= 0 and len(top) == 2 for token, value, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"])), told)
    status, answer = server.post("/v1/completions", {**body, "stop": None, "frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 9})
    holds("penalties change the answer", status == 200 and answer["choices"][0]["text"] != " 7281934.", answer)

    biased = server.post("/v1/completions", {"prompt": "The", "max_tokens": 3, "logit_bias": {"163": 100}, "logprobs": 1})[1]
    holds("a bias chooses tokens", len(set(biased["choices"][0]["logprobs"]["tokens"])) == 1, biased)

    part = {"type": "text", "text": question("tall-tower"), "cache_control": {"type": "ephemeral"}}
    said = {"role": "assistant", "content": "a", "tool_calls": [], "annotations": [], "refusal": None}
    body = {"messages": [{"role": "user", "content": [part], "name": "Ann"}, said, {"role": "user", "content": "b"}]}
    status, answer = server.post("/v1/chat/completions", {**body, "top_p": 0, "max_tokens": 3, "tools": None, "parallel_tool_calls": True})
    holds("fields that change nothing are taken", status == 200 and answer["choices"][0]["finish_reason"] == "length", answer)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    status, answer = server.post("/v1/chat/completions", {**body, "tools": tools})
    holds("a template without tools refuses them", status == 400 and 'does not use "tools"' in answer["error"]["message"], answer)

    prompt = "The grass is"
    alone = run("generate", "-m", "chat", "--device", "cpu", "--kv-window", "64", "-n", "7", "-p", prompt)
    status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 7, "model": "chat"})
    holds("without a context, as topkv generate", answer["choices"][0]["text"] + "\n" == alone, (answer, alone))

    def ask(name):
        return lambda: server.post("/v1/completions", {"context": "notes", "prompt": question(name), "max_tokens": 9})

    answers = together([ask(name) for name in list(NUMBERS) * 3])
    texts = [answer["choices"][0]["text"] for _, answer in answers]
    holds("six at once", texts == [f" {number}." for number in NUMBERS.values()] * 3, texts)


def check_scoring(server):
    """Multiple choice, as lm-eval asks it: prompts as ids, echoed with log-probabilities, one token generated."""
    body = {"prompt": "The grass is", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    _, one = server.post("/v1/completions", body)
    told = one["choices"][0]["logprobs"]
    holds("an echo has its prompt's text", one["choices"][0]["text"].startswith("The grass is") and "".join(told["tokens"]) == one["choices"][0]["text"], one)
    holds("whose first token has no logprob", told["token_logprobs"][0] is None and told["top_logprobs"][0] is None, told)
    holds("and the others have one", all(max(top.values()) >= value for value, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:])), told)
    _, parts = server.post("/v1/completions", {"prompt": "💩💩💩 € 山川 💩", "max_tokens": 8, "logprobs": 20, "temperature": 0})
    told = parts["choices"][0]["logprobs"]
    holds("there are parts of characters", any(token.startswith("bytes:\\x") for token in told["tokens"]), told["tokens"])
    listed = [top[token] == value and len(top) == 20 for token, value, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"])]
    holds("each is listed by itself", all(listed), told)
    body["prompt"] = ["The grass is", "The sky is blue."]
    _, answer = server.post("/v1/completions", body)
    holds("prompts have numbers", [choice["index"] for choice in answer["choices"]] == [0, 1], answer)
    holds("and their own answers", answer["choices"][0]["text"] == one["choices"][0]["text"] and answer["choices"][1]["text"].startswith("The sky is blue."), answer)
    holds("tokens are those of all", answer["usage"]["completion_tokens"] == 2 and answer["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"], answer["usage"])
    _, ids = server.post("/v1/completions", {**body, "prompt": [[5, 6, 7], [8, 9]], "max_tokens": 0})
    holds("a prompt of ids is scored alone", [len(choice["logprobs"]["tokens"]) for choice in ids["choices"]] == [3, 2], ids)
    events = streamed(server, "/v1/completions", {**body, "prompt": "The grass is"})
    text = "".join(event["choices"][0]["text"] for event in events)
    tokens = [token for event in events for token in (event["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    holds("streamed, the same", text == one["choices"][0]["text"] and tokens == one["choices"][0]["logprobs"]["tokens"], (text, tokens))
    holds("and in its order", events[0]["choices"][0]["text"] == "The grass is", events[0])


def check_names(server):
    """What clients that can only name a model see."""
    names = {one["id"]: one for one in server.get("/v1/models")["data"]}
    holds("contexts are models, too", list(names)[:4] == ["chat", "gpt-4", "chat:notes", "chat:talk"], list(names))
    for name, entry in names.items():
        got = server.get(f"/v1/models/{name}")
        holds("a model is found by its name", got == entry and got["context_length"] == got["max_model_len"] == 2048, got)
    holds("it says what is read", names["chat:notes"]["context_tokens"] > 700 and names["chat"]["context_tokens"] == 0, names)
    for other in ("gpt-5", "chat:nothing", "a%0Ab%22", "x" * 900, "../health"):
        status, _, text = server.request("GET", f"/v1/models/{other}")
        holds("another name is not found", status == 404 and json.loads(text)["error"]["code"] in ("model_not_found", "context_not_found"), (other, text))
    holds("models are not made", server.request("POST", "/v1/models/a%0Ab", "{}")[0] == 405)
    body = {"prompt": question("quiet-river"), "max_tokens": 9, "temperature": 0}
    for model in ("chat:notes", "gpt-4:notes"):
        status, answer = server.post("/v1/completions", {**body, "model": model})
        holds("a name is a context", answer["choices"][0]["text"] == f" {NUMBERS['quiet-river']}." and answer["model"] == model, answer)
    chat = {"model": "chat:talk", "messages": [{"role": "user", "content": question("tall-tower")}], "max_tokens": 9}
    want = server.post("/v1/chat/completions", {**chat, "model": None, "context": "talk"})[1]
    got = server.post("/v1/chat/completions", chat)[1]
    holds("so it is of a chat", got["choices"] == want["choices"] and got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"] > 700, (got, want))
    status, answer = server.post("/v1/chat/completions", {**chat, "messages": [{"role": "system", "content": "Be brief."}, *chat["messages"]]})
    holds("another system message is refused", status == 400 and "another system message" in answer["error"]["message"], answer)


def check_contexts(server):
    text = NOISE * 6 + "One of the special magic numbers for blue-lake is: 3141592.\n" + NOISE * 6
    status, context = server.post("/v1/contexts", {"name": "lake", "text": text})
    holds("a text is taken", status == 202 and context["state"] in ("waiting", "reading", "ready"), context)
    until = time.monotonic() + MOST_SECONDS
    while context["state"] in ("waiting", "reading") and time.monotonic() < until:
        time.sleep(0.05)
        context = server.get("/v1/contexts/lake")
    holds("and read", context["state"] == "ready" and context["done"] == context["total"] > 300, context)
    names = [one["name"] for one in server.get("/v1/contexts")["data"]]
    holds("all are listed", names == ["lake", "notes", "talk"], names)
    body = {"context": "lake", "prompt": question("blue-lake"), "max_tokens": 9}
    holds("and asked", server.post("/v1/completions", body)[1]["choices"][0]["text"] == " 3141592.")
    holds("a name is taken once", server.post("/v1/contexts", {"name": "lake", "text": "x"})[0] == 409)
    holds("it is deleted", json.loads(server.request("DELETE", "/v1/contexts/lake")[2])["deleted"])
    holds("and gone", server.post("/v1/completions", body)[0] == 404)
    holds("for good", server.request("DELETE", "/v1/contexts/lake")[0] == 404)
    refused = server.post("/v1/chat/completions", {"context": "notes", "messages": [{"role": "user", "content": "a"}]})
    holds("a plain text is no chat", refused[0] == 400 and refused[1]["error"]["code"] == "not_a_chat", refused)


def check_hostile(server):
    def refused(what, status, code, *request):
        got, text = server.post(*request)
        holds(what, got == status and text["error"]["code"] == code, (got, text))

    done = "/v1/completions"
    refused("no JSON", 400, "invalid_json", done, "{")
    refused("no UTF-8", 400, "invalid_json", done, b'{"prompt": "\xff"}')
    refused("too deep", 400, "invalid_json", done, '{"prompt":' + "[" * 10000 + "]" * 10000 + "}")
    refused("a field of others", 400, "unknown_parameter", done, {"prompt": "a", "tools": []})
    refused("another model", 404, "model_not_found", done, {"prompt": "a", "model": "gpt-5"})
    refused("no such context", 404, "context_not_found", done, {"prompt": "a", "context": "../../etc/passwd"})
    refused("more tokens than there is room for", 400, "context_length_exceeded", done, {"prompt": "a", "max_tokens": 10**6})
    refused("more answers than ever fit", 400, "too_many_answers", done, {"prompt": "a", "n": 8})
    refused("more prompts than ever fit", 400, "too_many_answers", done, {"prompt": ["a"] * 8})
    refused("ids of no vocabulary", 400, None, done, {"prompt": [5, 4096]})
    refused("too long", 413, "too_large", done, json.dumps({"prompt": "a" * (5 << 20)}))
    for what, status, method, path, headers in (
        ("another type", 415, "POST", done, {"Content-Type": "text/plain"}),
        ("a compressed body", 415, "POST", done, {"Content-Encoding": "gzip"}),
        ("another host's name", 403, "GET", "/v1/models", {"Host": "evil.example"}),
        ("no such path", 404, "GET", "/v1/nothing", {}),
        ("no such path, with a body", 404, "POST", "/v1/nothing", {}),
        ("not so", 405, "GET", done, {}),
        ("nor so", 405, "POST", "/health", {}),
        ("a body that nobody asked for", 400, "DELETE", "/v1/contexts/notes", {"Transfer-Encoding": "chunked"}),
        ("a name that is a path", 404, "GET", "/v1/contexts/..%2f..%2fetc", {}),
    ):
        got = server.request(method, path, "{}" if method == "POST" else None, headers)[0]
        holds(what, got == status, got)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for what, sent, begins in (
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"HTTP/1.1 400"),
        ("endless headers", b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 100000, b""),
        ("an endless header", b"GET /health HTTP/1.1\r\na: " + b"b" * 1000000, b""),
        ("an endless path", b"GET /" + b"a" * 1000000, b""),
        ("a long range", b"GET /health HTTP/1.1\r\nHost: localhost\r\nrAnge: bytes=" + b"1" * 8100 + b"-\r\n\r\n", b"HTTP/1.1 400"),
        ("a long path", b"GET /v1/contexts/" + b"a" * 8100 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 414"),
        ("a body without a length", head + b"\r\n", b"HTTP/1.1 411"),
        ("another coding of a body", head + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"HTTP/1.1 400"),
        ("two ways to tell a length", head + b'Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\n{"prompt":"a","max_tokens":1}\r\n0\r\n\r\n', b"HTTP/1.1 400"),
        ("two hosts", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b"HTTP/1.1 400"),
        ("a request within another", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n\r\n", b"HTTP/1.1 400"),
        ("a length that is none", head + b"Content-Length: -1\r\n\r\n{}", b"HTTP/1.1 400"),
        ("a length beyond all", head + b"Content-Length: 99999999999999999999\r\n\r\n{}", b"HTTP/1.1 413"),
        ("a chunk that is none", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", b""),
        ("chunks without end", head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b" " * 0x100000 + b"\r\n") * 8, b""),
    ):
        got = server.raw(sent)
        holds(what, got.startswith(begins) and b" 200 " not in got[:20], got[:80])
    status, _, text = server.request("POST", done, {"prompt": "a", "max_tokens": 1}, {"Range": "bytes=0-3"})
    holds("answers are whole, whatever part is asked for", status == 200 and "choices" in json.loads(text), (status, text))
    for path in ("/", "/health", "/v1/contexts"):
        status, headers, _ = server.request("HEAD", path)
        holds("nor is a part of them advertised", status == 200 and headers.get("Accept-Ranges", "none") == "none", (path, status, headers.items()))
    for kind in ("Application/JSON", "application/json ; charset=utf-8", "APPLICATION/JSON;charset=UTF-8"):
        status, answer = server.post(done, {"prompt": "a", "max_tokens": 1}, {"Content-Type": kind})
        holds("JSON is JSON however its type is spelled", status == 200, (kind, status, answer))
    for kind in ("application/jsonl", "application/json,text/plain", "text/plain", ""):
        status, answer = server.post(done, {"prompt": "a"}, {"Content-Type": kind})
        holds("another type is named", status == 415 and f'"{kind}"' in answer["error"]["message"], (kind, status, answer))
    status, answer = server.post(done, {"prompt": "a", "max_tokens": 10**13})
    message = answer["error"]["message"]
    holds("a number of tokens beyond what there is room for", status == 400 and message.startswith("This model's maximum context length is 2048 tokens") and "max_tokens is 10000000000000, expected up to 2047" in message, answer)
    holds("and it still answers", server.get("/health") == {"status": "ok"})


def check_disconnects(server):
    before = server.metric("topkv_disconnected_total")
    for stream in (True, False):
        body = json.dumps({"context": "notes", "prompt": "The", "max_tokens": 1500, "stream": stream, "seed": 1, "temperature": 1})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=MOST_SECONDS)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if stream:
            connection.getresponse().read(200)
        else:
            holds("it runs", server.becomes("topkv_answers_running", 1))
        connection.sock.close() if connection.sock else None
        connection.close()
        holds("who is gone is answered no further", server.becomes("topkv_answers_running", 0), f"stream {stream}")
    holds("and counted", server.becomes("topkv_disconnected_total", before + 2), server.metric("topkv_disconnected_total"))
    holds("and was not answered whole", server.metric("topkv_generated_tokens_total") < 2500)


def check_reach():
    """A model that was made for 300 tokens, asked for more: the server says so at its start, and with each such answer."""
    pathlib.Path("short").mkdir()
    for file in MODEL.iterdir():
        if file.name != "config.json":
            pathlib.Path("short", file.name).symlink_to(file)
    config = json.loads((MODEL / "config.json").read_text())
    pathlib.Path("short/config.json").write_text(json.dumps({**config, "max_position_embeddings": 300}))
    server = Server("--room", "1K", model="short")
    log = (WORK / "serve.log").read_text()
    holds("room beyond the reach is warned of", "--room (1024) together: 1024 tokens are more than the 300 positions" in log, log[-500:])
    entry = server.get("/v1/models/short")
    holds("room and reach are told apart", entry["context_length"] == 1024 and entry["reach"] == 300, entry)
    body = {"prompt": "The", "logit_bias": {str(config["eos_token_id"]): 100}}
    for tokens, warned in ((300, True), (20, False), (300, True)):
        for more in ({}, {"stream": True}):
            _, headers, text = server.request("POST", "/v1/completions", {**body, "max_tokens": tokens, **more})
            found = headers.get("X-Topkv-Warning", "")
            holds("so is each request that may get there", ("more than the 300 positions" in found) == warned and '"finish_reason":"stop"' in text, (tokens, found, text))
    holds("and that server ends", server.end() == 0)


def check_end(server):
    """A request that runs when the server is told to end is answered, a later one is not."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=MOST_SECONDS)
    body = {"context": "notes", "prompt": "The", "max_tokens": 40, "stream": True, "temperature": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    first = response.read(20)
    # A body that does not come is not waited for: it would have a minute.
    late = socket.create_connection(("127.0.0.1", server.port), timeout=MOST_SECONDS)
    late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
    server.process.send_signal(signal.SIGTERM)
    rest = response.read()
    status = server.process.wait(timeout=40)
    late.close()
    # On a machine that is slow beyond all measure, ten seconds are too few for forty tokens: then it says so.
    whole = rest.endswith(b"data: [DONE]\n\n")
    holds("it ends, and tells how", (status == 0 and whole) or (status == 1 and b"shutting_down" in rest), (status, first, rest[-200:]))


def main():
    prepare()
    server = Server("notes.tkv", "talk.tkv", "--alias", "gpt-4", "--max-batch", "4", "--max-queue", "7", "--room", "2K")
    again = subprocess.run([TOPKV, "serve", "-m", "chat", "--port", str(server.port), "--device", "cpu"], capture_output=True, text=True)
    holds("a port has one server", again.returncode == 1 and "it is in use" in again.stderr and not again.stdout, again)
    # Who sends a byte at times is closed, while all others are answered.
    slow = socket.create_connection(("127.0.0.1", server.port), timeout=MOST_SECONDS)
    slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
    holds("the model is listed", server.get("/v1/models")["data"][0]["id"] == "chat")
    holds("there is a page", "<title>topkv" in server.request("GET", "/")[2])
    check_answers(server)
    check_scoring(server)
    check_names(server)
    check_contexts(server)
    check_hostile(server)
    check_disconnects(server)
    try:
        slow.sendall(b"h")
        closed = slow.recv(65536)
        while closed and slow.recv(65536):
            pass
        holds("who is slow is closed", b" 200 " not in closed, closed)
    except ConnectionError:
        pass
    slow.close()
    check_end(server)

    check_reach()
    server = Server("notes.tkv", env={"TOPKV_API_KEY": "secret"})
    body = {"prompt": "a", "max_tokens": 1}
    holds("no key", server.post("/v1/completions", body)[0] == 401)
    holds("another key", server.post("/v1/completions", body, {"Authorization": "Bearer secrets"})[0] == 401)
    holds("the key", server.post("/v1/completions", body, {"Authorization": "Bearer secret"})[0] == 200)
    holds("health is for all", server.request("GET", "/health")[0] == 200)
    holds("metrics are not", server.request("GET", "/metrics")[0] == 401)
    refused = subprocess.run(
        [TOPKV, "serve", "-m", "chat", "--port", "0"], env={**os.environ, "TOPKV_API_KEY": "two words"}, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    holds("a key that nobody can send", refused.returncode == 2 and "TOPKV_API_KEY" in refused.stderr, refused)
    for aliases in (["a b"], ["chat"], ["x", "x"]):
        words = [word for alias in aliases for word in ("--alias", alias)]
        refused = subprocess.run([TOPKV, "serve", "-m", "chat", "--port", "0", *words], capture_output=True, text=True, timeout=MOST_SECONDS)
        holds("an alias that is no name, or one already", refused.returncode == 2 and "--alias: " in refused.stderr, refused)
    holds("an idle server ends at once", server.end() == 0)
    return result()


sys.exit(main())
