"""End to end: an agent analyses a CSV file in a sandbox, over two turns, and its report comes back.

The model follows a script instead of thinking, so that no key is needed and the result is always the
same; everything else is real. Put a chat model of your own in its place, and the loop stays as it is.
"""

import json
import uuid
from pathlib import Path
from typing import List

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from paddock import SandboxSession


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


def call(tool: str, **arguments: object) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": uuid.uuid4().hex}])


def run_agent(model, session: SandboxSession, task: str) -> List[BaseMessage]:
    """The loop: what the model asks for is done, until it asks for nothing more."""
    tools = {tool.name: tool for tool in session.get_tools()}
    model = model.bind_tools(list(tools.values()))
    messages: List[BaseMessage] = [HumanMessage(task)]
    while True:
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        for wanted in answer.tool_calls:
            result = tools[wanted["name"]].invoke(wanted)
            print(f"  {wanted['name']} -> {result.content.strip().splitlines()[-1]}")
            messages.append(result)


FIRST = ScriptedModel(messages=iter([
    call("file_read", file="sales.csv"),
    # It forgets that a value is missing, sees the error, and mends its code.
    call("python_exec", code="import csv\n"
                             "rows = list(csv.DictReader(open('sales.csv')))\n"
                             "print(sum(int(r['units']) for r in rows))"),
    call("python_exec", code="rows = [r for r in rows if r['units']]\n"
                             "with open('clean.csv', 'w', newline='') as out:\n"
                             "    w = csv.DictWriter(out, rows[0].keys())\n"
                             "    w.writeheader()\n"
                             "    w.writerows(rows)\n"
                             "print(len(rows), 'rows are complete')"),
    AIMessage("I have put the 7 complete rows into clean.csv."),
]))

SECOND = ScriptedModel(messages=iter([
    call("file_search", pattern="clean.csv", names=True),
    call("file_write", file="report.py", content="""\
import collections, csv, json
revenue = collections.Counter()
for row in csv.DictReader(open("clean.csv")):
    revenue[row["region"]] += int(row["units"]) * float(row["price"])
json.dump({"revenue": revenue, "best": revenue.most_common(1)[0][0]}, open("report.json", "w"))
print("total", round(sum(revenue.values()), 2))
"""),
    call("shell_exec", command="python3 report.py"),
    AIMessage("The north has the highest revenue."),
]))

chat = f"chat-{uuid.uuid4().hex}"

print("first turn")
with SandboxSession.create(session_id=chat) as session:
    session.upload(Path(__file__).with_name("sales.csv"), "sales.csv")
    print(run_agent(FIRST, session, "Clean sales.csv, please.")[-1].content)

# The next question comes later, perhaps to another process: the files are still there.
print("second turn")
with SandboxSession.create(session_id=chat) as session:
    print(run_agent(SECOND, session, "Which region earns the most?")[-1].content)
    report = json.loads(session.download("report.json"))
    session.delete()

print("best:", report["best"])
for region, revenue in sorted(report["revenue"].items()):
    print(f"{region} {revenue:.2f}")
