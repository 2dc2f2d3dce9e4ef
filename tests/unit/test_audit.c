#include "unit.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "telemetry/audit.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"
#include "telemetry/redact.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- secrets ---- */

#define R "[redacted]"

static const struct {
    const char *text, *clean;
} secrets[] = {
    {"curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: Bearer " R "'"},
    {"curl -H \"authorization: Basic Zm9vOmJhcg==\" x", "curl -H \"authorization: Basic " R "\" x"},
    {"curl -H Authorization:abc x", "curl -H Authorization:" R " x"},
    {"curl -H 'X-Api-Key: 12 34' http://x", "curl -H 'X-Api-Key: " R "' http://x"},
    {"curl -H 'Cookie: a=b; c=d' x", "curl -H 'Cookie: " R "' x"},
    {"echo Bearer abcdefghij", "echo Bearer " R},
    {"mysql --password hunter2 -h db", "mysql --password " R " -h db"},
    {"mysql --password=hunter2 -h db", "mysql --password=" R " -h db"},
    {"mysql --password='hunter 2' -h db", "mysql --password='" R "' -h db"},
    {"mysql --password \"hunter \\\" 2\" -h", "mysql --password \"" R "\" -h"},
    {"cli --api-key abc --token def run", "cli --api-key " R " --token " R " run"},
    {"cli -token def run", "cli -token " R " run"},
    {"API_KEY=abc ./run", "API_KEY=" R " ./run"},
    {"export GITHUB_TOKEN=abc; x", "export GITHUB_TOKEN=" R "; x"},
    {"export DB_PASSWORD='a b c' y", "export DB_PASSWORD='" R "' y"},
    {"SECRET=abc'def ghi'\"jkl\" y", "SECRET=" R " y"},
    {"SECRET='abc'def y", "SECRET='" R "'" R " y"},
    {"SECRET=a\\ b y", "SECRET=" R " y"},
    {"sh -c 'TOKEN=abc cmd'", "sh -c 'TOKEN=" R " cmd'"},
    {"sh -c \"TOKEN=abc\" rest", "sh -c \"TOKEN=" R "\" rest"},
    {"awsSecretAccessKey=abc", "awsSecretAccessKey=" R},
    {"curl -d '{\"password\":\"a b\",\"x\":1}'", "curl -d '{\"password\":\"" R "\",\"x\":1}'"},
    {"curl -d '{\"api_key\" : \"a\"}' y", "curl -d '{\"api_key\" : \"" R "\"}' y"},
    {"curl -d \"{\\\"token\\\": \\\"a b\\\", \\\"x\\\":1}\"",
     "curl -d \"{\\\"token\\\": \\\"" R "\\\", \\\"x\\\":1}\""},
    {"curl -d '{\"pin_token\": 1234}'", "curl -d '{\"pin_token\": " R "}'"},
    {"python -c \"api_key = 'abc'; print(1)\"", "python -c \"api_key = '" R "'; print(1)\""},
    {"os.environ['MY_TOKEN'] = 'abc'", "os.environ['MY_TOKEN'] = '" R "'"},
    {"curl 'http://x/?token=abc&y=1'", "curl 'http://x/?token=" R "&y=1'"},
    {"git clone https://bob:pw@host/x", "git clone https://bob:" R "@host/x"},
    {"curl -u bob:pw http://x", "curl -u bob:" R " http://x"},
    {"curl --user 'bob:p w' http://x", "curl --user 'bob:" R "' http://x"},
    {"curl -u sk_live_0123456789abcdef: x", "curl -u " R ": x"},
    {"git clone https://ghp_0123456789abcdefghij:x@host/x", "git clone https://" R "@host/x"},
    {"echo e2b_0123456789abcdef0123", "echo " R},
    {"x=e2b_0123456789abcdef0123", "x=" R},
    {"x=dtn_0123456789abcdef0123", "x=" R},
    {"aws configure set id AKIAIOSFODNN7EXAMPLE", "aws configure set id " R},
    {"echo ghp_0123456789abcdefghij0123 | gh", "echo " R " | gh"},
    {"echo 'sk-proj-0123456789_abcdef'", "echo '" R "'"},
    {"echo xoxb-1234567890-abc", "echo " R},
    {"echo glpat-0123456789abcdefgh", "echo " R},
    {"gcloud --token ya29.a0AfH6SMBx_0123-456789", "gcloud --token " R},
    {"id=ya29.a0AfH6SMBx_0123-456789;", "id=" R ";"},
    {"x GOCSPX-0123456789abcdef_-01", "x " R},
    {"{\"private_key\": \"-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n\"}",
     "{\"private_key\": \"" R "\"}"},
    {"jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "jwt " R},
    {"--sk-0123456789abcdef0123", "--" R},
    {"echo '-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----' > k",
     "echo '" R "' > k"},
    {"cat <<E\n-----BEGIN PRIVATE KEY-----\nabc", "cat <<E\n" R},
    /* Behind a prefix. */
    {"echo prod-e2b_0123456789abcdef0123", "echo prod-" R},
    {"echo mye2b_0123456789abcdef0123.bak", "echo my" R ".bak"},
    {"cp x backup_ghp_0123456789abcdefghij0123", "cp x backup_" R},
    {"cat keyglpat-0123456789abcdefgh", "cat key" R},
    {"./run --with-xoxb-1234567890-abc", "./run --with-" R},
    {"echo v1.eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "echo v1." R},
    {"echo id_AKIAIOSFODNN7EXAMPLE", "echo id_" R},
    {"echo my-sk-0123456789abcdef0123", "echo my-" R},
    {"--apikey-e2b_0123456789abcdef0123=x", "--apikey-" R "=x"},
    /* What is none. */
    {"apt install disk-usage-reporting-tools", "apt install disk-usage-reporting-tools"},
    {"echo xAKIAIOSFODNN7EXAMPLE", "echo xAKIAIOSFODNN7EXAMPLE"},
    {"ls shelf_0123456789abcdefghij0123", "ls shelf_0123456789abcdefghij0123"},
    {"", ""},
    {"ls -l /etc/passwd", "ls -l /etc/passwd"},
    {"PWD=/home/x OLDPWD=/ pwd", "PWD=/home/x OLDPWD=/ pwd"},
    {"echo \"$TOKEN\" $API_KEY", "echo \"$TOKEN\" $API_KEY"},
    {"TOKEN=$(cat f) x", "TOKEN=$(cat f) x"},
    {"TOKEN=\"$OTHER\" x", "TOKEN=\"$OTHER\" x"},
    {"curl -H \"Authorization: Bearer $TOKEN\"", "curl -H \"Authorization: Bearer $TOKEN\""},
    {"--author=me --key-file", "--author=me --key-file"},
    {"cat token.txt secret.py", "cat token.txt secret.py"},
    {"http://host:8080/path@x", "http://host:8080/path@x"},
    {"sk-short ghp_short AKIAshort", "sk-short ghp_short AKIAshort"},
    {"python -c 'print(\"it works\")'", "python -c 'print(\"it works\")'"},
    {"PASSWORD= cmd arg", "PASSWORD= cmd arg"},
    {"awk '{print $1}' f | sort", "awk '{print $1}' f | sort"},
};

static void test_secrets_are_taken_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(secrets); i++) {
        auto_buf out = BUF_INIT(1024), again = BUF_INIT(1024);
        redact(secrets[i].text, strlen(secrets[i].text), &out);
        const char *clean = buf_cstr(&out);
        if (strcmp(clean, secrets[i].clean) != 0)
            fail_msg("%s\nbecame   %s\ninstead  %s", secrets[i].text, clean, secrets[i].clean);
        redact(clean, strlen(clean), &again);
        if (strcmp(buf_cstr(&again), clean) != 0)
            fail_msg("%s\nbecame, the second time   %s", clean, buf_cstr(&again));
    }
}

/* Odd ends must not read behind the text: it is allocated exactly. */
static void test_redacting_stays_in_the_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(secrets); i++)
        for (size_t len = 0; len <= strlen(secrets[i].text); len++) {
            auto_buf out = BUF_INIT(1024);
            char *exact = malloc(len ? len : 1);
            assert_non_null(exact);
            memcpy(exact, secrets[i].text, len);
            redact(exact, len, &out);
            free(exact);
        }

    static const char odd[] = "'\"\\=:-@/ $&ek{}\n";
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        char text[24];
        for (size_t i = 0; i < sizeof text; i++) {
            seed = seed * 1103515245 + 12345;
            text[i] = odd[(seed >> 16) % (sizeof odd - 1)];
        }
        memcpy(text + (seed >> 20) % 10, "token", 5);
        auto_buf out = BUF_INIT(1024);
        redact(text, sizeof text, &out);
        assert_false(out.overflow);
    }
}

/* ---- the log ---- */

struct place {
    char dir[64];
    struct audit *audit;
    struct metrics *metrics;
};

static struct audit_config config_of(struct place *p, uint64_t max_bytes, unsigned keep)
{
    return (struct audit_config){.state_dir = p->dir,
                                 .enabled = 1,
                                 .max_bytes = max_bytes,
                                 .keep = keep,
                                 .metrics = p->metrics};
}

static void open_again(struct place *p, uint64_t max_bytes, unsigned keep)
{
    struct pd_err e = {.msg = ""};
    audit_free(p->audit);
    p->audit = audit_new(&(struct audit_config){.state_dir = p->dir,
                                                .enabled = 1,
                                                .max_bytes = max_bytes,
                                                .keep = keep,
                                                .metrics = p->metrics},
                         &e);
    if (!p->audit)
        fail_msg("%s", e.msg);
}

static void place_make(struct place *p)
{
    *p = (struct place){.dir = "/tmp/test_audit.XXXXXX"};
    assert_non_null(mkdtemp(p->dir));
    p->metrics = metrics_new();
    open_again(p, 1 << 20, 3);
}

static void path_of(struct place *p, const char *name, char out[128])
{
    (void)snprintf(out, 128, "%s/%s", p->dir, name);
}

static void place_remove(struct place *p)
{
    static const char *const names[] = {"audit.log",   "audit.log.1", "audit.log.2", "audit.log.3",
                                        "audit.log.4", "audit.log.5", "audit.log.6"};
    audit_free(p->audit);
    metrics_free(p->metrics);
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[128];
        path_of(p, names[i], path);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(p->dir), 0);
}

/* A file's text; "" when there is none. */
static const char *text_of(struct place *p, const char *name)
{
    static char text[1 << 20];
    char path[128];
    path_of(p, name, path);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
        text[0] = 0;
    return text;
}

static void append_text(struct place *p, const char *text)
{
    char path[128];
    path_of(p, "audit.log", path);
    auto_fd fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void write_simple(struct place *p, const char *sandbox, int n)
{
    audit_write(
        p->audit,
        &(struct audit_event){
            .sandbox = sandbox, .action = "exec", .result = "ok", .has_exit = 1, .exit_code = n});
}

/* The exit codes in audit_read's answer, as text: "1 2 3 ". */
static const char *codes(struct place *p, const char *sandbox, unsigned limit)
{
    static char text[1 << 16];
    auto_buf out = BUF_INIT(4u << 20);
    struct pd_err e = {.msg = ""};
    assert_int_equal(audit_read(p->audit, sandbox, limit, &out, &e), 0);

    json_t *list = json_loadb((const char *)out.data, out.len, 0, NULL);
    if (!list)
        fail_msg("no JSON: %.*s", (int)out.len, (const char *)out.data);

    text[0] = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *event = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(event, "sandbox")), sandbox);
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%d ",
                       (int)json_integer_value(json_object_get(event, "exit_code")));
    }

    json_decref(list);
    return text;
}

static void test_an_event_is_one_line(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    audit_write(p.audit, &(struct audit_event){.tenant = "default",
                                               .key_id = "k1",
                                               .request_id = "8f3a",
                                               .sandbox = "abc",
                                               .action = "exec",
                                               .command = "echo \"a\nb\" \xff; TOKEN=x",
                                               .user = "user",
                                               .result = "ok",
                                               .has_exit = 1,
                                               .exit_code = 3,
                                               .stopped_by = "timeout",
                                               .duration_us = 12345});
    const char *text = text_of(&p, "audit.log");
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    static const char *const expected[][2] = {
        {"tenant", "default"},
        {"key", "k1"},
        {"request", "8f3a"},
        {"sandbox", "abc"},
        {"action", "exec"},
        {"user", "user"},
        {"result", "ok"},
        {"stopped_by", "timeout"},
        {"command", "echo \"a\nb\" \xef\xbf\xbd; TOKEN=[redacted]"}};
    for (size_t i = 0; i < COUNT(expected); i++)
        assert_string_equal(json_string_value(json_object_get(v, expected[i][0])), expected[i][1]);
    assert_int_equal(json_integer_value(json_object_get(v, "exit_code")), 3);
    assert_true(json_number_value(json_object_get(v, "duration_ms")) == 12.345);
    assert_int_equal(strlen(json_string_value(json_object_get(v, "time"))), 24);
    json_decref(v);

    char path[128];
    struct stat st;
    path_of(&p, "audit.log", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    place_remove(&p);
}

static void test_words_are_joined(void **state)
{
    (void)state;
    struct place p;
    struct msg_list_writer w = MSG_LIST_WRITER_INIT;
    static const char *const words[] = {"curl", "--password",          "a b",
                                        "-d",   "{\"token\":\"x y\"}", ""};

    place_make(&p);
    for (size_t i = 0; i < COUNT(words); i++)
        assert_int_equal(msg_list_add(&w, words[i]), 0);
    audit_write(p.audit, &(struct audit_event){.action = "exec", .argv = msg_list_of(&w)});

    const char *text = text_of(&p, "audit.log");
    if (!strstr(text, "\"command\":\"curl --password '[redacted]' -d "
                      "'{\\\"token\\\":\\\"[redacted]\\\"}' ''\""))
        fail_msg("%s", text);
    assert_null(strstr(text, "exit_code"));
    assert_null(strstr(text, "sandbox"));
    msg_list_writer_done(&w);
    place_remove(&p);
}

static void test_long_commands_are_cut(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    char *big = malloc(100001);
    assert_non_null(big);

    for (int control = 0; control < 2; control++) {
        memset(big, control ? 1 : 'x', 100000);
        big[100000] = 0;
        for (size_t i = 99; i < 100000; i += 100)
            big[i] = ' ';
        audit_write(p.audit, &(struct audit_event){.action = "exec", .command = big});
    }
    free(big);
    assert_int_equal(audit_lost(p.audit), 0);

    const char *text = text_of(&p, "audit.log");
    assert_non_null(strstr(text, ",\"command_cut\":true}\n"));
    assert_true(strlen(text) < 40000);
    place_remove(&p);
}

static void test_rotation(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    open_again(&p, 1000, 2);
    for (int i = 0; i < 100; i++)
        write_simple(&p, "abc", i);
    assert_non_null(strstr(text_of(&p, "audit.log"), "\"exit_code\":99}"));
    assert_true(strlen(text_of(&p, "audit.log")) <= 1000);

    size_t one = strlen(text_of(&p, "audit.log.1")), two = strlen(text_of(&p, "audit.log.2"));
    assert_true(one > 800 && one <= 1000 && two > 800 && two <= 1000);
    assert_int_equal(strlen(text_of(&p, "audit.log.3")), 0);

    /* Reading goes on into the files that were put aside, in order. */
    const char *seen = codes(&p, "abc", 12);
    assert_string_equal(seen, "88 89 90 91 92 93 94 95 96 97 98 99 ");

    /* Fewer are kept from now on. */
    struct audit_config c = config_of(&p, 1000, 1);
    audit_reconfigure(p.audit, &c);
    for (int i = 0; i < 20; i++)
        write_simple(&p, "abc", i);
    assert_int_equal(strlen(text_of(&p, "audit.log.2")), 0);
    assert_true(strlen(text_of(&p, "audit.log.1")) > 0);
    place_remove(&p);
}

static void test_reading(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    open_again(&p, 64 << 20, 2);
    assert_string_equal(codes(&p, "abc", 10), "");
    for (int i = 0; i < 3000; i++)
        write_simple(&p, i % 3 ? "abc" : "def", i);

    /* Text that looks like a field is no field. */
    audit_write(p.audit, &(struct audit_event){.sandbox = "other",
                                               .action = "exec",
                                               .command = "\"sandbox\":\"abc\""});
    assert_string_equal(codes(&p, "def", 3), "2991 2994 2997 ");
    assert_string_equal(codes(&p, "abc", 4), "2995 2996 2998 2999 ");
    assert_string_equal(codes(&p, "ab", 4), "");
    assert_string_equal(codes(&p, "abc", 0), "");

    auto_buf out = BUF_INIT(1 << 20), small = BUF_INIT(400), odd = BUF_INIT(64);
    assert_int_equal(audit_read(p.audit, "abc", 5000, &out, NULL), 0);
    json_t *v = json_loadb((const char *)out.data, out.len, 0, NULL);
    assert_int_equal(json_array_size(v), 2000);
    json_decref(v);

    /* As many as there is room for, and still JSON. */
    assert_int_equal(audit_read(p.audit, "abc", 5000, &small, NULL), 0);
    v = json_loadb((const char *)small.data, small.len, 0, NULL);
    assert_true(json_array_size(v) > 1 && json_array_size(v) < 10);

    json_decref(v);
    assert_int_equal(audit_read(p.audit, "a\"c", 10, &odd, NULL), 0);
    assert_int_equal(audit_read(NULL, "abc", 10, &odd, NULL), 0);
    assert_string_equal(buf_cstr(&odd), "[][]");
    place_remove(&p);
}

static void test_a_line_that_a_kill_cut_in_two(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    write_simple(&p, "abc", 1);
    append_text(&p, "{\"time\":\"x\",\"sandbox\":\"abc\",\"command\":\"a}");
    open_again(&p, 1 << 20, 3);
    write_simple(&p, "abc", 2);
    assert_string_equal(codes(&p, "abc", 10), "1 2 ");
    assert_non_null(strstr(text_of(&p, "audit.log"), "a}\n{\"time\""));

    /* Nor does a line that is much too long hide the others. */
    char *big = malloc(200001);
    assert_non_null(big);

    memset(big, 'x', 200000);
    big[200000] = 0;
    append_text(&p, big);
    append_text(&p, "\n");
    free(big);

    open_again(&p, 1 << 20, 3);
    write_simple(&p, "abc", 3);
    assert_string_equal(codes(&p, "abc", 10), "1 2 3 ");
    place_remove(&p);
}

/* RLIMIT_FSIZE stands for the full disk: a write is cut short, the next one fails. */
static void test_a_full_disk_loses_lines_and_nothing_else(void **state)
{
    (void)state;
    struct place p;
    struct rlimit before, full;
    place_make(&p);
    (void)signal(SIGXFSZ, SIG_IGN);

    auto_fd null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_setup(null, LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    write_simple(&p, "abc", 1);
    size_t size = strlen(text_of(&p, "audit.log"));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);

    full = before;
    full.rlim_cur = size + 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);

    for (int i = 2; i < 6; i++)
        write_simple(&p, "abc", i);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(audit_lost(p.audit), 4);
    assert_int_equal(strlen(text_of(&p, "audit.log")), size); /* no half line */

    write_simple(&p, "abc", 6);
    assert_non_null(strstr(text_of(&p, "audit.log"), "\"action\":\"audit.lost\",\"count\":4}\n"));
    assert_string_equal(codes(&p, "abc", 10), "1 6 ");
    write_simple(&p, "abc", 7);
    assert_null(strstr(strstr(text_of(&p, "audit.log"), "audit.lost") + 1, "audit.lost"));

    auto_buf b = BUF_INIT(METRICS_MAX);
    metrics_render(p.metrics, &b);
    assert_non_null(strstr(buf_cstr(&b), "\npaddock_audit_lost_total 4\n"));
    assert_non_null(strstr(buf_cstr(&b), "\npaddock_audit_events_total 3\n"));
    log_setup(2, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    place_remove(&p);
}

static void test_a_file_that_cannot_be_opened(void **state)
{
    (void)state;
    struct place p;
    char path[128];
    auto_fd null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_setup(null, LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    place_make(&p);
    path_of(&p, "audit.log", path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang, nor a link be followed */
    write_simple(&p, "abc", 1);
    assert_int_equal(audit_lost(p.audit), 1);

    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    struct timespec second = {.tv_sec = 1, .tv_nsec = 50000000};
    (void)nanosleep(&second, NULL); /* it tries once a second */

    write_simple(&p, "abc", 2);
    assert_int_equal(audit_lost(p.audit), 2);
    assert_int_equal(unlink(path), 0);
    (void)nanosleep(&second, NULL);

    write_simple(&p, "abc", 3);
    assert_int_equal(audit_lost(p.audit), 2);
    assert_string_equal(codes(&p, "abc", 10), "3 ");

    /* Removed behind its back: the next event makes it anew. */
    assert_int_equal(unlink(path), 0);
    write_simple(&p, "abc", 4);
    assert_string_equal(codes(&p, "abc", 10), "4 ");
    log_setup(2, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    place_remove(&p);
}

static void test_switched_off(void **state)
{
    (void)state;
    struct place p;
    place_make(&p);
    struct audit_config c = config_of(&p, 1000, 1);
    c.enabled = 0;
    audit_reconfigure(p.audit, &c);
    write_simple(&p, "abc", 1);
    assert_string_equal(text_of(&p, "audit.log"), "");
    assert_int_equal(audit_lost(p.audit), 0);

    audit_write(NULL, &(struct audit_event){.action = "exec"});
    place_remove(&p);
    struct pd_err e = {.msg = ""};
    assert_null(audit_new(&(struct audit_config){.state_dir = "/nowhere"}, &e));
    assert_non_null(strstr(e.msg, "/nowhere"));
}

static void *write_much(void *arg)
{
    for (int i = 0; i < 200; i++)
        write_simple(arg, "abc", i);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct place p;
    pthread_t t[4];

    place_make(&p);
    open_again(&p, 20000, 6);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, write_much, &p), 0);

    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    auto_buf out = BUF_INIT(4u << 20);
    assert_int_equal(audit_read(p.audit, "abc", 1000, &out, NULL), 0);

    json_t *v = json_loadb((const char *)out.data, out.len, 0, NULL);
    assert_int_equal(json_array_size(v), 800);
    json_decref(v);
    place_remove(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secrets_are_taken_out),
        cmocka_unit_test(test_redacting_stays_in_the_text),
        cmocka_unit_test(test_an_event_is_one_line),
        cmocka_unit_test(test_words_are_joined),
        cmocka_unit_test(test_long_commands_are_cut),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_a_line_that_a_kill_cut_in_two),
        cmocka_unit_test(test_a_full_disk_loses_lines_and_nothing_else),
        cmocka_unit_test(test_a_file_that_cannot_be_opened),
        cmocka_unit_test(test_switched_off),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
