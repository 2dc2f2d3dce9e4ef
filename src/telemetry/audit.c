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

#include <ctype.h>
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
static void put_egress(struct json *j, const struct gate_record *r, uint64_t number)
{
    json_member_uint(j, "n", number);
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
        put_egress(&j, event->egress, event->number);
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
    const struct audit_query *q;
    char needle[128];
    struct buf found;     /* lines, newest first, each ended by a newline */
    unsigned count, full; /* how many; no room for more */
    size_t max;
    uint64_t left; /* bytes that may still be scanned */
    ino_t last;    /* the file before */
    /* Where an earlier search stopped; 0: begin with the newest. */
    uint64_t from_file, from_offset;
    uint64_t at_file, at_offset; /* the line that was looked at last */
};

static bool has_member(const json_t *v, const char *name, const char *wanted)
{
    const char *found = json_string_value(json_object_get(v, name));
    return !wanted || (found && !strcmp(found, wanted));
}

/* An action, or a family of them with its dot: "file." */
static bool has_action(const json_t *v, const char *wanted)
{
    const char *found = json_string_value(json_object_get(v, "action"));
    size_t len = wanted ? strlen(wanted) : 0;
    if (!wanted)
        return true;
    return found && !strncmp(found, wanted, len) && (!found[len] || wanted[len - 1] == '.');
}

static bool fits(const json_t *v, const struct audit_query *q)
{
    return has_member(v, "tenant", q->tenant) && has_member(v, "sandbox", q->sandbox) &&
           has_member(v, "key", q->key) && has_member(v, "result", q->result) &&
           has_action(v, q->action);
}

static void take_line(struct search *s, const char *line, size_t len)
{
    if (len < 2 || (s->needle[0] && !memmem(line, len, s->needle, strlen(s->needle))))
        return;

    /* Not one that a kill cut in two. */
    json_error_t je;
    json_t *v = json_loadb(line, len, 0, &je);
    bool good = v && fits(v, s->q);
    json_decref(v);
    if (!good)
        return;

    if (s->found.len + len + 1 > s->max || buf_put(&s->found, line, len) < 0 ||
        buf_putc(&s->found, '\n') < 0)
        s->full = 1;
    else
        s->count++;
}

static int is_enough(const struct search *s)
{
    return s->full || s->count >= s->q->limit || !s->left;
}

/* Looks at one line, which begins there; a line for which there was no room is looked at again. */
static void look_at(struct search *s, const char *line, size_t len, uint64_t begins)
{
    take_line(s, line, len);
    if (s->full)
        return;
    s->at_file = s->last;
    s->at_offset = begins;
}

/* Where to begin in a file: its size, or less where an earlier search has been; 0: behind that
 * place altogether. */
static uint64_t begin_in(struct search *s, const struct stat *st)
{
    if (!s->from_file)
        return (uint64_t)st->st_size;
    if (s->from_file != st->st_ino)
        return 0;

    s->from_file = 0;
    return s->from_offset < (uint64_t)st->st_size ? s->from_offset : (uint64_t)st->st_size;
}

/* Walks a file from its end. `block` has room for a block and a line. */
static void search_file(struct search *s, int fd, char *block)
{
    struct stat st;

    /* The same once more: it was put aside meanwhile. */
    if (fstat(fd, &st) < 0 || st.st_ino == s->last)
        return;
    s->last = st.st_ino;
    uint64_t end = begin_in(s, &st);
    size_t tail = 0; /* the start of what was read last: the end of a line that begins earlier */

    while (end > 0 && !is_enough(s)) {
        size_t n = end < BLOCK ? (size_t)end : BLOCK;
        memmove(block + n, block, tail);
        if (pread(fd, block, n, (off_t)(end - n)) != (ssize_t)n)
            return;
        end -= n;
        s->left = s->left > n ? s->left - n : 0;

        size_t stop = n + tail;
        for (const char *newline; stop > 0 && !s->full && s->count < s->q->limit;) {
            newline = memrchr(block, '\n', stop);
            if (!newline)
                break;
            size_t begin = (size_t)(newline - block) + 1;
            look_at(s, block + begin, stop - begin, end + begin);
            stop = begin - 1;
        }

        if (end == 0 && !s->full && s->count < s->q->limit)
            look_at(s, block, stop, 0);
        /* No line is that long: it is not one of ours, and is left out. */
        tail = stop <= LINE_MAX_BYTES ? stop : 0;
    }
}

/* The lines of a search begin with the newest; so does the answer, or it ends with it. */
static void put_found(const struct search *s, struct buf *out)
{
    const char *all = (const char *)s->found.data;
    const char *comma = "";

    (void)buf_putc(out, '[');
    for (size_t at = 0; s->q->newest_first && at < s->found.len;) {
        size_t len = (size_t)((const char *)memchr(all + at, '\n', s->found.len - at) - all) - at;
        (void)buf_puts(out, comma);
        (void)buf_put(out, all + at, len);
        comma = ",";
        at += len + 1;
    }

    for (size_t end = s->found.len; !s->q->newest_first && end > 0;) {
        size_t stop = end - 1; /* the newline */
        const char *before = stop ? memrchr(all, '\n', stop) : NULL;
        size_t begin = before ? (size_t)(before - all) + 1 : 0;
        (void)buf_puts(out, comma);
        (void)buf_put(out, all + begin, stop - begin);
        comma = ",";
        end = begin;
    }
    (void)buf_putc(out, ']');
}

/* "FILE-OFFSET": what is older than the line that begins there. */
static int read_cursor(struct search *s, const char *text, struct pd_err *e)
{
    unsigned long long file, offset;
    int len = 0;

    if (sscanf(text, "%19llu-%19llu%n", &file, &offset, &len) != 2 || text[len] || !file ||
        !isdigit((unsigned char)text[0]))
        return pd_fail(e, PD_INVALID, "cursor '%.60s': take it from next_cursor of the last page",
                       text);
    s->from_file = file;
    s->from_offset = offset;
    return 0;
}

/* Every file, the newest first, until there is enough. False: there is nothing older. */
static bool search_files(struct search *s, const struct audit *a, char *block)
{
    for (unsigned i = 0; !is_enough(s); i++) {
        char name[40];
        (void)snprintf(name, sizeof name, i ? FILE_NAME ".%u" : FILE_NAME, i);
        auto_fd fd = openat(a->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            return false;
        search_file(s, fd, block);
    }
    return true;
}

int audit_search(struct audit *a, const struct audit_query *q, struct buf *out,
                 char ret_next[AUDIT_CURSOR_SIZE], struct pd_err *e)
{
    struct search s = {.q = q, .left = AUDIT_SCAN_MAX};
    size_t room = out->max > out->len ? out->max - out->len : 0;

    s.max = room > 2 ? room - 2 : 0;
    s.found = BUF_INIT(s.max);
    ret_next[0] = 0;
    if (q->cursor && read_cursor(&s, q->cursor, e) < 0)
        return -1;
    /* Ids have no characters that JSON escapes, so most lines need not be read. */
    if (q->sandbox)
        (void)snprintf(s.needle, sizeof s.needle, "\"sandbox\":\"%.60s\"", q->sandbox);

    char *block = a && q->limit ? malloc(BLOCK + LINE_MAX_BYTES) : NULL;
    if (a && q->limit && !block)
        return pd_fail(e, PD_CAPACITY, "no memory to read the audit log");
    if (block && search_files(&s, a, block) && s.at_file)
        (void)snprintf(ret_next, AUDIT_CURSOR_SIZE, "%llu-%llu", (unsigned long long)s.at_file,
                       (unsigned long long)s.at_offset);

    put_found(&s, out);
    free(block);
    buf_done(&s.found);
    return out->overflow ? pd_fail(e, PD_CAPACITY, "no room for the events") : 0;
}

int audit_read(struct audit *a, const char *sandbox, unsigned limit, struct buf *out,
               struct pd_err *e)
{
    char next[AUDIT_CURSOR_SIZE];
    return audit_search(a, &(struct audit_query){.sandbox = sandbox, .limit = limit}, out, next, e);
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
