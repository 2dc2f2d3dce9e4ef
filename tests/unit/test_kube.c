/* What is read and written for a cluster: the part of YAML, kubeconfigs, the body of a pod, what
 * the API tells of one, and the messages of an exec. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "engine/kube_api.h"
#include "engine/kube_config.h"
#include "engine/kube_stream.h"
#include "engine/yaml.h"

#include "base/banned.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- YAML ---- */

static void test_yaml_is_the_tree_that_it_says(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *json;
    } good[] = {
        {"a: b\n", "{\"a\":\"b\"}"},
        {"a: b", "{\"a\":\"b\"}"},
        {"---\na: b # c\n# d\nc: 'it''s # no comment'\n",
         "{\"a\":\"b\",\"c\":\"it's # no comment\"}"},
        {"a:\n- b\n- c: d\n  e: f\n-\n  - g\n",
         "{\"a\":[\"b\",{\"c\":\"d\",\"e\":\"f\"},[\"g\"]]}"},
        {"a:\n  - b\n  - c\nd: {}\ne: []\nf:\ng: ~\n",
         "{\"a\":[\"b\",\"c\"],\"d\":{},\"e\":[],\"f\":null,\"g\":null}"},
        {"a: true\nb: false\nc: 12\nd: http://x:1/y#z\n",
         "{\"a\":true,\"b\":false,\"c\":\"12\",\"d\":\"http://x:1/y#z\"}"},
        {"\"a b\": \"c\\n\\u00e9\"\n", "{\"a b\":\"c\\n\\u00e9\"}"},
        {"a: |\n  one\n   two\n\n  three\n\nb: c\n",
         "{\"a\":\"one\\n two\\n\\nthree\\n\",\"b\":\"c\"}"},
        {"a: |-\n  one\nb: c\r\n", "{\"a\":\"one\",\"b\":\"c\"}"},
        {"a: {\"b\": [1, 2]}\n", "{\"a\":{\"b\":[1,2]}}"},
        {"{\"a\": {\"b\": null}}", "{\"a\":{\"b\":null}}"},
        {"- a\n-  b: c\n   d: e\n", "[\"a\",{\"b\":\"c\",\"d\":\"e\"}]"},
        {"a: -b\n", "{\"a\":\"-b\"}"},
    };

    for (size_t i = 0; i < COUNT(good); i++) {
        struct pd_err e = {.msg = ""};
        json_t *v = yaml_read(good[i].yaml, strlen(good[i].yaml), &e);
        if (!v)
            print_error("%s: %s\n", good[i].yaml, e.msg);
        assert_non_null(v);
        json_t *want = json_loads(good[i].json, 0, NULL);
        if (!json_equal(v, want)) {
            char *got = json_dumps(v, JSON_COMPACT);
            fail_msg("%s is %s", good[i].yaml, got);
        }
        json_decref(v);
        json_decref(want);
    }
}

static void test_yaml_that_is_not_understood_is_an_error(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "# nothing\n",
                                      "a: b\n---\nc: d\n",
                                      "a: &x b\n",
                                      "a: *x\n",
                                      "a: !!binary x\n",
                                      "a: >\n  b\n",
                                      "a: 'b\n",
                                      "a: 'b' c\n",
                                      "a: \"b\n",
                                      "\ta: b\n",
                                      "a: b\n  c: d\n",
                                      "a:\n   b: c\n  d: e\n",
                                      "a: b\na: c\n",
                                      "a: {b: c}\n",
                                      "a: [b\n",
                                      "{",
                                      "a: b\nc\n",
                                      "a: |+\n  b\n",
                                      "a: |\n    b\n  c\n",
                                      "true: a\n"};

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct pd_err e = {.msg = ""};
        json_t *v = yaml_read(bad[i], strlen(bad[i]), &e);
        if (v)
            fail_msg("'%s' was read", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
    }

    auto_buf deep = BUF_INIT(1 << 16);
    for (int i = 0; i < 60; i++)
        buf_printf(&deep, "%*sa:\n", i, "");
    struct pd_err e;
    assert_null(yaml_read((const char *)deep.data, deep.len, &e));
}

static void test_an_error_has_no_text_of_the_file(void **state)
{
    (void)state;
    static const char text[] = "users:\n- name: x\n  user:\n    token: 'SECRET\n";
    struct pd_err e;

    assert_null(yaml_read(text, sizeof text - 1, &e));
    assert_null(strstr(e.msg, "SECRET"));
    assert_non_null(strstr(e.msg, "line 4"));
}

/* ---- kubeconfigs ---- */

#define CONFIG(server, cluster, user)                                                              \
    "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: " server          \
    "\n" cluster                                                                                   \
    "contexts:\n- context:\n    cluster: c\n    user: u\n    namespace: ns\n  name: x\n"           \
    "- context: {\"cluster\": \"c\", \"user\": \"none\"}\n  name: other\n"                         \
    "current-context: x\nusers:\n- name: u\n  user:\n" user

static int read_config(const char *text, const char *context, struct kube_config *ret,
                       struct pd_err *e)
{
    *ret = KUBE_CONFIG_INIT;
    return kube_config_read(text, strlen(text), context, "/etc/k", ret, e);
}

static void test_a_kubeconfig_names_place_and_credential(void **state)
{
    (void)state;
    struct kube_config c;
    struct pd_err e;

    assert_int_equal(
        read_config(CONFIG("https://k.test:6443/a/b/", "    certificate-authority-data: Q0E=\n",
                           "    token: abc.def\n"),
                    "", &c, &e),
        0);
    assert_string_equal(c.server, "https://k.test:6443");
    assert_string_equal(c.path, "/a/b");
    assert_string_equal(c.namespace, "ns");
    assert_int_equal(c.ca.len, 2);
    assert_memory_equal(c.ca.data, "CA", 2);
    assert_int_equal(c.token.len, 7);
    kube_config_done(&c);

    assert_int_equal(read_config(CONFIG("https://k.test", "    certificate-authority: ca.crt\n",
                                        "    client-certificate: /c/crt\n    client-key: key\n"),
                                 "x", &c, &e),
                     0);
    assert_string_equal(c.ca_file, "/etc/k/ca.crt");
    assert_string_equal(c.cert_file, "/c/crt");
    assert_string_equal(c.key_file, "/etc/k/key");
    kube_config_done(&c);

    assert_int_equal(
        read_config(CONFIG("http://127.0.0.1:8001", "", "    tokenFile: t\n"), "", &c, &e), 0);
    assert_string_equal(c.token_file, "/etc/k/t");
    kube_config_done(&c);
}

static void test_what_a_kubeconfig_must_not_ask_for(void **state)
{
    (void)state;
    static const struct {
        const char *text, *context, *word;
    } bad[] = {
        {CONFIG("https://k", "", "    exec: {\"command\": \"aws\"}\n"), "", "exec"},
        {CONFIG("https://k", "", "    auth-provider: {\"name\": \"gcp\"}\n"), "", "exec"},
        {CONFIG("https://k", "", "    username: a\n    password: SECRET\n"), "", "username"},
        {CONFIG("https://k", "", "    token: a\n    as: root\n"), "", "'as'"},
        {CONFIG("https://k", "    insecure-skip-tls-verify: true\n", "    token: a\n"), "",
         "certificate-authority"},
        {CONFIG("http://k.test", "", "    token: a\n"), "", "https"},
        {CONFIG("https://k.test@evil/", "", "    token: a\n"), "", "server"},
        {CONFIG("https://k/../x", "", "    token: a\n"), "", "server"},
        {CONFIG("https://k?x", "", "    token: a\n"), "", "server"},
        {CONFIG("ftp://k", "", "    token: a\n"), "", "server"},
        {CONFIG("https://k", "", "    token: \"a\\r\\nX: y\"\n"), "", "token"},
        {CONFIG("https://k", "", "    other: a\n"), "", "neither"},
        {CONFIG("https://k", "", "    client-certificate: a\n"), "", "key"},
        {CONFIG("https://k", "    certificate-authority-data: SECRET!\n", "    token: a\n"), "",
         "base64"},
        {CONFIG("https://k", "", "    token: a\n"), "other", "user 'none'"},
        {CONFIG("https://k", "", "    token: a\n"), "y", "context 'y'"},
        {"a: b\n", "", "current-context"},
        {"- a\n", "", "current-context"},
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct kube_config c;
        struct pd_err e = {.msg = ""};
        assert_int_equal(read_config(bad[i].text, bad[i].context, &c, &e), -1);
        if (!strstr(e.msg, bad[i].word))
            fail_msg("%zu: '%s' has no '%s'", i, e.msg, bad[i].word);
        assert_null(strstr(e.msg, "SECRET"));
        assert_null(c.token.data);
    }
}

static void test_a_pod_knows_its_own_cluster(void **state)
{
    (void)state;
    struct kube_config c = KUBE_CONFIG_INIT;
    struct pd_err e;

    assert_int_equal(kube_config_in_cluster("10.0.0.1", "443", "/sa", &c, &e), 0);
    assert_string_equal(c.server, "https://10.0.0.1:443");
    assert_string_equal(c.ca_file, "/sa/ca.crt");
    assert_string_equal(c.token_file, "/sa/token");
    assert_int_equal(kube_config_in_cluster("fd00::1", "443", "/sa", &c, &e), 0);
    assert_string_equal(c.server, "https://[fd00::1]:443");
    assert_int_equal(kube_config_in_cluster("a/b", "443", "/sa", &c, &e), -1);
    assert_int_equal(kube_config_in_cluster("a", "x", "/sa", &c, &e), -1);
    kube_config_done(&c);
}

/* ---- bodies ---- */

static json_t *pod_body(const char *selector)
{
    struct spec s = SPEC_DEFAULT;
    struct remote_plan p = {.instance = "abc", .box = "sb_1", .spec = &s, .lease = 900};
    struct kube_style style = {.box_image = "r/box:1",
                               .pull = "IfNotPresent",
                               .pull_secret = "regcred",
                               .runtime_class = "",
                               .service_account = "",
                               .node_selector = selector,
                               .arch = "amd64",
                               .max_life = 3600};
    auto_buf out = BUF_INIT(65536);

    s.image = "img\"x";
    memset(p.link, 'a', 32);
    memset(p.key, 0x5a, sizeof p.key);
    remote_name(p.instance, p.box, p.name);
    kube_pod_body(&out, &p, &style);
    assert_false(out.overflow);
    json_t *v = json_loadb((const char *)out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(v);
    assert_null(memmem(out.data, out.len, "5a5a5a", 6));
    assert_null(memmem(out.data, out.len, "ZZZZ", 4));
    return v;
}

static void test_the_body_of_a_pod(void **state)
{
    (void)state;
    json_t *v = pod_body("a.b/c=d,e="), *spec = json_object_get(v, "spec"), *c;
    size_t i;

    assert_true(json_is_false(json_object_get(spec, "automountServiceAccountToken")));
    assert_int_equal(json_integer_value(json_object_get(spec, "activeDeadlineSeconds")), 3600);
    json_t *nodes = json_object_get(spec, "nodeSelector");
    assert_string_equal(json_string_value(json_object_get(nodes, "a.b/c")), "d");
    assert_string_equal(json_string_value(json_object_get(nodes, "e")), "");
    assert_string_equal(json_string_value(json_object_get(nodes, "kubernetes.io/arch")), "amd64");

    json_array_foreach(json_object_get(spec, "containers"), i, c)
    {
        json_t *security = json_object_get(c, "securityContext");
        assert_true(json_is_false(json_object_get(security, "allowPrivilegeEscalation")));
        assert_true(json_is_true(json_object_get(security, "runAsNonRoot")));
        assert_string_equal(json_string_value(json_object_get(c, "image")), "img\"x");
        json_t *command = json_object_get(c, "command");
        assert_string_equal(json_string_value(json_array_get(command, 2)), "key=-");
        assert_string_equal(json_string_value(json_array_get(command, 4)), "lease=900");
    }
    json_decref(v);
}

static void test_selectors(void **state)
{
    (void)state;
    static const char *const bad[] = {"a", "=b", ",a=b", "a=b,c", "a=b c", "a=\"", "a=b/c"};
    struct pd_err e;

    assert_int_equal(kube_check_selector("", &e), 0);
    assert_int_equal(kube_check_selector("a=b,x.y/z=1", &e), 0);
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(kube_check_selector(bad[i], &e), -1);
}

/* ---- answers ---- */

#define POD(meta, status)                                                                          \
    "{\"metadata\":{\"name\":\"paddock-abc-b\",\"labels\":{\"paddock.dev/instance\":\"abc\"},"     \
    "\"annotations\":{\"paddock.dev/box\":\"b\",\"paddock.dev/link\":\"00ff\"}" meta               \
    "},\"status\":{" status "}}"
#define STATE(s) "\"containerStatuses\":[{\"name\":\"sandbox\",\"state\":" s "}]"

static struct kube_pod read_pod(const char *text)
{
    struct kube_pod p;
    struct pd_err e;
    assert_int_equal(kube_read_pod(text, strlen(text), &p, &e), 0);
    return p;
}

static void test_what_a_pod_tells(void **state)
{
    (void)state;
    struct kube_pod p = read_pod(POD("", "\"phase\":\"Running\"," STATE("{\"running\":{}}")));
    assert_true(p.running && !p.over && !p.deleting);
    assert_string_equal(p.name, "paddock-abc-b");
    assert_string_equal(p.box, "b");
    assert_string_equal(p.link, "00ff");

    p = read_pod(
        POD("", "\"phase\":\"Pending\"," STATE(
                    "{\"waiting\":{\"reason\":\"ErrImagePull\",\"message\":\"no\\nsuch\"}}")));
    assert_true(!p.running && !p.over);
    assert_string_equal(p.waiting, "ErrImagePull");
    assert_string_equal(p.words, "no such");
    p = read_pod(POD(
        "", "\"phase\":\"Pending\"," STATE("{\"waiting\":{\"reason\":\"ContainerCreating\"}}")));
    assert_string_equal(p.waiting, "");
    p = read_pod(POD(",\"deletionTimestamp\":\"now\"", ""));
    assert_true(p.deleting);
    assert_string_equal(p.why, "somebody has deleted its pod");
}

static void test_why_pods_end(void **state)
{
    (void)state;
    static const struct {
        const char *status, *why;
    } ends[] = {
        {"\"phase\":\"Failed\",\"reason\":\"Evicted\",\"message\":\"low on memory\"",
         "evicted: low on memory"},
        {"\"phase\":\"Failed\"," STATE(
             "{\"terminated\":{\"reason\":\"OOMKilled\",\"exitCode\":137}}"),
         "out of memory"},
        {"\"phase\":\"Failed\"," STATE("{\"terminated\":{\"reason\":\"Error\",\"exitCode\":137}}"),
         "killed by signal 9"},
        {"\"phase\":\"Succeeded\"," STATE("{\"terminated\":{\"exitCode\":0}}"),
         "its first process ended with exit code 0"},
        {"\"phase\":\"Failed\",\"reason\":\"DeadlineExceeded\"",
         "its longest life was over (kubernetes_max_life_s)"},
        {"\"phase\":\"Failed\",\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\","
         "\"reason\":\"PreemptionByScheduler\"}]," STATE("{\"terminated\":{\"exitCode\":143}}"),
         "the cluster gave its node to a pod of higher priority"},
        {"\"phase\":\"Failed\",\"reason\":\"NodeLost\"", "its node is gone or was shut down"},
    };

    for (size_t i = 0; i < COUNT(ends); i++) {
        char text[1000];
        snprintf(text, sizeof text, POD("", "%s"), ends[i].status);
        struct kube_pod p = read_pod(text);
        assert_true(p.over && !p.running);
        assert_string_equal(p.why, ends[i].why);
    }
}

static void test_hostile_answers(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "[]",
                                      "{",
                                      "{}",
                                      "{\"metadata\":{\"name\":7}}",
                                      "{\"metadata\":{\"name\":\"../../x\"}}",
                                      "{\"metadata\":{\"name\":\"a b\"}}"};
    struct kube_pod p;
    struct pd_err e;

    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(kube_read_pod(bad[i], strlen(bad[i]), &p, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }
    p = read_pod("{\"metadata\":{\"name\":\"a\",\"annotations\":{\"paddock.dev/box\":\"../b\"}},"
                 "\"status\":{\"phase\":[],\"containerStatuses\":{},\"conditions\":[7,{}]}}");
    assert_string_equal(p.box, "");
    assert_false(p.over);
}

static int count_pod(void *context, const struct kube_pod *p, struct pd_err *e)
{
    (void)p, (void)e;
    ++*(unsigned *)context;
    return 0;
}

static void test_lists(void **state)
{
    (void)state;
    static const char list[] =
        "{\"metadata\":{\"continue\":\"abc\"},\"items\":[{\"metadata\":{\"name\":\"a\"}},{},7,"
        "{\"metadata\":{\"name\":\"b\"}}]}";
    char next[KUBE_CONTINUE_MAX] = "x";
    unsigned count = 0;
    struct pd_err e;

    assert_int_equal(kube_read_list(list, sizeof list - 1, count_pod, &count, next, &e), 0);
    assert_int_equal(count, 2);
    assert_string_equal(next, "abc");
    assert_int_equal(kube_read_list("{\"items\":7}", 11, count_pod, &count, next, &e), -1);
    assert_int_equal(kube_read_list("{\"items\":[]}", 12, count_pod, &count, next, &e), 0);
    assert_string_equal(next, "");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *body;
        enum pd_code code;
        const char *word;
    } all[] = {
        {401, "{}", PD_BAD_GATEWAY, "kubernetes_config"},
        {403, "{\"message\":\"pods is forbidden: exceeded quota: q\"}", PD_CAPACITY, "quota"},
        {403, "{\"message\":\"violates PodSecurity\"}", PD_BAD_GATEWAY, "violates PodSecurity"},
        {404, "", PD_NOT_FOUND, "404"},
        {409, "x", PD_CONFLICT, "409"},
        {422, "{\"message\":7}", PD_INVALID, "422"},
        {429, "{}", PD_RATE, "429"},
        {503, "<html>", PD_BAD_GATEWAY, "503"},
    };

    for (size_t i = 0; i < COUNT(all); i++) {
        struct pd_err e;
        assert_int_equal(kube_fail(all[i].status, all[i].body, strlen(all[i].body), "try", &e), -1);
        assert_int_equal(e.code, all[i].code);
        assert_non_null(strstr(e.msg, all[i].word));
    }
}

/* ---- an exec ---- */

static void test_messages_of_an_exec(void **state)
{
    (void)state;
    const uint8_t *data;
    size_t len;
    char words[40] = "";

    assert_int_equal(kube_message((const uint8_t *)"\1ab", 3, &data, &len), KUBE_STDOUT);
    assert_int_equal(len, 2);
    assert_memory_equal(data, "ab", 2);
    assert_int_equal(kube_message((const uint8_t *)"\1", 1, &data, &len), KUBE_STDOUT);
    assert_int_equal(len, 0);
    assert_int_equal(kube_message((const uint8_t *)"\xff\1", 2, &data, &len), KUBE_CLOSE);
    assert_int_equal(kube_message((const uint8_t *)"", 0, &data, &len), -1);
    assert_int_equal(kube_message((const uint8_t *)"\7x", 2, &data, &len), -1);

    kube_read_end("{\"status\":\"Success\",\"message\":\"x\"}", 34, words, sizeof words);
    assert_string_equal(words, "");
    static const char bad[] =
        "{\"status\":\"Failure\",\"message\":\"exit\\ncode 1, and more than there is room for\"}";
    kube_read_end(bad, sizeof bad - 1, words, sizeof words);
    assert_string_equal(words, "exitcode 1, and more than there is room");
    kube_read_end("x", 1, words, sizeof words);
    kube_read_end(NULL, 0, words, sizeof words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml_is_the_tree_that_it_says),
        cmocka_unit_test(test_yaml_that_is_not_understood_is_an_error),
        cmocka_unit_test(test_an_error_has_no_text_of_the_file),
        cmocka_unit_test(test_a_kubeconfig_names_place_and_credential),
        cmocka_unit_test(test_what_a_kubeconfig_must_not_ask_for),
        cmocka_unit_test(test_a_pod_knows_its_own_cluster),
        cmocka_unit_test(test_the_body_of_a_pod),
        cmocka_unit_test(test_selectors),
        cmocka_unit_test(test_what_a_pod_tells),
        cmocka_unit_test(test_why_pods_end),
        cmocka_unit_test(test_hostile_answers),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_messages_of_an_exec),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
