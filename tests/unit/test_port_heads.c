#include "api/port_heads.h"

#include "base/buf.h"
#include "unit.h"

#include <string.h>

static void check_text(struct buf *b, const char *wanted)
{
    assert_false(b->overflow);
    assert_string_equal(b->len ? buf_cstr(b) : "", wanted);
    buf_clear(b);
}

static void test_the_token_leaves_the_query(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", ""},
        {"a=1", "a=1"},
        {"paddock_preview=t", ""},
        {"paddock_preview", ""},
        {"a=1&paddock_preview=t&b=2", "a=1&b=2"},
        {"paddock_preview=t&a", "a"},
        {"%70addock_previe%77=t&a=%zz", "a=%zz"},
        {"xpaddock_preview=t&paddock_previewx=1", "xpaddock_preview=t&paddock_previewx=1"},
        {"paddock_preview=1&paddock_preview=2", ""},
        {"%zz=1&paddock_preview=t", "%zz=1"},
        {"a=paddock_preview=t", "a=paddock_preview=t"},
        {"&&a&&", "&&a&&"},
        {"&paddock_preview=t&&a&", "&&a&"},
    };

    auto_buf out = BUF_INIT(1024);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        port_query_strip(slice_of(rows[i][0]), &out);
        check_text(&out, rows[i][1]);
    }
}

/* All tokens under one name, each with a '|' behind it. */
static void list_tokens(const char *header, const char *name, struct buf *out)
{
    char token[8];

    for (struct slice rest = slice_of(header); port_cookie_next(&rest, name, token, sizeof token);)
        buf_printf(out, "%s|", token);
}

static void test_the_token_leaves_the_cookies(void **state)
{
    (void)state;
    static const struct {
        const char *header, *stripped, *plain, *host;
    } rows[] = {
        {"", "", "", ""},
        {"a=1", "a=1", "", ""},
        {"paddock_preview=t", "", "t|", ""},
        {"a=1; paddock_preview=t; b=2", "a=1; b=2", "t|", ""},
        {"a=1;paddock_preview =  t ;b=2", "a=1; b=2", "t|", ""},
        {"paddock_preview=t; paddock_preview=u", "", "t|u|", ""},
        {"paddock_preview", "", "", ""},
        {"paddock_preview=; paddock_preview=t", "", "t|", ""},
        {"xpaddock_preview=t", "xpaddock_preview=t", "", ""},
        {";; a=1 ;", "a=1", "", ""},
        {"paddock_preview=12345678; paddock_preview=t", "", "t|", ""}, /* the first does not fit */
        {"__Host-paddock_preview=t", "", "", "t|"},
        {"paddock_preview=t; a=1; __Host-paddock_preview=u", "a=1", "t|", "u|"},
        {"__host-paddock_preview=t", "__host-paddock_preview=t", "", ""},
        {"__Secure-paddock_preview=t", "__Secure-paddock_preview=t", "", ""},
        {"\v__Host-paddock_preview=t", "\v__Host-paddock_preview=t", "", ""},
        {"\xa0__Host-paddock_preview=t", "\xa0__Host-paddock_preview=t", "", ""},
        {"=__Host-paddock_preview=t", "=__Host-paddock_preview=t", "", ""},
        {"a=\"x; __Host-paddock_preview=t\"", "a=\"x", "", "t\"|"}, /* quotes hide nothing */
    };
    auto_buf out = BUF_INIT(1024);

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        port_cookie_strip(slice_of(rows[i].header), &out);
        check_text(&out, rows[i].stripped);
        list_tokens(rows[i].header, PREVIEW_COOKIE, &out);
        check_text(&out, rows[i].plain);
        list_tokens(rows[i].header, PREVIEW_HOST_COOKIE, &out);
        check_text(&out, rows[i].host);
    }
}

static void test_cookies_are_held_to_their_host(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"a=1", "a=1"},
        {"a=1; Domain=.example", "a=1"},
        {"a=1; Path=/; DOMAIN = x; HttpOnly", "a=1; Path=/; HttpOnly"},
        {"a=1;domain=x;domain=y;Secure", "a=1; Secure"},
        {"a=1; domain", "a=1"},
        {"a=Domain; Domains=x", "a=Domain; Domains=x"},
        {"paddock_preview=mine; Path=/", ""},
        {" paddock_preview =mine", ""},
        {"__Host-paddock_preview=mine; Path=/; Secure", ""},
        {"__Host-sid=1; Path=/; Secure", "__Host-sid=1; Path=/; Secure"},
        {"", ""},
        {"; Domain=x", ""},
    };

    auto_buf out = BUF_INIT(1024);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int passes = port_cookie_confine(slice_of(rows[i][0]), &out);
        assert_int_equal(passes, rows[i][1][0] != 0);
        check_text(&out, rows[i][1]);
    }
}

static void test_redirects_stay_below_the_prefix(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"/", "/p/"},
        {"/a?b", "/p/a?b"},
        {"/p/a", "/p/a"},
        {"a", "a"},
        {"", ""},
        {"//evil", "//evil"},
        {"/\\evil", "/\\evil"},
        {"http://localhost:80/x", "/p/x"},
        {"HTTP://LOCALHOST:80/x", "/p/x"},
        {"http://127.0.0.1:80/x", "/p/x"},
        {"http://localhost:8080/x", "http://localhost:8080/x"},
        {"http://localhost:80//evil", "http://localhost:80//evil"},
        {"http://localhost:80", "http://localhost:80"},
        {"https://localhost:80/", "https://localhost:80/"},
    };

    auto_buf out = BUF_INIT(1024);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        port_location_map(slice_of(rows[i][0]), "/p", 80, &out);
        check_text(&out, rows[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_token_leaves_the_query),
        cmocka_unit_test(test_the_token_leaves_the_cookies),
        cmocka_unit_test(test_cookies_are_held_to_their_host),
        cmocka_unit_test(test_redirects_stay_below_the_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
