#include "unit.h"

#include "base/banned.h"
#include "base/fd.h"
#include "config/config.h"
#include "config/config_table.h"
#include "telemetry/log.h"
#include "wire/spec.h"

#include <fcntl.h>
#include <sys/stat.h>

/* A file of its own for each test program; without one the host's would count. */
static char file[64];

static void write_file(const char *text)
{
    auto_fd fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static int make_file(void **state)
{
    (void)state;
    (void)snprintf(file, sizeof file, "/tmp/test_config.XXXXXX");
    auto_fd fd = mkstemp(file);
    return fd < 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(file);
}

#define LIST(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__ __VA_OPT__(, ) NULL                                                            \
    }

static int count(const char *const *list)
{
    int n = 0;
    while (list && list[n])
        n++;
    return n;
}

static struct config *try_load(const char *text, const char *const *environ_list,
                               const char *const *argv, struct pd_err *e)
{
    write_file(text);
    struct config_input in = {
        .file = file, .environ = environ_list, .argv = argv, .argc = count(argv)};
    return config_load(&in, e);
}

static struct config *load(const char *text, const char *const *environ_list,
                           const char *const *argv)
{
    struct pd_err e = {.msg = ""};
    struct config *c = try_load(text, environ_list, argv, &e);
    if (!c)
        fail_msg("refused: %s", e.msg);
    return c;
}

static void check_refused(const char *text, const char *const *environ_list,
                          const char *const *argv, const char *one, const char *two)
{
    struct pd_err e = {.msg = ""};
    struct config *c = try_load(text, environ_list, argv, &e);
    if (c)
        fail_msg("accepted: %s", text);
    assert_int_equal(e.code, PD_INVALID);
    if (!strstr(e.msg, one) || !strstr(e.msg, two))
        fail_msg("'%s' and '%s' expected in: %s", one, two, e.msg);
}

static void test_the_table_is_sound(void **state)
{
    (void)state;
    struct config *c = calloc(1, sizeof *c);
    assert_non_null(c);

    for (unsigned i = 0; i < config_key_count; i++) {
        const struct config_key *k = &config_keys[i];
        struct pd_err e = {.msg = ""};

        /* A number without a default follows from the machine. */
        char least[32];
        (void)snprintf(least, sizeof least, "%ju", (uintmax_t)k->min);

        const char *value =
            config_is_derived(k) ? (k->type == CONFIG_CORES ? "1" : least) : k->value;
        if (config_set(c, k, k->name, value, &e) < 0)
            fail_msg("%s: default '%s': %s", k->name, k->value, e.msg);
        assert_non_null(k->help);
        assert_null(strchr(k->help, '|'));
        for (unsigned j = 0; j < i; j++) {
            assert_string_not_equal(config_keys[j].name, k->name);
            assert_int_not_equal(config_keys[j].offset, k->offset);
        }
        assert_ptr_equal(config_find(k->name, strlen(k->name), 0), k);

        /* What is shown can be read again and is then the same. */
        auto_buf shown = BUF_INIT(4096), again = BUF_INIT(4096);
        config_show(c, k, &shown);
        const char *text = buf_cstr(&shown);
        assert_int_equal(config_set(c, k, k->name, text, NULL), 0);
        config_show(c, k, &again);
        assert_string_equal(buf_cstr(&again), text);
    }

    config_free(c);
}

static void test_defaults(void **state)
{
    (void)state;
    struct config *c = load("", LIST("HOME=/home/x", "XDG_RUNTIME_DIR=/run/user/7"), NULL);
    const struct limits l = LIMITS_DEFAULT;

    assert_int_equal(c->listen.count, 1);
    assert_string_equal(c->listen.items[0], "127.0.0.1:8090");
    assert_string_equal(c->domain, "localhost");
    assert_string_equal(c->default_template, "default");
    assert_int_equal(c->max_sandboxes, 200);
    assert_int_equal(c->max_sandboxes_per_tenant, 100);
    assert_int_equal(c->queue_max, 100);
    assert_int_equal(c->queue_timeout_ms, 30000);
    assert_int_equal(c->pool_min, 2);
    assert_int_equal(c->pool_max, 8);
    assert_int_equal(c->idle_timeout_ms, 1800000);
    assert_int_equal(c->ceilings.life_ms, 86400000);
    assert_int_equal(c->memory_bytes, l.memory);
    assert_int_equal(c->pids, l.pids);
    assert_int_equal(c->cpu_milli, l.cpu_milli);
    assert_int_equal(c->disk_bytes, l.disk);
    assert_int_equal(c->files, l.files);
    assert_int_equal(c->storage, CONFIG_STORAGE_AUTO);
    assert_int_equal(c->exec_timeout_ms, 30000);
    assert_int_equal(c->output_max_bytes, 1 << 20);
    assert_int_equal(c->spool_max_bytes, 64 << 20);
    assert_int_equal(c->log_level, LOG_LEVEL_INFO);
    assert_int_equal(c->log_format, LOG_FORMAT_TEXT);
    assert_int_equal(c->audit, 1);
    assert_int_equal(c->audit_max_bytes, 64 << 20);
    assert_int_equal(c->audit_keep, 5);
    assert_int_equal(c->drain_timeout_ms, 10000);

    int root = geteuid() == 0;
    assert_string_equal(c->state_dir, root ? "/var/lib/paddock" : "/home/x/.local/share/paddock");
    assert_string_equal(c->run_dir, root ? "/run/paddock" : "/run/user/7/paddock");
    assert_string_equal(c->keeper_socket,
                        root ? "/run/paddock/keeper.sock" : "/run/user/7/paddock/keeper.sock");
    assert_string_equal(c->unix_socket,
                        root ? "/run/paddock/paddock.sock" : "/run/user/7/paddock/paddock.sock");
    assert_string_equal(c->tls_cert, "");
    assert_string_equal(config_notes(c), "");
    config_free(c);
}

static void test_sources_in_their_order(void **state)
{
    (void)state;
    static const char text[] = "# limits\n"
                               "pids = 10\n"
                               "\tcpu=0.5   # half\n"
                               "memory_bytes = 64M\r\n"
                               "burst = 7\n"
                               "\n"
                               "audit = off\n"
                               "log_format = json\n"
                               "idle_timeout_s = 5m";
    struct config *c = load(text, LIST("PADDOCK_PIDS=11", "PADDOCK_CPU=0.75", "PADDOCK_BURST="),
                            LIST("--pids", "12", "--log-level=debug"));
    assert_int_equal(c->pids, 12);
    assert_int_equal(c->cpu_milli, 750);
    assert_int_equal(c->memory_bytes, 64 << 20);
    assert_int_equal(c->burst, 7); /* an empty variable is none */
    assert_int_equal(c->audit, 0);
    assert_int_equal(c->idle_timeout_ms, 300000);
    assert_int_equal(c->log_format, LOG_FORMAT_JSON);
    assert_int_equal(c->log_level, LOG_LEVEL_DEBUG);

    auto_buf out = BUF_INIT(1 << 16);
    config_print(c, &out);
    const char *shown = buf_cstr(&out);
    assert_non_null(strstr(shown, "# option --pids\n"));
    assert_non_null(strstr(shown, "# environment PADDOCK_CPU\n"));
    assert_non_null(strstr(shown, ":4\n"));
    assert_non_null(strstr(shown, "memory_bytes             = 67108864 "));
    assert_non_null(strstr(shown, "# default\n"));
    config_free(c);
}

static void test_what_is_printed_can_be_loaded(void **state)
{
    (void)state;
    struct config *c = load("listen = a:1, [::1]:2\nallowed_hosts = x\nallowed_hosts = y z\n",
                            LIST("HOME=/h"), LIST("--cpu", "1.25", "--user", "joe"));
    auto_buf out = BUF_INIT(1 << 16);
    config_print(c, &out);
    struct config *d = load(buf_cstr(&out), NULL, NULL);
    assert_int_equal(d->listen.count, 2);
    assert_string_equal(d->listen.items[1], "[::1]:2");
    assert_int_equal(d->allowed_hosts.count, 3);
    assert_string_equal(d->allowed_hosts.items[2], "z");
    assert_int_equal(d->cpu_milli, 1250);
    assert_string_equal(d->user, "joe");

    for (unsigned i = 0; i < config_key_count; i++) {
        auto_buf one = BUF_INIT(4096), two = BUF_INIT(4096);
        config_show(c, &config_keys[i], &one);
        config_show(d, &config_keys[i], &two);
        assert_string_equal(buf_cstr(&one), buf_cstr(&two));
    }
    config_free(c);
    config_free(d);
}

static void test_lists(void **state)
{
    (void)state;
    struct config *c =
        load("listen = 1.2.3.4:5\n", LIST("PADDOCK_ALLOWED_HOSTS=a, b,,c"),
             LIST("--listen", "127.0.0.1:1", "--listen=unix:/x", "--unix-socket", "none"));

    assert_int_equal(c->listen.count, 2);
    assert_string_equal(c->listen.items[0], "127.0.0.1:1");
    assert_string_equal(c->listen.items[1], "unix:/x");
    assert_int_equal(c->allowed_hosts.count, 3);
    assert_string_equal(c->unix_socket, "");
    config_free(c);

    char many[200] = "listen = ";
    for (int i = 0; i <= 32; i++)
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), "a ");
    check_refused(many, NULL, NULL, "conf", "more than 32 values");
}

static void test_older_names(void **state)
{
    (void)state;
    struct config *c = load("pool_max = 3\npool_min = 1\n",
                            LIST("MAX_POOL_SIZE=20", "SANDBOX_MODE=fargate", "SANDBOX_PROVIDER=e2b",
                                 "E2B_API_KEY=e2b_topsecret", "STIGMER_SANDBOX_TTL=3600",
                                 "PADDOCK_POOL_SIZE=4", "PADDOCK_API_KEY=e2b_topsecret"),
                            NULL);
    assert_int_equal(c->pool_max, 20);
    assert_int_equal(c->ceilings.life_ms, 3600000);
    assert_string_equal(c->sandbox_mode, "fargate");
    const char *notes = config_notes(c);
    assert_non_null(strstr(notes, "MAX_POOL_SIZE is an older name: use pool_max\n"));
    assert_non_null(strstr(notes, "SANDBOX_PROVIDER is ignored: SANDBOX_MODE is set, too\n"));
    assert_non_null(strstr(notes, "E2B_API_KEY is ignored: it is for the e2b provider\n"));
    assert_non_null(strstr(notes, "PADDOCK_POOL_SIZE is ignored: there is no such key\n"));
    assert_null(strstr(notes, "PADDOCK_API_KEY"));
    auto_buf text = BUF_INIT(1 << 16), json = BUF_INIT(1 << 16);
    config_print(c, &text);
    config_print_json(c, &json);
    assert_non_null(strstr(buf_cstr(&text), "environment MAX_POOL_SIZE (older name)"));
    assert_non_null(strstr(buf_cstr(&text), "\n# MAX_POOL_SIZE is an older name"));
    assert_null(strstr(buf_cstr(&text), "topsecret"));
    assert_non_null(strstr(buf_cstr(&json), "\"key\":\"pool_max\",\"value\":\"20\","));
    assert_non_null(strstr(buf_cstr(&json), "\"SANDBOX_PROVIDER is ignored"));
    assert_null(strstr(buf_cstr(&json), "topsecret"));
    config_free(c);

    c = load("", LIST("MAX_POOL_SIZE=20", "PADDOCK_POOL_MAX=9"), NULL);
    assert_int_equal(c->pool_max, 9);
    config_free(c);
    c = load("", LIST("MAX_POOL_SIZE=1"), NULL);
    assert_int_equal(c->pool_min, 1); /* not above the maximum */
    config_free(c);
    check_refused("", LIST("MAX_POOL_SIZE=many"), NULL, "MAX_POOL_SIZE", "pool_max");
    /* What a shell of a client's has set keeps no server from starting. */
    c = load("", LIST("SANDBOX_MODE=remote", "SANDBOX_PROVIDER=jail"), NULL);
    assert_string_equal(c->sandbox_mode, "jail");
    assert_non_null(strstr(config_notes(c), "SANDBOX_MODE=remote is for clients: ignored\n"));
    config_free(c);
}

static void test_bad_files_are_named(void **state)
{
    (void)state;
    const char *name = strrchr(file, '/') + 1;
    check_refused("\npids = x\n", NULL, NULL, name, ":2: pids: 'x'");
    check_refused("pids = 1\n", NULL, NULL, ":1: pids: '1'", "2");
    check_refused("pdis = 10\n", NULL, NULL, ":1: unknown key 'pdis'", "did you mean pids?");
    check_refused("memory = 1\n", NULL, NULL, "unknown key 'memory'", "memory_bytes?");
    check_refused("zzzzzzzzz = 1\n", NULL, NULL, "unknown key", "lists the valid keys");
    check_refused("pids = 10\npids = 10\n", NULL, NULL, ":2: pids is given twice", "line 1");

    check_refused("pids\n", NULL, NULL, ":1: 'pids'", "`key = value`");
    check_refused("= 3\n", NULL, NULL, ":1:", "`key = value`");
    check_refused("PIDS = 3\n", NULL, NULL, ":1:", "`key = value`");
    check_refused("[server]\n", NULL, NULL, ":1:", "no sections");
    check_refused("user = \"joe\n", NULL, NULL, ":1: user", "quotes");
    check_refused("user = \"joe\" x\n", NULL, NULL, ":1: user", "quotes");
    check_refused("user = jo\x01\n", NULL, NULL, ":1:", "control character");

    check_refused("log_level = loud\n", NULL, NULL, "'loud'", "debug, info, warn, error");
    check_refused("audit = maybe\n", NULL, NULL, "'maybe'", "on nor off");
    check_refused("state_dir = here\n", NULL, NULL, "state_dir: 'here'", "absolute path");
    check_refused("queue_timeout_s = 2h\n", NULL, NULL, "'2h'", "0 to 3600 seconds");
    check_refused("queue_timeout_s = -1\n", NULL, NULL, "'-1'", "");
    check_refused("cpu = 0.001\n", NULL, NULL, "cpu: '0.001'", "");

    check_refused("domain = UPPER\n", NULL, NULL, "domain", "lower case");
    check_refused("tls_cert = /x\n", NULL, NULL, "tls_key is missing", "");
    check_refused("pool_min = 9\n", NULL, NULL, "pool_min (9)", "pool_max (8)");
    check_refused("listen = \nunix_socket = none\n", NULL, NULL, "nothing to listen on", "");
}

static void test_tls_addresses(void **state)
{
    (void)state;
    char domain[CONFIG_DOMAIN_SIZE];
    struct config *c = load("", NULL, NULL);
    assert_int_equal(c->listen_tls.count, 0);
    config_public_domain(c, domain, sizeof domain);
    assert_string_equal(domain, "");
    config_free(c);

    static const char cert[] = "tls_cert = /c\ntls_key = /k\ndomain = box.test\n";
    static const struct {
        const char *address, *domain;
    } rows[] = {{"0.0.0.0:8443", "box.test:8443"},
                {"0.0.0.0:443 0.0.0.0:8443", "box.test"},
                {"[::]:1, 127.0.0.1:2", "box.test:1"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        c = load(cert, NULL, LIST("--listen-tls", rows[i].address));
        config_public_domain(c, domain, sizeof domain);
        assert_string_equal(domain, rows[i].domain);
        assert_int_equal(c->listen.count, 1);
        config_public_domain(c, domain, 8); /* too small: rather none than a part of one */
        assert_string_equal(domain, "");
        config_free(c);
    }
    c = load(cert, NULL, LIST("--listen-tls", "0.0.0.0:1", "--listen=", "--unix-socket=none"));
    assert_int_equal(c->listen.count, 0);
    config_free(c);

    check_refused("listen_tls = 0.0.0.0:8443\n", NULL, NULL, "listen_tls needs tls_cert",
                  "`paddock cert`");
    static const char *const wrong[] = {"0.0.0.0", "0.0.0.0:", "0.0.0.0:0", "fd:3", "a:65536"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        check_refused(cert, NULL, LIST("--listen-tls", wrong[i]), wrong[i], "not of the form");
    check_refused(cert, NULL, LIST("--listen-tls", "unix:/x"), "unix:/x", "put it into listen");
}

static void test_other_names_of_templates(void **state)
{
    (void)state;
    struct config *c = load("", NULL, NULL);
    assert_int_equal(c->max_snapshots_per_tenant, 100);
    assert_string_equal(config_template(c, "code-interpreter-v1"), "base");
    assert_null(config_template(c, "code-interpreter"));
    assert_null(config_template(c, ""));
    config_free(c);
    c = load("templates = a=b, team/Py:3.12=default\ntemplates = x=y=z\n", NULL, NULL);
    assert_null(config_template(c, "code-interpreter-v1"));
    assert_string_equal(config_template(c, "team/Py:3.12"), "default");
    assert_string_equal(config_template(c, "x"), "y=z");
    config_free(c);
    c = load("templates =\n", NULL, NULL);
    assert_int_equal(c->templates.count, 0);
    config_free(c);

    char name[160] = "templates = ";
    memset(name + 12, 'n', 129);
    (void)snprintf(name + 12 + 129, 8, "=x");
    check_refused(name, NULL, NULL, "templates", "1 to 128");
    (void)snprintf(name + 12 + 128, 8, "=x");
    config_free(load(name, NULL, NULL));
    check_refused("templates = a=\n", NULL, NULL, "'a='", "NAME=TEMPLATE");
    check_refused("templates = =a\n", NULL, NULL, "'=a'", "NAME=TEMPLATE");
    check_refused("templates = a\n", NULL, NULL, "'a'", "NAME=TEMPLATE");
    check_refused("templates = a$=b\n", NULL, NULL, "'a$=b'", "NAME=TEMPLATE");
    check_refused("templates = a=b b=c a=d\n", NULL, NULL, "'a'", "twice");
}

static void test_modules_that_are_imported_in_advance(void **state)
{
    (void)state;
    struct config *c = load("contexts_warm = numpy, a.b_1\n", NULL, NULL);
    assert_int_equal(c->contexts_warm_pool, 0);
    assert_int_equal(c->contexts_warm.count, 2);
    assert_string_equal(c->contexts_warm.items[1], "a.b_1");
    config_free(c);

    check_refused("contexts_warm = numpy,os;system\n", NULL, NULL, "'os;system'", "no module");
    char name[160] = "contexts_warm = ";
    memset(name + 16, 'n', 101);
    check_refused(name, NULL, NULL, "contexts_warm", "1 to 100");
    name[16 + 100] = 0;
    config_free(load(name, NULL, NULL));
}

static void test_quotes_and_comments(void **state)
{
    (void)state;
    struct config *c = load("user = \" a # b \" # c\ndomain = x#y.z # d\n"
                            "default_template=base#1\ntls_cert = # none\n",
                            NULL, LIST("--domain", "ok"));
    assert_string_equal(c->user, " a # b ");
    assert_string_equal(c->default_template, "base#1");
    assert_string_equal(c->tls_cert, "");
    config_free(c);
}

static void test_bad_flags_are_named(void **state)
{
    (void)state;
    check_refused("", NULL, LIST("--max-sandboxs", "5"), "'--max-sandboxs'", "--max-sandboxes?");
    check_refused("", NULL, LIST("--max_sandboxes", "5"), "'--max_sandboxes'", "");
    check_refused("", NULL, LIST("--max-sandboxes"), "--max-sandboxes needs a value", "");
    check_refused("", NULL, LIST("--max-sandboxes", "0"), "--max-sandboxes: '0'", "");
    check_refused("", NULL, LIST("5"), "unexpected argument '5'", "--");
    check_refused("", NULL, LIST("--"), "unexpected argument '--'", "");
    check_refused("", NULL, LIST("-h"), "unexpected argument '-h'", "");
    check_refused("", LIST("PADDOCK_PIDS=x"), NULL, "PADDOCK_PIDS: 'x'", "");
}

static void test_a_relative_path_on_the_command_line(void **state)
{
    (void)state;
    char here[4096], expected[5000];
    assert_non_null(getcwd(here, sizeof here));
    (void)snprintf(expected, sizeof expected, "%s/state", here);
    struct config *c = load("", NULL, LIST("--state-dir", "state"));
    assert_string_equal(c->state_dir, expected);
    config_free(c);
}

static void test_which_file(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    char variable[80], flag[80];
    write_file("pids = 77\n");
    (void)snprintf(variable, sizeof variable, "PADDOCK_CONFIG=%s", file);
    (void)snprintf(flag, sizeof flag, "--config=%s", file);

    struct config *c = config_load(&(struct config_input){.environ = LIST(variable)}, &e);
    assert_non_null(c);
    assert_int_equal(c->pids, 77);
    config_free(c);

    c = config_load(&(struct config_input){.environ = LIST("PADDOCK_CONFIG=/nowhere/x"),
                                           .argv = LIST(flag, "--cpu", "2"),
                                           .argc = 3},
                    &e);
    assert_non_null(c);
    assert_int_equal(c->pids, 77);
    config_free(c);

    assert_null(
        config_load(&(struct config_input){.argv = LIST("--config", "/nowhere/x"), .argc = 2}, &e));
    assert_non_null(strstr(e.msg, "/nowhere/x"));
    assert_null(config_load(&(struct config_input){.file = "/"}, &e));
    assert_non_null(strstr(e.msg, "not a regular file"));
    assert_null(config_load(&(struct config_input){.file = "/dev/zero"}, &e));
}

static void test_a_file_that_is_too_large(void **state)
{
    (void)state;
    char *big = malloc(CONFIG_FILE_MAX + 10);
    assert_non_null(big);
    memset(big, '\n', CONFIG_FILE_MAX + 9);
    big[CONFIG_FILE_MAX + 9] = 0;
    check_refused(big, NULL, NULL, "larger than", "262144");
    big[CONFIG_FILE_MAX] = 0;
    config_free(load(big, NULL, NULL));
    memset(big, '#', 9000);
    check_refused(big, NULL, NULL, ":1:", "longer than");
    free(big);
}

static void test_reload(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    auto_buf report = BUF_INIT(4096);
    struct config *c = load("pids = 10\nlisten = a:1\npool_max = 9\n", NULL, NULL);
    struct config_input in = {.file = file};
    struct config *same = config_reload(c, &in, &report, &e);
    assert_non_null(same);
    assert_int_equal(report.len, 0);
    config_free(same);

    write_file("pids = 11\nlisten = b:2\nallowed_hosts = h\nmax_active = 5\npool_max = 9\n");
    struct config *next = config_reload(c, &in, &report, &e);
    assert_non_null(next);
    assert_int_equal(next->pids, 11);
    assert_string_equal(next->allowed_hosts.items[0], "h");
    assert_int_equal(next->listen.count, 1);
    assert_string_equal(next->listen.items[0], "a:1");
    assert_int_equal(next->max_active, c->max_active);
    assert_string_equal(buf_cstr(&report), "listen: 'b:2' needs a restart; it stays 'a:1'\n"
                                           "allowed_hosts: '' is now 'h'\n"
                                           "pids: '10' is now '11'\n"
                                           "max_active: '5' needs a restart; it stays '2048'");
    assert_int_equal(c->pids, 10); /* who still reads the old one is not disturbed */
    buf_clear(&report);

    write_file("pids = 12\nlog_level = loud\n");
    assert_null(config_reload(next, &in, &report, &e));
    assert_non_null(strstr(e.msg, ":2: log_level: 'loud'"));
    assert_int_equal(next->pids, 11);
    config_free(c);
    config_free(next);
}

static void test_help(void **state)
{
    (void)state;
    auto_buf flags = BUF_INIT(1 << 16), man = BUF_INIT(1 << 16);
    config_help(CONFIG_HELP_FLAGS, &flags);
    config_help(CONFIG_HELP_SCDOC, &man);
    const char *text = buf_cstr(&flags);
    assert_non_null(strstr(text, "  --max-sandboxes NUMBER\n      sandboxes in all;"));
    for (const char *p = text, *end; (end = strchr(p, '\n')); p = end + 1)
        assert_true(end - p <= 80);
    assert_non_null(strstr(buf_cstr(&man), "*max\\_sandboxes* = _NUMBER_\n\tsandboxes in all;"));
}

static void test_ceilings_follow_from_the_machine(void **state)
{
    (void)state;
    const struct ceilings machine = ceilings_of_machine("/");
    struct config *c = load("state_dir = /", NULL, NULL);
    assert_int_equal(c->ceilings.memory, machine.memory);
    assert_int_equal(c->ceilings.pids, machine.pids);
    assert_int_equal(c->ceilings.cpu_milli, machine.cpu_milli);
    assert_int_equal(c->ceilings.disk, machine.disk);
    assert_true(machine.pids <= CEILING_PIDS_MAX && machine.memory < SPEC_MEMORY_MAX);
    assert_true(c->pids <= c->ceilings.pids && c->memory_bytes <= c->ceilings.memory);
    config_free(c);

    /* A default that was set raises a ceiling that was not. */
    c = load("pids = 20000\ncpu = 900", NULL, NULL);
    assert_int_equal(c->ceilings.pids, 20000);
    assert_int_equal(c->ceilings.cpu_milli, 900000);
    config_free(c);

    /* A ceiling that was set lowers a default that was not. */
    c = load("max_pids = 100\nmax_memory_bytes = 64M", NULL, NULL);
    assert_int_equal(c->pids, 100);
    assert_int_equal(c->memory_bytes, 64 << 20);
    config_free(c);

    check_refused("max_pids = 100\npids = 101", NULL, NULL, "pids", "101 is above 100");
    check_refused("max_cpu = 0", NULL, NULL, "max_cpu", "0.01");
}

static void test_ceilings_of_tenants(void **state)
{
    (void)state;
    struct config *c = load("max_pids = 300\n"
                            "tenant_limits = acme:max_pids=400:max_life_s=2h, b:max_cpu=0.5\n"
                            "tenant_limits = b:max_memory_bytes=64M\n",
                            NULL, NULL);
    struct ceilings acme = config_ceilings(c, "acme"), b = config_ceilings(c, "b");
    struct ceilings other = config_ceilings(c, "acm");
    assert_int_equal(acme.pids, 400);
    assert_int_equal(acme.life_ms, 7200000);
    assert_int_equal(acme.memory, c->ceilings.memory);
    assert_int_equal(b.cpu_milli, 500);
    assert_int_equal(b.memory, 64 << 20);
    assert_int_equal(b.pids, 300);
    assert_memory_equal(&other, &c->ceilings, sizeof other);
    config_free(c);

    check_refused("tenant_limits = acme", NULL, NULL, "tenant_limits", "acme");
    check_refused("tenant_limits = :max_pids=4", NULL, NULL, "tenant_limits", "TENANT:KEY=VALUE");
    check_refused("tenant_limits = a:max_pids", NULL, NULL, "a: max_pids", "KEY=VALUE");
    check_refused("tenant_limits = a:max_pids=99999", NULL, NULL, "a: max_pids", "32768");
    check_refused("tenant_limits = a:max_files=9", NULL, NULL, "max_files", "max_disk_bytes");
    check_refused("tenant_limits = A:max_pids=9", NULL, NULL, "A:max_pids", "TENANT:KEY=VALUE");
}

static int check_image(const struct config *c, const char *tenant, const char *image)
{
    struct pd_err e = {.msg = ""};
    if (config_check_image(c, tenant, image, &e) == 0)
        return 0;
    assert_non_null(strstr(e.msg, image));
    return (int)e.code;
}

static void test_images_that_are_allowed(void **state)
{
    (void)state;
    struct config *c = load("default_image = own/image:1\n"
                            "images_allowed = debian, r.example:5000/team/*\n"
                            "tenant_images = acme=busybox, acme=quay.io/acme, free=*\n",
                            NULL, NULL);
    assert_int_equal(check_image(c, "x", ""), 0);
    assert_int_equal(check_image(c, "x", "debian:12"), 0);
    assert_int_equal(check_image(c, "x", "r.example:5000/team/a"), 0);
    assert_int_equal(check_image(c, "x", "docker.io/own/image:1"), 0);
    assert_int_equal(check_image(c, "x", "own/image:2"), PD_DENIED);
    assert_int_equal(check_image(c, "x", "busybox"), PD_DENIED);
    assert_int_equal(check_image(c, "x", "BUSYBOX"), PD_INVALID);
    assert_int_equal(check_image(c, "acme", "busybox"), 0);
    assert_int_equal(check_image(c, "acme", "quay.io/acme/b"), 0);
    assert_int_equal(check_image(c, "acme", "own/image:1"), 0);
    assert_int_equal(check_image(c, "acme", "debian"), PD_DENIED);
    assert_int_equal(check_image(c, "acm", "busybox"), PD_DENIED);
    assert_int_equal(check_image(c, "acme2", "busybox"), PD_DENIED);
    assert_int_equal(check_image(c, "free", "any.io/a"), 0);
    config_free(c);

    c = load("tenant_images = acme=busybox\n", NULL, NULL);
    assert_int_equal(check_image(c, "x", "any.io/a"), 0);
    assert_int_equal(check_image(c, "x", "NOT JUDGED"), 0);
    assert_int_equal(check_image(c, "acme", "any.io/a"), PD_DENIED);
    config_free(c);

    check_refused("images_allowed = debian:12", NULL, NULL, "images_allowed", "debian:12");
    check_refused("images_allowed = a,B", NULL, NULL, "images_allowed", "'B'");
    check_refused("tenant_images = acme", NULL, NULL, "tenant_images", "TENANT=PATTERN");
    check_refused("tenant_images = A=debian", NULL, NULL, "tenant_images", "A=debian");
    check_refused("tenant_images = a=", NULL, NULL, "tenant_images", "empty part");
}

static void test_what_is_above_a_ceiling_is_told(void **state)
{
    (void)state;
    const struct ceilings c = {
        .memory = 100, .pids = 10, .cpu_milli = 1500, .disk = 1000, .life_ms = 60000};
    struct limits l = {.memory = 100, .pids = 10, .cpu_milli = 1500, .disk = 1000};
    const struct ceiling *row = NULL;
    struct pd_err e = {.msg = ""};
    assert_int_equal(ceilings_check(&c, &l, 60000, &row, &e), 0);
    assert_null(row);

    l.cpu_milli = 1501;
    assert_int_equal(ceilings_check(&c, &l, 0, &row, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_string_equal(row->field, "cpu");
    assert_non_null(strstr(e.msg, "1.501 is above the ceiling of 1.5"));
    assert_non_null(strstr(e.msg, "max_cpu"));

    l.cpu_milli = 1;
    assert_int_equal(ceilings_check(&c, &l, 60001, &row, &e), -1);
    assert_string_equal(row->field, "max_life_s");

    l = (struct limits){.memory = 101, .pids = 11, .cpu_milli = 9, .disk = 1001, .files = 7};
    ceilings_clip(&c, &l);
    assert_true(l.memory == 100 && l.pids == 10 && l.cpu_milli == 9 && l.disk == 1000);
    assert_int_equal(l.files, 7);
}

/* docs/configuration.md has the table as the program knows it. */
static void test_the_document_has_the_table(void **state)
{
    (void)state;
    static const char *const places[] = {"docs/configuration.md", "../docs/configuration.md",
                                         "../../docs/configuration.md",
                                         "../../../docs/configuration.md"};
    static char text[1 << 16];
    ssize_t n = -1;
    for (size_t i = 0; i < COUNT(places) && n < 0; i++)
        n = fd_read_file(AT_FDCWD, places[i], text, sizeof text);
    if (n < 0)
        skip_because("docs/configuration.md is not beside the test");

    auto_buf table = BUF_INIT(1 << 16);
    config_help(CONFIG_HELP_MARKDOWN, &table);
    char *row = (char *)(uintptr_t)buf_cstr(&table);
    for (char *end; (end = strchr(row, '\n')); row = end + 1) {
        *end = 0;
        if (!strstr(text, row))
            fail_msg("docs/configuration.md lacks: %s", row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_is_sound),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_sources_in_their_order),
        cmocka_unit_test(test_what_is_printed_can_be_loaded),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_older_names),
        cmocka_unit_test(test_bad_files_are_named),
        cmocka_unit_test(test_tls_addresses),
        cmocka_unit_test(test_other_names_of_templates),
        cmocka_unit_test(test_modules_that_are_imported_in_advance),
        cmocka_unit_test(test_quotes_and_comments),
        cmocka_unit_test(test_bad_flags_are_named),
        cmocka_unit_test(test_a_relative_path_on_the_command_line),
        cmocka_unit_test(test_which_file),
        cmocka_unit_test(test_a_file_that_is_too_large),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_ceilings_follow_from_the_machine),
        cmocka_unit_test(test_ceilings_of_tenants),
        cmocka_unit_test(test_images_that_are_allowed),
        cmocka_unit_test(test_what_is_above_a_ceiling_is_told),
        cmocka_unit_test(test_the_document_has_the_table),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
