"""The package openai: chats, completions, streams, turns, roles, stops, logprobs, tools, errors, contexts, cancelling."""

import asyncio

import openai
from facts import *

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)


def chat(messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return client.chat.completions.create(
        **{"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": TOKENS, **more}
    )


def text_of(answer):
    return answer.choices[0].message.content


print("models")
models = tried("models are listed", lambda: [model.id for model in client.models.list()])
fact("the model and its contexts are listed", {MODEL, MODEL + ":lake", MODEL + ":book"} <= set(models or []), models)
one = tried("a model is found", lambda: client.models.retrieve(MODEL))
if one:
    same("a model has its name", one.id, MODEL)
tried("a context is found", lambda: client.models.retrieve(MODEL + ":lake"))
refused("an unknown model", openai.NotFoundError, lambda: chat(QUESTION, model="gpt-4o"), "gpt-4o")

print("a chat")
expected = chat_text(QUESTION)
answer = chat(QUESTION)
same("its text is the command's", lambda: text_of(answer), expected)
fact("usage adds up", answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage)
fact("finish_reason", answer.choices[0].finish_reason in ("stop", "length"), answer.choices[0].finish_reason)
same("max_completion_tokens", lambda: text_of(chat(QUESTION, max_tokens=None, max_completion_tokens=TOKENS)), expected)
parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
same("content in parts", lambda: text_of(chat(parts)), expected)
two = chat(QUESTION, n=2, seed=7, temperature=1)
fact("two answers", len(two.choices) == 2 and all(choice.message.content for choice in two.choices), [choice.message.content for choice in two.choices])
# The first of these may go on from other rows than the next ones do, which round otherwise.
seeded = [text_of(chat(QUESTION, seed=7, temperature=1)) for _ in range(3)]
same("a seed repeats an answer", seeded[2], seeded[1])

print("a stream")
pieces, usage, reasons = [], None, []
for chunk in chat(QUESTION, stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        reasons += [choice.finish_reason] if choice.finish_reason else []
same("its text is the whole answer's", lambda: "".join(pieces), expected)
same("its usage", usage and usage.total_tokens, answer.usage.total_tokens)
same("its finish_reason", reasons, [answer.choices[0].finish_reason])
with client.chat.completions.stream(
    model=MODEL, messages=parts, temperature=0, max_tokens=TOKENS, stream_options={"include_usage": True}
) as stream:
    kinds = {event.type for event in stream}
    same("the stream helper's text", lambda: text_of(stream.get_final_completion()), expected)
fact("the stream helper's events", {"chunk", "content.delta", "content.done"} <= kinds, sorted(kinds))

print("turns and roles")
turns = turns_text(QUESTION, FOLLOW_UP)
conversation = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": expected},
    {"role": "user", "content": FOLLOW_UP},
]
second = chat(conversation)
same("the second turn is the chat command's", lambda: text_of(second), "\n".join(turns).removeprefix(expected).strip("\n"))
third = chat(conversation + [{"role": "assistant", "content": text_of(second)}, {"role": "user", "content": "Why?"}])
fact("the turns before are not read again", third.usage.prompt_tokens_details.cached_tokens >= second.usage.prompt_tokens, third.usage)
brief = "You are a pirate. Begin each answer with Arr."
system = [{"role": "system", "content": brief}, {"role": "user", "content": QUESTION}]
same("a system message", lambda: text_of(chat(system)), chat_text(QUESTION, "--system", brief))
developer = [{"role": "developer", "content": brief}, {"role": "user", "content": QUESTION}]
same("a developer message is a system message", lambda: text_of(chat(developer)), text_of(chat(system)))
same("of as many tokens", lambda: chat(developer).usage.prompt_tokens, chat(system).usage.prompt_tokens)
same("a message has a name", lambda: text_of(chat([{"role": "user", "name": "ann", "content": QUESTION}])), expected)
assistant = {"role": "assistant", "content": expected, "tool_calls": [], "annotations": []}
same("a message of an earlier answer", lambda: text_of(chat([conversation[0], assistant, conversation[2]])), text_of(second))
again = tried("an answer's own message is sent back", lambda: chat([conversation[0], answer.choices[0].message.model_dump(exclude_none=False), conversation[2]]))
if again:
    same("an answer's own message", lambda: text_of(again), text_of(second))

print("stops")
word = expected.split()[2]
same("a stop string", lambda: text_of(chat(QUESTION, stop=[word])), expected.split(word)[0])
longer = chat(QUESTION, max_tokens=200)
stopped = chat(QUESTION, max_tokens=200, stop=["<|im_end|>"])
fact("a special token as a stop string", stopped.choices[0].finish_reason == "stop" and "<|im_end|>" not in text_of(stopped), text_of(stopped))
same("its answer is the one without it", lambda: text_of(stopped), text_of(longer).split("<|im_end|>")[0])
newline = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=60, stop="\n", stream=True)
same("a stop string in a stream", lambda: "".join(c.choices[0].text for c in newline if c.choices), plain_text(STORY, tokens=60).split("\n")[0])

print("logprobs")
told = chat(QUESTION, logprobs=True, top_logprobs=3)
tokens = told.choices[0].logprobs.content
same("tokens spell the answer", b"".join(bytes(token.bytes) for token in tokens if token.token != "<|im_end|>").decode(), text_of(told))
fact("the chosen token is the likeliest", all(token.logprob == max(top.logprob for top in token.top_logprobs) for token in tokens))
biased = tried("logit_bias", lambda: chat(QUESTION, max_tokens=5, logit_bias={"28": 100}))

print("completions")
plain = plain_text(STORY)
done = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=TOKENS, logprobs=2)
same("the text is the command's", done.choices[0].text, plain)
same("tokens spell it", lambda: "".join(done.choices[0].logprobs.tokens), plain)
stream = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=TOKENS, stream=True)
same("a stream", lambda: "".join(chunk.choices[0].text for chunk in stream if chunk.choices), plain)
several = tried("a list of prompts", lambda: client.completions.create(model=MODEL, prompt=[STORY, "The sky is"], temperature=0, max_tokens=TOKENS))
if several:
    same("a list of prompts", lambda: [choice.text for choice in several.choices], [plain, plain_text("The sky is")])
    same("each has its index", lambda: [choice.index for choice in several.choices], [0, 1])
echoed = tried("echo", lambda: client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=1, echo=True, logprobs=1))
if echoed:
    fact("echo gives the prompt", echoed.choices[0].text.startswith(STORY), echoed.choices[0].text)
    told = echoed.choices[0].logprobs
    fact("the first token has no logprob, all others have", told.token_logprobs[0] is None and None not in told.token_logprobs[1:], told.token_logprobs)
    same("echoed tokens spell it", lambda: "".join(told.tokens), echoed.choices[0].text)

print("tools")
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
refused("tools, which the model's template does not know", openai.BadRequestError, lambda: chat(QUESTION, tools=[tool]), "tool")
same("no tools", lambda: text_of(chat(QUESTION, extra_body={"tools": [], "parallel_tool_calls": True})), expected)

print("responses")


def respond(given, **more):
    return client.responses.create(**{"model": MODEL, "input": given, "temperature": 0, "max_output_tokens": TOKENS, **more})


response = tried("a response", lambda: respond(QUESTION))
if response:
    same("its text is the chat's", response.output_text, expected)
    fact("its usage", response.usage.total_tokens == answer.usage.total_tokens, response.usage)
    items = [{"role": "user", "content": QUESTION}, *response.output, {"role": "user", "content": FOLLOW_UP}]
    same("its items are sent back", lambda: respond(items).output_text, text_of(second))
same("instructions", lambda: respond(QUESTION, instructions=brief).output_text, text_of(chat(system)))
kinds = []
with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=TOKENS) as stream:
    for event in stream:
        kinds.append(event.type)
    same("a stream", lambda: stream.get_final_response().output_text, expected)
fact("its events", kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), sorted(set(kinds)))

print("errors")
too_long = refused("a prompt that is too long", openai.BadRequestError, lambda: chat(TOO_LONG), "maximum context length")
try:
    chat(TOO_LONG)
except openai.BadRequestError as problem:
    same("its code", problem.code, "context_length_exceeded")
refused("a wrong value", openai.BadRequestError, lambda: chat(QUESTION, temperature=-1), "temperature")
refused("a picture", openai.BadRequestError, lambda: chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]), "content")
refused("a response that was not kept", openai.NotFoundError, lambda: client.responses.retrieve("resp_1"), "stores no responses")
refused("a response to go on from", openai.BadRequestError, lambda: client.responses.create(model=MODEL, input=QUESTION, previous_response_id="resp_1"), "previous_response_id")
refused("a tool of OpenAI's", openai.BadRequestError, lambda: client.responses.create(model=MODEL, input=QUESTION, tools=[{"type": "web_search"}]), "web_search")
refused("embeddings", openai.InternalServerError, lambda: client.embeddings.create(model=MODEL, input="a"), "embeddings")

print("contexts")
ask = " What is the colour of the lake? The lake is"
over = client.completions.create(model=MODEL + ":lake", prompt=ask, temperature=0, max_tokens=TOKENS)
same("a plain context by the model's name", over.choices[0].text, context_text("lake", ask))
fact("its tokens are cached ones", over.usage.prompt_tokens_details.cached_tokens > 20, over.usage)
same("a plain context by its field", lambda: client.completions.create(model=MODEL, prompt=ask, temperature=0, max_tokens=TOKENS, extra_body={"context": "lake"}).choices[0].text, over.choices[0].text)
hero = "Who is the hero of the story?"
same("a chat context by the model's name", lambda: text_of(chat(hero, model=MODEL + ":book")), context_text("book", hero))
refused("a context that is not there", openai.NotFoundError, lambda: chat(hero, model=MODEL + ":law"), "law")

print("cancelling")
before = metric("topkv_disconnected_total")
stream = chat("Tell me a very long story.", stream=True, max_tokens=2000, stop=["never said by it"], temperature=1, seed=1)
next(iter(stream))
stream.close()
fact("the server takes out who is gone", becomes("topkv_answers_running", 0), metric("topkv_answers_running"))
same("and counts it", metric("topkv_disconnected_total"), before + 1)


async def together():
    many = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    calls = [
        many.chat.completions.create(model=MODEL, messages=parts, temperature=0, max_tokens=TOKENS) for _ in range(4)
    ]
    return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]


print("together")
same("four at a time", lambda: set(asyncio.run(together())), {expected})
