"""deepagents with a sandbox as its backend. The model follows a script, so that no key is needed."""

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from paddock.deepagents import PaddockSandbox


class ScriptedModel(GenericFakeChatModel):
    """In its place, put a model of your own."""

    def bind_tools(self, tools, **options):
        return self


def call(tool: str, **arguments: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": tool}])


model = ScriptedModel(messages=iter([
    call("write_file", file_path="/workspace/primes.py",
         content="print([n for n in range(2, 30) if all(n % d for d in range(2, n))])\n"),
    call("execute", command="python3 primes.py"),
    AIMessage("These are the primes below 30."),
]))

with PaddockSandbox.create() as backend:
    agent = create_deep_agent(model=model, backend=backend)
    result = agent.invoke({"messages": [("user", "Which primes are there below 30?")]})
    for message in result["messages"]:
        if message.type in ("tool", "ai") and message.content:
            print(f"{message.type}: {message.content.strip()}")
