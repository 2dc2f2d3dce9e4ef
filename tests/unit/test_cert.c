#include "net_peer.h"

#include "base/clock.h"
#include "base/fd.h"
#include "net/conn.h"
#include "server/cert.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

static char dir[64], ca[128], ca_key[128], cert[128], key[128];

static int begin_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/test-cert-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(ca_key, sizeof ca_key, "%s/ca.key", dir);
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    return 0;
}

/* The directory must be empty when its four files are gone: nothing half-done may stay. */
static int end_dir(void **state)
{
    (void)state;
    const char *const all[] = {ca, ca_key, cert, key};
    for (size_t i = 0; i < COUNT(all); i++)
        unlink(all[i]);
    return rmdir(dir);
}

static int make(const char *const *names, unsigned days, int force, struct cert_result *ret,
                struct pd_err *e)
{
    static struct cert_names n;
    n.count = 0;
    for (; *names; names++)
        assert_int_equal(cert_names_add(&n, "name", *names, e), 0);
    struct cert_request r = {.dir = dir, .names = &n, .days = days, .force = force};
    return cert_make(&r, ret, e);
}

static const char *const usual[] = {"box.test", "*.box.test", "127.0.0.1", "::1", NULL};

static struct cert_result made_usual(void)
{
    struct cert_result r;
    struct pd_err e;
    if (make(usual, 30, 0, &r, &e) < 0)
        fail_msg("%s", e.msg);
    return r;
}

static void read_text(const char *path, char text[4096])
{
    assert_true(fd_read_file(AT_FDCWD, path, text, 4096) > 0);
}

static void write_text(const char *path, const char *text)
{
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

/* The exit status of `openssl ...`. */
static int run_openssl(const char *const *argv)
{
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);

    pid_t pid;
    int status = -1;
    int r = posix_spawnp(&pid, argv[0], &quiet, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&quiet);
    if (r)
        skip_because("there is no openssl to check with");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define openssl(...) run_openssl((const char *const[]){"openssl", __VA_ARGS__, NULL})

static void test_openssl_trusts_the_chain(void **state)
{
    (void)state;
    struct cert_result r = made_usual();
    assert_true(r.made_ca);
    assert_string_equal(r.ca, ca);
    assert_string_equal(r.cert, cert);
    assert_string_equal(r.key, key);
    assert_int_equal(
        openssl("verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", ca, cert), 0);
    assert_int_not_equal(openssl("verify", "-purpose", "sslclient", "-CAfile", ca, cert), 0);
    assert_int_not_equal(openssl("verify", "-no-CAfile", "-no-CApath", cert), 0);
    assert_int_equal(openssl("verify", "-CAfile", ca, "-verify_hostname", "8000-x.box.test", cert),
                     0);
    assert_int_not_equal(openssl("verify", "-CAfile", ca, "-verify_hostname", "a.b.box.test", cert),
                         0);
    assert_int_equal(openssl("verify", "-CAfile", ca, "-verify_ip", "::1", cert), 0);
    assert_int_not_equal(openssl("verify", "-CAfile", ca, "-verify_ip", "127.0.0.2", cert), 0);

    /* Good for 30 days: not ended in 29, ended in 31. */
    assert_int_equal(openssl("x509", "-noout", "-checkend", "2505600", "-in", cert), 0);
    assert_int_equal(openssl("x509", "-noout", "-checkend", "2678400", "-in", cert), 1);
}

static void test_keys_are_their_owners_alone(void **state)
{
    (void)state;
    mode_t before = umask(0);
    (void)made_usual();
    umask(before);

    const char *const keys[] = {ca_key, key}, *const certs[] = {ca, cert};
    struct stat st;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(stat(keys[i], &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(stat(certs[i], &st), 0);
        assert_int_equal(st.st_mode & 07777, 0644);
    }
}

struct side {
    int fd;
    struct tls_context *context;
    const char *host;
    int result;
    struct pd_err e;
};

static void *client_main(void *arg)
{
    struct side *s = arg;
    char in[8];
    struct conn *c = conn_new(s->fd, s->context, &s->e);
    s->result = -1;
    if (c && conn_set_host(c, s->host, &s->e) == 0 &&
        conn_write(c, "ping", 4, PATIENCE, &s->e) == 0 &&
        conn_read(c, in, sizeof in, deadline_in(PATIENCE), &s->e) == 4)
        s->result = 0;
    conn_free(c);
    return NULL;
}

/* Our own server and client with what was made: the client's verdict. */
static struct side handshake(const char *host)
{
    struct pd_err e;
    struct tls_context *server = tls_server_new(cert, key, &e), *client = tls_client_new(ca, &e);
    assert_true(server && client);

    int s[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    struct side side = {.fd = s[1], .context = client, .host = host};
    pthread_t t;
    pthread_create(&t, NULL, client_main, &side);

    struct conn *c = conn_new(s[0], server, &e);
    char in[8];
    if (conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e) == 4)
        (void)conn_write(c, "pong", 4, PATIENCE, &e);
    conn_free(c);

    pthread_join(t, NULL);
    tls_context_free(server);
    tls_context_free(client);
    return side;
}

static void test_our_own_client_trusts_it_for_its_names_only(void **state)
{
    (void)state;
    (void)made_usual();

    static const char *const good[] = {"box.test", "49983-abc.box.test", "127.0.0.1", "::1"};
    static const char *const bad[] = {"box2.test", "a.b.box.test", "test", "127.0.0.2"};
    for (size_t i = 0; i < COUNT(good); i++) {
        struct side s = handshake(good[i]);
        if (s.result)
            fail_msg("%s: %s", good[i], s.e.msg);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct side s = handshake(bad[i]);
        assert_int_equal(s.result, -1);
        assert_int_equal(s.e.code, PD_DENIED);
    }
}

static void test_the_authority_stays_and_the_certificate_is_renewed(void **state)
{
    (void)state;
    char ca_before[4096], ca_after[4096], before[4096], after[4096];
    (void)made_usual();

    read_text(ca, ca_before);
    read_text(cert, before);
    struct cert_result r = made_usual();
    assert_false(r.made_ca);

    read_text(ca, ca_after);
    read_text(cert, after);
    assert_string_equal(ca_before, ca_after);
    assert_string_not_equal(before, after);
    assert_int_equal(handshake("x.box.test").result, 0);
}

static void test_a_certificate_does_not_outlive_its_authority(void **state)
{
    (void)state;
    assert_int_equal(openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                             "-nodes", "-subj", "/CN=mine", "-days", "2", "-keyout", ca_key, "-out",
                             ca),
                     0);
    struct cert_result r = made_usual();
    assert_false(r.made_ca); /* one of the user's own is used */
    assert_int_equal(openssl("verify", "-purpose", "sslserver", "-CAfile", ca, cert), 0);
    assert_int_equal(openssl("x509", "-noout", "-checkend", "259200", "-in", cert), 1);
}

/* Whatever is in the way stays as it was, and nothing is written beside it. */
static void check_in_the_way(const char *path, const char *text)
{
    struct pd_err e;
    struct cert_result r;
    char now[4096];

    write_text(path, text);
    assert_int_equal(make(usual, 30, 0, &r, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_non_null(strstr(e.msg, "--force"));

    read_text(path, now);
    assert_string_equal(now, text);
    const char *const all[] = {ca, ca_key, cert, key};
    for (size_t i = 0; i < COUNT(all); i++)
        assert_int_equal(access(all[i], F_OK), strcmp(all[i], path) ? -1 : 0);
    assert_int_equal(make(usual, 30, 1, &r, &e), 0);
    assert_true(r.made_ca);
    assert_int_equal(handshake("box.test").result, 0);

    unlink(ca);
    unlink(ca_key);
    unlink(cert);
    unlink(key);
}

static void test_files_of_others_stay(void **state)
{
    (void)state;
    char foreign[4096], fresh[4096];
    (void)made_usual();
    read_text(cert, foreign); /* a certificate, of another authority */

    const char *const all[] = {ca, ca_key, cert, key};
    for (size_t i = 0; i < COUNT(all); i++)
        unlink(all[i]);
    for (size_t i = 0; i < COUNT(all); i++) {
        check_in_the_way(all[i], "something else\n");
        check_in_the_way(all[i], foreign);
    }

    /* The authority is ours and the certificate is not. */
    struct pd_err e;
    struct cert_result r = made_usual();
    write_text(cert, foreign);
    assert_int_equal(make(usual, 30, 0, &r, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_int_equal(make(usual, 30, 1, &r, &e), 0);
    assert_false(r.made_ca);

    read_text(cert, fresh);
    assert_string_not_equal(fresh, foreign);

    /* An authority whose key is another one's. */
    assert_int_equal(rename(key, ca_key), 0);
    assert_int_equal(make(usual, 30, 0, &r, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
}

static void test_a_directory_that_is_not_there(void **state)
{
    (void)state;
    struct pd_err e;
    struct cert_result r;
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(make(usual, 30, 0, &r, &e), -1);
    assert_non_null(strstr(e.msg, dir));

    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(make(usual, 0, 0, &r, &e), -1);
    assert_int_equal(make(usual, CERT_DAYS_MAX + 1, 0, &r, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(make(usual, CERT_DAYS_MAX, 0, &r, &e), 0);

    /* 825 days from its begin, which is a little ago. */
    assert_int_equal(openssl("x509", "-noout", "-checkend", "71280000", "-in", cert), 1);
}

static void test_names(void **state)
{
    (void)state;
    static struct cert_names n;
    struct pd_err e;
    char label[80], many[CERT_NAME_MAX + 2];

    memset(label, 'a', sizeof label);
    label[63] = 0;
    memset(many, 'a', sizeof many);
    for (size_t i = 50; i < sizeof many; i += 50)
        many[i] = '.';
    many[CERT_NAME_MAX] = 0;
    const char *const good[] = {"a", "a-b.c0", "*.a.b", "10.0.0.1", "fe80::1", label, many};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_int_equal(cert_names_add(&n, "x", good[i], &e), 0);
    assert_int_equal(n.count, COUNT(good));
    assert_int_equal(cert_names_add(&n, "x", "a", &e), 0); /* once is enough */
    assert_int_equal(n.count, COUNT(good));

    label[63] = 'a';
    label[64] = 0;
    many[CERT_NAME_MAX] = 'b';
    many[CERT_NAME_MAX + 1] = 0;

    const char *const bad[] = {"",    "A.b", "a..b", ".a",   "a.",  "-a",    "a-",   "*",   "*.",
                               "a.*", "a b", "a,b",  "a\nb", "a/b", "DNS:a", "*a.b", label, many};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(cert_names_add(&n, "x", bad[i], &e), -1);
        assert_int_equal(e.code, PD_INVALID);
    }

    for (unsigned i = n.count; i < CERT_NAMES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%u", i);
        assert_int_equal(cert_names_add(&n, "x", name, &e), 0);
    }
    assert_int_equal(cert_names_add(&n, "x", "one-more", &e), -1);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_openssl_trusts_the_chain, begin_dir, end_dir),
        cmocka_unit_test_setup_teardown(test_keys_are_their_owners_alone, begin_dir, end_dir),
        cmocka_unit_test_setup_teardown(test_our_own_client_trusts_it_for_its_names_only, begin_dir,
                                        end_dir),
        cmocka_unit_test_setup_teardown(test_the_authority_stays_and_the_certificate_is_renewed,
                                        begin_dir, end_dir),
        cmocka_unit_test_setup_teardown(test_a_certificate_does_not_outlive_its_authority,
                                        begin_dir, end_dir),
        cmocka_unit_test_setup_teardown(test_files_of_others_stay, begin_dir, end_dir),
        cmocka_unit_test_setup_teardown(test_a_directory_that_is_not_there, begin_dir, end_dir),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
