"""A sandbox for the OpenAI Agents SDK: its session, without an agent, so that no key is needed."""

import asyncio
import io
from pathlib import Path

from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest

from paddock.openai_agents import PaddockSandboxClient


async def main() -> None:
    client = PaddockSandboxClient()
    manifest = Manifest(entries={"in/name.txt": File(content=b"Ann")})
    session = await client.create(manifest=manifest)
    try:
        await session.start()
        await session.write(Path("greet.sh"), io.BytesIO(b'echo "Hello, $(cat in/name.txt)"'))
        result = await session.exec("sh greet.sh | tee out.txt")
        print(result.stdout.decode().strip())
        print("out.txt:", (await session.read(Path("out.txt"))).read())
    finally:
        await client.delete(session)


asyncio.run(main())
