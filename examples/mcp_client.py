"""The server's MCP endpoint by the official Python client, over streamable HTTP."""

import asyncio
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    url = os.environ["PADDOCK_URL"] + "/mcp"
    headers = {"Authorization": f"Bearer {os.environ['PADDOCK_API_KEY']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            tools = await client.list_tools()
            print(len(tools.tools), "tools")
            await client.call_tool("write_file", {"path": "a.txt", "content": "one\ntwo\n"})
            result = await client.call_tool("run_command", {"command": "wc -l a.txt"})
            print(result.content[0].text.strip())


asyncio.run(main())
