"""One bucket of Google Cloud Storage for a test: what its JSON API is asked for by name (put, get, delete, list), judged by
Google's discovery document, as cloudrun.py does it for Cloud Run. Objects are files of a directory, so that a task can have
the bucket mounted, as Cloud Run mounts it; who writes there by the API writes all of an object in one step.

`faults[ACTION]` as in cloudrun.py; an action is bucket-put, bucket-get, bucket-delete or bucket-list, and bucket-here for a get of what a
box writes first."""

import os
import re
import urllib.parse
from pathlib import Path

from . import google_api

NAME = "paddock-test-links"
OBJECT = re.compile(r"/storage/v1/b/([^/]+)/o(?:/([^/]+))?")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")


class Bucket:
    def __init__(self, directory):
        self.dir = Path(directory, "bucket")
        self.dir.mkdir()
        os.chmod(self.dir, 0o1777)
        self.api = google_api.Api("storage.v1.json")
        self.methods = {method["id"]: method for method, _ in self.api.methods}
        self.written = 0

    @staticmethod
    def action(verb, path):
        """The name that faults have, or "" where this is not about a bucket."""
        if UPLOAD.fullmatch(path):
            return "bucket-put"
        if not (found := OBJECT.fullmatch(path)):
            return ""
        if verb == "GET" and (found[2] or "").endswith(".here"):
            return "bucket-here"
        return "bucket-list" if not found[2] else {"GET": "bucket-get", "DELETE": "bucket-delete"}.get(verb, "")

    def names(self):
        return sorted(path.name for path in self.dir.iterdir() if not path.name.startswith(".new-"))

    def tell(self, name):
        """None when it is gone."""
        try:
            now = (self.dir / name).stat()
        except FileNotFoundError:
            return None
        return {"kind": "storage#object", "name": name, "bucket": NAME, "size": str(now.st_size), "generation": str(now.st_mtime_ns)}

    def carry_out(self, action, path, query, data):
        """(status, JSON or bytes, what is wrong with the request)"""
        wrong = self.judge(action, query)
        bucket = (UPLOAD.fullmatch(path) or OBJECT.fullmatch(path))[1]
        if wrong or bucket != NAME:
            return (400 if wrong else 404), failure(400 if wrong else 404, "; ".join(wrong) or "No such bucket."), wrong
        if action == "bucket-put":
            return (*self.put(query, data), [])
        if action == "bucket-list":
            # A page begins behind the last name of the one before, whatever was removed meanwhile.
            found = [n for n in self.names() if n.startswith(query.get("prefix", "")) and n > query.get("pageToken", "")]
            page = found[:min(int(query.get("maxResults", "1000")), 10)]
            more = {"nextPageToken": page[-1]} if len(page) < len(found) else {}
            return 200, {"kind": "storage#objects", "items": [told for n in page if (told := self.tell(n))], **more}, []
        name = urllib.parse.unquote(OBJECT.fullmatch(path)[2])
        try:
            if action == "bucket-delete":
                (self.dir / name).unlink()
                return 204, b"", []
            if query.get("alt") != "media" and (told := self.tell(name)):
                return 200, told, []
            return 200, (self.dir / name).read_bytes(), []
        except FileNotFoundError:
            return 404, failure(404, f"No such object: {NAME}/{name}"), []

    def judge(self, action, query):
        known = {"bucket-put": "insert", "bucket-here": "get"}
        method = self.methods["storage.objects." + known.get(action, action.removeprefix("bucket-"))]
        # What is put is content here, and not the description that an insert may have as well.
        plain = {name: value for name, value in method.items() if name != "request"}
        return self.api.check_request(plain, query, None)

    def put(self, query, data):
        name, path = query["name"], self.dir / query["name"]
        if query.get("uploadType") != "media" or "/" in name:
            return 400, failure(400, "only uploadType=media here")
        self.written += 1
        new = self.dir / f".new-{self.written}"
        new.write_bytes(data)
        if query.get("ifGenerationMatch") == "0":
            try:
                os.link(new, path)
            except FileExistsError:
                return 412, failure(412, "At least one of the pre-conditions you specified did not hold.")
            finally:
                new.unlink()
        else:
            new.rename(path)
        return 200, self.tell(name)


def failure(code, message):
    return {"error": {"code": code, "message": message, "errors": [{"message": message, "domain": "global", "reason": "x"}]}}
