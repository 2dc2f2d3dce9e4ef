/* paddock mcp: the Model Context Protocol on standard input and output, for programs that start
 * their tools themselves. Every line is a message; it is passed on to the server's /mcp, each by a
 * thread of its own, because a message that cancels another one must not wait for it. What comes
 * back is printed, a line each.
 *
 * It ends with its input, when all answers are out; or at once, by a signal or because nobody reads
 * the answers: then what runs is cancelled. */
#include "client/mcp.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/client.h"
#include "client/events.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>

#define LINE_MAX_    (4u << 20)
#define ANSWER_MAX   (16u << 20)
#define AT_ONCE      32u            /* requests on their way */
#define WAITING_MAX  1024u          /* and with those that wait for their turn */
#define LOOK_NS      (NS_PER_S / 5) /* between looks whether a wait goes on */
#define DRAIN_MS     20             /* the same, for the last answers */
#define TARGET_FORM  "/mcp?thread=%s&client=%s"
#define DELETE_FORM  "/mcp?thread=%s"
#define CANCEL_TRIES 10
#define CANCEL_PAUSE 200000u /* us */
#define RPC_PARSE    (-32700)
#define RPC_REQUEST  (-32600)
#define RPC_INTERNAL (-32603)

const char mcp_usage[] =
    "usage: paddock mcp [--thread NAME]\n\n"
    "Speaks the Model Context Protocol on standard input and output. Each run has a\n"
    "sandbox of its own, which ends with it; with --thread it is the same sandbox each\n"
    "time. Uses the server of PADDOCK_URL and PADDOCK_API_KEY; if neither is set, it\n"
    "starts a private one that ends with it.\n\n"
    "  --thread NAME  the sandbox's name, 1 to 128 characters\n";

struct bridge {
    char target[600], delete_target[600];
    pthread_mutex_t out;  /* standard output */
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t changed;
    struct message *messages; /* that have threads */
    unsigned count, running;  /* of those; of those that are requests on their way */
    int signals;              /* readable when this program is to end */
    int ends;
};

struct message {
    struct bridge *bridge;
    struct message *next;
    char *text;
    size_t len;
    json_t *id;      /* NULL: a notification */
    json_t *cancels; /* the id of a request, or NULL */
    int is_out;      /* on its way */
    int is_off;      /* cancelled before that */
};

/* ---- what is printed ---- */

static void print_message(struct bridge *b, const char *text, size_t len)
{
    pthread_mutex_lock(&b->out);
    (void)fwrite(text, 1, len, stdout);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    pthread_mutex_unlock(&b->out);
}

/* A client that waits for an answer gets one. `id` is NULL when it could not be read. */
static void print_failure(struct bridge *b, json_t *id, int code, const char *why)
{
    json_auto_t *answer = json_pack("{s:s, s:O?, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id,
                                    "error", "code", code, "message", why);
    if (answer && !id)
        json_object_set_new(answer, "id", json_null());

    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text)
        print_message(b, text, strlen(text));
    free(text);
}

/* ---- one message ---- */

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
    auto_buf text = BUF_INIT(ANSWER_MAX);
    char piece[16384];
    ssize_t n;

    while ((n = remote_read(r, piece, sizeof piece, e)) > 0)
        if (buf_put(&text, piece, (size_t)n) < 0)
            return pd_fail(e, PD_TOO_LARGE, "the server's answer is too long");

    if (n == 0 && text.len)
        print_message(b, (const char *)text.data, text.len);
    return n < 0 ? -1 : 0;
}

static int pass_on(struct bridge *b, const char *text, size_t len, struct pd_err *e)
{
    auto_remote *r = remote_new(e);
    struct remote_request q = {.method = HTTP_POST,
                               .target = b->target,
                               .type = "application/json",
                               .accept = "application/json, text/event-stream",
                               .is_patient = 1};

    if (!r || remote_begin(r, &q, e) < 0 || remote_write(r, text, len, e) < 0 ||
        remote_end(r, e) < 0 || remote_answer(r, e) < 0)
        return -1;

    return !strncmp(remote_header(r, "Content-Type"), "text/event-stream", 17)
               ? read_events(r, b, e)
               : read_json(r, b, e);
}

static void message_free(struct message *m)
{
    if (!m)
        return;
    json_decref(m->id);
    json_decref(m->cancels);
    free(m->text);
    free(m);
}

/* Requests wait for their turn here; notifications do not, they may be about those. */
static int await_turn(struct message *m)
{
    struct bridge *b = m->bridge;

    pthread_mutex_lock(&b->lock);
    while (m->id && b->running >= AT_ONCE && !b->ends && !m->is_off)
        (void)cond_wait(&b->changed, &b->lock, deadline_in(LOOK_NS));

    int goes = !b->ends && !m->is_off;
    if (goes && m->id) {
        b->running++;
        m->is_out = 1;
    }
    pthread_mutex_unlock(&b->lock);
    return goes;
}

/* The server has looked at the message and does not want it: PD_PROTOCOL is a code that is not one
 * of the API's. */
static int is_refused(const struct pd_err *e)
{
    return e->code == PD_INVALID || e->code == PD_PROTOCOL || e->code == PD_TOO_LARGE;
}

/* Requests have ways of their own to the server: a word that one is cancelled may be there first,
 * and is said again. */
static int is_out(struct bridge *b, const json_t *id)
{
    int found = 0;

    pthread_mutex_lock(&b->lock);
    for (struct message *m = b->messages; m && !found; m = m->next)
        found = m->is_out && json_equal(m->id, id);
    pthread_mutex_unlock(&b->lock);
    return found;
}

static void *message_main(void *arg)
{
    struct message *m = arg;
    struct bridge *b = m->bridge;
    struct pd_err e;

    if (await_turn(m) && pass_on(b, m->text, m->len, &e) < 0) {
        if (m->id)
            print_failure(b, m->id, is_refused(&e) ? RPC_REQUEST : RPC_INTERNAL, e.msg);
        else
            (void)client_fail(&e);
    }

    for (int i = 0; i < CANCEL_TRIES && m->cancels && is_out(b, m->cancels); i++) {
        usleep(CANCEL_PAUSE);
        (void)pass_on(b, m->text, m->len, &e);
    }

    pthread_mutex_lock(&b->lock);
    struct message **at = &b->messages;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    b->count--;
    if (m->is_out)
        b->running--;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);

    message_free(m);
    return NULL;
}

/* ---- the input ---- */

/* The id of the request that a message cancels, or NULL. */
static json_t *cancelled_id(const json_t *sent)
{
    if (strcmp(json_field(sent, "method"), "notifications/cancelled") != 0)
        return NULL;
    return json_object_get(json_object_get(sent, "params"), "requestId");
}

/* The server cannot know of those that it has not got. */
static void drop_cancelled(struct bridge *b, const json_t *id)
{
    pthread_mutex_lock(&b->lock);
    for (struct message *m = b->messages; m; m = m->next)
        if (m->id && !m->is_out && json_equal(m->id, id))
            m->is_off = 1;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* A signal came, or nobody reads the answers any more. */
static int is_to_end(const struct bridge *b)
{
    struct pollfd p[] = {{.fd = b->signals, .events = POLLIN}, {.fd = 1}};

    return poll(p, 2, 0) > 0 && (p[0].revents || p[1].revents & POLLERR);
}

/* Lists a message as soon as there are fewer than WAITING_MAX. 1 when the program is to end
 * instead: this thread is the one that hears of it. */
static int enlist(struct bridge *b, struct message *m)
{
    int ends = 0;

    pthread_mutex_lock(&b->lock);
    while (b->count >= WAITING_MAX && !(ends = is_to_end(b)))
        (void)cond_wait(&b->changed, &b->lock, deadline_in(LOOK_NS));

    if (!ends) {
        m->next = b->messages;
        b->messages = m;
        b->count++;
    }
    pthread_mutex_unlock(&b->lock);
    return ends;
}

/* 1 when the program is to end at once; so for the functions below. */
static int start_message(struct bridge *b, const char *line, size_t len, struct pd_err *e)
{
    json_error_t why;
    json_auto_t *sent = json_loadb(line, len, JSON_ALLOW_NUL, &why);
    json_t *id = json_object_get(sent, "id");
    const char *wrong = sent ? NULL : why.text;

    if (sent && !json_is_object(sent))
        wrong = "one message at a time: an object is needed";
    else if (id && !json_is_string(id) && !json_is_number(id))
        wrong = "id: must be a string or a number";

    if (wrong) {
        print_failure(b, NULL, sent ? RPC_REQUEST : RPC_PARSE, wrong);
        return 0;
    }

    json_t *cancels = cancelled_id(sent);
    if (cancels)
        drop_cancelled(b, cancels);

    /* It has copies of its own: Jansson's counts of references are not for two threads. */
    struct message *m = calloc(1, sizeof *m);
    pthread_t thread;
    if (!m || !(m->text = malloc(len)) || (id && !(m->id = json_deep_copy(id))) ||
        (cancels && !(m->cancels = json_deep_copy(cancels)))) {
        message_free(m);
        return pd_fail(e, PD_CAPACITY, "no memory for a message");
    }

    memcpy(m->text, line, len);
    m->bridge = b;
    m->len = len;

    if (enlist(b, m)) {
        message_free(m);
        return 1;
    }

    if (pthread_create(&thread, NULL, message_main, m) != 0)
        (void)message_main(m); /* then one after the other */
    else
        pthread_detach(thread);
    return 0;
}

struct input {
    struct buf line;
    int too_long; /* the rest of this line is thrown away */
};

static int end_line(struct bridge *b, struct input *in, struct pd_err *e)
{
    size_t len = in->line.len;
    int r = 0;

    while (len && in->line.data[len - 1] == '\r')
        len--;

    if (in->too_long)
        print_failure(b, NULL, RPC_REQUEST, "the message is too long: 4 MiB are the most");
    else if (len)
        r = start_message(b, (const char *)in->line.data, len, e);

    buf_clear(&in->line);
    in->too_long = 0;
    return r;
}

static int take_input(struct bridge *b, struct input *in, const char *data, size_t len,
                      struct pd_err *e)
{
    int r;

    while (len) {
        const char *end = memchr(data, '\n', len);
        size_t piece = end ? (size_t)(end - data) : len;
        if (in->too_long || in->line.len + piece > LINE_MAX_)
            in->too_long = 1;
        else if (buf_put(&in->line, data, piece) < 0)
            return pd_fail(e, PD_CAPACITY, "no memory for a message");
        if (end && (r = end_line(b, in, e)) != 0)
            return r;

        piece += end != NULL;
        data += piece;
        len -= piece;
    }
    return 0;
}

static int has_messages(struct bridge *b)
{
    pthread_mutex_lock(&b->lock);
    int has = b->count > 0;
    pthread_mutex_unlock(&b->lock);
    return has;
}

/* Until the input has ended and all is answered: 0; until it is to end at once: 1; or -1. */
static int pump_messages(struct bridge *b, struct pd_err *e)
{
    struct input in = {.line = BUF_INIT(LINE_MAX_ + 1)};
    char piece[65536];
    int open = 1, r = 0;

    while (r == 0 && (open || has_messages(b))) {
        struct pollfd p[] = {{.fd = open ? 0 : -1, .events = POLLIN},
                             {.fd = b->signals, .events = POLLIN},
                             {.fd = 1}};
        /* No deadline while the input is open: the next message comes when somebody has one, and a
         * signal or an output that is closed ends the wait. Without input it is only looked whether
         * the last answer is out. */
        if (poll(p, 3, open ? -1 : DRAIN_MS) < 0 && errno != EINTR)
            r = pd_fail_sys(e, "poll");
        else if (p[1].revents || p[2].revents & POLLERR)
            r = 1;
        else if (p[0].revents) {
            ssize_t n = read(0, piece, sizeof piece);
            if (n > 0)
                r = take_input(b, &in, piece, (size_t)n, e);
            else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
                open = 0;
                r = end_line(b, &in, e);
            }
        }
    }

    buf_done(&in.line);
    return r;
}

/* ---- the end ---- */

/* Nobody waits for what is on its way any more. */
static void cancel_messages(struct bridge *b)
{
    struct pd_err e;

    pthread_mutex_lock(&b->lock);
    b->ends = 1;
    json_auto_t *ids = json_array();
    for (struct message *m = b->messages; m; m = m->next)
        if (m->is_out)
            json_array_append(ids, m->id);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);

    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_auto_t *notice =
            json_pack("{s:s, s:s, s:{s:O}}", "jsonrpc", "2.0", "method", "notifications/cancelled",
                      "params", "requestId", json_array_get(ids, i));
        char *text = notice ? json_dumps(notice, JSON_COMPACT) : NULL;
        if (text)
            (void)pass_on(b, text, strlen(text), &e);
        free(text);
    }
}

static int end_session(const struct bridge *b, struct pd_err *e)
{
    auto_remote *r = remote_new(e);
    struct remote_request q = {.method = HTTP_DELETE, .target = b->delete_target};
    return r && remote_call(r, &q, NULL, e) >= 0 ? 0 : -1;
}

/* ---- the command ---- */

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

    snprintf(b->target, sizeof b->target, TARGET_FORM, buf_cstr(&name), text);
    snprintf(b->delete_target, sizeof b->delete_target, DELETE_FORM, buf_cstr(&name));
    return 0;
}

static int read_options(int argc, char **argv, const char **ret_thread, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--thread"))
            return usage_unknown(&o, e);
        if (!(*ret_thread = options_value(&o, e)))
            return -1;
    }

    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "mcp takes no argument '%.40s'", argv[o.at]);
    return 0;
}

int cmd_mcp(int argc, char **argv)
{
    struct bridge b = {.out = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};
    auto_own_server own = OWN_SERVER_INIT;
    const char *thread = NULL;
    struct pd_err e;
    sigset_t ends;

    if (read_options(argc, argv, &thread, &e) < 0 || set_target(&b, thread, &e) < 0)
        return usage_fail(&e);

    cond_init(&b.changed);
    (void)signal(SIGPIPE, SIG_IGN);
    if (!getenv("PADDOCK_URL") && !getenv("PADDOCK_API_KEY") && own_server_start(&own, &e) < 0)
        return client_fail(&e);

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    auto_fd signals = signalfd(-1, &ends, SFD_CLOEXEC);
    b.signals = signals;
    int r = signals < 0 ? pd_fail_sys(&e, "signalfd") : pump_messages(&b, &e);
    int failed = r < 0;

    if (r != 0 && thread)
        cancel_messages(&b);
    if (!thread && !own.guard && end_session(&b, &e) < 0)
        failed = 1;

    int status = failed ? client_fail(&e) : 0;
    /* Threads may still be reading what nobody waits for: they end with the process. */
    own_server_end(&own);
    (void)fflush(stdout);
    _exit(status);
}
