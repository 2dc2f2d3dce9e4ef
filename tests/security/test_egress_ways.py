"""Headers that requests to a host get on their way out, and a SOCKS5 proxy that everything goes through: by v1 and as
E2B's clients ask for it. Each has the same line without the rule.
"""

import json

import pytest
from paddock_testing.host import files_with
from paddock_testing.internet import ServerInside
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import check_error

GET = f"curl -sS -m {int(seconds(30))} "
VALUE = "value-of-a-header-4711"
PASSWORD = "pass-4711"
ALL = "0.0.0.0/0"


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def make(client):
    made = []

    def one(network, **more):
        r = client.post("/v1/sandboxes", json={"network": network, **more})
        assert r.status == 201, r
        made.append(r.json()["id"])
        return made[-1]
    yield one
    for s in made:
        client.delete(f"/v1/sandboxes/{s}")


def said(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]})
    assert r.status == 200, r
    return r.json()["stdout"] + r.json()["stderr"]


def last_egress(client, sandbox, **wanted):
    def found():
        events = client.get(f"/v1/sandboxes/{sandbox}/events").json()["events"]
        return [e for e in events if e["action"] == "egress" and all(e.get(k) == v for k, v in wanted.items())]
    return wait_for(found, 30, f"a connection with {wanted} is told")[-1]


# ---- headers ----

HEADERS = {"allow": ["a.example", "b.example"],
           "headers": [{"host": "a.example", "name": "X-Test", "value": VALUE},
                       {"host": "a.example", "name": "Authorization", "value": "Bearer of-4712"},
                       {"host": "sub.a.example", "name": "X-Test", "value": VALUE}]}


def test_requests_to_the_host_have_the_header_and_no_others(client, make):
    s, plain = make(HEADERS), make({"allow": ["a.example", "b.example", "sub.a.example"]})
    for scheme in ("https", "http"):
        text = said(client, s, GET + f"-H 'x-test: mine' -H 'X-Other: own' {scheme}://a.example/echo")
        assert text.count(VALUE) == 1 and "mine" not in text and "Bearer of-4712" in text and "X-Other: own" in text
        assert VALUE not in said(client, s, GET + f"-k {scheme}://b.example/echo")
        assert "mine" in said(client, plain, GET + f"-k -H 'x-test: mine' {scheme}://a.example/echo")
    # A rule allows nothing, and a body goes through as it is.
    assert "reached" not in said(client, s, GET + "-k https://sub.a.example/")
    assert "reached" in said(client, plain, GET + "-k https://sub.a.example/")
    assert "X-Test: " + VALUE in said(client, s, GET + "-d 'a body' https://a.example/echo")


def test_answers_are_not_looked_through(client, make):
    """Nothing in them is a secret to the sandbox: they may be compressed, and parts be asked for."""
    s = make(HEADERS)
    assert VALUE in said(client, s, GET + "--compressed -i https://a.example/echo-gzip | tr -d '\\0'")
    assert "range: bytes=0-3" in said(client, s, GET + "-r 0-3 https://a.example/echo").lower()


def test_the_value_is_kept_sealed_and_not_shown(server, client, make):
    s = make(HEADERS)
    shown = client.get(f"/v1/sandboxes/{s}/network")
    assert shown.json()["headers"][0] == {"host": "a.example", "name": "X-Test"} and VALUE not in shown.text
    line = GET + "https://a.example/echo | grep -o 'value-of-[a-z0-9-]*' | wc -c"
    assert said(client, s, line) == f"{len(VALUE) + 1}\n"  # used, and not in the output of a command
    assert not files_with(server.state_dir, VALUE.encode()) and VALUE not in server.log()
    assert files_with(server.state_dir, b"a.example")  # the control: what is not sealed is found


def test_other_headers_hold_for_the_next_request_and_cut_what_is_open(client, make):
    s = make({"allow": ["a.example"]})
    line = ("python3 -c 'import http.client, time\n"
            'c = http.client.HTTPConnection("a.example")\n'
            'c.request("GET", "/slow"); r = c.getresponse(); print("begun", flush=True)\n'
            "try:\n while r.read(500): pass\n"
            "except ConnectionResetError: print(\"reset\", flush=True)'")
    r = client.post(f"/v1/sandboxes/{s}/processes", json={"argv": ["bash", "-c", line]})

    def out():
        path = f"/v1/sandboxes/{s}/processes/{r.json()['process_id']}/output?stream=stdout"
        return client.get(path).text
    wait_for(lambda: "begun" in out(), 60, "it has begun")
    assert client.put(f"/v1/sandboxes/{s}/network", json={
        "allow": ["a.example"], "headers": HEADERS["headers"][:1]}).status == 200
    wait_for(lambda: "reset" in out(), 60, "a connection without the header is cut")
    assert VALUE in said(client, s, GET + "https://a.example/echo")
    assert client.put(f"/v1/sandboxes/{s}/network", json={"allow": ["a.example"]}).status == 200
    assert VALUE not in said(client, s, GET + "-k https://a.example/echo")


def test_bad_headers_and_proxies_are_refused_by_name(client):
    def rule(**more):
        return {"allow": ["a.example"], "headers": [{"host": "a.example", "name": "X", "value": "v", **more}]}

    for network, says in ((rule(host="*.a.example"), "network.headers"), (rule(host="203.0.113.7"), "network.headers"),
                          (rule(name="Host"), "Host cannot be set"), (rule(name="a b"), "network.headers"),
                          (rule(value="a\r\nX-B: c"), "network.headers"), (rule(value="ä"), "network.headers"),
                          (rule(other=1), "network.headers"),
                          ({"mode": "open", "proxy": {"address": "203.0.113.7"}}, "HOST:PORT"),
                          ({"mode": "open", "proxy": {"address": "10.9.9.9:1080"}}, "private"),
                          ({"mode": "open", "proxy": {"address": "127.0.0.1:1080"}}, "loopback"),
                          ({"mode": "open", "proxy": {"address": "a:1", "password": "x"}}, "goes with a user"),
                          ({"mode": "open", "proxy": {"address": "a:1", "username": "x\ny"}}, "controls"),
                          ({"mode": "open", "proxy": {}}, "network.proxy.address")):
        r = client.post("/v1/sandboxes", json={"network": network})
        check_error(r, 400, "invalid")
        assert says in r.text, r.text


# ---- a proxy ----


def proxied(client, make):
    return json.loads(said(client, make({"mode": "open"}), GET + "http://203.0.113.7/proxied"))


@pytest.mark.parametrize("proxy", [
    {"address": "203.0.113.7:1080"}, {"address": "proxy.example:1080"},
    {"address": "203.0.113.7:1081", "username": "me", "password": PASSWORD}], ids=["address", "name", "login"])
def test_everything_goes_through_the_proxy(client, make, proxy):
    before = len(proxied(client, make))
    s = make({"allow": ["a.example", "203.0.113.8:7777", "203.0.113.8:2222"], "proxy": proxy})
    assert "reached 203.0.113.7" in said(client, s, GET + "http://a.example/")
    assert "reached" in said(client, s, GET + "-k https://a.example/")
    echo = "exec 3<>/dev/tcp/203.0.113.8/7777; echo hello >&3; head -n1 <&3"
    assert "hello" in said(client, s, echo)
    assert "from the server" in said(client, s, "exec 3<>/dev/tcp/203.0.113.8/2222; head -n1 <&3")
    assert "100000" in said(client, s, GET + "http://a.example/big100000 | wc -c")
    # The rules come first: what they refuse the proxy never hears of.
    assert "reached" not in said(client, s, GET + "http://b.example/; " + GET + "http://203.0.113.8/")
    asked = proxied(client, make)[before:]
    assert asked == [[3, "a.example", 80], [3, "a.example", 443], [1, "203.0.113.8", 7777], [1, "203.0.113.8", 2222],
                     [3, "a.example", 80]]
    told = last_egress(client, s, result="ok", port=443)
    assert told["name"] == "a.example" and told["rule"] == "a.example"


def test_without_its_proxy_nothing_passes(client, make):
    before = len(proxied(client, make))
    for proxy, why in (({"address": "203.0.113.7:9"}, "refused"), ({"address": "203.0.113.7:2222"}, "does not speak socks5"),
                       ({"address": "203.0.113.7:1081"}, "wants a user"),
                       ({"address": "203.0.113.7:1081", "username": "me", "password": "wrong"}, "refused the user"),
                       ({"address": "nothing.example:1080"}, "no address"),
                       ({"address": "private-proxy.example:1080"}, "never dialled")):
        s = make({"allow": ["a.example"], "proxy": proxy})
        assert "reached" not in said(client, s, GET + "http://a.example/")
        event = last_egress(client, s, name="a.example", port=80)
        assert event["result"] in ("failed", "refused") and why in event["why"].lower(), event
        assert client.put(f"/v1/sandboxes/{s}/network", json={"allow": ["a.example"]}).status == 200
        assert "reached" in said(client, s, GET + "http://a.example/")  # the control: straight
    assert len(proxied(client, make)) == before


def test_a_proxy_leads_to_no_private_address(client, make):
    """What would not be dialled is not asked for, either: by address, and by a name that leads there."""
    s = make({"mode": "open", "proxy": {"address": "203.0.113.7:1080"}})
    for host in ("10.9.9.9", "169.254.169.254", "private.example", "metadata.example"):
        assert "reached" not in said(client, s, GET + f"http://{host}/")
    assert all(host in ("a.example", "203.0.113.8", "203.0.113.7") for _, host, _ in proxied(client, make))
    assert "reached" in said(client, s, GET + "http://203.0.113.8/")


def test_headers_are_set_before_the_proxy(client, make):
    s = make({**HEADERS, "proxy": {"address": "203.0.113.7:1080"}})
    before = len(proxied(client, make))
    for scheme in ("https", "http"):
        assert VALUE in said(client, s, GET + f"{scheme}://a.example/echo")
    assert proxied(client, make)[before:] == [[3, "a.example", 443], [3, "a.example", 80]]


def test_the_password_is_never_told(server, client, make):
    s = make({"allow": ["a.example"],
              "proxy": {"address": "203.0.113.7:1081", "username": "me", "password": PASSWORD}})
    assert "reached" in said(client, s, GET + "http://a.example/")
    shown = client.get(f"/v1/sandboxes/{s}/network")
    assert shown.json()["proxy"] == {"address": "203.0.113.7:1081"}
    for text in (shown.text, client.get(f"/v1/sandboxes/{s}").text, client.get(f"/v1/sandboxes/{s}/events").text,
                 server.log(), said(client, s, "env")):
        assert PASSWORD not in text
    assert not files_with(server.state_dir, PASSWORD.encode())


def test_another_proxy_holds_from_the_next_connection_on_and_after_a_kill(server, client, make):
    s = make({"allow": ["a.example"]})
    before = len(proxied(client, make))
    assert "reached" in said(client, s, GET + "http://a.example/")
    assert client.put(f"/v1/sandboxes/{s}/network", json={
        "allow": ["a.example"], "proxy": {"address": "203.0.113.7:1081", "username": "me",
                                          "password": PASSWORD}}).status == 200
    assert "reached" in said(client, s, GET + "http://a.example/")
    server.kill()
    server.start()
    client = server.client()
    assert "reached" in said(client, s, GET + "http://a.example/")
    assert len(proxied(client, make)) == before + 2


# ---- as E2B's clients ask for it ----


def test_e2bs_words_for_both(server, client):
    network = {"denyOut": [ALL], "allowOut": ["a.example"],
               "rules": {"a.example": [{"transform": {"headers": {"X-Test": VALUE, "X-B": "b"}}}],
                         "b.example": [{}], "c.example:8443": [{"transform": {"headers": {"X-C": "c"}}}]},
               "egressProxy": {"address": "203.0.113.7:1081", "username": "me", "password": PASSWORD}}
    status, made = server.e2b("POST", "/v2/sandboxes", {"templateID": "base", "network": network})
    assert status == 201, made
    s = made["sandboxID"]
    text = said(client, s, GET + "https://a.example/echo")
    assert f"X-Test: {VALUE}" in text and "X-B: b" in text
    told = server.e2b("GET", f"/sandboxes/{s}")[1]["network"]
    assert told["rules"] == {"a.example": network["rules"]["a.example"], "c.example:8443": network["rules"]["c.example:8443"]}
    assert told["egressProxy"] == {"address": "203.0.113.7:1081", "username": "me"}
    assert server.e2b("PUT", f"/sandboxes/{s}/network", {"denyOut": [ALL], "allowOut": ["a.example"]})[0] == 204
    assert VALUE not in said(client, s, GET + "-k https://a.example/echo")
    told = server.e2b("GET", f"/sandboxes/{s}")[1]["network"]
    assert "rules" not in told and "egressProxy" not in told
    client.delete(f"/v1/sandboxes/{s}")
