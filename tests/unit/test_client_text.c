/* What the client commands make of foreign bytes: filters, tables, event streams. */
#include "unit.h"

#include "base/err.h"
#include "client/events.h"
#include "client/table.h"
#include "client/text.h"

#include <stdio.h>
#include <string.h>

static const char *escaped(struct buf *b, const char *text, size_t len)
{
    buf_clear(b);
    text_escape(b, text, len);
    return buf_cstr(b);
}

static void test_escape_shows_what_a_terminal_would_obey(void **state)
{
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } rows[] = {
        {"plain text", 10, "plain text"},
        {"caf\xc3\xa9 \xe4\xb8\xad", 9, "caf\xc3\xa9 \xe4\xb8\xad"},
        {"\x1b]0;t\x07", 6, "\\x1b]0;t\\x07"},
        {"a\nb\tc\rd", 7, "a\\x0ab\\x09c\\x0dd"},
        {"\x7f\0", 2, "\\x7f\\x00"},
        {"\xc2\x9b", 2, "\\u{9b}"},             /* CSI of C1 */
        {"\x9b", 1, "\\x9b"},                   /* and as a byte */
        {"\xe2\x80\xae", 3, "\\u{202e}"},       /* right to left */
        {"\xf3\xa0\x81\x81", 4, "\\u{e0041}"},  /* a tag */
        {"\xc0\xaf", 2, "\\xc0\\xaf"},          /* overlong */
        {"\xed\xa0\x80", 3, "\\xed\\xa0\\x80"}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80"},
        {"\xe4\xb8", 2, "\\xe4\\xb8"}, /* cut */
    };

    (void)state;
    auto_buf b = BUF_INIT(1000);
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(escaped(&b, rows[i].in, rows[i].len), rows[i].out);
}

static const struct {
    const char *in, *out;
} streams[] = {
    {"line\r\n\tdone\b!", "line\r\n\tdone\b!"},
    {"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"},
    {"\x1b[38:5:1m.", "\x1b[38:5:1m."},
    {"\x1b[2J", "^[[2J"},
    {"\x1b[?1049h", "^[[?1049h"},
    {"\x1b]52;c;aGk=\x07", "^[]52;c;aGk=^G"},
    {"\x1b[1\x1b[0m", "^[[1\x1b[0m"},
    {"\x1b\x1b[m", "^[\x1b[m"},
    {"\x1b[0000000000000000000000000000000000000000m",
     "^[[0000000000000000000000000000000000000000m"},
    {"\x1bP1$q\x1b\\", "^[P1$q^[\\"},
    {"a\x9b"
     "31mb",
     "a\\x9b31mb"},
    {"a\xc2\x9b"
     "31mb",
     "a\\u{9b}31mb"},
    {"\xe4\xb8\xad", "\xe4\xb8\xad"},
    {"\xe4\xb8", "\\xe4\\xb8"},
    {"\x1b[3", "^[[3"},
    {"\x7f\x01", "^?^A"},
};

static void test_streams_keep_colours_and_lose_commands(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(streams); i++) {
        size_t len = strlen(streams[i].in);
        /* In one piece, and cut anywhere. */
        for (size_t cut = 0; cut <= len; cut++) {
            struct text_filter f = {0};
            auto_buf b = BUF_INIT(1000);
            text_filter(&f, &b, streams[i].in, cut);
            text_filter(&f, &b, streams[i].in + cut, len - cut);
            text_filter_end(&f, &b);
            assert_string_equal(buf_cstr(&b), streams[i].out);
        }
    }
}

static char *printed(struct table *t, char *out, size_t size)
{
    FILE *f = fmemopen(out, size, "w");
    assert_non_null(f);
    assert_int_equal(table_print(t, f), 0);
    fclose(f);
    return out;
}

static void test_tables_are_aligned_and_escaped(void **state)
{
    (void)state;
    char out[1000];
    auto_table t;

    table_init(&t, "ID >N WHAT");
    table_put(&t, "a");
    table_printf(&t, "%d", 100);
    table_put(&t, "x\x1b[2Jy");
    table_put(&t, "caf\xc3\xa9");
    table_put(&t, NULL);
    table_put(&t, "");
    assert_string_equal(printed(&t, out, sizeof out), "ID      N  WHAT\n"
                                                      "a     100  x\\x1b[2Jy\n"
                                                      "caf\xc3\xa9    -  -\n");

    t.cut = 14;
    assert_string_equal(printed(&t, out, sizeof out), "ID      N  WHA\n"
                                                      "a     100  x\\x\n"
                                                      "caf\xc3\xa9    -  -\n");
}

static void test_numbers_for_people(void **state)
{
    static const struct {
        uint64_t n;
        const char *size, *age;
    } rows[] = {
        {0, "0", "0s"},
        {59, "59", "59s"},
        {999, "999", "16m39s"},
        {1024, "1.0K", "17m04s"},
        {10240, "10K", "2h50m"},
        {1048576, "1.0M", "12d03h"},
        {UINT64_MAX, "16E", NULL},
    };

    char text[16];
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        format_size(text, rows[i].n);
        assert_string_equal(text, rows[i].size);
        format_age(text, rows[i].n);
        if (rows[i].age)
            assert_string_equal(text, rows[i].age);
    }

    assert_int_equal(parse_time_ms("1970-01-02T00:00:01.234Z"), 86401234);
    assert_int_equal(parse_time_ms("2026-01-02T03:04:05.678Z"), 1767323045678);
    assert_int_equal(parse_time_ms("2026-01-02T03:04:05.678+01:00"), -1);
    assert_int_equal(parse_time_ms("2026-01-02"), -1);
    assert_int_equal(parse_time_ms(""), -1);
    assert_int_equal(parse_time_ms(NULL), -1);
}

/* All events of a stream, one per line, read in pieces of that size. */
static const char *events_of(const char *stream, size_t piece, struct buf *out)
{
    auto_event_reader r = EVENT_READER_INIT;
    struct pd_err e = {.msg = ""};
    size_t len = strlen(stream);
    buf_clear(out);

    for (size_t at = 0; at < len; at += piece) {
        const char *data = stream + at;
        size_t left = len - at < piece ? len - at : piece;
        while (left) {
            struct event v;
            size_t used = 0;
            int got = event_reader_next(&r, data, left, &used, &v, &e);
            assert_true(got >= 0);
            if (got)
                buf_printf(out, "%s|%s|%s\n", v.type, v.id, v.data);
            data += used;
            left -= used;
        }
    }

    return buf_cstr(out);
}

static void test_events_are_read_whatever_the_pieces(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"id: 3.0\nevent: stdout\ndata: {\"text\":\"a\"}\n\n", "stdout|3.0|{\"text\":\"a\"}\n"},
        {"event: a\r\ndata: 1\r\n\r\nevent: b\r\ndata: 2\r\n\r\n", "a||1\nb||2\n"},
        {"data: 1\r\rdata: 2\r\r", "message||1\nmessage||2\n"},
        {": heartbeat\n\ndata:x\n\n", "message||x\n"},
        {"data: one\ndata: two\n\n", "message||one\ntwo\n"},
        {"data\n\n", "message||\n"},
        {"event: lost\n\ndata: x\n\n", "message||x\n"}, /* without data there is no event */
        {"id: 1\ndata: a\n\ndata: b\n\n", "message|1|a\nmessage|1|b\n"},
        {"retry: 10\nunknown: x\ndata:  two blanks\n\n", "message|| two blanks\n"},
        {"data: cut off\n", ""},
        {"data: cut off", ""},
    };

    (void)state;
    auto_buf b = BUF_INIT(10000);
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t piece = 1; piece < 64; piece++)
            assert_string_equal(events_of(rows[i].in, piece, &b), rows[i].out);
}

static void test_a_line_without_end_is_refused(void **state)
{
    (void)state;
    auto_event_reader r = EVENT_READER_INIT;
    struct pd_err e = {.msg = ""};
    struct event v;
    static char many[65536];
    memset(many, 'x', sizeof many);

    size_t used = 0, sent = 0;
    int got = 0;
    while (got == 0 && sent <= 2 * (size_t)EVENT_LINE_MAX) {
        got = event_reader_next(&r, many, sizeof many, &used, &v, &e);
        sent += sizeof many;
    }

    assert_int_equal(got, -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    assert_true(sent >= EVENT_LINE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escape_shows_what_a_terminal_would_obey),
        cmocka_unit_test(test_streams_keep_colours_and_lose_commands),
        cmocka_unit_test(test_tables_are_aligned_and_escaped),
        cmocka_unit_test(test_numbers_for_people),
        cmocka_unit_test(test_events_are_read_whatever_the_pieces),
        cmocka_unit_test(test_a_line_without_end_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
