/* What a caller is told at its start: where to call, and whose key is the right one. Pure. */
#include "box/caller.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <stdio.h>
#include <string.h>

/* A name or an address: it goes to the resolver and nowhere else. */
static bool is_host(const char *text, size_t len)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:";

    for (size_t i = 0; i < len; i++)
        if (!strchr(good, text[i]))
            return false;
    return len > 0 && text[0] != '-';
}

int caller_read_place(const char *text, struct caller *ret, struct pd_err *e)
{
    const char *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[' && colon && colon > text + 2 && colon[-1] == ']';
    const char *from = text + (bracketed ? 1 : 0);
    size_t len = colon ? (size_t)(colon - from) - (bracketed ? 1 : 0) : 0;
    uint64_t port;

    if (!colon || len >= sizeof ret->host || !is_host(from, len) ||
        (!bracketed && memchr(from, ':', len)))
        return pd_fail(e, PD_INVALID, "call=%.80s: use HOST:PORT", text);
    if (parse_u64("the port of call", colon + 1, 1, 65535, &port, e) < 0)
        return -1;
    snprintf(ret->host, sizeof ret->host, "%.*s", (int)len, from);
    snprintf(ret->port, sizeof ret->port, "%u", (unsigned)port);
    return 0;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int caller_read_pin(const char *text, struct caller *ret, struct pd_err *e)
{
    uint8_t pin[CALLER_PIN];
    bool good = strlen(text) == 2 * (size_t)CALLER_PIN;

    for (size_t i = 0; good && i < CALLER_PIN; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        pin[i] = good ? (uint8_t)(high << 4 | low) : 0;
    }
    if (!good || pin[0] != 4)
        return pd_fail(e, PD_INVALID, "pin=%.20s: must be the %u hexadecimal digits of a key", text,
                       2 * CALLER_PIN);
    memcpy(ret->pin, pin, sizeof pin);
    return 0;
}
