"""The LangChain tools, called as an agent would call them."""

import asyncio

from paddock import SandboxSession
from paddock.tools import get_all_agent_tools


async def main() -> None:
    async with await SandboxSession.create() as session:
        tools = {tool.name: tool for tool in session.get_tools()}
        print(len(tools), "tools")
        await tools["file_write"].ainvoke({"file": "app.py", "content": "print('Hello!')"})
        print(await tools["shell_exec"].ainvoke({"command": "python3 app.py"}))
        # What goes wrong is told to the model.
        print(await tools["file_read"].ainvoke({"file": "nothing.txt"}))

        # A team in the same sandbox: each role has what it needs.
        for role, theirs in get_all_agent_tools(session=session).items():
            print(f"{role}: {len(theirs)} tools")


asyncio.run(main())
