/* The output of a command on its way to this terminal: sinks, which escape what a terminal would
 * obey; signals, which are passed on to the command; and event streams, which are taken up again
 * where they broke off when the server was restarted. */
#include "client/stream.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/events.h"

#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

/* A server that is restarted is back within seconds. */
#define RETRIES       20
#define RETRY_WAIT_MS 500

void sink_init(struct sink *s, int fd, int raw)
{
    *s = (struct sink){.fd = fd, .is_filtered = !raw && isatty(fd)};
}

static int write_out(int fd, const void *data, size_t len, struct pd_err *e)
{
    int r = fd_write_all(fd, data, len);
    if (r == 0)
        return 0;

    errno = -r;
    pd_fail_sys(e, "write to %s", fd == STDERR_FILENO ? "stderr" : "stdout");
    if (e && r == -EPIPE)
        e->code = PD_CONFLICT; /* unlike a connection that breaks */
    return -1;
}

int sink_write(struct sink *s, const void *data, size_t len, struct pd_err *e)
{
    if (!s->is_filtered)
        return write_out(s->fd, data, len, e);

    auto_buf b = BUF_INIT(16 * len + 256);
    text_filter(&s->filter, &b, data, len);
    if (b.overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for %zu bytes of output", len);
    return write_out(s->fd, b.data, b.len, e);
}

void sink_end(struct sink *s)
{
    auto_buf b = BUF_INIT(1024);

    if (!s->is_filtered)
        return;

    text_filter_end(&s->filter, &b);
    /* A colour that the command left behind would stay. */
    buf_puts(&b, "\033[0m");
    (void)write_out(s->fd, b.data, b.len, NULL);
}

int stream_fail(const struct pd_err *e)
{
    return e->code == PD_CONFLICT && e->sys == EPIPE ? 128 + SIGPIPE : client_fail(e);
}

int signals_open(struct pd_err *e)
{
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        sigaddset(&set, passed[i]);

    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? pd_fail_sys(e, "signalfd") : fd;
}

int signals_next(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

static const char *signal_name(int signal)
{
    switch (signal) {
    case SIGINT:
        return "SIGINT";
    case SIGHUP:
        return "SIGHUP";
    case SIGQUIT:
        return "SIGQUIT";
    case SIGUSR1:
        return "SIGUSR1";
    case SIGUSR2:
        return "SIGUSR2";
    default:
        return "SIGTERM";
    }
}

/* For whoever pressed the key: what ends, and what does not. A program that reads stderr wants the
 * command's alone. */
static void say_what_ends(const struct stream *s, int signal)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr,
                "paddock: %s was sent to the command; sandbox %s goes on, `paddock rm %s` ends it. "
                "Once more leaves the command, too\n",
                signal_name(signal), s->sandbox, s->sandbox);
}

void stream_signal(struct stream *s, int signal)
{
    struct pd_err e;

    if (signal == SIGWINCH)
        return;

    int is_end = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
    if (!s->process[0] || (is_end && s->is_last_warning)) {
        s->given_up = signal;
        return;
    }

    s->is_last_warning |= is_end;
    if (is_end)
        say_what_ends(s, signal);
    /* The connection is busy with the stream, so this takes another one. */
    auto_remote *other = remote_new(&e);
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *body = json_pack("{ss}", "signal", signal_name(signal));
    buf_printf(&b, "/v1/sandboxes/%s/processes/%s/signal", s->sandbox, s->process);
    struct remote_request q = {.method = HTTP_POST, .target = buf_cstr(&b), .json = body};
    if ((!other || remote_call(other, &q, NULL, &e) < 0) && is_end)
        s->given_up = signal;
}

/* {"text":...} or {"base64":...}. */
static int put_output(const json_t *data, struct sink *to, struct pd_err *e)
{
    const json_t *text = json_object_get(data, "text"), *coded = json_object_get(data, "base64");
    if (json_is_string(text))
        return sink_write(to, json_string_value(text), json_string_length(text), e);

    size_t len = json_string_length(coded);
    if (!json_is_string(coded) || len % 4 || len > EVENT_LINE_MAX)
        return pd_fail(e, PD_PROTOCOL, "the server sent output that is neither text nor base64");

    auto_buf bytes = BUF_INIT(len + 1);
    unsigned char *at = buf_reserve(&bytes, len + 1);
    int n =
        at ? EVP_DecodeBlock(at, (const unsigned char *)json_string_value(coded), (int)len) : -1;
    if (n < 0)
        return pd_fail(e, PD_PROTOCOL, "the server sent output that is not base64");

    const char *tail = json_string_value(coded) + len;
    n -= len && tail[-1] == '=';
    n -= len > 1 && tail[-2] == '=';
    return sink_write(to, at, (size_t)n, e);
}

static int take_event(struct stream *s, const struct event *v, struct pd_err *e)
{
    int is_out = !strcmp(v->type, "stdout"), is_err = !strcmp(v->type, "stderr");

    int is_end = !strcmp(v->type, "exit");
    if (!is_out && !is_err && !is_end && strcmp(v->type, "error") != 0)
        return 0;

    json_auto_t *data = json_loadb(v->data, v->data_len, JSON_ALLOW_NUL, NULL);
    if (!data)
        return pd_fail(e, PD_PROTOCOL, "the server sent an event that is not JSON");

    if (is_end && json_object_get(data, "error"))
        return remote_error(data, 400, e);
    if (is_end) {
        s->end = json_incref(data);
        return 0;
    }

    if (!is_out && !is_err)
        return remote_error(data, 500, e);
    if (put_output(data, is_out ? &s->out : &s->err, e) < 0)
        return -1;

    unsigned long long out, err;
    if (sscanf(v->id, "%19llu.%19llu", &out, &err) == 2) {
        s->offset[0] = out;
        s->offset[1] = err;
    }
    return 0;
}

static int take_bytes(struct stream *s, struct event_reader *reader, const char *data, size_t len,
                      struct pd_err *e)
{
    while (len && !s->end) {
        struct event v;
        size_t used = 0;
        int got = event_reader_next(reader, data, len, &used, &v, e);
        if (got < 0 || (got > 0 && take_event(s, &v, e) < 0))
            return -1;
        data += used;
        len -= used;
    }
    return 0;
}

int stream_read_events(struct stream *s, struct pd_err *e)
{
    auto_event_reader reader = EVENT_READER_INIT;
    char bytes[16384];

    while (!s->end && !s->given_up) {
        ssize_t n = remote_read_or(s->remote, bytes, sizeof bytes, s->signals, e);
        if (n == -2) {
            for (int signal; !s->given_up && (signal = signals_next(s->signals));)
                stream_signal(s, signal);
        } else if (n < 0) {
            return -1;
        } else if (n == 0) {
            return pd_fail(e, PD_LOST, "the stream broke off before the command had ended");
        } else if (take_bytes(s, &reader, bytes, (size_t)n, e) < 0) {
            return -1;
        }
    }
    return 0;
}

/* 1 when the user does not want to wait for a server that may never come back. */
static int wait_for_retry(struct stream *s)
{
    struct pollfd p = {.fd = s->signals, .events = POLLIN};
    if (poll(&p, 1, RETRY_WAIT_MS) > 0)
        s->given_up = signals_next(s->signals);
    return s->given_up != 0;
}

int stream_follow(struct stream *s, struct pd_err *e)
{
    for (int i = 0; i < RETRIES; i++) {
        auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
        char last[48];
        uint64_t before = s->offset[0] + s->offset[1];

        snprintf(last, sizeof last, "%llu.%llu", (unsigned long long)s->offset[0],
                 (unsigned long long)s->offset[1]);
        buf_printf(&b, "/v1/sandboxes/%s/processes/%s/output?follow=true", s->sandbox, s->process);
        struct remote_request q = {.method = HTTP_GET,
                                   .target = buf_cstr(&b),
                                   .accept = "text/event-stream",
                                   .last_event = last};

        if (remote_begin(s->remote, &q, e) == 0 && remote_answer(s->remote, e) >= 0 &&
            stream_read_events(s, e) == 0)
            return 0;
        if (e->code != PD_LOST && e->code != PD_TIMEOUT && e->code != PD_SHUTTING_DOWN)
            return -1;

        if (s->offset[0] + s->offset[1] > before)
            i = 0;
        if (wait_for_retry(s))
            return 0;
    }
    return -1;
}
