"""The package ollama: chats, prompts, streams, turns, options, contexts as tags, errors, cancelling."""

import ollama
from facts import *

client = ollama.Client(host=SERVER)
OPTIONS = {"temperature": 0, "num_predict": TOKENS}


def chat(messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return client.chat(**{"model": MODEL, "messages": messages, "options": OPTIONS, **more})


def generate(prompt, **more):
    return client.generate(**{"model": MODEL, "prompt": prompt, "options": OPTIONS, **more})


print("models")
models = tried("models are listed", lambda: [one.model for one in client.list().models])
fact("the model and its contexts are listed", {MODEL + ":latest", MODEL + ":lake", MODEL + ":book"} <= set(models or []), models)
for name in (MODEL, MODEL + ":latest", MODEL + ":book"):
    shown = tried("a model is shown", lambda: client.show(name))
    if shown:
        fact(f"{name} is shown", "completion" in shown.capabilities and shown.template and shown.details.format == "gguf", shown.modelinfo)
running = tried("loaded models", client.ps)
if running:
    same("the model is loaded", [one.model for one in running.models], [MODEL + ":latest"])
refused("an unknown model", ollama.ResponseError, lambda: chat(QUESTION, model="llama3.2"), "llama3.2")

print("a chat")
expected = chat_text(QUESTION)
answer = chat(QUESTION)
same("its text is the command's", lambda: answer.message.content, expected)
fact("its counts", answer.done and answer.eval_count <= TOKENS and answer.prompt_eval_count > 5 and answer.eval_duration > 0, answer)
same("with a tag", lambda: chat(QUESTION, model=MODEL + ":latest").message.content, expected)
pieces = list(chat(QUESTION, stream=True))
same("a stream", lambda: "".join(piece.message.content for piece in pieces), expected)
same("its counts at the end", lambda: (pieces[-1].done, pieces[-1].eval_count, pieces[-1].done_reason), (True, answer.eval_count, answer.done_reason))
turns = turns_text(QUESTION, FOLLOW_UP)
conversation = [{"role": "user", "content": QUESTION}, answer.message, {"role": "user", "content": FOLLOW_UP}]
same("the second turn is the chat command's", lambda: chat(conversation).message.content, "\n".join(turns).removeprefix(expected).strip("\n"))
told = tried("log-probabilities", lambda: chat(QUESTION, logprobs=True, top_logprobs=3))
if told:
    fact("of each token", all(len(one.top_logprobs) == 3 for one in told.logprobs) and len(told.logprobs) >= answer.eval_count - 1, len(told.logprobs))

print("prompts")
same("a prompt is a message", lambda: generate(QUESTION).response, expected)
brief = "You are a pirate. Begin each answer with Arr."
same("with a system message", lambda: generate(QUESTION, system=brief).response, chat_text(QUESTION, "--system", brief))
plain = plain_text(STORY)
same("a raw prompt is a text", lambda: generate(STORY, raw=True).response, plain)
same("streamed", lambda: "".join(piece.response for piece in generate(STORY, raw=True, stream=True)), plain)
same("nothing loads the model", lambda: generate("").done_reason, "load")
word = expected.split()[2]
same("a stop string", lambda: generate(QUESTION, options={**OPTIONS, "stop": [word]}).response, expected.split(word)[0])
many = ollama.Options(num_ctx=4096, num_gpu=1, num_thread=4, use_mmap=True, seed=-1, repeat_last_n=64, **OPTIONS)
same("options of loading", lambda: generate(QUESTION, options=many, keep_alive="10m").response, expected)

print("contexts")
ask = " What is the colour of the lake? The lake is"
same("a plain context", lambda: generate(ask, model=MODEL + ":lake").response, context_text("lake", ask))
hero = "Who is the hero of the story?"
over = tried("a chat context", lambda: chat(hero, model=MODEL + ":book"))
if over:
    same("a chat context", over.message.content, context_text("book", hero))
    fact("its tokens count", over.prompt_eval_count > 30, over.prompt_eval_count)
refused("a context that is not there", ollama.ResponseError, lambda: chat(hero, model=MODEL + ":law"), "law")

print("what is refused")
refused("a text that is too long", ollama.ResponseError, lambda: chat(TOO_LONG), "maximum context length")


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: the city
    """
    return city


refused("tools, which the model's template does not know", ollama.ResponseError, lambda: chat(QUESTION, tools=[get_weather]), "tool")
refused("thinking, which the model does not do", ollama.ResponseError, lambda: chat(QUESTION, think=True), "thinking")
refused("a form", ollama.ResponseError, lambda: chat(QUESTION, format="json"), "format")
refused("a picture", ollama.ResponseError, lambda: chat([{"role": "user", "content": "a", "images": [b"AAAA"]}]), "images")
refused("embeddings", ollama.ResponseError, lambda: client.embed(MODEL, "a"), "embeddings", "501")
refused("another model to get", ollama.ResponseError, lambda: client.pull("llama3.2"), "topkv serve")

print("cancelling")
stream = chat("Tell me a very long story.", stream=True, options={"num_predict": 2000, "temperature": 1, "seed": 1, "stop": ["never said by it"]})
next(iter(stream))
stream.close()
fact("the server takes out who is gone", becomes("topkv_answers_running", 0), metric("topkv_answers_running"))
