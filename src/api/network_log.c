/* What became of a sandbox's connections: the audit log's lines of them. Each has a number, which
 * grows: whoever has read up to one asks for those behind it. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"
#include "base/json.h"
#include "telemetry/audit.h"

#include <jansson.h>

#define LOG_MAX 1000u

static bool is_wanted(const json_t *line, uint64_t after, bool denied)
{
    const char *result = json_string_value(json_object_get(line, "result"));
    json_int_t number = json_integer_value(json_object_get(line, "n"));

    if (number <= 0 || (uint64_t)number <= after)
        return false;
    return !denied || (result && (!strcmp(result, "refused") || !strcmp(result, "cut")));
}

/* The oldest ones first, and no more than `limit`. `next` is the number of the last one that was
 * looked at. */
static void put_entries(struct json *j, const json_t *lines, uint64_t after, bool denied,
                        uint64_t limit)
{
    uint64_t next = after, count = 0;
    size_t i;
    json_t *line;

    json_key(j, "entries");
    json_open(j, '[');
    json_array_foreach(lines, i, line)
    {
        json_int_t number = json_integer_value(json_object_get(line, "n"));
        char *text = NULL;
        if (count == limit)
            break;
        if (is_wanted(line, after, denied) && (text = json_dumps(line, JSON_COMPACT))) {
            if (j->need_comma)
                buf_putc(j->out, ',');
            buf_puts(j->out, text);
            j->need_comma = 1;
            count++;
        }
        free(text);
        if (number > 0 && (uint64_t)number > next)
            next = (uint64_t)number;
    }
    json_close(j, ']');
    json_member_uint(j, "next", next);
}

int network_log(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"denied", "after", "limit", NULL};
    uint64_t limit = 100, after = 0;
    bool denied = false;
    char cursor[AUDIT_CURSOR_SIZE];
    auto_buf found = BUF_INIT(8u << 20), out = BUF_INIT(8u << 20);
    struct json j = JSON_INIT(&out);
    struct audit_query q = {.sandbox = c->sandbox, .action = "egress", .limit = LOG_MAX};

    if (call_query_check(c, allowed, e) < 0 || call_query_bool(c, "denied", &denied, e) < 0 ||
        call_query_u64(c, "after", 0, INT64_MAX, &after, e) < 0 ||
        call_query_u64(c, "limit", 1, LOG_MAX, &limit, e) < 0)
        return -1;
    if (c->api->audit && audit_search(c->api->audit, &q, &found, cursor, e) < 0)
        return -1;

    json_auto_t *lines =
        found.len ? json_loadb((const char *)found.data, found.len, 0, NULL) : NULL;
    json_open(&j, '{');
    put_entries(&j, lines, after, denied, limit);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
