"""Judges calls of Daytona's API by its own client packages: reads two lists of them as JSON, `good` and `bad`, and prints how many
good ones there were. It fails at the first of them that is not as published, and at a bad one that is. Runs with the
interpreter of tests/daytona/install."""

import importlib.util
import json
import re
import sys
from pathlib import Path

from daytona_api_client import models as control  # pylint: disable=import-error
from daytona_toolbox_api_client import models as toolbox  # pylint: disable=import-error

# What a request and its answer are, by method and path; None: nothing.
MODELS = {
    "POST /sandbox": (control.CreateSandbox, control.Sandbox),
    "GET /sandbox": (None, control.ListSandboxesResponse),
    "GET /sandbox/{sandboxIdOrName}": (None, control.Sandbox),
    "DELETE /sandbox/{sandboxIdOrName}": (None, control.Sandbox),
    "GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url": (None, control.PortPreviewUrl),
    "POST /sandbox/{sandboxId}/last-activity": (control.UpdateLastActivity, None),
    "POST /sandbox/{sandboxIdOrName}/network-settings": (control.UpdateSandboxNetworkSettings, control.Sandbox),
    "POST /files/bulk-upload": (None, None),
    "POST /process/execute": (toolbox.ExecuteRequest, toolbox.ExecuteResponse),
    "POST /git/clone": (toolbox.GitCloneRequest, None),
    "GET /port/{port}/in-use": (None, toolbox.IsPortInUseResponse),
}


def operations(package):
    """{"METHOD /path": the parameters of its query} as the clients ask."""
    found = {}
    for path in Path(importlib.util.find_spec(package).origin).parent.glob("api/*.py"):  # read: to import them takes seconds
        source = path.read_text(encoding="utf-8")
        for text in re.split(r"\n    def _\w+_serialize\(", source)[1:]:
            at = re.search(r"method='(\w+)',\s*resource_path='([^']+)'", text)
            found[f"{at[1]} {at[2]}"] = set(re.findall(r"_query_params\.append\(\s*\(\s*'(\w+)'", text))
    return found


def check(model, data, what):
    """Every member is one of the model's, of its type; none that it needs is missing."""
    parsed = model.from_dict(data)
    assert not parsed.additional_properties, (what, parsed.additional_properties)
    for value in vars(parsed).values():
        assert "unknown_default" not in str(getattr(value, "value", "")), (what, value)
        for one in value if isinstance(value, list) else [value]:
            assert not getattr(one, "additional_properties", None), (what, one)


def judge(call, known):
    area = "/api" if call["path"].startswith("/api/") else "/toolbox"
    path = re.sub(r"^/api|^/toolbox/[^/]+", "", call["path"])
    fits = [n for n in MODELS if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", n), f"{call['method']} {path}")]
    assert fits and fits[0] in known[area], f"{call['method']} {path} is no call of Daytona's"
    name = fits[0]
    assert set(call["query"]) <= known[area][name], (name, call["query"])
    asked, answered = MODELS[name]
    if asked:
        check(asked, call["body"], name)
    else:
        assert "body" not in call, (name, call)
    if answered:
        check(answered, call["answer"], name)


def main():
    known = {"/api": operations("daytona_api_client"), "/toolbox": operations("daytona_toolbox_api_client")}
    calls = json.load(sys.stdin)
    for call in calls["good"]:
        judge(call, known)
    for call in calls["bad"]:
        try:
            judge(call, known)
        except (AssertionError, ValueError):  # pydantic's is one of these
            continue
        sys.exit(f"this is as published: {call}")
    print(len(calls["good"]))


main()
