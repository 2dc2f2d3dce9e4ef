/* Secrets without a network: rules, seals, placeholders, blanks, and the authority of a sandbox. */
#include "unit.h"

#include "access/authority.h"
#include "access/seal.h"
#include "change/changes.h"
#include "gate/rules.h"
#include "wire/gate_msg.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

#define VALUE "v4lue-of-4-secret"
#define WORD  "pdk-secret-0123456789abcdef0123456789abcdef"
#define SEED  "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static const struct seal_key key = {{1, 2, 3}};

static void test_rules_name_a_variable_a_secret_and_a_host(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",           "K",          "K s",           "K s ",           "1K s a.example",
        "K-x s a.ex", "K s *.a.ex", "K s 192.0.2.1", "K s a.ex:80",    "K s a.ex:0",
        "K s a.ex:x", "K s a..ex",  "K s a.ex b.ex", "K  s a.example", "K s [::1]:443",
    };
    struct secret_rule r;
    struct pd_err e;

    assert_int_equal(secret_rule_parse("K s A.Example.", &r, &e), 0);
    assert_string_equal(r.host, "a.example");
    assert_int_equal(r.port, 443);
    assert_int_equal(secret_rule_parse("_k9 s.x a.example:8443", &r, &e), 0);
    assert_int_equal(r.port, 8443);
    for (size_t i = 0; i < COUNT(bad); i++)
        if (secret_rule_parse(bad[i], &r, &e) == 0)
            fail_msg("'%s' was taken", bad[i]);
}

static void test_a_gate_knows_the_hosts_of_secrets(void **state)
{
    (void)state;
    static const char text[] = "layer list\nallow a.example\nsecret K s a.example\n"
                               "secret K s b.example:8443\nallow c.example\n";
    struct egress_policy *p;
    struct secret_rule r;
    struct pd_err e;
    const char *at = text;

    assert_int_equal(egress_parse(text, strlen(text), &p, &e), 0);
    assert_int_equal(egress_changed(p, "a.example", 443, true).port, 443);
    assert_int_equal(egress_changed(p, "a.example", 80, false).port, 443);
    assert_int_equal(egress_changed(p, "b.example", 8443, true).port, 8443);
    assert_int_equal(egress_changed(p, "b.example", 80, false).port, 8443);
    /* Neither another port, nor plain HTTP where TLS is spoken, nor a name that only looks so. */
    assert_int_equal(egress_changed(p, "a.example", 8443, true).port, 0);
    assert_int_equal(egress_changed(p, "a.example", 443, false).port, 0);
    assert_int_equal(egress_changed(p, "a.example", 80, true).port, 0);
    assert_int_equal(egress_changed(p, "x.a.example", 443, true).port, 0);
    egress_free_policy(p);

    assert_true(secret_rule_next(&at, &r) && secret_rule_next(&at, &r));
    assert_string_equal(r.host, "b.example");
    assert_false(secret_rule_next(&at, &r));
}

static void test_header_rules_name_a_host_and_a_header(void **state)
{
    (void)state;
    static const char *const bad_hosts[] = {"",      "*.a.ex",     "192.0.2.1",
                                            "a..ex", "a.ex:0",     "a.ex:x",
                                            "[::1]", "a.ex:80:90", "192.0.2.0/24"};
    static const char *const bad_names[] = {"",    "Host", "host", "content-LENGTH",   "a b",
                                            "a\n", "a:",   "TE",   "Transfer-Encoding"};
    static const char *const bad_values[] = {"a\r\nX: b", "a\n", "\x7f", "\xc3\xa4"};
    static const char text[] = "layer open\nheader a.example X-A AAAA\nheader a.example\n"
                               "header b.example:8443 X-B BB==\nheader *.c X C\nheaders x\n";
    struct header_rule r;
    struct pd_err e;
    const char *at = text;

    for (size_t i = 0; i < COUNT(bad_hosts); i++)
        if (header_host_parse(bad_hosts[i], &r, &e) == 0)
            fail_msg("'%s' was taken", bad_hosts[i]);
    for (size_t i = 0; i < COUNT(bad_names); i++)
        if (header_check(bad_names[i], "x", &e) == 0)
            fail_msg("'%s' was taken", bad_names[i]);
    for (size_t i = 0; i < COUNT(bad_values); i++)
        if (header_check("X-A", bad_values[i], &e) == 0)
            fail_msg("value %zu was taken", i);
    assert_int_equal(header_check("Authorization", "Bearer a b", &e), 0);
    assert_int_equal(header_check("X", "", &e), 0);

    assert_true(header_rule_next(&at, &r));
    assert_string_equal(r.host, "a.example");
    assert_string_equal(r.name, "X-A");
    assert_int_equal(r.port, 0);
    assert_true(r.sealed_len == 4 && !memcmp(r.sealed, "AAAA", 4));
    assert_true(header_rule_next(&at, &r));
    assert_string_equal(r.host, "b.example");
    assert_int_equal(r.port, 8443);
    assert_false(header_rule_next(&at, &r));
}

static void test_a_gate_knows_the_hosts_of_headers(void **state)
{
    (void)state;
    static const char text[] = "layer open\nheader a.example\nheader b.example:8443 X-B sealed\n"
                               "secret K s c.example\nheader c.example\n";
    struct egress_policy *p;
    struct changed c;
    struct pd_err e;

    assert_int_equal(egress_parse(text, strlen(text), &p, &e), 0);
    c = egress_changed(p, "a.example", 443, true);
    assert_true(c.port == 443 && !c.is_plain);
    c = egress_changed(p, "a.example", 80, false);
    assert_true(c.port == 80 && c.is_plain);
    assert_int_equal(egress_changed(p, "a.example", 8080, false).port, 0);
    assert_int_equal(egress_changed(p, "a.example", 80, true).port, 0);
    assert_int_equal(egress_changed(p, "b.example", 443, true).port, 0);
    c = egress_changed(p, "b.example", 8443, false);
    assert_true(c.port == 8443 && c.is_plain);
    assert_false(egress_changed(p, "b.example", 8443, true).is_plain);
    /* Where there is a secret as well, nothing goes in plain. */
    c = egress_changed(p, "c.example", 80, false);
    assert_true(c.port == 443 && !c.is_plain);
    egress_free_policy(p);
}

static void test_a_seal_opens_for_what_it_was_made_for(void **state)
{
    (void)state;
    auto_buf sealed = BUF_INIT(4096), again = BUF_INIT(4096), other = BUF_INIT(4096);
    auto_buf out = BUF_INIT(4096);
    struct seal_key wrong = {{1, 2, 4}};
    struct pd_err e;

    assert_int_equal(seal_close(&key, "box.1", VALUE, strlen(VALUE), &sealed, &e), 0);
    assert_int_equal(seal_close(&key, "box.1", VALUE, strlen(VALUE), &again, &e), 0);
    assert_int_equal(seal_close(&key, "box.2", VALUE, strlen(VALUE), &other, &e), 0);
    assert_int_equal(sealed.len, again.len);
    assert_memory_equal(sealed.data, again.data, sealed.len);
    assert_memory_not_equal(sealed.data, other.data, sealed.len);
    assert_null(memmem(sealed.data, sealed.len, "v4lue", 5));

    char *text = (char *)sealed.data;
    assert_int_equal(seal_open(&key, "box.1", text, sealed.len, &out, &e), 0);
    assert_int_equal(out.len, strlen(VALUE));
    assert_memory_equal(out.data, VALUE, out.len);
    assert_int_equal(seal_open(&key, "box.2", text, sealed.len, &out, &e), -1);
    assert_int_equal(e.code, PD_DENIED);
    assert_int_equal(seal_open(&wrong, "box.1", text, sealed.len, &out, &e), -1);
    for (size_t i = 0; i < sealed.len; i++) {
        char before = text[i];
        text[i] = before == 'A' ? 'B' : 'A';
        assert_int_equal(seal_open(&key, "box.1", text, sealed.len, &out, &e), -1);
        text[i] = before;
    }
    assert_int_equal(out.len, strlen(VALUE)); /* nothing was added by what failed */
}

static void read_changes(const char *lines, char *room, struct changes *ret)
{
    struct pd_err e;
    snprintf(room, 1024, "%s", lines);
    assert_int_equal(changes_parse(room, ret, &e), 0);
}

static void test_placeholders_are_replaced_for_their_host(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out; /* NULL: left alone */
    } vectors[] = {
        {"Bearer " WORD, "Bearer " VALUE},
        {WORD WORD "x", VALUE VALUE "x"},
        {"pdk-secret-0123", NULL},
        {"", NULL},
        {VALUE, NULL},
        /* user:placeholder */
        {"Basic dXNlcjpwZGstc2VjcmV0LTAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm",
         "Basic dXNlcjp2NGx1ZS1vZi00LXNlY3JldA=="},
        {"Basic dXNlcjpw", NULL},
        {"Basic !!!", NULL},
        {"Basic ", NULL},
    };
    char room[1024];
    struct changes c;

    read_changes("authority " SEED "\nsecret " WORD " a.example 443 " VALUE "\n", room, &c);
    assert_true(changes_has(&c, "a.example", 443));
    assert_false(changes_has(&c, "a.example", 8443) || changes_has(&c, "b.example", 443));
    for (size_t i = 0; i < COUNT(vectors); i++) {
        auto_buf out = BUF_INIT(1024), none = BUF_INIT(1024);
        const char *in = vectors[i].in, *wanted = vectors[i].out;
        bool changed = changes_apply(&c, "a.example", 443, in, strlen(in), &out);
        assert_int_equal(changed, wanted != NULL);
        assert_int_equal(out.len, wanted ? strlen(wanted) : 0);
        if (wanted)
            assert_memory_equal(out.data, wanted, out.len);
        assert_false(changes_apply(&c, "b.example", 443, in, strlen(in), &none));
        assert_int_equal(none.len, 0);
    }
}

static void test_headers_are_set_for_their_host(void **state)
{
    (void)state;
    char room[1024];
    struct changes c;
    unsigned at = 0;

    read_changes("authority " SEED
                 "\nheader a.example 0 X-A one  two \nheader a.example 8443 X-B b\n"
                 "header a.example 0 X-C \n",
                 room, &c);
    assert_true(changes_has(&c, "a.example", 443) && changes_has(&c, "a.example", 80));
    assert_true(changes_has(&c, "a.example", 8443));
    assert_false(changes_has(&c, "a.example", 8080) || changes_has(&c, "b.example", 443));
    assert_false(changes_has_secrets(&c, "a.example", 443));
    assert_true(changes_sets(&c, "a.example", 443, "x-a", 3));
    assert_false(changes_sets(&c, "a.example", 443, "X-B", 3));
    assert_false(changes_sets(&c, "a.example", 443, "X-Ab", 4));
    const struct header_set *n = changes_next_set(&c, "a.example", 443, &at);
    assert_string_equal(n->value, "one  two ");
    n = changes_next_set(&c, "a.example", 443, &at);
    assert_string_equal(n->name, "X-C");
    assert_string_equal(n->value, "");
    assert_null(changes_next_set(&c, "a.example", 443, &at));
}

static void test_malformed_changes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "secret " WORD " a.example 443 " VALUE "\n",
        "authority 00\n",
        "authority " SEED "\nauthority " SEED "\n",
        "authority " SEED "\nsecret " WORD "\n",
        "authority " SEED "\nsecret " WORD " a.example 0 " VALUE "\n",
        "authority " SEED "\nsecret " WORD " a.example 443 short\n",
        "authority " SEED "\nsecret x a.example 443 " VALUE "\n",
        "authority " SEED "\nother\n",
        "authority " SEED "\nheader a.example 443 X-A\n",
        "authority " SEED "\nheader a.example 65536 X-A v\n",
        "authority " SEED "\nheader a.example x X-A v\n",
        "header a.example 443 X-A v\n",
    };
    struct changes c;
    struct pd_err e;
    char room[1024];

    for (size_t i = 0; i < COUNT(bad); i++) {
        snprintf(room, sizeof room, "%s", bad[i]);
        if (changes_parse(room, &c, &e) == 0)
            fail_msg("%zu was taken", i);
    }
}

/* The same text in one piece and cut anywhere: the same comes out, as long as it was. */
static void test_blanks_do_not_depend_on_pieces(void **state)
{
    (void)state;
    static const char text[] = "a " VALUE VALUE " v4lue-of-4-secre v4lue-" VALUE " se\\\"cret\\/1 "
                               "se%22cret%2F1 se\"cret/1 v4lue-of-4";
    size_t len = strlen(text);

    for (size_t cut = 0; cut <= len; cut++) {
        struct blank b = {0};
        auto_buf out = BUF_INIT(1024);
        assert_int_equal(blank_add(&b, VALUE, strlen(VALUE)), 0);
        assert_int_equal(blank_add(&b, "se\"cret/1", 9), 0);
        assert_true(blank_pass(&b, text, cut, false, &out));
        assert_true(blank_pass(&b, text + cut, len - cut, true, &out));
        assert_int_equal(out.len, len);
        assert_memory_equal(out.data,
                            "a ********************************** v4lue-of-4-secre v4lue-"
                            "***************** *********** ************* ********* v4lue-of-4",
                            len);
        blank_done(&b);
    }
}

static X509 *cert_of(const struct buf *pem)
{
    BIO *b = BIO_new_mem_buf(pem->data, (int)pem->len);
    X509 *x = PEM_read_bio_X509(b, NULL, NULL, NULL);
    BIO_free(b);
    assert_non_null(x);
    return x;
}

/* Does a client that trusts `ca` take the certificate for the host? */
static int is_trusted(X509 *ca, X509 *leaf, const char *host)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *c = X509_STORE_CTX_new();
    X509_STORE_add_cert(store, ca);
    X509_STORE_CTX_init(c, store, leaf, NULL);
    X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(c), host, 0);
    int r = X509_verify_cert(c) == 1;
    X509_STORE_CTX_free(c);
    X509_STORE_free(store);
    return r;
}

static void test_an_authority_is_for_its_hosts_and_follows_from_its_seed(void **state)
{
    (void)state;
    static const char *const hosts[] = {"a.example", "b.example"};
    uint8_t seed[AUTHORITY_SEED_LEN] = {7}, other[AUTHORITY_SEED_LEN] = {8};
    auto_buf ca = BUF_INIT(8192), elsewhere = BUF_INIT(8192), cert = BUF_INIT(8192),
             private = BUF_INIT(8192), foreign = BUF_INIT(8192);
    struct pd_err e;

    assert_int_equal(authority_cert(seed, hosts, 2, &ca, &e), 0);
    assert_int_equal(authority_cert(other, hosts, 2, &elsewhere, &e), 0);
    assert_int_equal(authority_leaf(seed, "a.example", &cert, &private, &e), 0);
    assert_int_equal(authority_leaf(seed, "c.example", &foreign, &private, &e), 0);
    assert_int_equal(authority_cert(seed, hosts, 0, &ca, &e), -1);

    X509 *a = cert_of(&ca), *b = cert_of(&elsewhere), *leaf = cert_of(&cert),
         *f = cert_of(&foreign);
    assert_true(is_trusted(a, leaf, "a.example"));
    assert_false(is_trusted(a, leaf, "b.example")); /* the certificate is for one */
    assert_false(is_trusted(b, leaf, "a.example")); /* another sandbox's */
    assert_false(is_trusted(a, f, "c.example"));    /* outside its constraints */
    X509_free(a);
    X509_free(b);
    X509_free(leaf);
    X509_free(f);
}

static void test_loans_survive_the_wire_and_old_gates_are_understood(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX), opened = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct gate_lend m = {.id = "x.1",
                          .sealed = "abc",
                          .host = "a.example",
                          .flow = 7,
                          .rate = 8,
                          .port = 443,
                          .is_tls = 1,
                          .first = (const uint8_t *)"\x16\0\3",
                          .first_len = 3},
                     got;
    struct gate_open o = {.id = "x.1", .policy = "layer off\n"}, back;
    struct pd_err e;

    gate_lend_encode(&out, &m);
    assert_int_equal(gate_lend_decode(&out, &got, &e), 0);
    assert_string_equal(got.host, "a.example");
    assert_int_equal(got.first_len, 3);
    assert_memory_equal(got.first, "\x16\0\3", 3);
    for (size_t len = 0; len < out.len - 3; len++) {
        struct buf cut = out;
        cut.len = len;
        assert_int_equal(gate_lend_decode(&cut, &got, &e), -1);
    }

    gate_open_encode(&opened, &o); /* without secrets: as it always was */
    assert_int_equal(gate_open_decode(&opened, &back, &e), 0);
    assert_string_equal(back.sealed, "");
    assert_int_equal(opened.len, 4 + 4 + 4 + 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_name_a_variable_a_secret_and_a_host),
        cmocka_unit_test(test_a_gate_knows_the_hosts_of_secrets),
        cmocka_unit_test(test_header_rules_name_a_host_and_a_header),
        cmocka_unit_test(test_a_gate_knows_the_hosts_of_headers),
        cmocka_unit_test(test_headers_are_set_for_their_host),
        cmocka_unit_test(test_a_seal_opens_for_what_it_was_made_for),
        cmocka_unit_test(test_placeholders_are_replaced_for_their_host),
        cmocka_unit_test(test_malformed_changes_are_refused),
        cmocka_unit_test(test_blanks_do_not_depend_on_pieces),
        cmocka_unit_test(test_an_authority_is_for_its_hosts_and_follows_from_its_seed),
        cmocka_unit_test(test_loans_survive_the_wire_and_old_gates_are_understood),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
