/* question: DNS messages: what a sandbox asks, what it is answered, and the same towards the
 * machine's own resolver. Pure. */
#pragma once

#include "gate/rules.h"

#define DNS_MESSAGE_MAX   1232u /* that we send or take, over UDP */
#define DNS_ADDRESSES_MAX 16u
#define DNS_TTL_MAX       60u

enum dns_type { DNS_A = 1, DNS_AAAA = 28 };
enum dns_code { DNS_OK = 0, DNS_FORMAT = 1, DNS_FAILED = 2, DNS_NO_NAME = 3, DNS_REFUSED = 5 };

struct question {
    uint16_t id, type;
    bool recursion;
    bool has_name; /* `name` is the normalised one; else it is none that a host can have */
    bool has_edns;
    char name[RULES_NAME_MAX + 1];
    uint8_t raw[255 + 4]; /* as it was asked: case counts, for those who check it */
    size_t raw_len;
};

enum asked {
    ASKED,         /* *ret is a question */
    ASKED_WRONGLY, /* it deserves DNS_FORMAT, and *ret has the id */
    ASKED_NOTHING, /* not a question at all: no answer */
};

/* Reads a query with exactly one question of class IN. */
enum asked question_read(const uint8_t *data, size_t len, struct question *ret);

/* Writes the answer: `count` addresses of the type that was asked for, or none. `why` goes into an
 * extended error (18, prohibited) if the asker knows EDNS; NULL: none. Returns its length. */
size_t question_answer(const struct question *q, enum dns_code code, const struct ip *addresses,
                       unsigned count, uint32_t ttl, const char *why, uint8_t out[DNS_MESSAGE_MAX]);

/* Writes a query for a normalised name. Returns its length. */
size_t query_write(uint16_t id, const char *name, enum dns_type type, uint8_t out[DNS_MESSAGE_MAX]);

struct reply {
    enum dns_code code;
    struct ip addresses[DNS_ADDRESSES_MAX];
    unsigned count;
    uint32_t ttl;
};

/* Reads the answer to such a query; aliases are followed inside of it. False when it is not an
 * answer to just this query, or cannot be read. */
bool reply_read(const uint8_t *data, size_t len, uint16_t id, const char *name, enum dns_type type,
                struct reply *ret);
