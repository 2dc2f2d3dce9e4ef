#!/usr/bin/env python3
"""sigv4_vectors COUNT SEED: writes requests that botocore has signed, for test_sigv4. Needs botocore.

A line is: service region epoch id secret token method host target headers body signed-names signature, with
tabs between. token "-" is none; headers (lines) and body are hex. The targets are as they are sent, so those of
all services but s3 are plain: signing encodes them once more."""

import datetime
import random
import sys
from urllib.parse import quote

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def word(rng, least, most, letters=PLAIN):
    return "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))


def path_of(rng):
    parts = [rng.choice([word(rng, 1, 9), quote(word(rng, 1, 5, "a b+é~/%"), safe="~"), ".", "..", ""])
             for _ in range(rng.randint(0, 5))]
    return "/" + "/".join(parts)


def query_of(rng):
    pairs = []
    for _ in range(rng.randint(0, 5)):
        name = quote(word(rng, 1, 4, "abAB-_.~ é"), safe="-_.~")
        value = quote(word(rng, 0, 6, "ab AB=+/&é,:"), safe="-_.~")
        pairs.append(f"{name}={value}")
    rng.shuffle(pairs)
    return "&".join(pairs)


def headers_of(rng):
    names = rng.sample(["Content-Type", "X-Amz-Target", "X-Amz-Meta-A", "x-amz-b", "My-Header", "Range"],
                       rng.randint(0, 4))
    blank = [" ", "  ", "\t ", ""]
    return [f"{n}:{rng.choice(blank)}{word(rng, 0, 8, PLAIN + ' ;/=,')}{rng.choice(blank)}" for n in names]


def sign(rng):
    service = rng.choice(["ecs", "ecs", "elasticloadbalancing", "sts", "s3", "logs"])
    region = rng.choice(["us-east-1", "eu-central-1", "cn-north-1"])
    moment = rng.randint(1, 4102444800)
    key = (word(rng, 16, 20), word(rng, 30, 60, PLAIN + "+/"), rng.choice([None, word(rng, 20, 400, PLAIN + "+/=")]))
    host = rng.choice([f"{service}.{region}.amazonaws.com", "127.0.0.1:5555"])
    path, query = path_of(rng), query_of(rng)
    target = path + ("?" + query if query else "")
    headers, body = headers_of(rng), bytes(rng.randrange(256) for _ in range(rng.choice([0, 0, 5, 70])))

    now = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).replace(tzinfo=None)
    botocore.auth.get_current_datetime = lambda *_a, **_k: now
    request = AWSRequest(rng.choice(["GET", "POST", "PUT"]), f"http://{host}{target}", data=body)
    for line in headers:
        name, value = line.split(":", 1)
        request.headers[name] = value
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    kind(Credentials(*key), service, region).add_auth(request)
    names, signature = request.headers["Authorization"].split("SignedHeaders=")[1].split(", Signature=")
    return [service, region, str(moment), key[0], key[1], key[2] or "-", request.method, host, target,
            "\n".join(headers).encode().hex(), body.hex(), names, signature]


def main():
    rng = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print("\t".join(sign(rng)))


if __name__ == "__main__":
    main()
