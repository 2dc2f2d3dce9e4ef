#!/bin/bash
# The API by curl alone: a sandbox, a file, a command, its end. Needs PADDOCK_URL and PADDOCK_API_KEY.
set -euo pipefail

api() {
    curl --silent --show-error --fail-with-body -H "X-API-Key: $PADDOCK_API_KEY" "$@"
}

# field NAME: the value of a field of the JSON object on standard input.
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

id=$(api -X POST -H 'Content-Type: application/json' -d '{}' "$PADDOCK_URL/v1/sandboxes" | field id)
trap 'api -X DELETE "$PADDOCK_URL/v1/sandboxes/$id" >/dev/null' EXIT

printf 'b\na\n' | api -T - "$PADDOCK_URL/v1/sandboxes/$id/files?path=in.txt" >/dev/null
api -H 'Content-Type: application/json' -d '{"command":"sort in.txt | tee out.txt"}' \
    "$PADDOCK_URL/v1/sandboxes/$id/exec" | field stdout
api "$PADDOCK_URL/v1/sandboxes/$id/files?path=out.txt" | wc -c
