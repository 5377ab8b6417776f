"""smolagents: its OpenAIModel, a CodeAgent and a ToolCallingAgent, whose tools SmolLM2's template does not know."""

from facts import *
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole

model = OpenAIModel(model_id=MODEL, api_base=URL, api_key="none", temperature=0, max_tokens=TOKENS, client_kwargs={"max_retries": 0})


def user(text):
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])]


expected = chat_text(QUESTION)
answer = model.generate(user(QUESTION))
same("generate", answer.content, expected)
fact("usage", answer.token_usage.input_tokens > 0 and answer.token_usage.output_tokens > 0, answer.token_usage)
same("generate_stream", lambda: "".join(delta.content or "" for delta in model.generate_stream(user(QUESTION))), expected)
word = expected.split()[2]
same("stop_sequences", lambda: model.generate(user(QUESTION), stop_sequences=[word]).content, expected.split(word)[0])


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


code = CodeAgent(tools=[add], model=model, max_steps=1, verbosity_level=0)
result = tried("a CodeAgent's step", lambda: code.run("What is 2 + 3?", return_full_result=True))
if result:
    fact("a CodeAgent's prompts are read and answered", result.token_usage.input_tokens > 1000, (result.state, result.token_usage))
calls = ToolCallingAgent(tools=[add], model=model, max_steps=1, verbosity_level=0)
refused("a ToolCallingAgent, as the model's template knows no tools", Exception, lambda: calls.run("What is 2 + 3?"), "tool")
