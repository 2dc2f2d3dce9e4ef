/* hello: the name in a TLS ClientHello (SNI). Pure. */
#pragma once

#include "gate/rules.h"

/* Longer hellos are refused. Today's are below 2 KiB, with keys against quantum computers in them.
 */
#define HELLO_MAX 16384u

enum sniffed {
    SNIFF_MORE,     /* it may still become one */
    SNIFF_NAMED,    /* with a name */
    SNIFF_NAMELESS, /* complete, and has none */
    SNIFF_BAD,      /* two names, a wrong length, a name that is none: nothing to go by */
    SNIFF_OTHER     /* something else */
};

/* Reads what a client has sent so far. *ret is the normalised name when it is SNIFF_NAMED. */
enum sniffed hello_read(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1]);
