"""The keeper's end of a link (docs/link.md), written from its description: a second opinion on src/link."""

import hashlib
import hmac
import os
import struct

from .broker import TYPES

HEAD = struct.Struct("<IBBHIQ")
WIRE = struct.Struct("<IHHIIQ16s")
PLACE = struct.Struct("<IIQQQ")
REF = struct.Struct("<IBBHQ")
HELLO, PROOF, RESUME, MSG, ACK, DATA, CREDIT, TAKEN, END, STOP, PING, PONG, LEASE, BYE = range(1, 15)
AWAY, BACK = 1, 2
NULL, PIPE, SOCKET, TERMINAL, SAME = range(1, 6)
WIRE_MAGIC = 0x314B4450
WINDOW = 16 << 10


class Refused(Exception):
    """The box does not take this connection."""


class Channel:
    """Bytes that have come, and those that are to go."""

    def __init__(self, ways):
        self.ways, self.got, self.over, self.credit = ways, b"", not ways & BACK, WINDOW
        self.out, self.sent, self.may, self.ended, self.end_said, self.done = b"", 0, WINDOW, False, False, not ways & AWAY

    def settled(self):
        return self.over and self.done


class Keeper:
    def __init__(self, key, box, epoch=7):
        self.key, self.box, self.epoch, self.stream = key, box, epoch, None
        self.channels, self.highest, self.notes, self.put, self.handled = {}, 0, {}, 0, 0
        self.frames = []  # of init's: type, id, payload, marks
        self.pending = b""

    # ---- a connection ----

    def _send(self, kind, payload=b"", channel=0, number=0, flags=0):
        self.stream.send(HEAD.pack(len(payload), kind, flags, 0, channel, number) + payload)

    def _frame(self):
        while len(self.pending) < HEAD.size or len(self.pending) < HEAD.size + HEAD.unpack_from(self.pending)[0]:
            data = self.stream.recv()
            if not data:
                raise ConnectionError("the link was cut")
            self.pending += data
        length, kind, flags, _, channel, number = HEAD.unpack_from(self.pending)
        payload = self.pending[HEAD.size:HEAD.size + length]
        self.pending = self.pending[HEAD.size + length:]
        return kind, flags, channel, number, payload

    def _proof(self, role, own, other):
        words = b"paddock link proof 1\0" + bytes([role]) + own + other
        return hmac.new(self.key, words, hashlib.sha256).digest()

    def connect(self, stream):
        self.stream, self.pending = stream, b""
        own = struct.pack("<4sHHI16s32sQ", b"PDL1", 1, 1, 0, self.box, os.urandom(32), self.epoch)
        self._send(HELLO, own)
        kind, _, _, _, other = self._frame()
        if kind != HELLO:
            raise Refused(kind)
        self._send(PROOF, self._proof(1, own, other))
        kind, _, _, _, proof = self._frame()
        if kind != PROOF:
            raise Refused(proof)
        assert hmac.compare_digest(proof, self._proof(2, own, other)), "the box does not know its key"

        places = b"".join(PLACE.pack(i, c.over, len(c.got) * (not c.over), len(c.got) * (not c.over), c.credit * (not c.over))
                          for i, c in sorted(self.channels.items()) if not c.settled())
        self._send(RESUME, places, number=self.handled)
        kind, _, _, number, payload = self._frame()
        assert kind == RESUME, kind
        self._resume(number, payload)
        return self

    def _resume(self, number, payload):
        named = {place[0]: place[1:] for place in PLACE.iter_unpack(payload)}
        for i, c in self.channels.items():
            c.end_said = False
            if i in named:
                done, c.sent, _, c.may = named[i]
                c.done = c.done or bool(done)
            elif c.opened_by <= number:
                c.done = c.over = True
            else:
                c.sent, c.may = 0, WINDOW
        for n, note in sorted(self.notes.items()):
            if n > number:
                self._send(MSG, note, number=n)
        self._say()

    # ---- what the user does ----

    def exec(self, argv, *streams, uid=1000, cwd="/", flags=0):
        """Streams are (ways, kind) for each descriptor. Returns the id and the channels."""
        refs, ids = b"", []
        for ways, kind in streams:
            if ways:
                self.highest += 1
                self.channels[self.highest] = c = Channel(ways)
                c.opened_by = self.put + 1
            refs += REF.pack(self.highest if ways else 0, ways, kind, 0, 0)
            ids.append(self.highest if ways else 0)
        words = b"".join(w.encode() + b"\0" for w in argv)
        env = b"PATH=/bin:/usr/bin\0"
        payload = (struct.pack("<IIQ", uid, uid, 0) + struct.pack("<I", len(cwd)) + cwd.encode() + b"\0" +
                   struct.pack("<II", len(argv), len(words)) + words + struct.pack("<II", 1, len(env)) + env)
        name = os.urandom(16)
        head = WIRE.pack(WIRE_MAGIC, TYPES["EXEC"], len(streams), len(payload), flags, 1, name)
        self.put += 1
        self.notes[self.put] = struct.pack("<HH", len(streams), 0) + refs + head + payload
        if self.stream:
            self._send(MSG, self.notes[self.put], number=self.put)
        return name, ids

    def write(self, channel, data):
        self.channels[channel].out += data
        self._say()

    def end(self, channel):
        self.channels[channel].ended = True
        self._say()

    def _say(self):
        for i, c in self.channels.items():
            while not c.done and c.sent < min(len(c.out), c.may):
                piece = c.out[c.sent:min(c.may, c.sent + 8000)]
                self._send(DATA, piece, i, c.sent)
                c.sent += len(piece)
            if not c.done and c.ended and not c.end_said and c.sent == len(c.out):
                self._send(END, channel=i, number=c.sent)
                c.end_said = True

    def bye(self):
        self._send(BYE, b"the test is over", number=1)

    # ---- what comes ----

    def turn(self):
        kind, flags, channel, number, payload = self._frame()
        c = self.channels.get(channel)
        if kind == MSG:
            assert number == self.handled + 1, "a message twice, or left out"
            self.handled = number
            self._hear(payload)
            self._send(ACK, number=number)
        elif kind == ACK:
            self.notes = {n: note for n, note in self.notes.items() if n > number}
        elif kind == DATA and not c.over:
            assert number == len(c.got), "bytes twice, or left out"
            c.got += payload
            c.credit = len(c.got) + WINDOW
            self._send(TAKEN, channel=channel, number=len(c.got))
            self._send(CREDIT, channel=channel, number=c.credit)
        elif kind == END and not c.over:
            assert number == len(c.got)
            c.over = True
            self._send(TAKEN, channel=channel, number=number, flags=1)
        elif kind == CREDIT:
            c.may = number
            self._say()
        elif kind == STOP or (kind == TAKEN and flags & 1):
            c.done = True
        elif kind == PING:
            self._send(PONG, number=number)
        elif kind == BYE:
            raise Refused(payload)

    def _hear(self, payload):
        count, _ = struct.unpack_from("<HH", payload)
        marks = {r[0]: r[4] for r in REF.iter_unpack(payload[4:4 + count * REF.size])}
        body = payload[4 + count * REF.size:]
        _, kind, _, _, _, _, name = WIRE.unpack_from(body)
        self.frames.append((kind, name, body[WIRE.size:], marks))

    def result(self, name):
        """Takes turns until the command has ended and its output is there. Its status as wait(2) has it."""
        while True:
            for kind, of, payload, marks in self.frames:
                if of == name and kind == TYPES["ERROR"]:
                    raise AssertionError(payload)
                if of == name and kind == TYPES["EXITED"]:
                    while any(len(self.channels[i].got) < mark and not self.channels[i].over for i, mark in marks.items()):
                        self.turn()
                    return struct.unpack_from("<iIi", payload)[2]
            self.turn()
