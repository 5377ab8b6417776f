#!/usr/bin/env python3
"""topkv serve by its other APIs, Ollama's and OpenAI's Responses: answers are those of /v1/completions and
/v1/chat/completions, streamed or not; names have tags; what is malformed or not supported is refused in the API's form;
who is gone during a stream is answered no further.

usage: apis.py TOPKV MODEL_DIRECTORY WORK_DIRECTORY
"""

import http.client
import json
import sys

from served import MOST_SECONDS, NOISE, NUMBERS, Server, holds, prepare, question, result

GREEDY = {"temperature": 0, "num_predict": 9}


def lines(server, path, body):
    """The objects of a stream of Ollama's."""
    status, headers, text = server.request("POST", path, body)
    holds("a stream has an object on each line", (status, headers["Content-Type"]) == (200, "application/x-ndjson") and text.endswith("\n"), (status, text))
    pieces = [json.loads(line) for line in text.splitlines()]
    holds("the last is the end", [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True], pieces)
    return pieces


def events(server, body):
    """The events of a stream of /v1/responses."""
    _, headers, text = server.request("POST", "/v1/responses", {**body, "stream": True})
    holds("events are server-sent", headers["Content-Type"] == "text/event-stream")
    parts = [part.split("\n") for part in text.split("\n\n") if part and not part.startswith(":")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    holds("events have their names", all(name == f"event: {event['type']}" for (name, _), event in zip(parts, found)), parts)
    holds("and numbers", [event["sequence_number"] for event in found] == list(range(len(found))))
    return found


def check_models(server):
    names = [one["model"] for one in server.get("/api/tags")["models"]]
    holds("names have tags", names == ["chat:latest", "gpt-4:latest", "chat:notes", "chat:talk"], names)
    running = server.get("/api/ps")["models"]
    holds("the model is loaded", [one["name"] for one in running] == ["chat:latest"] and running[0]["context_length"] == 2048, running)
    holds("its weights have a size", running[0]["size"] > 10**6 and len(running[0]["digest"]) >= 12, running)
    holds("there is a version", server.get("/api/version")["version"].count(".") == 2)
    for name in (*names, "chat", "gpt-4"):
        status, shown = server.post("/api/show", {"model": name})
        family = shown["model_info"]["general.architecture"]
        holds("a model is shown by each name", status == 200 and shown["model_info"][f"{family}.context_length"] == 2048, shown)
        holds("with its template, unless it is a plain text", bool(shown["template"]) == (name != "chat:notes"), (name, shown))
    status, shown = server.post("/api/show", {"model": "chat:talk"})
    holds("and the tokens of its context", shown["model_info"]["topkv.context_tokens"] > 700, shown)
    holds("a tag is no context in OpenAI's API either", server.get("/v1/models/chat:latest")["context"] is None)


def check_answers(server):
    for name, number in NUMBERS.items():
        body = {"model": "chat:notes", "prompt": question(name), "options": GREEDY}
        _, want = server.post("/v1/completions", {"context": "notes", "prompt": question(name), "max_tokens": 9, "temperature": 0})
        status, answer = server.post("/api/generate", {**body, "stream": False})
        holds("a plain context is continued", status == 200 and answer["response"] == want["choices"][0]["text"] == f" {number}.", (answer, want))
        holds("what it took", answer["prompt_eval_count"] == want["usage"]["prompt_tokens"] and answer["eval_count"] == 9 and answer["done_reason"] == "length", answer)
        holds("how long", 0 < answer["eval_duration"] < answer["total_duration"] and answer["prompt_eval_duration"] > 0, answer)
        pieces = lines(server, "/api/generate", body)
        holds("streamed, the same", "".join(piece["response"] for piece in pieces) == f" {number}." and len(pieces) > 5, pieces)
        holds("with counts at the end", pieces[-1]["eval_count"] == 9 and pieces[-1]["done_reason"] == "length", pieces[-1])
    asked = [{"role": "user", "content": question("tall-tower")}]
    _, want = server.post("/v1/chat/completions", {"context": "talk", "messages": asked, "max_tokens": 9, "temperature": 0})
    want = want["choices"][0]["message"]["content"]
    body = {"model": "chat:talk", "messages": asked, "options": GREEDY, "keep_alive": "5m"}
    _, answer = server.post("/api/chat", {**body, "stream": False})
    holds("a chat", answer["message"] == {"role": "assistant", "content": want} and answer["done"], (answer, want))
    pieces = lines(server, "/api/chat", body)
    holds("a chat, streamed", "".join(piece["message"]["content"] for piece in pieces) == want, pieces)
    _, answer = server.post("/api/generate", {"model": "chat:talk", "prompt": question("tall-tower"), "options": GREEDY, "stream": False})
    holds("a prompt over a chat is a message", answer["response"] == want, answer)
    raw = {"model": "chat", "prompt": "The grass is", "options": {"num_predict": 7, "temperature": 0}, "stream": False}
    _, plain = server.post("/v1/completions", {"prompt": "The grass is", "max_tokens": 7, "temperature": 0})
    for model in ("chat", "chat:latest", "gpt-4:latest"):
        _, answer = server.post("/api/generate", {**raw, "raw": True, "model": model})
        holds("raw is without the template", answer["response"] == plain["choices"][0]["text"] and answer["model"] == model, (answer, plain))
    body = {"model": "chat:notes", "prompt": question("quiet-river"), "options": {**GREEDY, "stop": ["."]}, "stream": False, "logprobs": True, "top_logprobs": 2}
    _, answer = server.post("/api/generate", body)
    holds("it stops", answer["response"] == " 7281934" and answer["done_reason"] == "stop", answer)
    holds("log-probabilities", all(len(one["top_logprobs"]) == 2 for one in answer["logprobs"]) and len(answer["logprobs"]) > 5, answer)
    for path, loads in (("/api/generate", {"model": "chat"}), ("/api/chat", {"model": "chat:talk", "messages": [], "keep_alive": 0})):
        status, answer = server.post(path, loads)
        holds("nothing to answer loads the model", (status, answer["done"], answer["done_reason"]) == (200, True, "load"), answer)

    body = {"model": "chat:talk", "input": question("tall-tower"), "max_output_tokens": 9, "temperature": 0}
    status, response = server.post("/v1/responses", body)
    holds("a response", status == 200 and response["output"][0]["content"][0]["text"] == want, response)
    holds("cut off", response["status"] == "incomplete" and response["incomplete_details"]["reason"] == "max_output_tokens", response)
    holds("what it took", response["usage"]["output_tokens"] == 9 and response["usage"]["input_tokens"] > 700, response)
    found = events(server, body)
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    last = found[-1]
    holds("streamed, the same", text == want and last["type"] == "response.incomplete", last)
    holds("whole at its end", last["response"]["output"][0]["content"][0]["text"] == want and last["response"]["usage"]["output_tokens"] == 9, last)
    turns = [{"role": "user", "content": question("tall-tower")}, *last["response"]["output"], {"role": "user", "content": [{"type": "input_text", "text": "b"}]}]
    status, response = server.post("/v1/responses", {**body, "input": turns})
    holds("its items are input again", status == 200, response)


SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9999999}, "kind": {"enum": ["a", "b"]}},
    "required": ["number", "kind"],
}


def check_schemas(server):
    """Each API's way to hold an answer to a schema; the model would say something else."""

    def conforms(what, text):
        value = json.loads(text)
        holds(what, list(value) == ["number", "kind"] and 0 <= value["number"] <= 9999999 and value["kind"] in ("a", "b"), text)
        return text

    asked = [{"role": "user", "content": question("tall-tower")}]
    chat = {"model": "chat:talk", "messages": asked, "max_tokens": 250, "temperature": 0}
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    status, answer = server.post("/v1/chat/completions", {**chat, "response_format": form})
    holds("an answer of a schema", status == 200 and answer["choices"][0]["finish_reason"] == "stop", answer)
    want = conforms("in a chat", answer["choices"][0]["message"]["content"])
    _, _, text = server.request("POST", "/v1/chat/completions", {**chat, "response_format": form, "stream": True})
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    holds("streamed, the same", "".join(one["choices"][0]["delta"].get("content") or "" for one in pieces) == want, pieces)
    status, answer = server.post("/v1/chat/completions", {**chat, "temperature": 1, "seed": 4, "n": 3, "response_format": form})
    holds("sampled", [bool(conforms("sampled", one["message"]["content"])) for one in answer["choices"]] == [True] * 3, answer)
    status, answer = server.post("/v1/chat/completions", {**chat, "max_tokens": 300, "response_format": {"type": "json_object"}})
    text = answer["choices"][0]["message"]["content"]
    holds("any object", status == 200 and (answer["choices"][0]["finish_reason"] == "length" or isinstance(json.loads(text), dict)) and text[0] == "{", answer)
    body = {"model": "chat:talk", "input": question("tall-tower"), "max_output_tokens": 250, "temperature": 0}
    format = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    status, response = server.post("/v1/responses", {**body, "text": {"format": format}})
    holds("a response", status == 200 and response["output"][0]["content"][0]["text"] == want and response["text"]["format"] == format, response)
    holds("streamed, the same", events(server, {**body, "text": {"format": format}})[-1]["response"]["output"][0]["content"][0]["text"] == want)
    options = {"temperature": 0, "num_predict": 250}
    _, answer = server.post("/api/chat", {"model": "chat:talk", "messages": asked, "options": options, "format": SCHEMA, "stream": False})
    holds("Ollama's chat", answer["message"]["content"] == want, answer)
    _, answer = server.post("/api/generate", {"model": "chat:notes", "prompt": question("tall-tower"), "options": options, "format": SCHEMA, "stream": False})
    conforms("Ollama's prompt", answer["response"])
    for schema, words in (({"type": "thing"}, "thing"), ({"not": {}}, "has not"), ({"$ref": "#/$defs/a"}, "refers to"), ({"type": "string", "pattern": "("}, "cannot be used")):
        status, answer = server.post("/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}})
        holds("a schema that cannot be used", status == 400 and answer["error"]["code"] == "invalid_json_schema" and words in answer["error"]["message"], answer)


def check_refusals(server):
    def refused(what, status, path, body, words, headers=None):
        got, text = server.post(path, body, headers)
        holds(what, got == status and list(text) == ["error"] and isinstance(text["error"], str) and words in text["error"], (got, text))

    for path in ("/api/generate", "/api/chat"):
        refused("no JSON", 400, path, "{", "request body")
        refused("too deep", 400, path, '{"model":' + "[" * 10000 + "]" * 10000 + "}", "request body")
        refused("no model", 400, path, {"prompt": "a"}, "model is missing")
        refused("another model", 404, path, {"model": "llama3"}, 'no model "llama3"')
        refused("no such context", 404, path, {"model": "chat:other"}, 'no context "other"')
        refused("another field", 400, path, {"model": "chat", "max_tokens": 5}, '"max_tokens" is a field')
        refused("an option of the wrong type", 400, path, {"model": "chat", "options": {"seed": "x"}}, "options.seed")
        refused("another option", 400, path, {"model": "chat", "options": {"tokens": 1}}, "options")
        refused("another form", 400, path, {"model": "chat", "format": "xml"}, "format")
        refused("a schema that is none", 400, path, {"model": "chat", "prompt": "a", "format": {"type": "thing"}} if path.endswith("generate") else {"model": "chat", "messages": [{"role": "user", "content": "a"}], "format": {"type": "thing"}}, "thing")
        refused("another type", 415, path, "{}", "Content-Type: application/json", {"Content-Type": "text/plain"})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        refused("curl's own type is taken", 404, path, {"model": "llama3"}, "no model", form)
        refused("but of no page", 415, path, {"model": "llama3"}, "Content-Type: application/json", {**form, "Origin": "http://evil.example"})
        refused("whatever it says of itself", 415, path, {"model": "llama3"}, "Content-Type: application/json", {**form, "Sec-Fetch-Site": "cross-site"})
        refused("too long", 413, path, json.dumps({"model": "a" * (5 << 20)}), "bytes")
    long = [{"role": "user", "content": NOISE * 200}]
    refused("a text beyond the room", 400, "/api/chat", {"model": "chat", "messages": long}, "maximum context length is 2048")
    refused("is not cut", 400, "/api/chat", {"model": "chat", "messages": long, "truncate": True, "options": {"num_ctx": 512}}, "shorten it")
    refused("a template without tools", 400, "/api/chat", {"model": "chat", "messages": long[:1], "tools": [{"type": "function", "function": {"name": "f"}}]}, 'does not use "tools"')
    refused("thinking", 400, "/api/chat", {"model": "chat", "messages": long, "think": True}, "does not support thinking")
    refused("a plain text is no chat", 400, "/api/chat", {"model": "chat:notes", "messages": [{"role": "user", "content": "a"}]}, "plain text")
    for path in ("/api/embed", "/api/embeddings", "/api/pull", "/api/push", "/api/create", "/api/copy"):
        refused("what other servers do", 501, path, {"model": "chat"}, "topkv serve ")
    refused("no such path", 404, "/api/nothing", {}, "there is no POST /api/nothing")
    bare = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 16\r\n"
    loaded = b'\r\n{"model":"chat"}'
    holds("no type at all", b'"load"' in server.raw(bare + loaded))
    holds("but of no page", server.raw(bare + b"Origin: null\r\n" + loaded).startswith(b"HTTP/1.1 415"))
    holds("nor in OpenAI's API", server.post("/v1/responses", {"input": "a"}, form)[0] == 415)
    holds("nothing is deleted", server.request("DELETE", "/api/delete", "{}")[0] == 501)
    status, headers, text = server.request("POST", "/v1/embeddings", {"input": "a"})
    holds("no embeddings", status == 501 and headers["x-should-retry"] == "false" and json.loads(text)["error"]["code"] == "not_supported", (status, text))
    for path, method in (("/api/chat", "GET"), ("/api/tags", "POST"), ("/v1/responses", "GET")):
        holds("another method", server.request(method, path, "{}" if method == "POST" else None)[0] == 405, path)
    status, _, text = server.request("GET", "/v1/responses/resp_1")
    holds("responses are not kept", status == 404 and json.loads(text)["error"]["code"] == "response_not_found", text)
    for more, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"background": True}, "background")):
        status, answer = server.post("/v1/responses", {"input": "a", **more})
        holds("what is not supported is named", status == 400 and answer["error"]["param"] == param, answer)
    holds("and it still answers", server.get("/health") == {"status": "ok"})


def check_disconnects(server):
    before = server.metric("topkv_disconnected_total")
    asked = {"model": "chat", "prompt": "The", "raw": True, "options": {"num_predict": 1500, "seed": 1, "temperature": 1}}
    for path, body in (("/api/generate", asked), ("/v1/responses", {"input": "The", "stream": True, "max_output_tokens": 1500, "temperature": 1})):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=MOST_SECONDS)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read(200)
        connection.sock.close() if connection.sock else None
        connection.close()
        holds("who is gone is answered no further", server.becomes("topkv_answers_running", 0), path)
    holds("and counted", server.becomes("topkv_disconnected_total", before + 2), server.metric("topkv_disconnected_total"))


def main():
    prepare()
    server = Server("notes.tkv", "talk.tkv", "--alias", "gpt-4", "--max-batch", "4", "--max-queue", "7", "--room", "2K")
    check_models(server)
    check_answers(server)
    check_schemas(server)
    check_refusals(server)
    check_disconnects(server)
    status, _ = server.post("/v1/contexts", {"name": "latest", "text": NOISE})
    holds("a context may have the tag's name", status == 202, status)
    holds("and is then meant", server.get("/v1/models/chat:latest").get("context") == "latest" or server.request("GET", "/v1/models/chat:latest")[0] == 409)
    holds("it ends", server.end() == 0)
    server = Server(env={"TOPKV_API_KEY": "secret"})
    status, answer = server.post("/api/generate", {"model": "chat"})
    holds("no key", status == 401 and "API key" in answer["error"], answer)
    holds("the key", server.post("/api/generate", {"model": "chat"}, {"Authorization": "Bearer secret"})[0] == 200)
    holds("an idle server ends at once", server.end() == 0)
    return result()


sys.exit(main())
