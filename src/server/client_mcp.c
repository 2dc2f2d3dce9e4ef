/* paddock mcp: the Model Context Protocol on standard input and output, for programs that start
 * their tools themselves. Every line is a message; it is passed on to the server's /mcp, each by a
 * thread of its own, because a message that cancels another one must not wait for it. What comes
 * back is printed, a line each.
 *
 * Where nobody has named a server, one is started that lives as long as this command, with a key
 * that nobody else has. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/ids.h"
#include "server/client.h"
#include "server/client_events.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LINE_MAX_   (4u << 20)
#define AT_ONCE     32u
#define READY_TRIES 100
#define READY_PAUSE 100000u /* us */
#define SOCKET_FORM "%s/paddock.sock"
#define TARGET_FORM "/mcp?thread=%s"

extern char **environ;

const char mcp_usage[] =
    "usage: paddock mcp [--thread NAME]\n\n"
    "Speaks the Model Context Protocol on standard input and output. Each run has a\n"
    "sandbox of its own, which ends with it; with --thread it is the same sandbox each\n"
    "time. Uses the server of PADDOCK_URL and PADDOCK_API_KEY; if neither is set, it\n"
    "starts a private one that ends with it.\n\n"
    "  --thread NAME  the sandbox's name, 1 to 128 characters\n";

struct bridge {
    char target[600];
    pthread_mutex_t lock; /* standard output, and the count */
    pthread_cond_t changed;
    unsigned running;
};

struct message {
    struct bridge *bridge;
    char *text;
    size_t len;
};

/* ---- one message ---- */

static void print_message(struct bridge *b, const char *text, size_t len)
{
    pthread_mutex_lock(&b->lock);
    (void)fwrite(text, 1, len, stdout);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    pthread_mutex_unlock(&b->lock);
}

/* The way to the server failed: whoever waits for an answer gets one. */
static void print_failure(struct message *m, const struct pd_err *e)
{
    json_auto_t *sent = json_loadb(m->text, m->len, 0, NULL);
    json_t *id = json_object_get(sent, "id");
    if (!id) {
        (void)client_fail(e);
        return;
    }
    json_auto_t *answer = json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id, "error",
                                    "code", -32603, "message", e->msg);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text)
        print_message(m->bridge, text, strlen(text));
    free(text);
}

static int read_events(struct remote *r, struct bridge *b, struct pd_err *e)
{
    auto_event_reader reader = EVENT_READER_INIT;
    char piece[16384];
    ssize_t n;
    while ((n = remote_read(r, piece, sizeof piece, e)) > 0) {
        size_t at = 0, used;
        struct event event;
        int got;
        while ((got = event_reader_next(&reader, piece + at, (size_t)n - at, &used, &event, e)) ==
               1) {
            print_message(b, event.data, event.data_len);
            at += used;
        }
        if (got < 0)
            return -1;
    }
    return n < 0 ? -1 : 0;
}

static int read_json(struct remote *r, struct bridge *b, struct pd_err *e)
{
    auto_buf text = BUF_INIT(2 * LINE_MAX_);
    char piece[16384];
    ssize_t n;
    while ((n = remote_read(r, piece, sizeof piece, e)) > 0)
        if (buf_put(&text, piece, (size_t)n) < 0)
            return pd_fail(e, PD_TOO_LARGE, "the server's answer is too long");
    if (n == 0 && text.len)
        print_message(b, (const char *)text.data, text.len);
    return n < 0 ? -1 : 0;
}

static int pass_on(struct message *m, struct pd_err *e)
{
    auto_remote *r = remote_new(e);
    struct remote_request q = {.method = HTTP_POST,
                               .target = m->bridge->target,
                               .type = "application/json",
                               .accept = "application/json, text/event-stream",
                               .is_patient = 1};
    if (!r || remote_begin(r, &q, e) < 0 || remote_write(r, m->text, m->len, e) < 0 ||
        remote_end(r, e) < 0 || remote_answer(r, e) < 0)
        return -1;
    return !strncmp(remote_header(r, "Content-Type"), "text/event-stream", 17)
               ? read_events(r, m->bridge, e)
               : read_json(r, m->bridge, e);
}

static void *message_main(void *arg)
{
    struct message *m = arg;
    struct bridge *b = m->bridge;
    struct pd_err e;
    if (pass_on(m, &e) < 0)
        print_failure(m, &e);
    free(m->text);
    free(m);
    pthread_mutex_lock(&b->lock);
    b->running--;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static void wait_for_room(struct bridge *b, unsigned most)
{
    pthread_mutex_lock(&b->lock);
    while (b->running > most)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static int start_message(struct bridge *b, const char *line, size_t len, struct pd_err *e)
{
    struct message *m = calloc(1, sizeof *m);
    pthread_t thread;
    if (!m || !(m->text = strndup(line, len))) {
        free(m);
        return pd_fail(e, PD_CAPACITY, "no memory for a message");
    }
    m->bridge = b;
    m->len = len;
    wait_for_room(b, AT_ONCE - 1);
    pthread_mutex_lock(&b->lock);
    b->running++;
    pthread_mutex_unlock(&b->lock);
    if (pthread_create(&thread, NULL, message_main, m) != 0) {
        (void)message_main(m); /* then one after the other */
        return 0;
    }
    pthread_detach(thread);
    return 0;
}

/* Until the end of the input. */
static int pump_messages(struct bridge *b, struct pd_err *e)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    int r = 0;
    while (r == 0 && (len = getline(&line, &room, stdin)) >= 0) {
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        if ((size_t)len > LINE_MAX_)
            r = pd_fail(e, PD_TOO_LARGE, "a message of more than %u bytes", LINE_MAX_);
        else if (len)
            r = start_message(b, line, (size_t)len, e);
    }
    free(line);
    wait_for_room(b, 0);
    return r;
}

/* ---- a server of one's own ---- */

struct own_server {
    pid_t pid; /* 0: none */
    char dir[64];
};

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

static void own_server_end(struct own_server *s)
{
    if (s->pid) {
        (void)kill(s->pid, SIGINT); /* ends its sandboxes, too */
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (s->dir[0])
        (void)nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    s->pid = 0;
}
#define auto_own_server __attribute__((cleanup(own_server_end))) struct own_server

static int is_ready(void)
{
    struct pd_err e;
    struct remote_request q = {.method = HTTP_GET, .target = "/readyz", .accept = "text/plain"};
    auto_remote *r = remote_new(&e);
    return r && remote_begin(r, &q, &e) == 0 && remote_answer(r, &e) >= 0;
}

static int spawn_server(struct own_server *s, const char *socket, struct pd_err *e)
{
    char listen[160], state[160], run[160];
    posix_spawn_file_actions_t actions;
    snprintf(listen, sizeof listen, "unix:%s", socket);
    snprintf(state, sizeof state, "%s/state", s->dir);
    snprintf(run, sizeof run, "%s/run", s->dir);
    char *argv[] = {(char *)"paddockd",
                    (char *)"serve",
                    (char *)"--listen",
                    listen,
                    (char *)"--state-dir",
                    state,
                    (char *)"--run-dir",
                    run,
                    (char *)"--unix-socket",
                    (char *)"none",
                    (char *)"--log-level",
                    (char *)"warn",
                    NULL};
    posix_spawn_file_actions_init(&actions);
    /* Both are the protocol's. */
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    errno = posix_spawn(&s->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (!errno)
        return 0;
    s->pid = 0;
    return pd_fail_sys(e, "start a server");
}

static int own_server_start(struct own_server *s, struct pd_err *e)
{
    char socket[100], url[120], key[ID_KEY_LEN + 1];
    snprintf(s->dir, sizeof s->dir, "/tmp/paddock-mcp-XXXXXX");
    /* Whom the server becomes when root starts it must get through. */
    if (!mkdtemp(s->dir) || chmod(s->dir, 0711) < 0)
        return pd_fail_sys(e, "make a directory for a server");
    snprintf(socket, sizeof socket, SOCKET_FORM, s->dir);
    snprintf(url, sizeof url, "unix:%s", socket);
    id_key(key);
    setenv("PADDOCK_URL", url, 1);
    setenv("PADDOCK_API_KEY", key, 1);
    if (spawn_server(s, socket, e) < 0)
        return -1;
    for (int i = 0; i < READY_TRIES; i++) {
        int status;
        if (is_ready())
            return 0;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            s->pid = 0;
            return pd_fail(e, PD_LOST, "the server that was started for this has ended: see above");
        }
        usleep(READY_PAUSE);
    }
    return pd_fail(e, PD_TIMEOUT, "the server that was started for this does not answer");
}

/* ---- the command ---- */

static int end_session(const struct bridge *b, struct pd_err *e)
{
    auto_remote *r = remote_new(e);
    struct remote_request q = {.method = HTTP_DELETE, .target = b->target};
    return r && remote_call(r, &q, NULL, e) >= 0 ? 0 : -1;
}

static int set_target(struct bridge *b, const char *thread, struct pd_err *e)
{
    auto_buf name = BUF_INIT(500);
    uint8_t random[16];
    char text[33];
    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, text);
    put_encoded(&name, thread ? thread : text);
    if (thread && (!*thread || strlen(thread) > 128 || !buf_cstr(&name)))
        return pd_fail(e, PD_INVALID, "--thread: 1 to 128 characters");
    snprintf(b->target, sizeof b->target, TARGET_FORM, buf_cstr(&name));
    return 0;
}

int cmd_mcp(int argc, char **argv)
{
    struct bridge b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    auto_own_server own = {0};
    struct options o = OPTIONS_INIT(argc, argv);
    const char *thread = NULL;
    struct pd_err e;
    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--thread")) {
            usage_unknown(&o, &e);
            return usage_fail(&e);
        }
        if (!(thread = options_value(&o, &e)))
            return usage_fail(&e);
    }
    if (o.at < argc) {
        pd_fail(&e, PD_INVALID, "mcp takes no argument '%.40s'", argv[o.at]);
        return usage_fail(&e);
    }
    if (set_target(&b, thread, &e) < 0)
        return usage_fail(&e);
    (void)signal(SIGPIPE, SIG_IGN);
    if (!getenv("PADDOCK_URL") && !getenv("PADDOCK_API_KEY") && own_server_start(&own, &e) < 0)
        return client_fail(&e);
    int failed = pump_messages(&b, &e) < 0;
    if (!failed && !thread && !own.pid)
        failed = end_session(&b, &e) < 0;
    return failed ? client_fail(&e) : 0;
}
