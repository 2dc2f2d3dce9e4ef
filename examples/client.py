"""SandboxClient: commands and files in the session of a user and a thread."""

import uuid

from paddock import SandboxClient

client = SandboxClient()
session = client.get_or_create_session("ann", f"chat-{uuid.uuid4().hex}", timeout_minutes=10)
print("session is", session["status"])

client.upload(b"6\n7\n", "numbers.txt")
client.execute("export FACTOR=2")
result = client.execute("echo $(( ($(paste -sd'*' numbers.txt)) * FACTOR ))", timeout=10)
print("exit code", result["exit_code"], "output", result["stdout"].strip())

client.execute("mkdir -p out && cp numbers.txt out/copy.txt")
print("files:", ", ".join(entry.path for entry in client.list(depth=2)))
print("copy has", len(client.download("out/copy.txt")), "bytes")
client.close_session()
