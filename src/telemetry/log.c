/* How this works: the format is walked word by word, and each conversion is rendered into a value
 * of its own, so that what came from outside can be told from what the program says. The line is
 * made on the stack and written at once.
 *
 * Pipes and terminals are opened anew through /proc, non-blocking: O_NONBLOCK on the inherited
 * descriptor would also change it for every other process that holds it. Files are not (two
 * positions in one file would overwrite each other), and they do not block; sockets have
 * MSG_DONTWAIT. */
#include "telemetry/log.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define VALUE_MAX    1024 /* bytes of one value before escaping */
#define STUCK_MS     50
#define ESCAPED_ROOM 64 /* kept free for the end of a cut line */

static struct {
    _Atomic int level, format;
    int fd;        /* what the caller gave */
    int own;       /* opened here, or -1 */
    int is_socket; /* send instead of write */
    _Atomic int stuck, torn;
    _Atomic uint64_t dropped, told;
} out = {.level = LOG_LEVEL_INFO, .fd = 2, .own = -1};

static _Thread_local char request[LOG_REQUEST_MAX + 1];

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_setup(int fd, enum log_level level, enum log_format format)
{
    struct stat st;
    char path[40];

    if (out.own >= 0)
        close(out.own);
    out.own = -1;
    out.is_socket = 0;

    if (fstat(fd, &st) == 0) {
        out.is_socket = S_ISSOCK(st.st_mode);
        if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
            (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            out.own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        }
    }

    out.fd = fd;
    out.level = (int)level;
    out.format = (int)format;
    out.stuck = out.torn = 0;
    (void)signal(SIGPIPE, SIG_IGN);
}

void log_set_level(enum log_level level)
{
    out.level = (int)level;
}

void log_set_format(enum log_format format)
{
    out.format = (int)format;
}

void log_request(const char *id)
{
    (void)snprintf(request, sizeof request, "%s", id ? id : "");
}

uint64_t log_dropped(void)
{
    return out.dropped;
}

int log_wanted(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&out.level, memory_order_relaxed);
}

void log_time(uint64_t ms_since_epoch, char ret[25])
{
    time_t seconds = (time_t)(ms_since_epoch / 1000);
    struct tm tm;

    if (!gmtime_r(&seconds, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900)
        tm = (struct tm){.tm_mday = 1};
    /* The casts tell the compiler how wide each number can be. */
    (void)snprintf(
        ret, 25, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(tm.tm_year + 1900) % 10000u,
        (unsigned)(tm.tm_mon + 1) % 100u, (unsigned)tm.tm_mday % 100u, (unsigned)tm.tm_hour % 100u,
        (unsigned)tm.tm_min % 100u, (unsigned)tm.tm_sec % 100u, (unsigned)(ms_since_epoch % 1000));
}

/* ---- writing ---- */

static ssize_t write_once(const void *data, size_t len)
{
    int fd = out.own >= 0 ? out.own : out.fd;
    if (out.is_socket)
        return send(fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(fd, data, len);
}

/* 0, or -1 when the line was lost, all of it or its end. */
static int write_line(const void *data, size_t len)
{
    for (int tries = 0; tries < 3; tries++) {
        ssize_t n = write_once(data, len);
        if (n == (ssize_t)len) {
            out.stuck = 0;
            return 0;
        }
        if (n >= 0) {
            out.torn = 1;
            return -1;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN || atomic_exchange(&out.stuck, 1))
            return -1;
        struct pollfd p = {.fd = out.own >= 0 ? out.own : out.fd, .events = POLLOUT};
        (void)poll(&p, 1, STUCK_MS);
    }
    return -1;
}

/* ---- making a line ---- */

struct line {
    char text[LOG_LINE_MAX];
    size_t len;
    int json;
    int cut;
};

static void put(struct line *l, const char *data, size_t len)
{
    if (l->cut || len > sizeof l->text - ESCAPED_ROOM - l->len) {
        l->cut = 1;
        return;
    }

    memcpy(l->text + l->len, data, len);
    l->len += len;
}

static void puts_line(struct line *l, const char *s)
{
    put(l, s, strlen(s));
}

static void put_json_pair(struct buf *to, const char *key, size_t key_len, const char *data,
                          size_t len, int plain, int missing)
{
    struct json j = JSON_INIT(to);
    (void)buf_puts(to, ",\"");
    (void)buf_put(to, key, key_len);
    (void)buf_puts(to, "\":");

    if (missing)
        json_cstr(&j, NULL);
    else if (plain)
        (void)buf_put(to, data, len);
    else
        json_str(&j, data, len);
}

/* In quotes where it is needed. */
static void put_text_pair(struct buf *to, const char *key, size_t key_len, const char *data,
                          size_t len)
{
    int quote = len == 0;
    for (size_t i = 0; i < len && !quote; i++)
        quote = data[i] <= ' ' || data[i] == '"' || data[i] == '\\' || data[i] == '=' ||
                data[i] == 0x7f || (data[i] & 0x80);

    (void)buf_putc(to, ' ');
    (void)buf_put(to, key, key_len);
    (void)buf_puts(to, quote ? "=\"" : "=");

    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '\n')
            (void)buf_puts(to, "\\n");
        else if (c < ' ' || c >= 0x7f)
            (void)buf_printf(to, "\\x%02x", c);
        else if (c == '"' || c == '\\')
            (void)buf_printf(to, "\\%c", c);
        else
            (void)buf_putc(to, (char)c);
    }
    if (quote)
        (void)buf_putc(to, '"');
}

/* One value with its key, as the format wants it. `plain`: it is a number. */
static void put_pair(struct line *l, const char *key, size_t key_len, const struct buf *value,
                     int plain, int missing)
{
    const char *data = value->data ? (const char *)value->data : "";
    auto_buf shown = BUF_INIT(8 * VALUE_MAX + 64);

    if (l->json)
        put_json_pair(&shown, key, key_len, data, value->len, plain, missing);
    else
        put_text_pair(&shown, key, key_len, data, value->len);

    /* All or nothing: half an escape or an open quote would mislead a reader. */
    if (!shown.overflow)
        put(l, (const char *)shown.data, shown.len);
}

struct conversion {
    char spec[24]; /* the conversion as printf takes it, with '*' */
    char size;     /* 0, 'l', 'L' for long long, 'z', 'j', 't' */
    char type;
    int stars;
};

/* Reads the conversion at *p (a '%') and moves behind it. */
static int read_conversion(const char **p, struct conversion *c)
{
    const char *start = *p, *s = start + 1;

    *c = (struct conversion){.type = 0};
    for (; *s && strchr("-+ #0123456789.*", *s); s++)
        c->stars += *s == '*';
    for (; *s && strchr("hlzjt", *s); s++)
        c->size = *s == 'h' ? 0 : *s == 'l' && c->size == 'l' ? 'L' : *s;
    c->type = *s;

    size_t len = (size_t)(s + 1 - start);
    if (!*s || len >= sizeof c->spec || c->stars > 2)
        return -1;
    memcpy(c->spec, start, len);
    *p = s + 1;
    return 0;
}

/* The conversions go straight from the caller's format, which the compiler has checked there. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
#define PRINT(v)                                                                                   \
    (c->stars == 0   ? snprintf(text, sizeof text, c->spec, v)                                     \
     : c->stars == 1 ? snprintf(text, sizeof text, c->spec, star[0], v)                            \
                     : snprintf(text, sizeof text, c->spec, star[0], star[1], v))

/* Renders one conversion, taking its arguments. Returns -1 for a type that is not known: then the
 * arguments behind it cannot be found either. */
static int render(struct buf *value, const struct conversion *c, va_list *ap, int *missing)
{
    char text[VALUE_MAX];
    int star[2] = {0, 0}, n;

    if (c->type == '%')
        return buf_putc(value, '%');

    for (int i = 0; i < c->stars; i++)
        star[i] = va_arg(*ap, int);

    if (strchr("di", c->type)) {
        if (c->size == 'L')
            n = PRINT(va_arg(*ap, long long));
        else if (c->size == 'j')
            n = PRINT(va_arg(*ap, intmax_t));
        else if (c->size)
            n = PRINT(va_arg(*ap, long));
        else
            n = PRINT(va_arg(*ap, int));
    } else if (strchr("uxXo", c->type)) {
        if (c->size == 'L')
            n = PRINT(va_arg(*ap, unsigned long long));
        else if (c->size == 'j')
            n = PRINT(va_arg(*ap, uintmax_t));
        else if (c->size)
            n = PRINT(va_arg(*ap, unsigned long));
        else
            n = PRINT(va_arg(*ap, unsigned));
    } else if (strchr("fFgGeE", c->type)) {
        n = PRINT(va_arg(*ap, double));
    } else if (c->type == 'c') {
        n = PRINT(va_arg(*ap, int));
    } else if (c->type == 's') {
        const char *s = va_arg(*ap, const char *);
        *missing = !s;
        s = s ? s : "-";
        n = PRINT(s);
    } else {
        return -1;
    }

    if (n < 0)
        return 0;
    size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    (void)buf_put(value, text, len);
    return (size_t)n > len ? buf_puts(value, "...") : 0;
}
#undef PRINT
#pragma GCC diagnostic pop

/* One word of the format: key=value. */
static int put_word(struct line *l, const char **fmt, va_list *ap)
{
    const char *p = *fmt, *key = "note";

    size_t key_len = strcspn(p, "= %");
    if (p[key_len] == '=' && key_len > 0) {
        key = p;
        p += key_len + 1;
    } else {
        key_len = strlen(key);
    }

    auto_buf value = BUF_INIT(2 * VALUE_MAX);
    unsigned parts = 0;
    int number = 0, missing = 0, failed = 0;
    while (*p && *p != ' ' && !failed) {
        parts++;
        if (*p != '%') {
            size_t len = strcspn(p, " %");
            (void)buf_put(&value, p, len);
            p += len;
            continue;
        }
        struct conversion c;
        failed = read_conversion(&p, &c) < 0 || render(&value, &c, ap, &missing) < 0;
        number = strchr("diu", c.type) && !strpbrk(c.spec, "+ 0123456789*");
    }

    put_pair(l, key, key_len, &value, parts == 1 && number && !failed, parts == 1 && missing);
    *fmt = p;
    return failed ? -1 : 0;
}

static void begin(struct line *l, enum log_level level, const char *event)
{
    struct timespec now;
    char when[25];

    (void)clock_gettime(CLOCK_REALTIME, &now);
    log_time((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, when);

    l->len = 0;
    l->cut = 0;
    l->json = out.format == LOG_FORMAT_JSON;
    if (atomic_exchange(&out.torn, 0))
        puts_line(l, "\n");

    const char *const parts[] = {l->json ? "{\"time\":\"" : "",
                                 when,
                                 l->json ? "\",\"level\":\"" : " ",
                                 level_names[level & 3],
                                 l->json ? "\",\"event\":\"" : " ",
                                 event,
                                 l->json ? "\"" : ""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        puts_line(l, parts[i]);

    if (*request) {
        struct buf id = {.data = (uint8_t *)request, .len = strlen(request)};
        put_pair(l, "request", 7, &id, 0, 0);
    }
}

static void finish(struct line *l)
{
    const char *end = l->json ? l->cut ? ",\"cut\":true}\n" : "}\n" : l->cut ? " cut=true\n" : "\n";

    memcpy(l->text + l->len, end, strlen(end));
    l->len += strlen(end);
    if (write_line(l->text, l->len) < 0)
        out.dropped++;
}

static void tell_dropped(struct line *l)
{
    uint64_t dropped = out.dropped, told = out.told;
    if (dropped == told || !atomic_compare_exchange_strong(&out.told, &told, dropped))
        return;

    struct buf count = BUF_INIT(32);
    (void)buf_printf(&count, "%ju", (uintmax_t)(dropped - told));
    begin(l, LOG_LEVEL_WARN, "log.dropped");
    put_pair(l, "count", 5, &count, 1, 0);
    buf_done(&count);

    uint64_t before = out.dropped;
    finish(l);

    /* Not told after all: the next line tries again. (Its own loss does not count.) */
    if (out.dropped > before) {
        out.dropped--;
        out.told = told;
    }
}

void log_write(enum log_level level, const char *event, const char *fmt, ...)
{
    if (!log_wanted(level))
        return;

    int saved = errno; /* callers log before they look at it */
    struct line l;
    tell_dropped(&l);
    begin(&l, level, event);

    va_list ap;
    va_start(ap, fmt);
    while (*fmt) {
        while (*fmt == ' ')
            fmt++;
        if (*fmt && put_word(&l, &fmt, &ap) < 0)
            break;
    }

    va_end(ap);
    finish(&l);
    errno = saved;
}
