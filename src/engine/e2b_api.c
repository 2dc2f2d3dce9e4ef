/* Writers and readers of E2B's API. A stream of events is a list of messages with heads (one byte
 * of flags, four of length, big-endian); the one with flag 2 is the last and may have an error. */
#include "engine/e2b_api.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

#define HEAD       5u
#define FLAG_LAST  2u
#define WORDS_MAX  400u
#define EVENTS_MAX 10000u

/* ---- what is said ---- */

void e2b_create_body(struct buf *out, const struct e2b_plan *p)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "templateID", p->template);
    json_member_uint(&j, "timeout", p->lease);
    json_member_bool(&j, "secure", 1);
    json_member_bool(&j, "autoPause", 0);
    json_member_bool(&j, "allow_internet_access", 0);
    json_key(&j, "network");
    json_open(&j, '{');
    json_member_bool(&j, "allowPublicTraffic", 0);
    json_close(&j, '}');
    json_key(&j, "metadata");
    json_open(&j, '{');
    json_member_cstr(&j, E2B_OWNER, p->owner);
    json_member_cstr(&j, E2B_BOX, p->box);
    json_close(&j, '}');
    json_close(&j, '}');
}

void e2b_timeout_body(struct buf *out, uint32_t lease)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_uint(&j, "timeout", lease);
    json_close(&j, '}');
}

/* Names of keepers and boxes have no character that would need to be encoded, nor have the keys; so
 * it does not matter how often the server decodes the filter. */
void e2b_list_target(struct buf *out, const char *owner, const char *box, const char *token)
{
    buf_printf(out, "/v2/sandboxes?limit=%u&state=running,paused&metadata=" E2B_OWNER "%%3D%s",
               E2B_PAGE, owner);
    if (box)
        buf_printf(out, "%%26" E2B_BOX "%%3D%s", box);
    if (token[0])
        buf_puts(out, "&nextToken=");
    for (; *token; token++)
        buf_printf(out, "%%%02X", (unsigned)(unsigned char)*token);
}

static void put_message(struct buf *out, const struct buf *text)
{
    uint8_t head[HEAD] = {0, (uint8_t)(text->len >> 24), (uint8_t)(text->len >> 16),
                          (uint8_t)(text->len >> 8), (uint8_t)text->len};
    buf_put(out, head, sizeof head);
    if (text->len)
        buf_put(out, text->data, text->len);
}

void e2b_start_body(struct buf *out, const char *line)
{
    auto_buf text = BUF_INIT(out->max);
    struct json j = JSON_INIT(&text);

    json_open(&j, '{');
    json_key(&j, "process");
    json_open(&j, '{');
    json_member_cstr(&j, "cmd", "/bin/sh");
    json_key(&j, "args");
    json_open(&j, '[');
    json_cstr(&j, "-c");
    json_cstr(&j, line);
    json_close(&j, ']');
    json_close(&j, '}');
    json_member_bool(&j, "stdin", 0);
    json_close(&j, '}');
    if (text.overflow)
        out->overflow = 1;
    else
        put_message(out, &text);
}

/* ---- sandboxes ---- */

int e2b_read_sandbox(const void *json, size_t len, struct e2b_sandbox *ret, struct pd_err *e)
{
    auto_json *j = rented_json("E2B", "a request for a sandbox", json, len, e);
    struct e2b_sandbox s;

    if (!j)
        return -1;
    if (rented_json_text(s.id, sizeof s.id, json_object_get(j, "sandboxID"), rented_is_id) < 0 ||
        !s.id[0] ||
        rented_json_text(s.token, sizeof s.token, json_object_get(j, "envdAccessToken"),
                         rented_is_token) < 0 ||
        rented_json_text(s.traffic, sizeof s.traffic, json_object_get(j, "trafficAccessToken"),
                         rented_is_token) < 0 ||
        rented_json_text(s.domain, sizeof s.domain, json_object_get(j, "domain"), rented_is_host) <
            0)
        return pd_fail(e, PD_PROTOCOL,
                       "E2B tells a sandbox whose id, tokens or domain are not of their form");
    *ret = s;
    return 0;
}

int e2b_read_list(const void *json, size_t len, e2b_each *each, void *context, struct pd_err *e)
{
    auto_json *j = rented_json("E2B", "the request for a list", json, len, e);

    if (!j)
        return -1;
    if (!json_is_array(j))
        return pd_fail(e, PD_PROTOCOL, "E2B's list of sandboxes is none");
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *one = json_array_get(j, i), *meta = json_object_get(one, "metadata");
        const char *state = json_string_value(json_object_get(one, "state"));
        struct e2b_listed s = {.paused = state && !strcmp(state, "paused")};
        if (rented_json_text(s.id, sizeof s.id, json_object_get(one, "sandboxID"), rented_is_id) <
                0 ||
            !s.id[0])
            return pd_fail(e, PD_PROTOCOL, "E2B lists a sandbox without an id");
        const char *owner = json_string_value(json_object_get(meta, E2B_OWNER));
        const char *box = json_string_value(json_object_get(meta, E2B_BOX));
        if (!owner || !box || !owner[0] || !box[0] || strlen(owner) >= sizeof s.owner ||
            strlen(box) >= sizeof s.box)
            continue;
        snprintf(s.owner, sizeof s.owner, "%s", owner);
        snprintf(s.box, sizeof s.box, "%s", box);
        if (each(context, &s, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- events of a process ---- */

struct ending {
    struct buf words;
    bool ended;
    int64_t code;
};

static void note_output(struct ending *n, const json_t *data)
{
    static const char *const names[] = {"stdout", "stderr"};

    for (unsigned i = 0; i < 2; i++) {
        const json_t *t = json_object_get(data, names[i]);
        if (json_is_string(t))
            (void)base64_decode(&n->words, json_string_value(t), json_string_length(t), NULL);
    }
}

/* -1 when the stream says that something went wrong. */
static int take_event(struct ending *n, unsigned flags, const json_t *j, struct pd_err *e)
{
    const json_t *event = json_object_get(j, "event"), *end = json_object_get(event, "end");
    const json_t *error = json_object_get(j, "error");
    char words[160];

    if (flags & FLAG_LAST) {
        const char *message = json_string_value(json_object_get(error, "message"));
        if (!error)
            return 0;
        rented_words(message, message ? strlen(message) : 0, NULL, words, sizeof words);
        return pd_fail(e, PD_LOST, "E2B cannot start paddock-box: %s", words);
    }
    note_output(n, json_object_get(event, "data"));
    if (end) {
        n->ended = json_is_true(json_object_get(end, "exited"));
        n->code = json_integer_value(json_object_get(end, "exitCode"));
    }
    return 0;
}

static int take_events(struct ending *n, const uint8_t *at, size_t len, struct pd_err *e)
{
    for (unsigned i = 0; len && i < EVENTS_MAX; i++) {
        size_t size =
            len < HEAD ? 0 : (size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4];
        if (len < HEAD || size > len - HEAD)
            return pd_fail(e, PD_PROTOCOL, "E2B's stream of a process ends in the middle");
        auto_json *j = rented_json("E2B", "the start of a process", at + HEAD, size, e);
        if (!j || take_event(n, at[0], j, e) < 0)
            return -1;
        at += HEAD + size;
        len -= HEAD + size;
    }
    return 0;
}

int e2b_read_start(const void *data, size_t len, struct pd_err *e)
{
    struct ending n = {.words = BUF_INIT(WORDS_MAX)};
    char words[160];
    int r = take_events(&n, data, len, e);

    rented_words(n.words.data, n.words.len, NULL, words, sizeof words);
    buf_done(&n.words);
    if (r < 0)
        return -1;
    if (!n.ended)
        return pd_fail(e, PD_LOST, "paddock-box was ended before it began%s%s",
                       words[0] ? ": " : "", words);
    if (n.code)
        return pd_fail(e, PD_LOST, "paddock-box does not begin there (exit code %lld)%s%s",
                       (long long)n.code, words[0] ? ": " : "", words);
    return 0;
}
