"""The packages `openai` and `anthropic`, as their vendors publish them, with a key that the sandbox does not have: against
stand-ins that answer with a digest of the key that has come (paddock_testing/internet_servers.py).
"""

import hashlib
import io
import os
import subprocess
import tarfile

import pytest
from paddock_testing.internet import ServerInside
from paddock_testing.run import seconds

SECRET = "sk-sesame-4711-open"
PYTHON = "/usr/bin/python3"
NPM = {"openai": "openai@6", "anthropic": "@anthropic-ai/sdk@0.70"}
NETWORK = {"allow": ["a.example", "b.example"], "secrets": [
    {"env": "OPENAI_API_KEY", "secret": "prod", "hosts": ["a.example"]},
    {"env": "ANTHROPIC_API_KEY", "secret": "prod", "hosts": ["a.example"]}]}
ADDRESSES = "export OPENAI_BASE_URL=%s/v1 ANTHROPIC_BASE_URL=%s PYTHONPATH=/home/user/vendors; cd /home/user/vendors; "
CALLS = {
    ("python", "openai"): PYTHON + """ -c '
from openai import OpenAI
told = OpenAI(max_retries=0).chat.completions.create(model="m", messages=[{"role": "user", "content": "key?"}])
print(told.choices[0].message.content)'""",
    ("python", "anthropic"): PYTHON + """ -c '
from anthropic import Anthropic
told = Anthropic(max_retries=0).messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "key?"}])
print(told.content[0].text)'""",
    ("node", "openai"): """node --input-type=module -e '
import OpenAI from "openai"
const told = await new OpenAI({maxRetries: 0}).chat.completions.create({model: "m", messages: [{role: "user", content: "key?"}]})
console.log(told.choices[0].message.content)'""",
    ("node", "anthropic"): """node --input-type=module -e '
import Anthropic from "@anthropic-ai/sdk"
const told = await new Anthropic({maxRetries: 0}).messages.create({model: "m", max_tokens: 9, messages: [{role: "user", content: "key?"}]})
console.log(told.content[0].text)'""",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Both packages of both languages, as an archive; asked of the index that this machine's clients use."""
    if not os.environ.get("PADDOCK_NIGHTLY") and not os.environ.get("PADDOCK_INDEX"):
        pytest.skip("at night: it asks the package index that this machine's clients use")
    folder = tmp_path_factory.mktemp("vendors")
    for argv in ([PYTHON, "-m", "pip", "install", "-q", "--target", str(folder), "openai", "anthropic"],
                 ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", *NPM.values()]):
        try:
            done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds(300))
        except OSError as e:
            pytest.skip(f"the package index cannot be tried: {e}")
        if done.returncode:
            pytest.skip(f"the package index cannot be tried: {argv[0]} gets nothing from it")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(folder, "vendors")
    return out.getvalue()


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as s:
        assert s.client().put("/v1/secrets/prod", json={"value": SECRET}).status == 200
        yield s


@pytest.fixture(scope="module")
def sandbox(server, packages):
    client = server.client()
    made = client.post("/v1/sandboxes", json={"network": NETWORK, "limits": {"memory_bytes": 1 << 30}})
    assert made.status == 201, made
    s = made.json()["id"]
    put = client.put(f"/v1/sandboxes/{s}/files/archive?path=/home/user", data=packages,
                     headers={"Content-Type": "application/x-tar"})
    assert put.status in (200, 204), put
    yield s
    client.delete(f"/v1/sandboxes/{s}")


@pytest.mark.parametrize("language,package", CALLS)
def test_the_vendors_packages_use_a_key_that_they_do_not_have(server, sandbox, language, package):
    client = server.client()

    def said(host):
        r = client.post(f"/v1/sandboxes/{sandbox}/exec",
                        json={"argv": ["bash", "-c", ADDRESSES % (host, host) + CALLS[language, package]], "timeout_s": 120})
        assert r.status == 200, r
        text = r.json()["stdout"] + r.json()["stderr"]
        assert SECRET not in text
        return text

    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert digest in said("https://a.example")
    # The control: a host that the secret is not for is asked with the placeholder.
    text = said("http://b.example")
    assert digest not in text
    placeholder = client.get(f"/v1/sandboxes/{sandbox}/env").json()["env"][f"{package.upper()}_API_KEY"]
    assert hashlib.sha256(placeholder.encode()).hexdigest() in text, text
