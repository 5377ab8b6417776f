"""litellm: completions and chats of an OpenAI-compatible server, streams, tools, its errors."""

import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices
import litellm
from facts import *

litellm.suppress_debug_info = True
PLACE = {"api_base": URL, "api_key": "none", "num_retries": 0, "max_retries": 0}


def chat(messages, model="openai/" + MODEL, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return litellm.completion(model=model, messages=messages, **PLACE, **{"temperature": 0, "max_tokens": TOKENS, **more})


expected = chat_text(QUESTION)
answer = chat(QUESTION)
same("completion", answer.choices[0].message.content, expected)
fact("usage", answer.usage.total_tokens > 0, answer.usage)
chunks = list(chat(QUESTION, stream=True, stream_options={"include_usage": True}))
same("a stream", lambda: "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), expected)
built = litellm.stream_chunk_builder(chunks)
same("a stream put together", built.choices[0].message.content, expected)
same("usage of the stream", built.usage.total_tokens, answer.usage.total_tokens)
same("as a vLLM server", lambda: chat(QUESTION, model="hosted_vllm/" + MODEL).choices[0].message.content, expected)
brief = "Answer with one word."
cached = [
    {"role": "system", "content": [{"type": "text", "text": brief, "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": QUESTION},
]
same("cache_control", lambda: chat(cached).choices[0].message.content, chat_text(QUESTION, "--system", brief))
turns = [{"role": "user", "content": QUESTION}, answer.choices[0].message, {"role": "user", "content": FOLLOW_UP}]
same("turns, with its own answer's message", lambda: chat(turns).choices[0].message.content, "\n".join(turns_text(QUESTION, FOLLOW_UP)).removeprefix(expected).strip("\n"))
word = expected.split()[2]
same("stop", lambda: chat(QUESTION, stop=word).choices[0].message.content, expected.split(word)[0])
told = chat(QUESTION, logprobs=True, top_logprobs=2).choices[0].logprobs
fact("logprobs", bool(told.content) and len(told.content[0].top_logprobs) == 2)
tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
refused("tools, which the model's template does not know", litellm.BadRequestError, lambda: chat(QUESTION, tools=[tool], tool_choice="auto"), "tool")
refused("a prompt that is too long", litellm.ContextWindowExceededError, lambda: chat(TOO_LONG))
refused("max_tokens beyond the model", litellm.ContextWindowExceededError, lambda: chat(QUESTION, max_tokens=100_000))
refused("an unknown model", litellm.NotFoundError, lambda: chat(QUESTION, model="openai/gpt-4o"))
plain = litellm.text_completion(model="text-completion-openai/" + MODEL, prompt=STORY, temperature=0, max_tokens=TOKENS, **PLACE)
same("text_completion", lambda: plain.choices[0].text, plain_text(STORY))
hero = "Who is the hero of the story?"
same("a context by the model's name", lambda: chat(hero, model=f"openai/{MODEL}:book").choices[0].message.content, context_text("book", hero))
later = asyncio.run(litellm.acompletion(model="openai/" + MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=TOKENS, **PLACE))
same("acompletion", later.choices[0].message.content, expected)
