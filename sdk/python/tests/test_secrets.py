"""Packages of models' vendors, in a sandbox that has a placeholder for the key: the stand-ins for the vendors get the key
itself. By night: the packages go into the sandbox as they are in this environment.
"""

import hashlib
import importlib.metadata
import io
import os
import re
import sys
import tarfile

import pytest
from paddock_testing.internet import Internet, ServerInside, can_make

pytestmark = pytest.mark.skipif(not os.environ.get("PADDOCK_NIGHTLY"), 
                                reason="at night: packages of 36 MiB are copied into a sandbox")
KEY = "sesame-4711-open"
OPENAI = """
import openai
c = openai.OpenAI(base_url="https://a.example/v1", max_retries=0)
print(c.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}]).choices[0].message.content)
"""
ANTHROPIC = """
import anthropic
c = anthropic.Anthropic(base_url="https://a.example", max_retries=0)
print(c.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]).content[0].text)
"""


def needed(*names):
    """These distributions and what they need."""
    found, todo = {}, list(names)
    while todo:
        name = re.sub("[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            d = found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or version
        todo += [re.match("[A-Za-z0-9._-]+", r)[0] for r in d.requires or [] if "extra ==" not in r]
    return found.values()


def archive(distributions):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for d in distributions:
            for f in d.files or []:
                path = d.locate_file(f)
                if ".." not in f.parts and f.suffix != ".pyc" and os.path.isfile(path):
                    tar.add(path, str(f))
    return out.getvalue()


@pytest.fixture(scope="module")
def box():
    why = can_make()
    if why:
        pytest.skip(why)
    internet = Internet()
    try:
        with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as server:
            client = server.client()
            assert client.put("/v1/secrets/key", json={"value": KEY}).status == 200
            secrets = [{"env": e, "secret": "key", "hosts": ["a.example"]} for e in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")]
            r = client.post("/v1/sandboxes", json={"limits": {"memory_bytes": 1 << 30},
                                                   "network": {"allow": ["a.example"], "secrets": secrets}})
            assert r.status == 201, r
            base = f"/v1/sandboxes/{r.json()['id']}"
            r = client.put(f"{base}/files/archive?path=/workspace/site", data=archive(needed("openai", "anthropic")),
                           headers={"Content-Type": "application/x-tar"})
            assert r.status == 200, r
            yield lambda code, **env: client.post(f"{base}/exec", json={
                "argv": ["/usr/bin/python3", "-c", code], "timeout_s": 300,
                "env": {"PYTHONPATH": "/workspace/site", **env}}).json()
    finally:
        internet.close()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the packages are for another Python than the sandbox's")
@pytest.mark.parametrize("code", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_a_vendors_package_works_unchanged(box, code):
    r = box(code)
    assert r["stdout"].strip() == hashlib.sha256(KEY.encode()).hexdigest(), r
    assert "sesame" not in str(r)
    # The control: with a key of its own the vendor gets that one.
    r = box(code, OPENAI_API_KEY="another-key", ANTHROPIC_API_KEY="another-key")
    assert r["stdout"].strip() == hashlib.sha256(b"another-key").hexdigest(), r
