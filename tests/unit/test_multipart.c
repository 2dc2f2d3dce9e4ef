#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "net/multipart.h"

#include "base/banned.h"

/* The events of a body, as a text: "P(name|filename)", the data, "E" and "." at the end; "!" when
 * it is refused. */
static void read_events(struct buf *out, const char *boundary, const char *data, size_t len,
                        size_t step)
{
    static struct multipart m;
    struct pd_err e;
    multipart_init(&m, boundary);

    for (size_t at = 0; at < len;) {
        size_t piece = len - at < step ? len - at : step, used;
        struct slice found = {NULL, 0};
        int event = multipart_next(&m, data + at, piece, &used, &found, &e);
        assert_true(used <= piece);
        at += used;

        if (event == MULTIPART_PART) {
            buf_printf(out, "P(%s|%s)", m.name, m.filename ? m.filename : "-");
        } else if (event == MULTIPART_DATA) {
            assert_true(found.len > 0);
            buf_put(out, found.at, found.len);
        } else if (event == MULTIPART_PART_END) {
            buf_puts(out, "E");
        } else if (event == MULTIPART_END) {
            buf_puts(out, ".");
        } else if (event < 0) {
            buf_puts(out, "!");
            assert_int_equal(multipart_next(&m, "x", 1, &used, &found, &e), -1);
            return;
        }
    }

    assert_int_equal(m.done, out->len > 0 && memchr(out->data, '.', out->len) != NULL);
}

struct vector {
    const char *body, *events;
};

#define B    "--b\r\n"
#define D(x) "Content-Disposition: form-data; " x "\r\n\r\n"
#define END  "\r\n--b--"

static void check(const char *boundary, const char *body, size_t len, const char *events)
{
    for (size_t step = 1; step <= len + 1; step++) {
        auto_buf out = BUF_INIT(1 << 16);
        read_events(&out, boundary, body, len, step);
        if (strcmp(buf_cstr(&out), events) != 0)
            fail_msg("%s in steps of %zu: '%s', not '%s'", body, step, buf_cstr(&out), events);
    }
}

static void test_forms(void **state)
{
    static const struct vector vectors[] = {
        {B D("name=\"file\"; filename=\"/a\"") "data" END, "P(file|/a)dataE."},
        {B D("name=\"file\"") END, "P(file|-)E."},
        {B D("name=file; filename=\"\"") "x" END, "P(file|)xE."},
        {B D("name=a") "1\r\n" B D("name=b") "2" END "\r\nrest\r\n--b\r\n", "P(a|-)1EP(b|-)2E."},
        {"old\r\n" B D("name=a") "1" END, "P(a|-)1E."},
        {"\r\n" B D("name=a") "1" END, "P(a|-)1E."},
        {B "\r\nno headers" END, "P(|-)no headersE."},
        {B "X: y\r\n\r\nother" END, "P(|-)otherE."},
        {"--b \t \r\n\r\nblanks" END, "P(|-)blanksE."},
        {"--b--", "."},
        /* contents that are nearly a boundary */
        {B D("name=a") "\r\n--" END, "P(a|-)\r\n--E."},
        {B D("name=a") "\r\r\n--c\r\n\r\n-b\r" END, "P(a|-)\r\r\n--c\r\n\r\n-b\rE."},
        {B D("name=a") "--b\n--b\r--b" END, "P(a|-)--b\n--b\r--bE."},
        {B D("name=a") "\r\n" END, "P(a|-)\r\nE."},
        /* names */
        {B D("name=\"file\"; filename=\"a%22b%0D%0ac%41%2\"") END, "P(file|a\"b\r\nc%41%2)E."},
        {B D("name=\"f\\\"g\"; filename=\"a\\\\b\\c\"") END, "P(f\"g|a\\b\\c)E."},
        {B D("name=f; filename=x; filename*=utf-8''%e2%82%ac%20/a") END, "P(f|\xe2\x82\xac /a)E."},
        {B D("name=f; filename*=UTF-8'en'a%41") END, "P(f|aA)E."},
        {B D("FileName=\"x\" ; NAME=\"f\" ;") END, "P(f|x)E."},
        {B D("name=\"a; b=c\"; filename=\"\xc3\xbc\"") END, "P(a; b=c|\xc3\xbc)E."},
        {B "content-disposition:form-data;name=f\r\n\r\n" END, "P(f|-)E."},
        {B "Content-Transfer-Encoding: BINARY\r\n" D("name=f") END, "P(f|-)E."},
        /* cut off: no end */
        {B D("name=a") "1\r\n--b", "P(a|-)1E"},
        {B D("name=a") "1", "P(a|-)1"},
        {B "Content-", ""},
        {"", ""},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++)
        check("b", vectors[i].body, strlen(vectors[i].body), vectors[i].events);
}

static void test_what_is_refused(void **state)
{
    static const struct vector vectors[] = {
        {"--bx\r\n\r\n", "!"},
        {"--b-x", "!"},
        {"--b\n\r\n", "!"},
        {"--b\rx", "!"},
        {"--b x\r\n", "!"},
        {B D("name=a") "1\r\n--bx", "P(a|-)1E!"},
        {B "no colon\r\n\r\n", "!"},
        {B ": x\r\n\r\n", "!"},
        {B "A : x\r\n\r\n", "!"},
        {B "A: x\n\r\n", "!"},
        {B "A: x\ry\r\n\r\n", "!"},
        {B "A: x\r\n folded\r\n\r\n", "!"},
        {B "Content-Transfer-Encoding: base64\r\n\r\n", "!"},
        {B "Content-Disposition: attachment; name=x\r\n\r\n", "!"},
        {B D("name"), "!"},
        {B D("name="), "!"},
        {B D("name=\"x"), "!"},
        {B D("name=\"x\\\""), "!"},
        {B D("name=\"x\"y"), "!"},
        {B D("name=x y"), "!"},
        {B D("name=x; name=y"), "!"},
        {B D("name=x; filename=a; filename=b"), "!"},
        {B D("filename*=a"), "!"},
        {B D("filename*=latin-1''a"), "!"},
        {B D("filename*=utf-8''a%00b"), "!"},
        {B D("name=x; filename=\"\xff\""), "!"},
        {B D("name=x; filename*=utf-8''%ff"), "!"},
        {B "Content-Disposition: form-data; name=a\r\n" D("name=a"), "!"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++)
        check("b", vectors[i].body, strlen(vectors[i].body), vectors[i].events);
    static const char with_nul[] = B "Content-Disposition: form-data; name=\"a\0b\"\r\n\r\n";
    check("b", with_nul, sizeof with_nul - 1, "!");
}

static void test_headers_are_bounded(void **state)
{
    static struct multipart m;
    struct pd_err e = {0};
    struct slice found;
    size_t used;
    (void)state;
    multipart_init(&m, "b");

    const char *start = B "X: ";
    for (size_t at = 0; at < strlen(start); at += used)
        assert_int_equal(multipart_next(&m, start + at, strlen(start) - at, &used, &found, &e),
                         MULTIPART_MORE);
    for (size_t i = 3; i < MULTIPART_HEAD_MAX; i++)
        assert_int_equal(multipart_next(&m, "x", 1, &used, &found, &e), MULTIPART_MORE);
    assert_int_equal(multipart_next(&m, "x", 1, &used, &found, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
}

static void test_a_long_boundary(void **state)
{
    char boundary[MULTIPART_BOUNDARY_MAX + 1], body[512];
    (void)state;
    memset(boundary, '-', MULTIPART_BOUNDARY_MAX);
    boundary[MULTIPART_BOUNDARY_MAX] = 0;
    int len = snprintf(body, sizeof body, "--%s\r\n\r\n\r\n---%.60s\r\n--%s--", boundary, boundary,
                       boundary);
    char events[128];
    snprintf(events, sizeof events, "P(|-)\r\n---%.60sE.", boundary);
    check(boundary, body, (size_t)len, events);
}

static void test_boundaries(void **state)
{
    static const struct {
        const char *type, *boundary; /* NULL: refused; "": another type */
    } vectors[] = {
        {"multipart/form-data; boundary=abc", "abc"},
        {"Multipart/Form-Data;BOUNDARY=abc", "abc"},
        {"multipart/form-data; charset=utf-8; boundary=\"a b\"", "a b"},
        {"multipart/form-data; boundary=----=_Part_1_2.3", "----=_Part_1_2.3"},
        {"multipart/form-data ; boundary=a ;", "a"},
        {"multipart/form-data", NULL},
        {"multipart/form-data; boundary=", NULL},
        {"multipart/form-data; boundary=\"\"", NULL},
        {"multipart/form-data; boundary=\"a", NULL},
        {"multipart/form-data; boundary=\"a \"", NULL},
        {"multipart/form-data; boundary=a; boundary=a", NULL},
        {"multipart/form-data; boundary=a\x80", NULL},
        {"multipart/form-data; boundary=\"a\\\"b\"", NULL},
        {"multipart/form-data; boundary=a b", NULL},
        {"multipart/form-data boundary=a", NULL},
        {"multipart/form-datax; boundary=a", ""},
        {"multipart/mixed; boundary=a", ""},
        {"application/octet-stream", ""},
        {"", ""},
    };

    char got[MULTIPART_BOUNDARY_MAX + 1], text[128];
    struct pd_err e;
    (void)state;

    for (size_t i = 0; i < COUNT(vectors); i++) {
        const char *want = vectors[i].boundary;
        int r = multipart_boundary(slice_of(vectors[i].type), got, &e);
        if (r != (!want ? -1 : *want ? 1 : 0) || (r == 1 && strcmp(got, want) != 0))
            fail_msg("%s: %d", vectors[i].type, r);
    }

    for (unsigned len = MULTIPART_BOUNDARY_MAX; len <= MULTIPART_BOUNDARY_MAX + 1; len++) {
        snprintf(text, sizeof text, "multipart/form-data; boundary=%0*d", (int)len, 0);
        assert_int_equal(multipart_boundary(slice_of(text), got, &e),
                         len > MULTIPART_BOUNDARY_MAX ? -1 : 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_headers_are_bounded),
        cmocka_unit_test(test_a_long_boundary),
        cmocka_unit_test(test_boundaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
