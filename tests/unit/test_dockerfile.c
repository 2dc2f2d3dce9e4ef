/* Dockerfiles: what becomes of each instruction, and what is refused with its line. */
#include "unit.h"

#include "base/banned.h"
#include "base/err.h"
#include "client/dockerfile.h"

#include <string.h>

/* The steps as text, without those in front and behind: TYPE word|word ... */
static void expect(const char *text, const char *steps, const char *start)
{
    struct pd_err e = {.msg = ""};
    char whole[4096];
    snprintf(whole, sizeof whole, "FROM x\n%s\nUSER user\nWORKDIR /home/user\n", text);
    json_t *body = dockerfile_read(whole, strlen(whole), &e);
    if (!body)
        fail_msg("refused: %s: %s", text, e.msg);

    char got[8192] = "";
    json_t *all = json_object_get(body, "steps"), *step, *word;
    size_t i, k, at = 0;
    json_array_foreach(all, i, step)
    {
        if (i < 2 || i + 2 >= json_array_size(all))
            continue;
        at += (size_t)snprintf(got + at, sizeof got - at, "%s",
                               json_string_value(json_object_get(step, "type")));
        json_array_foreach(json_object_get(step, "sources"), k, word) at +=
            (size_t)snprintf(got + at, sizeof got - at, " <%s", json_string_value(word));
        json_array_foreach(json_object_get(step, "args"), k, word) at += (size_t)snprintf(
            got + at, sizeof got - at, "%s%s", k ? "|" : " ", json_string_value(word));
        at += (size_t)snprintf(got + at, sizeof got - at, "\n");
    }
    assert_string_equal(got, steps);
    const char *runs = json_string_value(json_object_get(body, "start"));
    assert_string_equal(runs ? runs : "", start);
    assert_string_equal(json_string_value(json_object_get(body, "image")), "x");
    json_decref(body);
}

static void test_instructions(void **state)
{
    (void)state;
    expect("", "", "");
    expect("RUN a && b", "RUN a && b\n", "");
    expect("run a \\\n  # a comment\n\n  b", "RUN a  b\n", "");
    expect("RUN [\"a\", \"b c\", \"it's\"]", "RUN a 'b c' 'it'\\''s'\n", "");

    expect("COPY a b/", "COPY <a |b/|root:root|\n", "");
    expect("COPY --chown=user --chmod=755 a 'b c' d/", "COPY <a <b c |d/|user|755\n", "");
    expect("COPY [\"a b\", \"c\"]", "COPY <a b |c|root:root|\n", "");

    expect("ENV A=1 B=\"x y\" C=z\\ w", "ENV A|1|B|x y|C|z w\n", "");
    expect("ENV A 1 = 2", "ENV A|1 = 2\n", "");
    expect("ENV P=/x:$P Q='$P' R=\\$P", "ENV P|/x:$P|Q|\\$P|R|\\$P\n", "");

    expect("WORKDIR \"/a b\"", "WORKDIR /a b\n", "");
    expect("USER 0:0\nUSER 1000", "USER root\nUSER user\n", "");
    expect("LABEL a=b\nEXPOSE 80\nHEALTHCHECK NONE\nSTOPSIGNAL 9", "", "");

    expect("CMD a b", "", "a b");
    expect("CMD [\"a\", \"b c\"]", "", "a 'b c'");
    expect("ENTRYPOINT [\"e\"]\nCMD [\"a\"]", "", "e a");
    expect("ENTRYPOINT e\nCMD a", "", "e");
    expect("CMD [\"bash\"]", "", "");

    expect("RUN x\r\n", "RUN x\n", "");
}

static void test_what_is_left_open(void **state)
{
    (void)state;
    struct pd_err e;
    json_t *body = dockerfile_read("FROM a AS b", 11, &e);
    assert_non_null(body);
    json_t *steps = json_object_get(body, "steps");
    assert_int_equal(json_array_size(steps), 4);

    static const char *const types[] = {"USER", "WORKDIR", "USER", "WORKDIR"};
    static const char *const words[] = {"root", "/", "user", "/home/user"};
    for (size_t i = 0; i < COUNT(types); i++) {
        json_t *step = json_array_get(steps, i);
        assert_string_equal(json_string_value(json_object_get(step, "type")), types[i]);
        assert_string_equal(json_string_value(json_array_get(json_object_get(step, "args"), 0)),
                            words[i]);
    }
    json_decref(body);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {{"", "no FROM"},
               {"RUN x", "line 1: FROM comes first"},
               {"FROM", "wants an image"},
               {"FROM --platform=linux/arm64 x", "no options"},
               {"FROM $BASE", "ARG"},
               {"FROM a b", "AS NAME"},
               {"FROM a\nFROM b", "line 2: there is one stage"},
               {"FROM a\nADD b c", "line 2"},
               {"FROM a\n\n# x\nARG b", "line 4"},
               {"FROM a\nVOLUME /b", "not known here"},
               {"FROM a\nRUN --mount=type=cache x", "no options"},
               {"FROM a\nRUN <<EOF\nx\nEOF", "line 2"},
               {"FROM a\nRUN", "wants a command"},
               {"FROM a\nCOPY b", "a source and a destination"},
               {"FROM a\nCOPY b c d", "several sources"},
               {"FROM a\nCOPY --from=x b c", "--chown"},
               {"FROM a\nCOPY $x c", "variables"},
               {"FROM a\nENV A", "NAME=VALUE"},
               {"FROM a\nENV A=\"b", "no end"},
               {"FROM a\nWORKDIR", "one word"},
               {"FROM a\nWORKDIR a b", "one word"},
               {"FROM a\nUSER", "one word"},
               {"FROM a\nRUN \xff", "UTF-8"},
               {"FROM a\nCMD", "a command is wanted"}};

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct pd_err e = {.msg = ""};
        json_t *body = dockerfile_read(bad[i].text, strlen(bad[i].text), &e);
        if (body || e.code != PD_INVALID || !strstr(e.msg, bad[i].why))
            fail_msg("'%s': %s", bad[i].text, body ? "taken" : e.msg);
    }
    struct pd_err e;
    assert_null(dockerfile_read("FROM a\0RUN b", 12, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instructions),
        cmocka_unit_test(test_what_is_left_open),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
