/* What the server holds out: many event streams, much output, big files, many connections. */
#include "server_bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int sandbox(struct http *h, struct server_place *s, const char *body, char id[32],
                   struct pd_err *e)
{
    const char *text = http_call(h, s, "POST", "/v1/sandboxes", body, 201, e);
    if (!text)
        return -1;
    return json_find(text, "id", id, 32) < 0 ? pd_fail(e, PD_PROTOCOL, "no id") : 0;
}

static int sandbox_end(struct http *h, struct server_place *s, const char *id, struct pd_err *e)
{
    char path[80];
    snprintf(path, sizeof path, "/v1/sandboxes/%s", id);
    return http_call(h, s, "DELETE", path, NULL, 204, e) ? 0 : -1;
}

/* ---- event streams ---- */

#define STREAM_LINES   50u
#define STREAM_LINE    1000u
#define STREAM_TICK_MS 100u
#define STREAM_BYTES   (STREAM_LINES * STREAM_LINE)
#define PER_SANDBOX    20u
#define SANDBOXES_MAX  64u

/* Lines of one number each, filled up with zeros; the pause starts no process. */
#define PRODUCER                                                                                   \
    "{\"argv\":[\"/bin/bash\",\"-c\",\"exec 9<> <(:); for i in {1..50}; do printf '%0999d\\\\n' "  \
    "$i; read -t 0.1 -u 9; done; true\"],\"timeout_s\":120}"

struct follower {
    struct http h;
    uint64_t at;   /* bytes of the command's output so far */
    char line[24]; /* the beginning of the event line that is being read */
    unsigned line_len;
    int escaped;
    enum { FIELD, TEXT, REST } part;
    int wrong, exited, over;
};

/* The byte that a producer writes at an offset. */
static char produced(uint64_t at)
{
    uint64_t number = at / STREAM_LINE + 1, column = at % STREAM_LINE;
    if (column == STREAM_LINE - 1)
        return '\n';
    if (column < STREAM_LINE - 6)
        return '0'; /* no number has so many digits */
    for (uint64_t i = column; i < STREAM_LINE - 2; i++)
        number /= 10;
    return (char)('0' + number % 10);
}

/* Takes events apart, byte by byte: only the texts are of interest, and whether there was an exit.
 */
static void follower_take(struct follower *f, const uint8_t *data, size_t len)
{
    static const char text[] = "data: {\"text\":\"", end[] = "event: exit";

    for (size_t i = 0; i < len; i++) {
        char c = (char)data[i];

        if (f->part == TEXT) {
            if (c == '"' && !f->escaped) {
                f->part = REST;
                continue;
            }
            if (c == '\\' && !f->escaped) {
                f->escaped = 1;
                continue;
            }
            if (f->escaped && c == 'n')
                c = '\n';
            f->escaped = 0;
            f->wrong |= f->at >= STREAM_BYTES || produced(f->at) != c;
            f->at++;
        } else if (c == '\n') {
            f->exited |= f->line_len == sizeof end - 1 && !memcmp(f->line, end, sizeof end - 1);
            f->part = FIELD;
            f->line_len = 0;
        } else if (f->part == FIELD && f->line_len < sizeof f->line) {
            f->line[f->line_len++] = c;
            if (f->line_len == sizeof text - 1 && !memcmp(f->line, text, sizeof text - 1))
                f->part = TEXT;
        }
    }
}

/* What has come in, without waiting for more. */
static int follower_read(struct follower *f, struct streams *r, struct pd_err *e)
{
    for (;;) {
        const uint8_t *piece;
        ssize_t n = http_piece(&f->h, &piece, e);
        if (n < 0)
            return e->code == PD_TIMEOUT ? 0 : -1;
        if (n == 0) {
            f->over = 1;
            return 0;
        }
        r->pieces++;
        follower_take(f, piece, (size_t)n);
    }
}

static int follow_all(struct streams *r, struct server_place *s, struct follower *all,
                      struct pd_err *e)
{
    unsigned open = r->count;
    uint64_t looked = 0;
    struct pollfd *polls = calloc(r->count, sizeof *polls);
    int result = polls ? 0 : pd_fail(e, PD_CAPACITY, "no memory");
    deadline d = deadline_in(90 * NS_PER_S);

    while (result == 0 && open) {
        for (unsigned i = 0; i < r->count; i++)
            polls[i] = (struct pollfd){.fd = all[i].over ? -1 : all[i].h.fd, .events = POLLIN};
        if (deadline_passed(d) || poll(polls, r->count, 10000) <= 0)
            result = pd_fail(e, PD_TIMEOUT, "%u of %u streams do not end", open, r->count);

        for (unsigned i = 0; i < r->count && result == 0; i++) {
            if (!polls[i].revents)
                continue;
            result = follower_read(&all[i], r, e);
            open -= (unsigned)all[i].over;
        }

        if (clock_now() - looked > NS_PER_S / 2) {
            (void)server_usage(s, &r->during, e);
            looked = clock_now();
        }
    }

    free(polls);
    return result;
}

static int streams_run(struct streams *r, struct server_place *s, struct follower *all,
                       char (*ids)[32], struct pd_err *e)
{
    char path[80];
    server_reset_peak(s);
    if (server_usage(s, &r->before, e) < 0)
        return -1;

    uint64_t began = clock_now();
    for (unsigned i = 0; i < r->count; i++) {
        snprintf(path, sizeof path, "/v1/sandboxes/%s/exec", ids[i / PER_SANDBOX]);
        if (http_open(&all[i].h, s, e) < 0 ||
            http_send(&all[i].h, s, "POST", path, "Accept: text/event-stream\r\n", PRODUCER, e) < 0)
            return -1;
    }

    for (unsigned i = 0; i < r->count; i++) {
        if (http_answer(&all[i].h, e) < 0)
            return -1;
        if (all[i].h.status != 200)
            return pd_fail(e, PD_INTERNAL, "exec as events: status %d", all[i].h.status);
        all[i].h.no_wait = 1;
    }

    if (follow_all(r, s, all, e) < 0)
        return -1;
    r->ns = clock_now() - began;

    for (unsigned i = 0; i < r->count; i++) {
        r->bytes += all[i].at;
        if (all[i].wrong || !all[i].exited || all[i].at != STREAM_BYTES)
            pd_fail(e, PD_INTERNAL, "stream %u: %llu bytes%s%s", i, (unsigned long long)all[i].at,
                    all[i].wrong ? ", not those that were written" : "",
                    all[i].exited ? "" : ", no exit");
    }

    return r->bytes == r->wanted ? server_usage(s, &r->after, e) : -1;
}

void streams_measure(struct streams *r, struct server_place *s, unsigned count)
{
    struct http h = HTTP_EMPTY;
    struct pd_err e;
    char ids[SANDBOXES_MAX][32];
    unsigned sandboxes = 0, wanted = (count + PER_SANDBOX - 1) / PER_SANDBOX;
    struct follower *all = calloc(count, sizeof *all);

    r->count = count;
    r->wanted = (uint64_t)count * STREAM_BYTES;
    r->ideal_ns = STREAM_LINES * STREAM_TICK_MS * NS_PER_MS;
    for (unsigned i = 0; all && i < count; i++)
        all[i].h = HTTP_EMPTY;

    int bad = !all || wanted > SANDBOXES_MAX || http_open(&h, s, &e) < 0;
    while (!bad && sandboxes < wanted)
        if (sandbox(&h, s, "{}", ids[sandboxes], &e) < 0)
            bad = 1;
        else
            sandboxes++;

    if (bad || streams_run(r, s, all, ids, &e) < 0)
        place_error(&s->p, "event streams", &e);
    for (unsigned i = 0; all && i < count; i++)
        http_done(&all[i].h);
    while (sandboxes)
        if (sandbox_end(&h, s, ids[--sandboxes], &e) < 0)
            place_error(&s->p, "event streams", &e);
    free(all);
    http_done(&h);
}

/* ---- much output ---- */

#define OUTPUT_PERIOD "0123456789abcde\n"
#define SPOOL_BYTES   (8u << 20)

/* Whether the bytes are those that `yes` writes. */
static int is_pattern(const uint8_t *data, size_t len, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        if (data[i] != (uint8_t)OUTPUT_PERIOD[(at + i) % (sizeof OUTPUT_PERIOD - 1)])
            return 0;
    return 1;
}

static int output_read(struct output *r, struct server_place *s, struct http *h, struct pd_err *e)
{
    const uint8_t *piece;
    ssize_t n;
    uint64_t began = clock_now(), looked = began;

    while ((n = http_piece(h, &piece, e)) > 0) {
        if (!is_pattern(piece, (size_t)n, r->bytes))
            return pd_fail(e, PD_INTERNAL, "other bytes than were written, near offset %llu",
                           (unsigned long long)r->bytes);
        r->bytes += (uint64_t)n;
        uint64_t now = clock_now(), due = began + r->bytes * NS_PER_S / r->per_second;
        if (now - looked > NS_PER_S / 4) {
            struct usage u;
            if (server_usage(s, &u, e) < 0)
                return -1;
            if (u.rss > r->during.rss)
                r->during = u;
            looked = now;
        }

        if (due > now + NS_PER_MS)
            place_pause((unsigned)((due - now) / 1000));
    }

    r->ns = clock_now() - began;
    if (n < 0)
        return -1;
    return r->bytes == r->wanted
               ? 0
               : pd_fail(e, PD_INTERNAL, "%llu bytes of %llu", (unsigned long long)r->bytes,
                         (unsigned long long)r->wanted);
}

static int output_run(struct output *r, struct server_place *s, struct http *h, const char *id,
                      struct pd_err *e)
{
    char path[160], body[300], process[40];
    snprintf(path, sizeof path, "/v1/sandboxes/%s/processes", id);
    snprintf(body, sizeof body,
             "{\"argv\":[\"/bin/sh\",\"-c\",\"yes 0123456789abcde | head -c %llu\"],"
             "\"spool_max_bytes\":%u,\"back_pressure\":true}",
             (unsigned long long)r->wanted, SPOOL_BYTES);
    server_reset_peak(s);
    if (server_usage(s, &r->before, e) < 0)
        return -1;

    const char *text = http_call(h, s, "POST", path, body, 201, e);
    if (!text || json_find(text, "process_id", process, sizeof process) < 0)
        return text ? pd_fail(e, PD_PROTOCOL, "no process_id") : -1;
    snprintf(path, sizeof path, "/v1/sandboxes/%s/processes/%s/output?follow=true", id, process);
    if (http_send(h, s, "GET", path, "", NULL, e) < 0 || http_answer(h, e) < 0)
        return -1;
    if (h->status != 200)
        return pd_fail(e, PD_INTERNAL, "output: status %d", h->status);
    return output_read(r, s, h, e) < 0 ? -1 : server_usage(s, &r->after, e);
}

void output_measure(struct output *r, struct server_place *s, uint64_t bytes, uint64_t per_second)
{
    struct http h = HTTP_EMPTY;
    struct pd_err e;
    char id[32] = "";

    r->wanted = bytes;
    r->per_second = per_second;
    if (http_open(&h, s, &e) < 0 || sandbox(&h, s, "{}", id, &e) < 0 ||
        output_run(r, s, &h, id, &e) < 0)
        place_error(&s->p, "much output", &e);
    http_done(&h);

    if (id[0] && (http_open(&h, s, &e) < 0 || sandbox_end(&h, s, id, &e) < 0))
        place_error(&s->p, "much output", &e);
    http_done(&h);
}

/* ---- files ---- */

static int file_write(int fd, uint64_t bytes, struct pd_err *e)
{
    static uint8_t block[1u << 20];
    random_bytes(block, sizeof block);
    for (uint64_t at = 0; at < bytes; at += sizeof block) {
        int r = fd_write_all(fd, block, sizeof block);
        if (r < 0) {
            errno = -r;
            return pd_fail_sys(e, "write a file");
        }
    }
    return 0;
}

static int cat(struct files *r, struct server_place *s, const char *file, struct pd_err *e)
{
    char line[200];
    int status;
    snprintf(line, sizeof line, "cat %s | cat >/dev/null", file);
    const char *const argv[] = {"/bin/sh", "-c", line, NULL};
    uint64_t began = clock_now();
    if (place_spawn(&s->p, argv, -1, NULL, &status, e) < 0)
        return -1;
    series_add(&r->cat, clock_now() - began);
    return status ? pd_fail(e, PD_INTERNAL, "cat: status %d", status) : 0;
}

static int upload(struct files *r, struct server_place *s, struct http *h, const char *path, int fd,
                  struct pd_err *e)
{
    static uint8_t block[256u << 10];
    char length[60];
    snprintf(length, sizeof length, "Content-Length: %llu\r\n", (unsigned long long)r->bytes);
    uint64_t began = clock_now();
    if (http_send(h, s, "PUT", path, length, NULL, e) < 0)
        return -1;

    for (uint64_t at = 0; at < r->bytes;) {
        ssize_t n = pread(fd, block, sizeof block, (off_t)at);
        int sent = n > 0 ? fd_write_all(h->fd, block, (size_t)n) : -EIO;
        if (sent < 0) {
            errno = -sent;
            return pd_fail_sys(e, "upload");
        }
        at += (uint64_t)n;
    }

    if (http_answer(h, e) < 0)
        return -1;
    const char *text = http_text(h, e);
    if (!text)
        return -1;
    series_add(&r->upload, clock_now() - began);
    return h->status == 201 ? 0
                            : pd_fail(e, PD_INTERNAL, "upload: status %d: %.150s", h->status, text);
}

/* Outside the clock: the bytes are those of the file. */
static int same(struct server_place *s, struct http *h, const char *path, int fd, uint64_t bytes,
                struct pd_err *e)
{
    static uint8_t block[256u << 10];
    const uint8_t *piece;
    uint64_t at = 0;
    ssize_t n;
    if (http_send(h, s, "GET", path, "", NULL, e) < 0 || http_answer(h, e) < 0)
        return -1;

    while ((n = http_piece(h, &piece, e)) > 0) {
        for (ssize_t i = 0; i < n;) {
            ssize_t m =
                pread(fd, block, (size_t)(n - i) < sizeof block ? (size_t)(n - i) : sizeof block,
                      (off_t)(at + (uint64_t)i));
            if (m <= 0 || memcmp(block, piece + i, (size_t)m) != 0)
                return pd_fail(e, PD_INTERNAL, "download: other bytes near %llu",
                               (unsigned long long)at);
            i += m;
        }
        at += (uint64_t)n;
    }

    if (n < 0)
        return -1;
    return at == bytes ? 0
                       : pd_fail(e, PD_INTERNAL, "download: %llu bytes", (unsigned long long)at);
}

static int download(struct files *r, struct server_place *s, struct http *h, const char *path,
                    struct pd_err *e)
{
    const uint8_t *piece;
    uint64_t got = 0;
    ssize_t n;
    uint64_t began = clock_now();

    if (http_send(h, s, "GET", path, "", NULL, e) < 0 || http_answer(h, e) < 0)
        return -1;
    while ((n = http_piece(h, &piece, e)) > 0)
        got += (uint64_t)n;
    series_add(&r->download, clock_now() - began);
    if (n < 0)
        return -1;

    return h->status == 200 && got == r->bytes
               ? 0
               : pd_fail(e, PD_INTERNAL, "download: status %d, %llu bytes", h->status,
                         (unsigned long long)got);
}

static int files_run(struct files *r, struct server_place *s, struct http *h, const char *id,
                     unsigned rounds, struct pd_err *e)
{
    char file[96], path[120];
    snprintf(file, sizeof file, "%s/file", s->p.dir);
    snprintf(path, sizeof path, "/v1/sandboxes/%s/files?path=/workspace/big", id);

    auto_fd fd = open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "make %s", file);
    server_reset_peak(s);
    if (file_write(fd, r->bytes, e) < 0 || server_usage(s, &r->before, e) < 0)
        return -1;

    for (; r->rounds < rounds; r->rounds++) {
        if (cat(r, s, file, e) < 0 || upload(r, s, h, path, fd, e) < 0 ||
            download(r, s, h, path, e) < 0)
            return -1;
        if (r->rounds == 0 && same(s, h, path, fd, r->bytes, e) < 0)
            return -1;
        if (!http_call(h, s, "DELETE", path, NULL, 204, e))
            return -1;
    }

    return server_usage(s, &r->after, e);
}

void files_measure(struct files *r, struct server_place *s, uint64_t bytes, unsigned rounds)
{
    struct http h = HTTP_EMPTY;
    struct pd_err e;
    char id[32] = "";

    r->bytes = bytes;
    if (http_open(&h, s, &e) < 0 ||
        sandbox(&h, s, "{\"limits\":{\"memory_bytes\":2147483648,\"disk_bytes\":2147483648}}", id,
                &e) < 0 ||
        files_run(r, s, &h, id, rounds, &e) < 0)
        place_error(&s->p, "files", &e);
    http_done(&h);

    if (id[0] && (http_open(&h, s, &e) < 0 || sandbox_end(&h, s, id, &e) < 0))
        place_error(&s->p, "files", &e);
    http_done(&h);
}

void files_done(struct files *r)
{
    series_done(&r->cat);
    series_done(&r->upload);
    series_done(&r->download);
}

/* ---- connections ---- */

static int connections_run(struct connections *r, struct server_place *s, struct http *all,
                           struct pd_err *e)
{
    if (server_usage(s, &r->before, e) < 0)
        return -1;
    uint64_t began = clock_now();
    for (; r->count < r->asked; r->count++) {
        struct http *h = &all[r->count];
        if (http_open(h, s, e) < 0 || !http_call(h, s, "GET", "/healthz", NULL, 200, e))
            return -1;
        buf_done(&h->in);
        h->at = 0;
    }

    r->ns = clock_now() - began;
    place_pause(1000000);
    if (server_usage(s, &r->during, e) < 0)
        return -1;

    for (unsigned i = 0; i < r->count; i++) {
        if (!http_call(&all[i], s, "GET", "/healthz", NULL, 200, e))
            return -1;
        buf_done(&all[i].in);
        all[i].at = 0;
        r->answered_again++;
    }

    return 0;
}

void connections_measure(struct connections *r, struct server_place *s, unsigned count)
{
    struct pd_err e;
    struct rlimit files = {.rlim_cur = 1024};
    (void)getrlimit(RLIMIT_NOFILE, &files);

    r->asked = files.rlim_cur > count + 200u ? count : (unsigned)files.rlim_cur - 200;
    struct http *all = calloc(r->asked, sizeof *all);
    for (unsigned i = 0; all && i < r->asked; i++)
        all[i] = HTTP_EMPTY;
    if (!all || connections_run(r, s, all, &e) < 0)
        place_error(&s->p, "connections", &e);
    for (unsigned i = 0; all && i < r->asked; i++)
        http_done(&all[i]);
    free(all);

    place_pause(1000000);
    if (server_usage(s, &r->after, &e) < 0)
        place_error(&s->p, "connections", &e);
}
