"""AsyncSandbox: many sandboxes at once."""

import asyncio

from paddock import AsyncSandbox


async def square(number: int) -> int:
    async with await AsyncSandbox.create(timeout=120) as sandbox:
        await sandbox.files.write("number.txt", str(number))
        result = await sandbox.commands.run("echo $(( $(cat number.txt) ** 2 ))")
        return int(result.stdout)


async def main() -> None:
    print("squares:", await asyncio.gather(*(square(n) for n in range(4))))


asyncio.run(main())
