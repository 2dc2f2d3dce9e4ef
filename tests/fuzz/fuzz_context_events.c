/* What a hostile driver may say: an event of any bytes, then the same bytes as output with marks.
 *
 * Properties: nothing is read beyond the text (it is allocated exactly); a refusal is PD_PROTOCOL;
 * what was taken has pieces within the line that are JSON by themselves, is taken again with the
 * same meaning, and is ASCII; a mark is where it is said to be, and no earlier one was passed over.
 */
#include "base/buf.h"
#include "base/err.h"
#include "core/context_events.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* A string of the line: within it, and any reader takes it. */
static void check_string(const struct json_piece *p, const char *line, size_t len)
{
    if (!p->at)
        return;
    require(p->at >= line && p->at + p->len <= line + len && p->len >= 2 && p->at[0] == '"');

    auto_buf text = BUF_INIT(1u << 20);
    json_t *read = json_loadb(p->at, p->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    require(read != NULL && json_piece_decode(p, &text) == 0);
    require(json_string_length(read) == text.len &&
            (!text.len || !memcmp(json_string_value(read), text.data, text.len)));
    json_decref(read);
    struct json_piece bare = json_piece_bare(p);
    require(bare.at > p->at && bare.at + bare.len < p->at + p->len);
}

static void check_event(char *line, size_t len)
{
    struct context_event v, again;
    struct pd_err e = {.code = PD_INTERNAL};
    if (context_event_parse(line, len, &v, &e) < 0) {
        require(e.code == PD_PROTOCOL);
        return;
    }

    require(v.seq > 0 && strlen(v.id) <= EXECUTION_ID);
    for (size_t i = 0; i < len; i++)
        require((uint8_t)line[i] < 0x80);
    check_string(&v.name, line, len);
    check_string(&v.value, line, len);
    check_string(&v.traceback, line, len);
    check_string(&v.text, line, len);
    check_string(&v.why, line, len);

    struct json_piece rest = v.data, key, value;
    while (v.data.at && json_piece_next(&rest, &key, &value)) {
        check_string(&key, line, len);
        require(value.len > 0 && value.at + value.len <= line + len);
    }
    require(context_event_parse(line, len, &again, &e) == 0);
    require(again.type == v.type && again.seq == v.seq && !strcmp(again.id, v.id));
}

static void check_marks(const char *text, size_t len)
{
    size_t at = 0, mark = 0;
    uint64_t seq = 0;
    enum mark_found found = mark_find(text, len, "id", &at, &mark, &seq);

    require(at <= len);
    for (size_t i = 0; i + 5 < at; i++)
        require(memcmp(text + i, "\x1eid 1\x1e", 6) != 0);
    if (found == MARK_WHOLE)
        require(mark >= 6 && at + mark <= len && text[at] == '\x1e' &&
                text[at + mark - 1] == '\x1e');
    if (found == MARK_PARTIAL)
        require(len - at <= 22 && text[at] == '\x1e');
    if (found == MARK_NONE)
        require(at == len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size ? size : 1);
    require(copy != NULL);
    memcpy(copy, data, size);
    check_marks(copy, size);
    check_event(copy, size);
    free(copy);
    return 0;
}
