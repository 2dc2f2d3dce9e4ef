"""What Google publishes of an API, as a judge of requests and answers: the discovery document that comes with Google's
package for Python (tests/google/install brings it)."""

import functools
import json
import re
import subprocess

from . import run as paddock

INSTALLED = paddock.TOP / "build-google" / "venv"
INT32 = range(-2**31, 2**31)


def document_file(name):
    return next(INSTALLED.glob(f"lib/python3*/site-packages/googleapiclient/discovery_cache/documents/{name}"), None)


@functools.cache
def why_not(name):
    """Brings it, where it is not there; "" when it is."""
    if not document_file(name):
        done = subprocess.run([paddock.TOP / "tests/google/install"], capture_output=True, text=True, check=False,
                              timeout=paddock.seconds(300))
        if not document_file(name):
            return "Google's discovery document is not installed: " + (
                done.stdout.splitlines() or ["tests/google/install failed"])[-1]
    return ""


class Api:
    """`name` is the document's file: run.v2.json."""

    def __init__(self, name):
        self.document = json.loads(document_file(name).read_text(encoding="utf-8"))
        self.schemas = self.document["schemas"]
        self.methods = list(self._walk(self.document))

    def _walk(self, node):
        for method in node.get("methods", {}).values():
            # A part of a path is one part: flatPath has a name for each.
            pattern = "".join("([^/:]+)" if part.startswith("{") else re.escape(part)
                              for part in re.split(r"(\{[^}]*\})", method.get("flatPath") or method["path"]))
            yield method, re.compile("/" + pattern)
        for child in node.get("resources", {}).values():
            yield from self._walk(child)

    def find(self, verb, path):
        """The method of a request, or None."""
        return next((m for m, pattern in self.methods if m["httpMethod"] == verb and pattern.fullmatch(path)), None)

    def check_request(self, method, query, body):
        """What is wrong with it: a list of words."""
        known = {**self.document["parameters"], **method["parameters"]}
        wrong = [f"the parameter {name} is not known" for name in query if known.get(name, {}).get("location") != "query"]
        if "request" not in method:
            return wrong + (["a body is not known"] if body is not None else [])
        return wrong + (self.check(method["request"], body, "body") if isinstance(body, dict) else ["there is no body"])

    def check_answer(self, method, body):
        return self.check(method["response"], body, "answer")

    def check(self, schema, value, where):
        """Types, formats, enumerations, and names that are not known, however deep."""
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind, form = schema.get("type", "object"), schema.get("format")
        if kind == "any":
            return []
        if kind == "object":
            if not isinstance(value, dict):
                return [f"{where} must be an object"]
            known, more = schema.get("properties", {}), schema.get("additionalProperties")
            return [wrong for name, member in value.items()
                    for wrong in (self.check(known.get(name) or more, member, f"{where}.{name}")
                                  if known.get(name) or more else [f"{where}.{name} is not known"])]
        if kind == "array":
            if not isinstance(value, list):
                return [f"{where} must be an array"]
            return [wrong for i, item in enumerate(value) for wrong in self.check(schema["items"], item, f"{where}[{i}]")]
        good = {"string": isinstance(value, str), "boolean": isinstance(value, bool), "number": isinstance(value, (int, float)),
                "integer": isinstance(value, int) and not isinstance(value, bool) and value in INT32}[kind]
        if form == "google-duration":
            good = good and re.fullmatch(r"\d+(\.\d{1,9})?s", value) is not None
        if form in ("int64", "uint64"):
            good = good and re.fullmatch(r"-?\d+", value) is not None
        if form == "google-datetime":
            good = good and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value) is not None
        if "enum" in schema:
            good = good and value in schema["enum"]
        return [] if good else [f"{where} must be of type {kind} {form or ''}"]
