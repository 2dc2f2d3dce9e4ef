/* Addresses, networks, names and rules of the gate, by vectors. */
#include "base/err.h"
#include "gate/resolvers.h"
#include "gate/rules.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static struct ip ip(const char *text)
{
    struct ip a;
    if (!ip_parse(text, &a))
        fail_msg("'%s' is an address", text);
    return a;
}

static struct egress_policy *policy(const char *text)
{
    struct egress_policy *p;
    struct pd_err e;
    if (egress_parse(text, strlen(text), &p, &e) < 0)
        fail_msg("%s", e.msg);
    return p;
}

static void test_addresses_that_are_never_dialled(void **state)
{
    static const char *const never[] = {
        "0.0.0.0",          "10.1.2.3",     "100.64.0.1",
        "100.127.255.255",  "127.0.0.1",    "127.8.8.8",
        "169.254.169.254",  "172.16.0.1",   "172.31.255.255",
        "192.0.0.1",        "192.168.0.1",  "198.18.0.1",
        "198.19.255.255",   "224.0.0.1",    "240.0.0.1",
        "255.255.255.255",  "::",           "::1",
        "::7f00:1",         "fc00::1",      "fd00:ec2::254",
        "fe80::1",          "ff02::1",      "64:ff9b::a00:1",
        "2002:a00:1::",     "2001:0:1::1",  "::ffff:10.0.0.1",
        "::ffff:127.0.0.1", "64:ff9b:1::1",
    };
    static const char *const fine[] = {
        "1.1.1.1",         "8.8.8.8",         "9.255.255.255", "11.0.0.0",      "100.63.255.255",
        "100.128.0.0",     "172.15.0.1",      "172.32.0.1",    "192.0.1.1",     "223.255.0.1",
        "2606:4700::1111", "2001:4860::8888", "2003::1",       "::ffff:8.8.8.8"};
    (void)state;

    for (size_t i = 0; i < COUNT(never); i++)
        if (!ip_forbidden(ip(never[i])))
            fail_msg("%s must not be dialled", never[i]);
    for (size_t i = 0; i < COUNT(fine); i++)
        if (ip_forbidden(ip(fine[i])))
            fail_msg("%s is public", fine[i]);
}

static void test_only_the_plain_spelling_is_an_address(void **state)
{
    static const char *const bad[] = {"",           "1.2.3",    "1.2.3.4.5",  "01.2.3.4",
                                      "0x7f.0.0.1", "1.2.3.4 ", "2130706433", "127.1",
                                      "[::1]",      "::1%lo",   "1.2.3.256"};
    struct ip a;
    (void)state;

    for (size_t i = 0; i < COUNT(bad); i++)
        if (ip_parse(bad[i], &a))
            fail_msg("'%s' is no address", bad[i]);
    assert_true(ip_equal(ip("::ffff:1.2.3.4"), ip("1.2.3.4")));
}

static void test_networks(void **state)
{
    struct cidr c;
    struct pd_err e;
    (void)state;

    assert_int_equal(cidr_parse("203.0.113.0/24", &c, &e), 0);
    assert_true(cidr_has(&c, ip("203.0.113.255")));
    assert_false(cidr_has(&c, ip("203.0.114.0")));
    assert_false(cidr_has(&c, ip("2001:db8::1")));
    assert_int_equal(cidr_parse("10.0.0.0/9", &c, &e), 0);
    assert_true(cidr_has(&c, ip("10.127.0.1")));
    assert_false(cidr_has(&c, ip("10.128.0.1")));
    assert_int_equal(cidr_parse("0.0.0.0/0", &c, &e), 0);
    assert_true(cidr_has(&c, ip("8.8.8.8")));
    assert_false(cidr_has(&c, ip("2606:4700::1")));

    assert_int_equal(cidr_parse("203.0.113.1/24", &c, &e), -1);
    assert_non_null(strstr(e.msg, "bits behind its length"));
    assert_int_equal(cidr_parse("203.0.113.0/33", &c, &e), -1);
    assert_int_equal(cidr_parse("203.0.113.0/", &c, &e), -1);
    assert_int_equal(cidr_parse("host/8", &c, &e), -1);
}

static void test_names(void **state)
{
    static const char *const good[][2] = {{"Example.COM", "example.com"},
                                          {"example.com.", "example.com"},
                                          {"a", "a"},
                                          {"xn--bcher-kva.example", "xn--bcher-kva.example"},
                                          {"_dmarc.example", "_dmarc.example"},
                                          {"1.example", "1.example"},
                                          {"0x1g", "0x1g"}};
    static const char *const bad[] = {"",          ".",      "a..b",          ".a",        "a b",
                                      "127.0.0.1", "0x7f.1", "2130706433",    "example.1", "a.0x10",
                                      "b\xc3\xbc", "a/b",    "example.com..", "*.example"};
    char name[RULES_NAME_MAX + 1];
    char label[80], whole[300];
    (void)state;

    for (size_t i = 0; i < COUNT(good); i++) {
        if (!name_normalise(good[i][0], strlen(good[i][0]), name))
            fail_msg("'%s' is a name", good[i][0]);
        assert_string_equal(name, good[i][1]);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (name_normalise(bad[i], strlen(bad[i]), name))
            fail_msg("'%s' is no name", bad[i]);

    memset(label, 'a', sizeof label);
    assert_true(name_normalise(label, 63, name));
    assert_false(name_normalise(label, 64, name));
    memset(whole, 'a', sizeof whole);
    for (size_t i = 50; i < sizeof whole; i += 51)
        whole[i] = '.';
    assert_true(name_normalise(whole, 253, name));
    assert_false(name_normalise(whole, 255, name));
}

static void test_rules_are_read_and_written(void **state)
{
    static const char *const same[] = {
        "example.com",     "*.example.com",      "example.com:443",
        "example.com:1-9", "203.0.113.0/24",     "203.0.113.0/24:5432",
        "2001:db8::/32",   "[2001:db8::/32]:53", "0.0.0.0/0"};
    static const char *const bad[] = {"",
                                      "*",
                                      "*.",
                                      "a.*.b",
                                      "example:0",
                                      "example:65536",
                                      "example:9-1",
                                      "example:",
                                      "http://a.b",
                                      "a b",
                                      "[::1",
                                      "[::1]x",
                                      "*example.com",
                                      "10.0.0.1/8",
                                      "b\xc3\xbc.example"};
    char name[RULES_NAME_MAX + 1], text[RULES_TEXT_MAX];
    struct rule r;
    struct pd_err e;
    (void)state;

    for (size_t i = 0; i < COUNT(same); i++) {
        if (rule_parse(same[i], &r, name, &e) < 0)
            fail_msg("%s", e.msg);
        rule_text(&r, text);
        assert_string_equal(text, same[i]);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (rule_parse(bad[i], &r, name, &e) == 0)
            fail_msg("'%s' is no rule", bad[i]);
    assert_non_null(strstr(e.msg, "punycode"));
}

/* One row: a policy, a connection, and what is said of it. */
static void test_verdicts(void **state)
{
    static const struct {
        const char *policy, *name, *to;
        uint16_t port;
        enum judged how;
        const char *rule;
    } rows[] = {
        {"layer list\nallow a.example\n", "a.example", "1.1.1.1", 443, JUDGED_BY_NAME, "a.example"},
        {"layer list\nallow a.example\n", "a.example", "1.1.1.1", 80, JUDGED_BY_NAME, "a.example"},
        {"layer list\nallow a.example\n", "a.example", "1.1.1.1", 22, JUDGED_NO, NULL},
        {"layer list\nallow a.example:22\n", "a.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer list\nallow a.example\n", "b.a.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer list\nallow a.example\n", "a.example.evil.example", "1.1.1.1", 443, JUDGED_NO,
         NULL},
        {"layer list\nallow *.a.example\n", "a.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer list\nallow *.a.example\n", "b.a.example", "1.1.1.1", 443, JUDGED_BY_NAME,
         "*.a.example"},
        {"layer list\nallow *.a.example\n", "c.b.a.example", "1.1.1.1", 443, JUDGED_BY_NAME,
         "*.a.example"},
        {"layer list\nallow *.a.example\n", "xa.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer list\nallow 1.1.1.0/24\n", NULL, "1.1.1.1", 25, JUDGED_BY_ADDRESS, "1.1.1.0/24"},
        {"layer list\nallow 1.1.1.0/24\n", "x.example", "1.1.1.1", 25, JUDGED_BY_ADDRESS,
         "1.1.1.0/24"},
        {"layer list\nallow 1.1.1.0/24:443\n", NULL, "1.1.1.1", 25, JUDGED_NO, NULL},
        {"layer list\n", NULL, "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer off\nallow a.example\n", "a.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer open\n", "x.example", "1.1.1.1", 1234, JUDGED_BY_NAME, NULL},
        {"layer open\n", NULL, "1.1.1.1", 1234, JUDGED_BY_ADDRESS, NULL},
        {"layer open\ndeny 1.1.1.1\n", NULL, "1.1.1.1", 80, JUDGED_NO, NULL},
        {"layer open\ndeny 0.0.0.0/0\n", NULL, "8.8.8.8", 80, JUDGED_NO, NULL},
        {"layer open\nallow 1.1.1.1\ndeny 0.0.0.0/0\n", NULL, "1.1.1.1", 80, JUDGED_BY_ADDRESS,
         "1.1.1.1/32"},
        /* Every layer must agree. */
        {"layer open\nlayer list\nallow a.example\n", "a.example", "1.1.1.1", 443, JUDGED_BY_NAME,
         "a.example"},
        {"layer open\nlayer list\nallow a.example\n", "b.example", "1.1.1.1", 443, JUDGED_NO, NULL},
        {"layer list\nallow b.example\nlayer list\nallow *.example\n", "b.example", "1.1.1.1", 443,
         JUDGED_BY_NAME, "b.example"},
        {"layer list\nallow b.example\nlayer open\nlayer off\n", "b.example", "1.1.1.1", 443,
         JUDGED_NO, NULL},
        {"layer list\nallow a.example\nlayer list\nallow 1.1.1.1\n", "a.example", "1.1.1.1", 443,
         JUDGED_NO, NULL},
        {"tenant x\n", "a.example", "1.1.1.1", 443, JUDGED_NO, NULL},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct egress_policy *p = policy(rows[i].policy);
        struct verdict v = egress_judge(p, rows[i].name, ip(rows[i].to), rows[i].port);
        char text[RULES_TEXT_MAX] = "";
        if (v.rule)
            rule_text(v.rule, text);
        if (v.how != rows[i].how || strcmp(text, rows[i].rule ? rows[i].rule : "") != 0)
            fail_msg("row %zu: %d by '%s'", i, v.how, text);
        egress_free_policy(p);
    }
}

static void test_what_is_dialled(void **state)
{
    struct egress_policy *p =
        policy("layer open\ndeny 9.9.9.0/24\nprivate 10.0.0.0/8\nprivate 127.0.0.9\n");
    (void)state;

    assert_null(egress_dial_refused(p, NULL, ip("1.1.1.1"), 80, false));
    assert_null(egress_dial_refused(p, NULL, ip("10.1.1.1"), 80, false));
    assert_non_null(egress_dial_refused(p, NULL, ip("192.168.0.1"), 80, false));
    assert_non_null(egress_dial_refused(p, "a.example", ip("169.254.169.254"), 80, false));
    /* The machine's own, even in a network that was lifted, unless it is named alone. */
    assert_non_null(egress_dial_refused(p, NULL, ip("10.1.1.1"), 80, true));
    assert_non_null(egress_dial_refused(p, NULL, ip("1.1.1.1"), 80, true));
    assert_null(egress_dial_refused(p, NULL, ip("127.0.0.9"), 80, true));
    assert_non_null(egress_dial_refused(p, NULL, ip("127.0.0.8"), 80, true));
    /* A denied network holds behind a name, too. */
    assert_string_equal(egress_dial_refused(p, "a.example", ip("9.9.9.9"), 80, false),
                        "a denied network");
    egress_free_policy(p);

    p = policy("layer open\nallow a.example\ndeny 9.9.9.0/24\n");
    assert_null(egress_dial_refused(p, "a.example", ip("9.9.9.9"), 80, false));
    assert_non_null(egress_dial_refused(p, "b.example", ip("9.9.9.9"), 80, false));
    egress_free_policy(p);
}

static void test_who_may_be_asked_for(void **state)
{
    struct egress_policy *p =
        policy("layer list\nallow a.example:22\nallow *.b.example\nlayer open\n");
    (void)state;

    assert_true(egress_may_ask(p, "a.example"));
    assert_true(egress_may_ask(p, "x.b.example"));
    assert_false(egress_may_ask(p, "b.example"));
    assert_false(egress_may_ask(p, "c.example"));
    egress_free_policy(p);

    p = policy("layer off\nallow a.example\n");
    assert_false(egress_may_ask(p, "a.example"));
    egress_free_policy(p);
}

static void test_hosts_limits_and_resolvers(void **state)
{
    struct egress_policy *p =
        policy("layer list\nhost A.example=127.0.0.1:8443\nhost 1.1.1.1=[::1]:80\n"
               "host b.example=10.0.0.1\nlimit connections 5\nlimit rate 1000\n"
               "resolver 127.0.0.53\nresolver 127.0.0.1:5353\ntenant t\n");
    (void)state;

    const struct host_entry *h = egress_host(p, "a.example", NULL);
    assert_non_null(h);
    assert_int_equal(h->to_port, 8443);
    assert_true(ip_equal(egress_host_address(p, h), ip("192.0.2.3")));
    struct ip one = ip("1.1.1.1");
    h = egress_host(p, NULL, &one);
    assert_non_null(h);
    assert_true(ip_equal(h->to, ip("::1")));
    assert_int_equal(egress_host(p, "b.example", NULL)->to_port, 0);
    assert_null(egress_host(p, "c.example", NULL));
    assert_int_equal(p->limits.connections, 5);
    assert_int_equal(p->limits.rate, 1000);
    assert_int_equal(p->limits.questions, EGRESS_QUESTIONS);
    assert_int_equal(p->resolver_count, 2);
    assert_int_equal(p->resolvers[1].to_port, 5353);
    assert_string_equal(p->tenant, "t");
    egress_free_policy(p);
}

static void test_bad_policies_are_named(void **state)
{
    static const char *const rows[][2] = {
        {"allow a.example\n", "before its layer"},
        {"layer maybe\n", "off, list, open"},
        {"layer list\nallow\n", "has no value"},
        {"layer list\nallow a b\n", "is not NAME"},
        {"layer list\ndeny a.example\n", "only networks can be denied"},
        {"layer list\nlayer list\nlayer list\nlayer list\n", "more than 3 layers"},
        {"layer list\nfrobnicate 1\n", "line 2"},
        {"layer list\nlimit speed 1\n", "not known"},
        {"layer list\nhost a=b\n", "is not NAME=ADDRESS"},
        {"layer list\nresolver a\n", "is not ADDRESS"},
        {"layer list\nprivate x\n", "is not an address"},
        {"layer open\nallow 1.1.1.1\ndeny 2.2.2.2\nallow 3.3.3.3\n", "mixed"},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct egress_policy *p;
        struct pd_err e;
        if (egress_parse(rows[i][0], strlen(rows[i][0]), &p, &e) == 0)
            fail_msg("row %zu is no policy", i);
        if (!strstr(e.msg, rows[i][1]))
            fail_msg("row %zu: '%s'", i, e.msg);
    }
}

static void test_resolvers_of_a_machine(void **state)
{
    static const char *const rows[][2] = {
        {"", "resolver 127.0.0.1\n"},
        {"# x\nnameserver 127.0.0.53\noptions edns0\n", "resolver 127.0.0.53\n"},
        {"nameserver fe80::1%eth0\nnameserver\t2001:db8::1 # x\n", "resolver 2001:db8::1\n"},
        {"nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
         "resolver 1.1.1.1\nresolver 1.1.1.2\nresolver 1.1.1.3\n"},
        {"nameserverx 1.1.1.1\nsearch nameserver\n", "resolver 127.0.0.1\n"},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_buf out = BUF_INIT(4096);
        resolvers_parse(rows[i][0], &out);
        assert_string_equal(buf_cstr(&out), rows[i][1]);
    }
}

static void test_a_proxy_is_a_host_and_a_port(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "a.example",    "a.example:0", "a.example:x",
                                      ":1080",    "192.0.2.1",    "a..b:1",      "2001:db8::1:1080",
                                      "a b:1080", "[2001:db8::1]"};
    struct egress_proxy r;
    char name[RULES_NAME_MAX + 1];
    struct pd_err e;

    for (size_t i = 0; i < COUNT(bad); i++)
        if (proxy_parse(bad[i], &r, name, &e) == 0)
            fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(proxy_parse("Proxy.Example:1080", &r, name, &e), 0);
    assert_string_equal(r.name, "proxy.example");
    assert_int_equal(r.port, 1080);
    assert_int_equal(proxy_parse("[2001:db8::1]:1", &r, name, &e), 0);
    assert_true(!r.name && ip_equal(r.address, ip("2001:db8::1")));

    struct egress_policy *none = policy("layer open\n");
    struct egress_policy *a = policy("layer open\nproxy 203.0.113.7:1080\n");
    struct egress_policy *b = policy("layer open\nproxy 203.0.113.7:1080 dTpw\n");
    struct egress_policy *c = policy("layer open\nproxy p.example:1080 dTpw\n");
    assert_string_equal(b->proxy.credentials, "dTpw");
    assert_string_equal(c->proxy.name, "p.example");
    struct egress_policy *all[] = {none, a, b, c};
    for (size_t i = 0; i < COUNT(all); i++)
        for (size_t k = 0; k < COUNT(all); k++)
            assert_int_equal(egress_same_proxy(all[i], all[k]), i == k);
    for (size_t i = 0; i < COUNT(all); i++)
        egress_free_policy(all[i]);

    struct egress_policy *p;
    static const char two[] = "layer open\nproxy a.example:1\nproxy b.example:1\n";
    assert_int_equal(egress_parse(two, strlen(two), &p, &e), -1);
}

static void test_the_operators_word_may_be_for_all_names_below_one(void **state)
{
    (void)state;
    struct egress_policy *p = policy("layer open\nhost x.a.example=203.0.113.1\n"
                                     "host *.a.example=203.0.113.2:8443\n");

    assert_true(ip_equal(egress_host(p, "x.a.example", NULL)->to, ip("203.0.113.1")));
    assert_int_equal(egress_host(p, "y.a.example", NULL)->to_port, 8443);
    assert_non_null(egress_host(p, "z.y.a.example", NULL));
    assert_null(egress_host(p, "a.example", NULL));
    assert_null(egress_host(p, "ya.example", NULL));
    egress_free_policy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_proxy_is_a_host_and_a_port),
        cmocka_unit_test(test_the_operators_word_may_be_for_all_names_below_one),
        cmocka_unit_test(test_addresses_that_are_never_dialled),
        cmocka_unit_test(test_only_the_plain_spelling_is_an_address),
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_rules_are_read_and_written),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_what_is_dialled),
        cmocka_unit_test(test_who_may_be_asked_for),
        cmocka_unit_test(test_hosts_limits_and_resolvers),
        cmocka_unit_test(test_bad_policies_are_named),
        cmocka_unit_test(test_resolvers_of_a_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
