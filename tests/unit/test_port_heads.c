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

static void test_the_token_leaves_the_cookies(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"", "", ""},
        {"a=1", "a=1", ""},
        {"paddock_preview=t", "", "t"},
        {"a=1; paddock_preview=t; b=2", "a=1; b=2", "t"},
        {"a=1;paddock_preview =  t ;b=2", "a=1; b=2", "t"},
        {"paddock_preview=t; paddock_preview=u", "", "t"},
        {"paddock_preview", "", ""},
        {"xpaddock_preview=t", "xpaddock_preview=t", ""},
        {";; a=1 ;", "a=1", ""},
    };
    auto_buf out = BUF_INIT(1024);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char token[8] = "";
        port_cookie_strip(slice_of(rows[i][0]), &out);
        check_text(&out, rows[i][1]);
        assert_int_equal(port_cookie_find(slice_of(rows[i][0]), token, sizeof token),
                         rows[i][2][0] != 0);
        assert_string_equal(token, rows[i][2]);
    }
    char small[4];
    assert_int_equal(port_cookie_find(slice_of("paddock_preview=1234"), small, sizeof small), 0);
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
