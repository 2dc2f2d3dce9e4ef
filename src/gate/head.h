/* head: the host that a plain HTTP request is for. Pure. */
#pragma once

#include "gate/hello.h"

#define HEAD_MAX 16384u

/* Reads what a client has sent so far. SNIFF_NAMED: *ret is the normalised name of Host (and of the
 * target, where that has one). SNIFF_NAMELESS: Host is an address, or is missing. SNIFF_BAD: two
 * hosts, folded lines, CONNECT, bare CR or LF, and whatever servers read differently. */
enum sniffed head_read(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1]);
