"""langchain-openai: ChatOpenAI and OpenAI, invoked, streamed, in batches, with tools, and for too much text."""

from facts import *
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

chat = ChatOpenAI(base_url=URL, api_key="none", model=MODEL, temperature=0, max_tokens=TOKENS, max_retries=0, stream_usage=True)
expected = chat_text(QUESTION)

answer = chat.invoke(QUESTION)
same("invoke", answer.content, expected)
fact("usage", answer.usage_metadata["total_tokens"] > 0, answer.usage_metadata)
fact("finish_reason", answer.response_metadata["finish_reason"] in ("stop", "length"), answer.response_metadata["finish_reason"])
whole = None
for chunk in chat.stream(QUESTION):
    whole = chunk if whole is None else whole + chunk
same("stream", whole.content, expected)
same("usage of the stream", whole.usage_metadata and whole.usage_metadata["total_tokens"], answer.usage_metadata["total_tokens"])
same("batch", lambda: [one.content for one in chat.batch([QUESTION, QUESTION])], [expected] * 2)
brief = "Answer with one word."
same("a chain with a system message", lambda: (ChatPromptTemplate.from_messages([("system", brief), ("user", "{q}")]) | chat).invoke({"q": QUESTION}).content, chat_text(QUESTION, "--system", brief))
turns = turns_text(QUESTION, FOLLOW_UP)
second = chat.invoke([HumanMessage(QUESTION), answer, HumanMessage(FOLLOW_UP)]).content
same("turns", second, "\n".join(turns).removeprefix(expected).strip("\n"))
same("stop", lambda: chat.bind(stop=[expected.split()[2]]).invoke(QUESTION).content, expected.split(expected.split()[2])[0])
told = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]
fact("logprobs", len(told["content"]) > 0 and len(told["content"][0]["top_logprobs"]) == 2, told["content"][0])


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny in " + city


import openai

refused("bind_tools, which the model's template does not know", openai.BadRequestError, lambda: chat.bind_tools([get_weather]).invoke(QUESTION), "tool")
refused("a prompt that is too long", ContextOverflowError, lambda: chat.invoke(TOO_LONG))
refused("a stream of a prompt that is too long", ContextOverflowError, lambda: list(chat.stream(TOO_LONG)))
hero = "Who is the hero of the story?"
book = ChatOpenAI(base_url=URL, api_key="none", model=MODEL + ":book", temperature=0, max_tokens=TOKENS, max_retries=0, stream_usage=True)
same("a context by the model's name", lambda: book.invoke(hero).content, context_text("book", hero))
plain = OpenAI(base_url=URL, api_key="none", model=MODEL, temperature=0, max_tokens=TOKENS, max_retries=0)
same("a completion", lambda: plain.invoke(STORY), plain_text(STORY))
same("a completion's stream", lambda: "".join(plain.stream(STORY)), plain_text(STORY))
several = tried("two completions in one request", lambda: plain.batch([STORY, "The sky is"]))
if several:
    same("two completions in one request", several, [plain_text(STORY), plain_text("The sky is")])
