"""PUT files with If-Match: a file is replaced only if it is still the one that was read. Against other clients, and
against a program in the sandbox that writes all the time: no write is lost without a word."""

import threading

import pytest

from helpers import Box
from paddock_testing import run as paddock
from paddock_testing.server import check_error

ROUNDS = 2000 if paddock.NIGHTLY else 150


@pytest.fixture
def box(api, sandbox):
    return Box(api, sandbox)


def put(box, data, path="a", **headers):
    return box.api.put(f"{box.base}/files?path={path}", data=data, headers={k.replace("_", "-"): v for k, v in headers.items()})


def get(box, path="a"):
    answer = box.api.get(f"{box.base}/files?path={path}")
    assert answer.status == 200, answer
    return answer.body, answer.headers["ETag"]


def test_the_tag_of_an_answer_is_the_files(box):
    first = put(box, b"one")
    assert first.status == 201 and get(box) == (b"one", first.headers["ETag"])
    second = put(box, b"two", If_Match=first.headers["ETag"])
    assert second.status == 200 and get(box) == (b"two", second.headers["ETag"])
    head = box.api.request("HEAD", f"{box.base}/files?path=a")
    assert head.headers["ETag"] == second.headers["ETag"]


def test_what_was_changed_is_not_replaced(box):
    tag = put(box, b"one").headers["ETag"]
    box.exec("sleep 0.01; echo in the sandbox > a")
    check_error(put(box, b"mine", If_Match=tag), 409, "conflict", says="was changed since it was read")
    assert get(box)[0] == b"in the sandbox\n"
    # With the tag of what is there now it is; and without one, as ever.
    assert put(box, b"mine", If_Match=get(box)[1]).status == 200
    assert put(box, b"whatever").status == 200 and get(box)[0] == b"whatever"
    assert box.exec("ls -A")["stdout"] == "a\n"  # nothing is left beside it


def test_what_was_removed_is_not_made_again(box):
    tag = put(box, b"one").headers["ETag"]
    box.exec("rm a")
    check_error(put(box, b"mine", If_Match=tag), 409, "conflict", says="was removed")
    box.exec("mkdir a")
    check_error(put(box, b"mine", If_Match=tag), (400, 409))
    assert box.exec("ls -A")["stdout"] == "a\n"


def test_none_must_be_there(box):
    assert put(box, b"one", If_None_Match="*").status == 201
    check_error(put(box, b"two", If_None_Match="*"), 409)
    assert get(box)[0] == b"one"
    box.exec("ln -s nowhere b")
    check_error(put(box, b"two", path="b/c", If_None_Match="*"), (400, 404, 409))


def test_mode_and_owner_stay(box):
    tag = put(box, b"one").headers["ETag"]
    box.exec("chmod 640 a; ln -s a l")
    # A link leads to the file, which is replaced; the link stays. A mode is no change of contents.
    assert put(box, b"two", path="l", If_Match=tag).status == 200
    assert box.exec("stat -c '%a %U' a; readlink l; cat a")["stdout"] == "640 user\na\ntwo"


@pytest.mark.parametrize("headers", [{"If_Match": "*"}, {"If_Match": "x"}, {"If_Match": '""'}, {"If_Match": '"any"'}, {"If_Match": '"none"'},
                                     {"If_Match": '"1-2", "3-4"'}, {"If_Match": 'W/"1-2"'}, {"If_Match": '"1-"'}, {"If_Match": '"1-x"'},
                                     {"If_Match": '"99999999999999999999-1"'}, {"If_Match": '"1-' + "9" * 70 + '"'},
                                     {"If_None_Match": '"1-2"'}, {"If_Match": '"1-2"', "If_None_Match": "*"}])
def test_nonsense_is_refused(box, headers):
    put(box, b"one")
    check_error(put(box, b"two", **headers), 400, "invalid")
    assert get(box)[0] == b"one"


def test_two_clients_lose_no_count(box):
    """Each adds one to the number that it has read, and reads again when it is told to."""
    put(box, b"%064d" % 0)
    each = ROUNDS // 6

    def count():
        mine = Box(box.api.with_key(box.api.key), box.id)
        done = 0
        while done < each:
            text, tag = get(mine)
            # Of another length than the last: a tag is of a time, which ticks, and a size.
            answer = put(mine, b"%0*d" % (40 + (int(text) + 1) % 40, int(text) + 1), If_Match=tag)
            assert answer.status in (200, 409), answer
            done += answer.status == 200

    threads = [threading.Thread(target=count) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert int(get(box)[0]) == 3 * each


# Puts a new file in place of `a` again and again, as editors do.
WRITER = """
import os
n = 0
while not os.path.exists('stop'):
    n += 1
    with open('t', 'w') as f:
        f.write('w%d' % n + 'x' * (n % 37))
    os.rename('t', 'a')
    os.path.exists('go') or open('go', 'w').close()
"""


def test_beside_a_program_that_replaces_the_file_all_the_time(box):
    """Each write is done or refused; what a client wrote is there whole or was replaced; nothing is left behind."""
    put(box, b"first")
    put(box, WRITER.encode(), path="writer.py")
    process = box.start("python3 writer.py")["process_id"]
    paddock.wait_for(lambda: box.api.get(f"{box.base}/files/stat?path=go").status == 200, 20, "it writes")
    refused = 0
    for n in range(ROUNDS):
        _, tag = get(box)
        answer = put(box, b"c%d" % n + b"y" * (n % 31), If_Match=tag)
        assert answer.status in (200, 409), answer
        refused += answer.status == 409
    put(box, b"", path="stop")
    paddock.wait_for(lambda: not box.api.get(f"{box.base}/processes/{process}").json()["running"], 20, "it stops")
    text = get(box)[0]
    assert text.strip(b"xy")[:1] in (b"w", b"c"), text
    assert refused, "the two never met"
    assert box.exec("ls -A | grep -c paddock; true")["stdout"] == "0\n"
