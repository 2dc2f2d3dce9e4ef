"""`Server`: what a server has and did, beside the work in one sandbox.

Keys, the audit log, snapshots and forks, links to ports, templates and rules. A key sees its own
tenant's; what an admin key is needed for says so. What the server tells is given as it tells it
(docs/api.md): dictionaries with the members of its JSON.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional
from urllib.parse import quote

from ._backend import choose_key, choose_url
from ._http import HttpClient
from ._remote import CREATE_S, connect
from .models import SandboxInfo

__all__ = ["Server"]

SNAPSHOT_S = 600.0  # all files are copied


class Server:
    """A server, as its operator and its tenants see it.

        server = Server()
        for event in server.audit(action="sandbox.", limit=20):
            print(event["time"], event["action"], event["key"], event["result"])

    Args:
        server_url: Without it, PADDOCK_URL, then SANDBOX_URL, then http://127.0.0.1:8090.
        api_key: Without it, PADDOCK_API_KEY.
    """

    def __init__(self, server_url: Optional[str] = None, api_key: Optional[str] = None) -> None:
        self._http: HttpClient = connect(choose_url(server_url), choose_key(api_key))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _pages(self, path: str, member: str, query: Mapping[str, object],
               limit: Optional[int] = None) -> Iterator[Dict[str, Any]]:
        left = limit
        asked = dict(query)
        while left is None or left > 0:
            asked["limit"] = 1000 if left is None else min(left, 1000)
            page = self._http.request("GET", path, query=asked).json()
            yield from page[member]
            if not page["next_cursor"]:
                return
            asked["cursor"] = page["next_cursor"]
            left = None if left is None else left - len(page[member])

    # ---- what there is, and what was done ----

    def overview(self) -> Dict[str, Any]:
        """Counts of sandboxes by state (`tenant`), and of an admin key also `server`: its queue, its
        pool, and what was made, refused and ended since it started."""
        return self._http.request("GET", "/v1/overview").json()

    def audit(self, *, action: Optional[str] = None, key: Optional[str] = None,
              result: Optional[str] = None, sandbox: Optional[str] = None,
              tenant: Optional[str] = None,
              limit: Optional[int] = None) -> Iterator[Dict[str, Any]]:
        """What was done, newest first.

        Args:
            action: Only this one, such as `sandbox.create`; `file.` is all of that family.
            key: Only what was done with the key of this id.
            result: Only `ok`, or the code of an error.
            sandbox: Only about this sandbox.
            tenant: Another tenant's, or `*` for all; needs an admin key.
            limit: At most so many; without it, all that are kept.
        """
        return self._pages("/v1/audit", "events", {
            "action": action, "key": key, "result": result, "sandbox": sandbox, "tenant": tenant},
            limit)

    def sandboxes(self, words: Optional[str] = None, *, state: Optional[str] = None,
                  newest_first: bool = False) -> Iterator[SandboxInfo]:
        """The tenant's sandboxes.

        Args:
            words: Each of them is somewhere in its id, state, user, thread, template, image,
                provider or metadata, whatever their case.
            state: Only in this one; `all` are those that are gone, too.
            newest_first: Without it, oldest first.
        """
        for data in self._pages("/v1/sandboxes", "sandboxes", {
                "q": words, "state": state, "order": "newest" if newest_first else None}):
            yield SandboxInfo.from_json(data)

    def count(self, words: Optional[str] = None, *, state: Optional[str] = None) -> int:
        """How many sandboxes fit."""
        return int(self._http.request("GET", "/v1/sandboxes", query={
            "q": words, "state": state, "count": "true", "fields": "id", "limit": 1}).json()["total"])

    # ---- keys ----

    def keys(self, tenant: Optional[str] = None) -> List[Dict[str, Any]]:
        """Every key, oldest first, without what opens anything. Needs an admin key."""
        return list(self._http.request("GET", "/v1/keys", query={"tenant": tenant}).json()["keys"])

    def create_key(self, label: Optional[str] = None, *, role: str = "operator",
                   tenant: Optional[str] = None, expires_in_s: Optional[float] = None) -> Dict[str, Any]:
        """A new key; its member `key` is told this once. Needs an admin key.

        Args:
            label: What it is for.
            role: `reader`, `operator` or `admin`.
            tenant: Whose it is; without it, the caller's.
            expires_in_s: How long it is good; without it, until it is revoked.
        """
        body = {"label": label, "role": role, "tenant": tenant, "expires_in_s": expires_in_s}
        return self._http.request("POST", "/v1/keys", json_body={
            name: value for name, value in body.items() if value is not None}).json()

    def revoke_key(self, key_id: str) -> None:
        """From now on it is refused, and so are the logins that were made with it. Needs an admin
        key."""
        self._http.request("DELETE", f"/v1/keys/{_part(key_id)}", idempotent=True)

    # ---- copies ----

    def fork(self, sandbox_id: str, *, metadata: Optional[Mapping[str, str]] = None) -> SandboxInfo:
        """Another sandbox with a copy of this one's files, and its settings."""
        body = {} if metadata is None else {"metadata": dict(metadata)}
        return SandboxInfo.from_json(self._http.request(
            "POST", _box(sandbox_id, "fork"), json_body=body, timeout=CREATE_S).json())

    def snapshots(self, sandbox_id: Optional[str] = None) -> Iterator[Dict[str, Any]]:
        """The tenant's snapshots, newest first; of one sandbox, or of all."""
        return self._pages("/v1/snapshots", "snapshots", {"sandbox_id": sandbox_id})

    def create_snapshot(self, sandbox_id: str, name: Optional[str] = None) -> Dict[str, Any]:
        """Keeps a copy of a sandbox's files, which others begin with by `snapshot`."""
        return self._http.request("POST", _box(sandbox_id, "snapshots"), timeout=SNAPSHOT_S,
                                  json_body={} if name is None else {"name": name}).json()

    def delete_snapshot(self, snapshot: str) -> None:
        """By its id or its name. Sandboxes that were made from it stay."""
        self._http.request("DELETE", f"/v1/snapshots/{_part(snapshot)}", timeout=SNAPSHOT_S)

    # ---- of one sandbox ----

    def processes(self, sandbox_id: str) -> List[Dict[str, Any]]:
        """Every process in it, whoever started it, with its parent, memory and processor time."""
        return list(self._http.request("GET", _box(sandbox_id, "processes"),
                                       query={"tree": "true"}).json()["tree"])

    def usage_history(self, sandbox_id: str) -> List[Dict[str, Any]]:
        """What it used over the last minutes: a sample every five seconds, oldest first."""
        return list(self._http.request("GET", _box(sandbox_id, "metrics"),
                                       query={"history": "true"}).json()["history"])

    def links(self, sandbox_id: str) -> List[Dict[str, Any]]:
        """The links to its ports that were made."""
        return list(self._http.request("GET", _box(sandbox_id, "links")).json()["links"])

    def revoke_link(self, sandbox_id: str, link_id: str) -> None:
        """Nobody gets in by it any more, and what it has opened ends."""
        self._http.request("DELETE", _box(sandbox_id, "links", _part(link_id)), idempotent=True)

    def ticket(self, sandbox_id: str, path: str) -> str:
        """An address that gives out a file once, within a minute, without a key: for a browser."""
        url = self._http.request("POST", _box(sandbox_id, "files", "ticket"),
                                 query={"path": path}).json()["url"]
        return f"{self._http.url.rstrip('/')}{url}"

    # ---- what sandboxes are made of ----

    def templates(self) -> List[Dict[str, Any]]:
        """What sandboxes can be made from, and what each needs and brings."""
        return list(self._http.request("GET", "/v1/templates").json()["templates"])

    def rules(self) -> Dict[str, Any]:
        """Which provider sandboxes get, breakers and experiments; the rules of an admin key."""
        return self._http.request("GET", "/v1/router").json()

    def set_rules(self, rules: Mapping[str, Any]) -> Dict[str, Any]:
        """Replaces the rules; sandboxes that live stay where they are. Needs an admin key."""
        return self._http.request("PUT", "/v1/router", json_body=rules).json()

    # ---- the console ----

    def me(self) -> Dict[str, Any]:
        """Whose key this is, its role, and the server's version."""
        return self._http.request("GET", "/v1/console/me").json()

    def console_link(self) -> str:
        """A link that logs a browser in at the console, once, within a minute."""
        return str(self._http.request("POST", "/v1/console/link").json()["url"])


def _part(text: str) -> str:
    return quote(text, safe="")


def _box(sandbox_id: str, *more: str) -> str:
    return "/".join(["/v1/sandboxes", _part(sandbox_id), *more])
