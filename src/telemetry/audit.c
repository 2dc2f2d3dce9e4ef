/* How this works: the file's size is known, since only this process appends (the store's lock on
 * the state directory sees to that). A write that was cut short by a full disk is taken back with
 * ftruncate, so that the file holds whole lines; a line that a kill cut in two is ended when the
 * file is opened again. Reading goes backwards from the end in blocks. */
#include "telemetry/audit.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/lock.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"
#include "telemetry/redact.h"
#include "wire/gate_msg.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#define FILE_NAME      "audit.log"
#define LINE_MAX_BYTES (32u << 10)
#define BLOCK          (64u << 10)
#define RETRY_NS       NS_PER_S /* between attempts to open the file */

struct audit {
    struct lock lock;
    int dir, fd;
    int enabled;
    uint64_t max_bytes;
    unsigned keep;
    uint64_t size;
    uint64_t lost, told; /* events lost in all, and those that the file tells of */
    int failing;
    deadline retry;
    struct metrics *metrics;
};

/* ---- the file ---- */

/* Ends a line that was cut in two. */
static int end_torn_line(struct audit *a)
{
    char last = '\n';
    if (a->size > 0 && pread(a->fd, &last, 1, (off_t)a->size - 1) != 1)
        return -1;
    if (last == '\n')
        return 0;

    if (write(a->fd, "\n", 1) != 1)
        return -1;
    a->size++;
    return 0;
}

/* 0, or -1 with errno. */
static int open_file(struct audit *a)
{
    struct stat st;

    fd_done(&a->fd);
    a->fd = openat(a->dir, FILE_NAME,
                   O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (a->fd < 0)
        return -1;

    if (fstat(a->fd, &st) == 0 && S_ISREG(st.st_mode)) {
        a->size = (uint64_t)st.st_size;
        if (end_torn_line(a) == 0)
            return 0;
    } else {
        errno = EINVAL;
    }

    fd_done(&a->fd);
    return -1;
}

/* audit.log.1 -> audit.log.2 ..., audit.log -> audit.log.1. */
static int rotate(struct audit *a)
{
    char from[40], to[40];

    for (unsigned i = a->keep; i > 0; i--) {
        (void)snprintf(to, sizeof to, FILE_NAME ".%u", i);
        (void)snprintf(from, sizeof from, i > 1 ? FILE_NAME ".%u" : FILE_NAME, i - 1);
        if (renameat(a->dir, from, a->dir, to) < 0 && errno != ENOENT)
            return -1;
    }

    /* More than are kept now, from a time when more were. */
    for (unsigned i = a->keep + 1;; i++) {
        (void)snprintf(to, sizeof to, FILE_NAME ".%u", i);
        if (unlinkat(a->dir, to, 0) < 0)
            break;
    }
    return open_file(a);
}

/* Somebody else may have moved or removed the file; then what is written would be lost. */
static int is_there(struct audit *a)
{
    struct stat st;
    return a->fd >= 0 && fstat(a->fd, &st) == 0 && st.st_nlink > 0;
}

/* 0, or -1 with errno: nothing of it is in the file. */
static int append(struct audit *a, const struct buf *line)
{
    if (!is_there(a)) {
        if (a->failing && !deadline_passed(a->retry)) {
            errno = EIO;
            return -1;
        }
        a->retry = deadline_in(RETRY_NS);
        if (open_file(a) < 0)
            return -1;
    }

    if (a->size > 0 && a->size + line->len > a->max_bytes && rotate(a) < 0)
        return -1;

    ssize_t n = write(a->fd, line->data, line->len);
    if (n == (ssize_t)line->len) {
        a->size += line->len;
        return 0;
    }

    int why = n < 0 ? errno : ENOSPC;
    if (n > 0 && ftruncate(a->fd, (off_t)a->size) < 0)
        fd_done(&a->fd); /* the next one opens it anew, and ends the torn line */
    errno = why;
    return -1;
}

/* ---- lines ---- */

static void put_member(struct json *j, const char *key, const char *text)
{
    if (!text)
        return;
    json_key(j, key);
    json_cstr(j, text);
}

static void begin_line(struct json *j)
{
    struct timespec now;
    char when[25];

    (void)clock_gettime(CLOCK_REALTIME, &now);
    log_time((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, when);
    json_open(j, '{');
    put_member(j, "time", when);
}

static void end_line(struct json *j)
{
    json_close(j, '}');
    (void)buf_putc(j->out, '\n');
}

/* Words as one would type them, near enough to read. */
static void join_words(const struct msg_list *argv, struct buf *out)
{
    uint32_t pos = 0;
    for (const char *word; (word = msg_list_next(argv, &pos)) && out->len <= AUDIT_COMMAND_MAX;) {
        int plain = *word && !strpbrk(word, " \t\n'\"\\$`;&|<>()*?");
        size_t len = strnlen(word, AUDIT_COMMAND_MAX);
        (void)buf_puts(out, out->len ? " " : "");
        (void)buf_puts(out, plain ? "" : "'");
        (void)buf_put(out, word, len);
        (void)buf_puts(out, plain ? "" : "'");
    }
}

/* Secrets are taken out of all of it before it is cut, so that a cut cannot hide what they are. */
static void put_command(struct json *j, const struct audit_event *event)
{
    auto_buf words = BUF_INIT(4 * AUDIT_COMMAND_MAX), clean = BUF_INIT(16 * AUDIT_COMMAND_MAX);
    const char *text = event->command;

    if (!text && !event->argv.count)
        return;

    if (!text) {
        join_words(&event->argv, &words);
        text = buf_cstr(&words);
    }
    if (!text)
        text = "";

    size_t len = strnlen(text, 2 * AUDIT_COMMAND_MAX);
    /* Half a secret has no shape to be known by. */
    if (text[len])
        while (len > 0 && text[len - 1] != ' ')
            len--;

    redact(text, len, &clean);
    json_key(j, "command");
    json_str(j, clean.data ? clean.data : (const uint8_t *)"",
             clean.len < AUDIT_COMMAND_MAX ? clean.len : AUDIT_COMMAND_MAX);

    if (clean.len > AUDIT_COMMAND_MAX || text[len]) {
        json_key(j, "command_cut");
        json_bool(j, 1);
    }
}

static void put_pull(struct json *j, const struct audit_pull *p)
{
    json_key(j, "pull");
    json_open(j, '{');
    json_member_cstr(j, "image", p->image);
    json_member_uint(j, "layers_done", p->layers_done);
    json_member_uint(j, "layers", p->layers);
    json_member_uint(j, "bytes_done", p->bytes_done);
    json_member_uint(j, "bytes", p->bytes);
    json_close(j, '}');
}

/* Of a connection, in the order in which one asks: where to, what by, what came of it. */
static void put_egress(struct json *j, const struct gate_record *r)
{
    put_member(j, "name", r->name[0] ? r->name : NULL);
    put_member(j, "address", r->address[0] ? r->address : NULL);
    json_member_uint(j, "port", r->port);
    put_member(j, "kind", gate_kind_name(r->kind));
    put_member(j, "rule", r->rule[0] ? r->rule : NULL);
    put_member(j, "why", r->why[0] ? r->why : NULL);
    json_member_uint(j, "up", r->up);
    json_member_uint(j, "down", r->down);
}

static void put_event(struct buf *line, const struct audit_event *event)
{
    struct json j = JSON_INIT(line);

    begin_line(&j);
    put_member(&j, "tenant", event->tenant);
    put_member(&j, "key", event->key_id);
    put_member(&j, "request", event->request_id);
    put_member(&j, "sandbox", event->sandbox);
    put_member(&j, "action", event->action);
    put_command(&j, event);
    put_member(&j, "user", event->user);
    put_member(&j, "result", event->result);
    if (event->has_exit) {
        json_key(&j, "exit_code");
        json_int(&j, event->exit_code);
    }
    put_member(&j, "stopped_by", event->stopped_by);
    if (event->duration_us) {
        json_key(&j, "duration_ms");
        json_milli(&j, event->duration_us);
    }
    if (event->egress)
        put_egress(&j, event->egress);
    if (event->pull)
        put_pull(&j, event->pull);
    end_line(&j);
}

static int tell_gap(struct audit *a)
{
    auto_buf line = BUF_INIT(256);
    struct json j = JSON_INIT(&line);

    begin_line(&j);
    put_member(&j, "action", "audit.lost");
    json_key(&j, "count");
    json_uint(&j, a->lost - a->told);
    end_line(&j);

    if (append(a, &line) < 0)
        return -1;
    a->told = a->lost;
    return 0;
}

void audit_write(struct audit *a, const struct audit_event *event)
{
    if (!a)
        return;

    auto_buf line = BUF_INIT(LINE_MAX_BYTES);
    put_event(&line, event);
    int why = 0;
    uint64_t lost = 0;
    enum { SAME, BROKE, MENDED } change = SAME;

    lock_take(&a->lock);
    if (!a->enabled) {
        lock_release(&a->lock);
        return;
    }

    if (line.overflow || (a->lost > a->told && tell_gap(a) < 0) || append(a, &line) < 0) {
        why = line.overflow ? ENOMEM : errno;
        a->lost++;
        change = a->failing ? SAME : BROKE;
        a->failing = 1;
    } else if (a->failing) {
        a->failing = 0;
        lost = a->lost;
        change = MENDED;
    }
    lock_release(&a->lock);

    metrics_count(a->metrics, why ? METRIC_AUDIT_LOST : METRIC_AUDIT_EVENTS);
    /* Logged without the lock: a log that is stuck must not hold up everybody. */
    if (change == BROKE)
        log_error("audit.failed", "error=%s", strerror(why));
    if (change == MENDED)
        log_warn("audit.recovered", "lost=%ju", (uintmax_t)lost);
}

uint64_t audit_lost(struct audit *a)
{
    if (!a)
        return 0;

    lock_take(&a->lock);
    uint64_t lost = a->lost;
    lock_release(&a->lock);
    return lost;
}

/* ---- reading ---- */

struct search {
    char needle[128];
    unsigned limit;
    struct buf found;     /* lines, newest first, each ended by a newline */
    unsigned count, full; /* how many; no room for more */
    size_t max;
    uint64_t left; /* bytes that may still be scanned */
    ino_t last;    /* the file before */
};

static void take_line(struct search *s, const char *line, size_t len)
{
    if (len < 2 || !memmem(line, len, s->needle, strlen(s->needle)))
        return;

    /* Not one that a kill cut in two. */
    json_error_t je;
    json_t *v = json_loadb(line, len, 0, &je);
    if (!v)
        return;
    json_decref(v);

    if (s->found.len + len + 1 > s->max || buf_put(&s->found, line, len) < 0 ||
        buf_putc(&s->found, '\n') < 0)
        s->full = 1;
    else
        s->count++;
}

static int is_enough(const struct search *s)
{
    return s->full || s->count >= s->limit || !s->left;
}

/* Walks a file from its end. `block` has room for a block and a line. */
static void search_file(struct search *s, int fd, char *block)
{
    struct stat st;

    /* The same once more: it was put aside meanwhile. */
    if (fstat(fd, &st) < 0 || st.st_ino == s->last)
        return;
    s->last = st.st_ino;
    uint64_t end = (uint64_t)st.st_size;
    size_t tail = 0; /* the start of what was read last: the end of a line that begins earlier */

    while (end > 0 && !is_enough(s)) {
        size_t n = end < BLOCK ? (size_t)end : BLOCK;
        memmove(block + n, block, tail);
        if (pread(fd, block, n, (off_t)(end - n)) != (ssize_t)n)
            return;
        end -= n;
        s->left = s->left > n ? s->left - n : 0;

        size_t stop = n + tail;
        for (const char *newline; stop > 0 && !is_enough(s);) {
            newline = memrchr(block, '\n', stop);
            if (!newline)
                break;
            size_t begin = (size_t)(newline - block) + 1;
            take_line(s, block + begin, stop - begin);
            stop = begin - 1;
        }

        if (end == 0 && !is_enough(s))
            take_line(s, block, stop);
        /* No line is that long: it is not one of ours, and is left out. */
        tail = stop <= LINE_MAX_BYTES ? stop : 0;
    }
}

static void put_found(const struct search *s, struct buf *out)
{
    (void)buf_putc(out, '[');
    const char *comma = "";

    for (size_t end = s->found.len; end > 0;) {
        size_t stop = end - 1; /* the newline */
        const uint8_t *before = stop ? memrchr(s->found.data, '\n', stop) : NULL;
        size_t begin = before ? (size_t)(before - s->found.data) + 1 : 0;
        (void)buf_puts(out, comma);
        (void)buf_put(out, s->found.data + begin, stop - begin);
        comma = ",";
        end = begin;
    }
    (void)buf_putc(out, ']');
}

int audit_read(struct audit *a, const char *sandbox, unsigned limit, struct buf *out,
               struct pd_err *e)
{
    struct search s = {.limit = limit, .left = AUDIT_SCAN_MAX};
    size_t room = out->max > out->len ? out->max - out->len : 0;

    s.max = room > 2 ? room - 2 : 0;
    s.found = BUF_INIT(s.max);
    char *block = NULL;
    /* Ids have no characters that JSON escapes, so the text can be looked for as it is. */
    int valid = *sandbox && !sandbox[strspn(sandbox, "abcdefghijklmnopqrstuvwxyz0123456789")] &&
                strlen(sandbox) < 100;

    if (a && valid && limit) {
        (void)snprintf(s.needle, sizeof s.needle, "\"sandbox\":\"%s\"", sandbox);
        block = malloc(BLOCK + LINE_MAX_BYTES);
        if (!block)
            return pd_fail(e, PD_CAPACITY, "no memory to read the audit log");
        for (unsigned i = 0; !is_enough(&s); i++) {
            char name[40];
            (void)snprintf(name, sizeof name, i ? FILE_NAME ".%u" : FILE_NAME, i);
            auto_fd fd = openat(a->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
            if (fd < 0)
                break;
            search_file(&s, fd, block);
        }
    }

    put_found(&s, out);
    free(block);
    buf_done(&s.found);
    return out->overflow ? pd_fail(e, PD_CAPACITY, "no room for the events") : 0;
}

/* ---- the whole ---- */

void audit_reconfigure(struct audit *a, const struct audit_config *c)
{
    if (!a)
        return;
    lock_take(&a->lock);
    a->enabled = c->enabled;
    a->max_bytes = c->max_bytes;
    a->keep = c->keep > 0 ? c->keep : 1;
    lock_release(&a->lock);
}

struct audit *audit_new(const struct audit_config *c, struct pd_err *e)
{
    struct audit *a = calloc(1, sizeof *a);
    if (!a) {
        pd_fail(e, PD_CAPACITY, "no memory for the audit log");
        return NULL;
    }

    lock_init(&a->lock, LOCK_AUDIT);
    a->fd = -1;
    a->metrics = c->metrics;
    a->dir = open(c->state_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (a->dir < 0) {
        pd_fail_sys(e, "open the state directory %s", c->state_dir);
        audit_free(a);
        return NULL;
    }

    audit_reconfigure(a, c);
    return a;
}

void audit_free(struct audit *a)
{
    if (!a)
        return;
    fd_done(&a->fd);
    fd_done(&a->dir);
    lock_done(&a->lock);
    free(a);
}
