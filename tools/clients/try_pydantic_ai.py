"""pydantic-ai: agents that answer, stream, converse, take instructions; tools and typed output are refused."""

import asyncio

from facts import *
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

settings = ModelSettings(temperature=0, max_tokens=TOKENS)


def model(name=MODEL):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=URL, api_key="none"), settings=settings)


expected = chat_text(QUESTION)
agent = Agent(model())
first = agent.run_sync(QUESTION)
same("run_sync", first.output, expected)
usage = first.usage
fact("usage", usage.input_tokens > 0 and usage.output_tokens > 0, usage)
second = agent.run_sync(FOLLOW_UP, message_history=first.all_messages())
same("turns", second.output, "\n".join(turns_text(QUESTION, FOLLOW_UP)).removeprefix(expected).strip("\n"))


async def streamed():
    async with agent.run_stream(QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
    return "".join(pieces)


same("run_stream", lambda: asyncio.run(streamed()), expected)
brief = "Answer with one word."
same("instructions", lambda: Agent(model(), instructions=brief).run_sync(QUESTION).output, chat_text(QUESTION, "--system", brief))
same("a system prompt", lambda: Agent(model(), system_prompt=brief).run_sync(QUESTION).output, chat_text(QUESTION, "--system", brief))
hero = "Who is the hero of the story?"
same("a context by the model's name", lambda: Agent(model(MODEL + ":book")).run_sync(hero).output, context_text("book", hero))

with_tool = Agent(model())


@with_tool.tool_plain
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny in " + city


class City(BaseModel):
    name: str
    country: str


refused("a tool, which the model's template does not know", ModelHTTPError, lambda: with_tool.run_sync(QUESTION), "tool")
refused("typed output by a tool", ModelHTTPError, lambda: Agent(model(), output_type=City).run_sync(QUESTION), "tool")
refused("a prompt that is too long", ModelHTTPError, lambda: agent.run_sync(TOO_LONG), "context_length_exceeded")
