/* What is said to Google and what it answers: vectors of credentials, assertions, requests and
 * answers, which have the shape that Google's description gives them; and what a box that calls is
 * told. */
#include "base/err.h"
#include "box/caller.h"
#include "engine/cloudrun_api.h"
#include "engine/google_federation.h"
#include "engine/google_keys.h"
#include "unit.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCOUNT(type, uri)                                                                         \
    "{\"type\":\"" type "\",\"client_email\":\"box@p.iam.gserviceaccount.com\","                   \
    "\"private_key_id\":\"abc\",\"private_key\":\"SECRET\",\"token_uri\":\"" uri "\"}"

static void test_accounts(void **state)
{
    static const struct {
        const char *text, *says; /* says NULL: it is good */
    } rows[] = {
        {ACCOUNT("service_account", "https://oauth2.googleapis.com/token"), NULL},
        {ACCOUNT("service_account", "http://127.0.0.1:9/token"), NULL},
        {ACCOUNT("service_account", "http://192.0.2.1/token"), "token_uri"},
        {ACCOUNT("service_account", "ftp://x"), "token_uri"},
        {ACCOUNT("authorized_user", "https://x"), "authorized_user"},
        {"{\"type\":\"service_account\"}", "client_email"},
        {"{\"type\":\"service_account\",\"client_email\":\"a b\"}", "client_email"},
        {"{}", "is not the JSON file"},
        {"SECRET", "is not the JSON file"},
        {"", "is not the JSON file"},
    };
    static struct google_account a;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        int r = google_account_read(rows[i].text, strlen(rows[i].text), &a, &e);
        assert_int_equal(r, rows[i].says ? -1 : 0);
        assert_null(strstr(e.msg, "SECRET"));
        if (rows[i].says)
            assert_non_null(strstr(e.msg, rows[i].says));
    }
}

/* The text of RFC 7515's shape, worked out with another program. */
static void test_an_assertion(void **state)
{
    static struct google_account a;
    auto_buf out = BUF_INIT(4096);
    struct pd_err e;

    (void)state;
    assert_int_equal(
        google_account_read(ACCOUNT("service_account", "https://t.example/token"),
                            strlen(ACCOUNT("service_account", "https://t.example/token")), &a, &e),
        0);
    assert_int_equal(google_assertion_text(&out, &a, 1700000000, &e), 0);
    assert_string_equal(
        buf_cstr(&out),
        "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6ImFiYyJ9."
        "eyJpc3MiOiJib3hAcC5pYW0uZ3NlcnZpY2VhY2NvdW50LmNvbSIsInNjb3BlIjoiaHR0cHM6Ly93d3cuZ29vZ2xl"
        "YXBpcy5jb20vYXV0aC9jbG91ZC1wbGF0Zm9ybSIsImF1ZCI6Imh0dHBzOi8vdC5leGFtcGxlL3Rva2VuIiwiaWF0"
        "IjoxNzAwMDAwMDAwLCJleHAiOjE3MDAwMDM2MDB9");
    assert_int_equal(google_assertion_sign(&out, &a, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_null(strstr(e.msg, "SECRET"));
}

/* A fresh key's signature is good for the public key, and for this text alone. */
static void test_a_signature(void **state)
{
    static struct google_account a;
    auto_buf out = BUF_INIT(4096);
    struct pd_err e;
    EVP_PKEY *key = EVP_RSA_gen(2048);
    BIO *bio = BIO_new(BIO_s_mem());
    uint8_t signature[512];
    char text[600];

    (void)state;
    assert_true(PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1);
    int n = BIO_read(bio, a.key, sizeof a.key - 1);
    assert_true(n > 0);
    buf_puts(&out, "head.claims");
    assert_int_equal(google_assertion_sign(&out, &a, &e), 0);

    snprintf(text, sizeof text, "%s", buf_cstr(&out) + sizeof "head.claims");
    for (char *c = text; *c; c++)
        *c = *c == '-' ? '+' : *c == '_' ? '/' : *c;
    assert_int_equal(strlen(text), 342); /* 256 bytes, without padding */
    snprintf(text + 342, sizeof text - 342, "==");
    assert_int_equal(EVP_DecodeBlock(signature, (uint8_t *)text, 344), 258);
    static const char *const texts[] = {"head.claims", "head.claimx"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        EVP_MD_CTX *c = EVP_MD_CTX_new();
        assert_int_equal(EVP_DigestVerifyInit(c, NULL, EVP_sha256(), NULL, key), 1);
        int good = EVP_DigestVerify(c, signature, 256, (const uint8_t *)texts[i], strlen(texts[i]));
        assert_int_equal(good == 1, i == 0);
        EVP_MD_CTX_free(c);
    }
    BIO_free(bio);
    EVP_PKEY_free(key);
}

static void test_tokens(void **state)
{
    static const struct {
        const char *text, *token;
        unsigned life;
    } rows[] = {
        {"{\"access_token\":\"ya29.x\",\"expires_in\":3599,\"token_type\":\"Bearer\"}", "ya29.x",
         3599},
        {"{\"access_token\":\"t\"}", "t", 0},
        {"{\"access_token\":\"t\",\"expires_in\":-5}", "t", 0},
        {"{\"access_token\":\"t\",\"expires_in\":99999999}", "t", 86400},
        {"{\"access_token\":\"a\\r\\nb\"}", NULL, 0},
        {"{\"access_token\":\"\"}", NULL, 0},
        {"{\"access_token\":7}", NULL, 0},
        {"{\"access_token\":\"t\",\"token_type\":\"MAC\"}", NULL, 0},
        {"[]", NULL, 0},
    };
    static char token[GOOGLE_TOKEN];
    unsigned life;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = google_token_read(rows[i].text, strlen(rows[i].text), token, &life, &e);
        assert_int_equal(r, rows[i].token ? 0 : -1);
        if (!rows[i].token)
            continue;
        assert_string_equal(token, rows[i].token);
        assert_int_equal(life, rows[i].life);
    }
}

static void test_places(void **state)
{
    static const struct {
        struct cloudrun_place place;
        const char *says;
    } rows[] = {
        {{"p-1", "us-central1", "boxes"}, NULL},
        {{"example.com:p", "us-central1", "boxes"}, NULL},
        {{"", "us-central1", "boxes"}, "cloudrun_project"},
        {{"p", "us-central1", ""}, "cloudrun_job"},
        {{"p/../q", "us-central1", "j"}, "cloudrun_project"},
        {{"p", "us central", "j"}, "cloudrun_region"},
        {{"p", "us-central1", "j?x"}, "cloudrun_job"},
    };
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = cloudrun_check_place(&rows[i].place, &e);
        assert_int_equal(r, rows[i].says ? -1 : 0);
        if (rows[i].says)
            assert_non_null(strstr(e.msg, rows[i].says));
    }
}

static void test_requests(void **state)
{
    const struct cloudrun_place p = {"p", "r", "j"};
    const char *const words[] = {"run", "key=env", NULL};
    auto_buf out = BUF_INIT(4096);

    (void)state;
    cloudrun_list_target(&out, &p, "a/b=");
    assert_string_equal(
        buf_cstr(&out),
        "/v2/projects/p/locations/r/jobs/j/executions?pageSize=100&pageToken=a%2Fb%3D");
    buf_clear(&out);
    cloudrun_operation_target(&out, &p, "o");
    assert_string_equal(buf_cstr(&out), "/v2/projects/p/locations/r/operations/o");
    buf_clear(&out);
    cloudrun_run_body(
        &out,
        &(struct cloudrun_plan){
            .container = "c", .words = words, .variable = "K", .value = "v", .timeout_s = 600});
    assert_string_equal(buf_cstr(&out),
                        "{\"overrides\":{\"containerOverrides\":[{\"name\":\"c\",\"args\":[\"run\","
                        "\"key=env\"],\"env\":[{\"name\":\"K\",\"value\":\"v\"}]}],\"taskCount\":1,"
                        "\"timeout\":\"600s\"}}");
}

#define EXECUTION(id, label, more)                                                                 \
    "{\"name\":\"projects/1/locations/r/jobs/j/executions/" id                                     \
    "\",\"template\":{\"containers\":[{"                                                           \
    "\"args\":[\"run\",\"" label "\"]}]}" more "}"

static void test_executions(void **state)
{
    static const struct {
        const char *text, *id, *owner, *box, *why; /* id NULL: refused; why NULL: it runs */
    } rows[] = {
        {EXECUTION("j-1", "label=own/sb.x_1", ""), "j-1", "own", "sb.x_1", NULL},
        {EXECUTION("j-1", "key=env", ""), "j-1", "", "", NULL},
        {EXECUTION("j-1", "label=/x", ""), "j-1", "", "", NULL},
        {EXECUTION("j-1", "label=own/", ""), "j-1", "", "", NULL},
        {EXECUTION("j-1", "label=own/A B", ""), "j-1", "", "", NULL},
        {EXECUTION(
             "j-1", "label=o/b",
             ",\"completionTime\":\"2026-11-18T20:00:00Z\",\"conditions\":[{\"type\":\"Started\","
             "\"message\":\"no\"},{\"type\":\"Completed\",\"executionReason\":\"CANCELLED\","
             "\"message\":\"by you\\n\"}]"),
         "j-1", "o", "b", "the execution has ended (CANCELLED): by you"},
        {EXECUTION("j-1", "label=o/b", ",\"deleteTime\":\"2026-11-18T20:00:00Z\""), "j-1", "o", "b",
         "the execution has ended"},
        {EXECUTION("../x y", "label=o/b", ""), NULL, "", "", NULL},
        {"{\"name\":7}", NULL, "", "", NULL},
        {"[]", NULL, "", "", NULL},
        {"", NULL, "", "", NULL},
    };
    struct cloudrun_execution x;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = cloudrun_read_execution(rows[i].text, strlen(rows[i].text), &x, &e);
        assert_int_equal(r, rows[i].id ? 0 : -1);
        if (!rows[i].id)
            continue;
        assert_string_equal(x.id, rows[i].id);
        assert_string_equal(x.owner, rows[i].owner);
        assert_string_equal(x.box, rows[i].box);
        assert_int_equal(x.over, rows[i].why != NULL);
        assert_string_equal(x.why, rows[i].why ? rows[i].why : "");
    }
}

static int count_one(void *context, const struct cloudrun_execution *x, struct pd_err *e)
{
    (void)e;
    assert_true(x->box[0]);
    ++*(unsigned *)context;
    return 0;
}

static void test_lists_and_operations(void **state)
{
    static const char list[] = "{\"executions\":[" EXECUTION("a", "label=o/b", "") "," EXECUTION(
        "b", "x", "") "," EXECUTION("c", "label=o/c", "") "],\"nextPageToken\":\"n\"}";
    static const struct {
        const char *text, *id, *execution; /* id NULL: refused with the code */
        enum pd_code code;
    } rows[] = {
        {"{\"name\":\"projects/p/locations/r/operations/o1\"}", "o1", "", 0},
        {"{\"name\":\"operations/o1\",\"metadata\":{\"name\":\"x/executions/e1\"}}", "o1", "e1", 0},
        {"{\"name\":\"operations/o1\",\"done\":true,\"response\":{\"name\":\"x/executions/e2\"}}",
         "o1", "e2", 0},
        {"{\"name\":\"o\",\"done\":true,\"error\":{\"code\":8,\"message\":\"Quota\"}}", NULL, "",
         PD_CAPACITY},
        {"{\"name\":\"o\",\"error\":{\"code\":7}}", NULL, "", PD_DENIED},
        {"{\"name\":\"o\",\"error\":{}}", NULL, "", PD_BAD_GATEWAY},
        {"{}", NULL, "", PD_PROTOCOL},
    };
    char next[CLOUDRUN_NEXT];
    unsigned count = 0;
    struct cloudrun_operation o;
    struct pd_err e;

    (void)state;
    assert_int_equal(cloudrun_read_list(list, sizeof list - 1, next, count_one, &count, &e), 0);
    assert_int_equal(count, 2);
    assert_string_equal(next, "n");
    assert_int_equal(cloudrun_read_list("{}", 2, next, count_one, &count, &e), 0);
    assert_string_equal(next, "");
    assert_int_equal(cloudrun_read_list("[]", 2, next, count_one, &count, &e), -1);

    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = cloudrun_read_operation(rows[i].text, strlen(rows[i].text), &o, &e);
        assert_int_equal(r, rows[i].id ? 0 : -1);
        if (!rows[i].id) {
            assert_int_equal(e.code, rows[i].code);
            continue;
        }
        assert_string_equal(o.id, rows[i].id);
        assert_string_equal(o.execution, rows[i].execution);
    }
}

static void test_jobs(void **state)
{
    static const char text[] =
        "{\"template\":{\"template\":{\"maxRetries\":3,\"serviceAccount\":\"s@x\",\"containers\":["
        "{\"name\":\"c-1\",\"image\":\"i\",\"command\":[\"/box\"]},{}]}}}";
    struct cloudrun_job job;
    struct pd_err e;

    (void)state;
    assert_int_equal(cloudrun_read_job(text, sizeof text - 1, &job, &e), 0);
    assert_string_equal(job.container, "c-1");
    assert_string_equal(job.account, "s@x");
    assert_string_equal(job.entry, "/box");
    assert_int_equal(job.containers, 2);
    assert_int_equal(job.retries, 3);
    assert_int_equal(cloudrun_read_job("{}", 2, &job, &e), -1);
}

static void test_where_a_box_calls(void **state)
{
    static const struct {
        const char *text, *host, *port; /* host NULL: refused */
    } rows[] = {
        {"boxes.example.org:7443", "boxes.example.org", "7443"},
        {"192.0.2.1:1", "192.0.2.1", "1"},
        {"[2001:db8::1]:7443", "2001:db8::1", "7443"},
        {"2001:db8::1:7443", NULL, ""},
        {"host", NULL, ""},
        {":1", NULL, ""},
        {"host:", NULL, ""},
        {"host:0", NULL, ""},
        {"host:65536", NULL, ""},
        {"a b:1", NULL, ""},
        {"[]:1", NULL, ""},
        {"-x:1", NULL, ""},
    };
    char pin[2 * CALLER_PIN + 1];
    struct caller c;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = caller_read_place(rows[i].text, &c, &e);
        assert_int_equal(r, rows[i].host ? 0 : -1);
        if (!rows[i].host)
            continue;
        assert_string_equal(c.host, rows[i].host);
        assert_string_equal(c.port, rows[i].port);
    }

    memset(pin, '0', sizeof pin);
    pin[sizeof pin - 1] = 0;
    assert_int_equal(caller_read_pin(pin, &c, &e), -1);
    pin[1] = '4';
    pin[sizeof pin - 2] = 'f';
    assert_int_equal(caller_read_pin(pin, &c, &e), 0);
    assert_int_equal(c.pin[0], 4);
    assert_int_equal(c.pin[CALLER_PIN - 1], 15);
    assert_int_equal(caller_read_pin(pin + 1, &c, &e), -1);
    pin[5] = 'g';
    assert_int_equal(caller_read_pin(pin, &c, &e), -1);
}

/* ---- federated identities ---- */

#define FEDERATION(more)                                                                           \
    "{\"type\":\"external_account\",\"audience\":\"//iam/"                                         \
    "p\",\"subject_token_type\":\"urn:jwt\"," more
#define STS(url) "\"token_url\":\"" url "\","
#define FROM(source)                                                                               \
    STS("https://sts.googleapis.com/v1/token") "\"credential_source\":{" source "}}"

static void test_federations(void **state)
{
    static const struct {
        const char *text, *says; /* says NULL: it is good */
    } rows[] = {
        {FEDERATION(FROM("\"file\":\"/run/token\"")), NULL},
        {FEDERATION(
             FROM("\"url\":\"http://169.254.169.254/metadata?a=b\",\"headers\":{\"M\":\"a b\"}")),
         NULL},
        {FEDERATION(FROM("\"file\":\"f\",\"format\":{\"type\":\"text\"}")), NULL},
        {FEDERATION(FROM("")), "'file' or 'url'"},
        {FEDERATION(FROM("\"file\":\"f\",\"url\":\"https://x\"")), "'file' or 'url'"},
        {FEDERATION(FROM("\"url\":\"http://192.0.2.1/x\"")), "url"},
        {FEDERATION(FROM("\"url\":\"https://x/a b\"")), "url"},
        {FEDERATION(FROM("\"url\":\"https://x/a#b\"")), "url"},
        {FEDERATION(FROM("\"url\":\"https://x\",\"headers\":{\"A\":\"b\\r\\nC: d\"}")), "headers"},
        {FEDERATION(FROM("\"url\":\"https://x\",\"headers\":{\"A: b\":\"c\"}")), "headers"},
        {FEDERATION(FROM("\"url\":\"https://x\",\"headers\":{\"A\":7}")), "headers"},
        {FEDERATION(FROM("\"file\":\"f\",\"format\":{\"type\":\"xml\"}")), "xml"},
        {FEDERATION(FROM("\"file\":\"f\",\"format\":{\"type\":\"json\"}")),
         "subject_token_field_name"},
        {FEDERATION(FROM("\"executable\":{\"command\":\"id\"}")), "'executable'"},
        {FEDERATION(FROM("\"environment_id\":\"aws1\"")), "'environment_id'"},
        {FEDERATION(STS("http://sts.example/x") "\"credential_source\":{\"file\":\"f\"}}"),
         "token_url"},
        {FEDERATION("\"credential_source\":{\"file\":\"f\"}}"), "'token_url'"},
        {FEDERATION("\"service_account_impersonation\":{\"token_lifetime_seconds\":5}," FROM(
             "\"file\":\"f\"")),
         "token_lifetime_seconds"},
        {"[]", "'audience'"},
        {"", "'audience'"},
    };
    static struct google_federation f;
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        int r = google_federation_read(rows[i].text, strlen(rows[i].text), &f, &e);
        if (r != (rows[i].says ? -1 : 0) || (r < 0 && !strstr(e.msg, rows[i].says)))
            fail_msg("row %zu: %s", i, e.msg);
        assert_int_equal(google_is_federation(rows[i].text, strlen(rows[i].text)),
                         rows[i].text[0] == '{');
    }
}

static void test_a_federations_requests(void **state)
{
    static const char text[] = FEDERATION(
        "\"service_account_impersonation_url\":\"https://iam.example/v1/a@b.c:generate\"," FROM(
            "\"url\":\"https://"
            "x.example?a=b\",\"format\":{\"type\":\"json\",\"subject_token_field_name\":\"v\"}"));
    static struct google_federation f;
    static char subject[GOOGLE_SUBJECT], token[GOOGLE_TOKEN];
    struct pd_err e = {.msg = ""};
    auto_buf form = BUF_INIT(4096), body = BUF_INIT(512);
    (void)state;

    assert_int_equal(google_federation_read(text, sizeof text - 1, &f, &e), 0);
    assert_string_equal(f.source.base, "https://x.example");
    assert_string_equal(f.source.target, "/?a=b");
    assert_string_equal(f.impersonate.target, "/v1/a@b.c:generate");

    assert_int_equal(google_subject_read(&f, "{\"v\":\"a+b\"}", 11, subject, &e), 0);
    google_federate_form(&form, &f, subject);
    assert_string_equal(
        buf_cstr(&form),
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange"
        "&audience=%2F%2Fiam%2Fp"
        "&scope=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform"
        "&requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token"
        "&subject_token=a%2Bb&subject_token_type=urn%3Ajwt");
    google_impersonate_body(&body, &f);
    assert_string_equal(buf_cstr(&body),
                        "{\"scope\":[\"" GOOGLE_SCOPE "\"],\"lifetime\":\"3600s\"}");

    assert_int_equal(google_subject_read(&f, "{\"w\":\"a\"}", 9, subject, &e), -1);
    assert_int_equal(google_subject_read(&f, "a", 1, subject, &e), -1);
    f.field[0] = 0;
    assert_int_equal(google_subject_read(&f, "a b", 3, subject, &e), -1);
    assert_int_equal(google_subject_read(&f, "\r\n", 2, subject, &e), -1);
    assert_int_equal(google_subject_read(&f, "a\r\n", 3, subject, &e), 0);
    assert_string_equal(subject, "a");

    assert_int_equal(google_impersonated_read("{\"accessToken\":\"t\"}", 19, token, &e), 0);
    assert_int_equal(google_impersonated_read("{\"accessToken\":\"t\\n\"}", 21, token, &e), -1);
    assert_int_equal(google_impersonated_read("{}", 2, token, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounts),    cmocka_unit_test(test_an_assertion),
        cmocka_unit_test(test_a_signature), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_places),      cmocka_unit_test(test_requests),
        cmocka_unit_test(test_executions),  cmocka_unit_test(test_lists_and_operations),
        cmocka_unit_test(test_jobs),        cmocka_unit_test(test_where_a_box_calls),
        cmocka_unit_test(test_federations), cmocka_unit_test(test_a_federations_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
