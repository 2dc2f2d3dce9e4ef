/* A table of text. Cells are collected with what could confuse a terminal escaped, then printed in
 * columns as wide as their widest cell; the last column is cut at the width of the terminal. */
#include "client/table.h"

#include "base/banned.h"
#include "client/text.h"

#include <stdarg.h>
#include <sys/ioctl.h>

#define CELLS_MAX (64u << 20)
#define CELL_MAX  4096u

void table_init(struct table *t, const char *titles)
{
    *t = (struct table){.cells = BUF_INIT(CELLS_MAX)};
    while (*titles) {
        size_t len = strcspn(titles, " ");
        int is_right = *titles == '>';
        t->right |= (unsigned)is_right << t->columns++;
        table_printf(t, "%.*s", (int)len - is_right, titles + is_right);
        titles += len;
        titles += strspn(titles, " ");
    }
}

void table_done(struct table *t)
{
    buf_done(&t->cells);
}

void table_put(struct table *t, const char *text)
{
    if (!text || !*text)
        text = "-";
    text_escape(&t->cells, text, strnlen(text, CELL_MAX));
    buf_putc(&t->cells, 0);
    t->count++;
}

void table_printf(struct table *t, const char *fmt, ...)
{
    char text[CELL_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    table_put(t, text);
}

void table_fit(struct table *t, int fd)
{
    struct winsize size;
    if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0)
        t->cut = size.ws_col;
}

/* Prints as many characters as fit. */
static void put_cut(FILE *to, const char *text, size_t width)
{
    size_t n = 0;
    while (text[n] && (width || (text[n] & 0xc0) == 0x80)) {
        width -= (text[n] & 0xc0) != 0x80;
        n++;
    }
    fwrite(text, 1, n, to);
}

int table_print(struct table *t, FILE *to)
{
    size_t width[TABLE_COLUMNS_MAX] = {0};
    if (t->cells.overflow || t->columns > TABLE_COLUMNS_MAX)
        return -1;

    const char *cell = (const char *)t->cells.data;
    for (unsigned i = 0; i < t->count; i++, cell += strlen(cell) + 1) {
        size_t w = text_width(cell, strlen(cell));
        if (w > width[i % t->columns])
            width[i % t->columns] = w;
    }

    cell = (const char *)t->cells.data;
    size_t at = 0;
    for (unsigned i = 0; i < t->count; i++, cell += strlen(cell) + 1) {
        unsigned column = i % t->columns;
        int is_last = column == t->columns - 1;
        size_t len = strlen(cell), pad = width[column] - text_width(cell, len);

        if (t->right & 1u << column)
            fprintf(to, "%*s", (int)pad, "");
        if (is_last && t->cut)
            put_cut(to, cell, t->cut > at ? t->cut - at : 0);
        else
            fwrite(cell, 1, len, to);
        if (!is_last && !(t->right & 1u << column))
            fprintf(to, "%*s", (int)pad, "");

        fputs(is_last ? "\n" : "  ", to);
        at = is_last ? 0 : at + width[column] + 2;
    }
    return 0;
}

void format_size(char out[16], uint64_t bytes)
{
    static const char units[] = "KMGTPE";
    double v = (double)bytes;
    int unit = -1;

    while (v >= 1000 && unit < 5) {
        v /= 1024;
        unit++;
    }

    if (unit < 0)
        snprintf(out, 16, "%u", (unsigned)bytes);
    else
        snprintf(out, 16, v < 9.95 ? "%.1f%c" : "%.0f%c", v, units[unit]);
}

void format_age(char out[16], uint64_t seconds)
{
    unsigned s = (unsigned)(seconds > UINT32_MAX ? UINT32_MAX : seconds);
    if (s < 60)
        snprintf(out, 16, "%us", s);
    else if (s < 3600)
        snprintf(out, 16, "%um%02us", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 16, "%uh%02um", s / 3600, s / 60 % 60);
    else
        snprintf(out, 16, "%ud%02uh", s / 86400, s / 3600 % 24);
}

int64_t parse_time_ms(const char *text)
{
    struct tm tm = {0};
    unsigned ms = 0;
    int n = 0;

    if (!text ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3u%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &n) != 7 ||
        strcmp(text + n, "Z") != 0)
        return -1;

    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)timegm(&tm) * 1000 + ms;
}
