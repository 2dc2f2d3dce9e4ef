/* Signatures of AWS: equal to those of botocore, for requests that sigv4_vectors.py has made. With
 * SIGV4_VECTORS=FILE those of another file are compared as well (tests/backends/test_sigv4.py makes
 * thousands). */
#include "engine/sigv4.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS     13
#define HEADER_MAX 16

static struct aws_keys key_of(const char *id, const char *secret, const char *token)
{
    struct aws_keys k = {.expires = 0};

    snprintf(k.id, sizeof k.id, "%s", id);
    snprintf(k.secret, sizeof k.secret, "%s", secret);
    snprintf(k.token, sizeof k.token, "%s", token);
    return k;
}

static size_t unhex(char *text)
{
    size_t len = strlen(text) / 2;

    for (size_t i = 0; i < len; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        text[i] = (char)strtoul(pair, NULL, 16);
    }
    text[len] = 0;
    return len;
}

static void compare(char *line, int number)
{
    char *f[FIELDS], *rest = line;
    const char *headers[HEADER_MAX + 1] = {NULL};
    struct sigv4_lines lines = SIGV4_LINES_INIT;
    char want[400];
    struct pd_err e;

    for (int i = 0; i < FIELDS; i++)
        f[i] = strsep(&rest, "\t");
    assert_non_null(f[FIELDS - 1]);
    f[FIELDS - 1][strcspn(f[FIELDS - 1], "\n")] = 0;

    unhex(f[9]);
    size_t body_len = unhex(f[10]);
    rest = f[9];
    for (int i = 0; f[9][0] && rest && i < HEADER_MAX; i++)
        headers[i] = strsep(&rest, "\n");

    struct aws_keys k = key_of(f[3], f[4], strcmp(f[5], "-") != 0 ? f[5] : "");
    struct sigv4_request r = {.service = f[0],
                              .region = f[1],
                              .now = (time_t)strtoll(f[2], NULL, 10),
                              .method = f[6],
                              .host = f[7],
                              .target = f[8],
                              .headers = headers,
                              .body = f[10],
                              .body_len = body_len};
    assert_int_equal(sigv4_sign(&k, &r, &lines, &e), 0);
    snprintf(want, sizeof want, "SignedHeaders=%s, Signature=%s", f[11], f[12]);
    if (!strstr((char *)lines.authorization.data, want)) {
        print_message("# line %d: %s %s\n# wanted %s\n# got %s\n", number, f[0], f[8], want,
                      (char *)lines.authorization.data);
        fail();
    }
    assert_int_equal(lines.token.len > 0, k.token[0] != 0);
    assert_int_equal(lines.digest[0] != 0, !strcmp(f[0], "s3"));
    sigv4_lines_done(&lines);
}

static int compare_file(const char *path)
{
    FILE *in = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    int count = 0;

    assert_non_null(in);
    while (getline(&line, &size, in) > 0)
        compare(line, ++count);
    free(line);
    fclose(in);
    return count;
}

static void test_requests_that_botocore_has_signed(void **state)
{
    const char *more = getenv("SIGV4_VECTORS");

    (void)state;
    assert_true(compare_file(UNIT_CORPUS "/../../unit/sigv4_vectors.txt") >= 60);
    if (more)
        print_message("# %d more were compared\n", compare_file(more));
}

/* Of AWS's own documentation of the form: the canonical request, and what it is signed to. */
static void test_what_is_hashed(void **state)
{
    struct aws_keys k = key_of("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "");
    const char *const headers[] = {"My-Header2:    \"a   b   c\"  ", "my-header1: x",
                                   "My-Header1: y", NULL};
    struct sigv4_request r = {.service = "service",
                              .region = "us-east-1",
                              .method = "GET",
                              .host = "example.amazonaws.com",
                              .target = "/a/./b/../c d//?b=2&a=1&b=1&flag",
                              .headers = headers,
                              .body = "",
                              .now = 1440938160};
    auto_buf text = BUF_INIT(4096), names = BUF_INIT(1024);
    struct pd_err e;

    (void)state;
    assert_int_equal(sigv4_canonical(&k, &r, &text, &names, &e), 0);
    assert_string_equal(buf_cstr(&text),
                        "GET\n/a/c%20d/\na=1&b=1&b=2&flag=\nhost:example.amazonaws.com\n"
                        "my-header1:x,y\nmy-header2:\"a b c\"\nx-amz-date:20150830T123600Z\n\n"
                        "host;my-header1;my-header2;x-amz-date\n"
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

/* "get-vanilla" of AWS's test suite. */
static void test_the_first_request_of_the_suite(void **state)
{
    struct aws_keys k = key_of("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "");
    struct sigv4_request r = {.service = "service",
                              .region = "us-east-1",
                              .method = "GET",
                              .host = "example.amazonaws.com",
                              .target = "/",
                              .body = "",
                              .now = 1440938160};
    struct sigv4_lines lines = SIGV4_LINES_INIT;
    struct pd_err e;

    (void)state;
    assert_int_equal(sigv4_sign(&k, &r, &lines, &e), 0);
    assert_string_equal(lines.date, "X-Amz-Date: 20150830T123600Z");
    assert_string_equal(
        (char *)lines.authorization.data,
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/"
        "aws4_request, SignedHeaders=host;x-amz-date, "
        "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    sigv4_lines_done(&lines);
}

static void test_what_cannot_be_signed(void **state)
{
    struct aws_keys k = key_of("AKIDEXAMPLE", "s", "");
    const char *const no_colon[] = {"Name", NULL}, *const broken[] = {"Name: a\r\nb: c", NULL};
    const char *const nameless[] = {": x", NULL};
    const char *many[40];
    struct sigv4_request r = {
        .service = "ecs", .region = "r", .method = "GET", .host = "h", .body = ""};
    const struct {
        const char *target;
        const char *const *headers;
    } rows[] = {{"", NULL},    {"x", NULL},     {"/", no_colon},
                {"/", broken}, {"/", nameless}, {"/", many}};
    struct sigv4_lines lines = SIGV4_LINES_INIT;
    struct pd_err e;

    (void)state;
    for (int i = 0; i < 39; i++)
        many[i] = "a: b";
    many[39] = NULL;
    for (size_t i = 0; i < COUNT(rows); i++) {
        r.target = rows[i].target;
        r.headers = rows[i].headers;
        assert_int_equal(sigv4_sign(&k, &r, &lines, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
    }
    sigv4_lines_done(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_that_botocore_has_signed),
        cmocka_unit_test(test_what_is_hashed),
        cmocka_unit_test(test_the_first_request_of_the_suite),
        cmocka_unit_test(test_what_cannot_be_signed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
