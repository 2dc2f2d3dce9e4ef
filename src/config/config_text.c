/* The configuration as text: the file's grammar, and what is printed of the keys. */
#include "base/banned.h"
#include "base/json.h"
#include "config/config_table.h"

#define LINE_MAX_BYTES 8192

/* ---- the file ---- */

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Takes the value at `p` (NUL-ended) out of its quotes or cuts the comment behind it. NULL when a
 * quote is open or something follows it. */
static char *value_at(char *p)
{
    if (*p == '"') {
        char *end = strchr(p + 1, '"');
        if (!end)
            return NULL;
        const char *rest = end + 1;
        while (is_blank(*rest))
            rest++;
        if (*rest && *rest != '#')
            return NULL;
        *end = 0;
        return p + 1;
    }

    char *end = p;
    for (char *q = p; *q; q++) {
        if (*q == '#' && (q == p || is_blank(q[-1])))
            break;
        if (!is_blank(*q))
            end = q + 1;
    }

    *end = 0;
    return p;
}

/* One line, without its end. */
static int parse_line(const char *name, unsigned number, char *line, config_each *each, void *arg,
                      struct pd_err *e)
{
    char *p = line;

    while (is_blank(*p))
        p++;
    if (!*p || *p == '#')
        return 0;

    char *key = p;
    size_t len = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_");
    p = key + len;
    while (is_blank(*p))
        p++;
    if (*key == '[')
        return pd_fail(e, PD_INVALID, "%.80s:%u: there are no sections: write `key = value`", name,
                       number);
    if (!len || *p != '=')
        return pd_fail(e, PD_INVALID, "%.80s:%u: '%.40s' is not `key = value`", name, number, key);

    p++;
    while (is_blank(*p))
        p++;
    char *value = value_at(p);
    key[len] = 0;
    if (!value)
        return pd_fail(e, PD_INVALID,
                       "%.80s:%u: %.40s: the quotes are not closed at the value's end", name,
                       number, key);

    return each(arg, number, key, value, e);
}

int config_parse(const char *name, const char *text, size_t len, config_each *each, void *arg,
                 struct pd_err *e)
{
    if (len > CONFIG_FILE_MAX)
        return pd_fail(e, PD_INVALID, "%.80s: is larger than %u bytes", name, CONFIG_FILE_MAX);

    char line[LINE_MAX_BYTES];
    unsigned number = 0;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at, next = at + n + 1;
        number++;
        if (n > 0 && text[at + n - 1] == '\r')
            n--;
        if (n >= sizeof line)
            return pd_fail(e, PD_INVALID, "%.80s:%u: the line is longer than %zu bytes", name,
                           number, sizeof line - 1);
        for (size_t i = 0; i < n; i++)
            if (((unsigned char)text[at + i] < ' ' && text[at + i] != '\t') || text[at + i] == 0x7f)
                return pd_fail(e, PD_INVALID, "%.80s:%u: has a control character", name, number);
        memcpy(line, text + at, n);
        line[n] = 0;
        if (parse_line(name, number, line, each, arg, e) < 0)
            return -1;
        at = next;
    }

    return 0;
}

/* ---- printing ---- */

static void put_upper(struct buf *out, const char *name)
{
    for (; *name; name++)
        (void)buf_putc(out, *name >= 'a' && *name <= 'z' ? (char)(*name - 'a' + 'A') : *name);
}

static void put_dashed(struct buf *out, const char *name)
{
    for (; *name; name++)
        (void)buf_putc(out, *name == '_' ? '-' : *name);
}

static void put_source(const struct config *c, unsigned i, struct buf *out)
{
    const char *file = c->file ? c->file : "";

    switch (c->origin[i].source) {
    case CONFIG_FROM_DEFAULT:
        (void)buf_puts(out, "default");
        break;
    case CONFIG_FROM_OTHERS:
        (void)buf_puts(out, "worked out");
        break;
    case CONFIG_FROM_FILE:
        (void)buf_printf(out, "%s:%u", file, c->origin[i].line);
        break;
    case CONFIG_FROM_ALIAS:
        (void)buf_printf(out, "environment %s (older name)", c->origin[i].alias);
        break;
    case CONFIG_FROM_ENVIRONMENT:
        (void)buf_puts(out, "environment PADDOCK_");
        put_upper(out, config_keys[i].name);
        break;
    case CONFIG_FROM_FLAG:
        (void)buf_puts(out, "option --");
        put_dashed(out, config_keys[i].name);
        break;
    }
}

static void put_padded(struct buf *out, const char *text, size_t width)
{
    size_t len = strlen(text);
    (void)buf_puts(out, text);
    for (; len < width; len++)
        (void)buf_putc(out, ' ');
}

/* For programs, which do not know of units: bytes and whole seconds. */
static void put_plain(const struct config *c, const struct config_key *k, struct buf *out)
{
    const uint64_t *number = (const uint64_t *)(const void *)((const char *)c + k->offset);

    if (k->type == CONFIG_SIZE)
        (void)buf_printf(out, "%ju", (uintmax_t)*number);
    else if (k->type == CONFIG_SECONDS)
        (void)buf_printf(out, "%ju", (uintmax_t)(*number + 999) / 1000);
    else
        config_show(c, k, out);
}

void config_each_of(const struct config *c, const char *prefix, config_told *each, void *context)
{
    size_t len = strlen(prefix);

    for (unsigned i = 0; i < config_key_count; i++) {
        auto_buf value = BUF_INIT(1u << 16);
        if (strncmp(config_keys[i].name, prefix, len) != 0)
            continue;
        put_plain(c, &config_keys[i], &value);
        const char *text = buf_cstr(&value);
        if (text && text[0])
            each(context, config_keys[i].name + len, text);
    }
}

void config_print(const struct config *c, struct buf *out)
{
    for (unsigned i = 0; i < config_key_count; i++) {
        auto_buf value = BUF_INIT(1u << 18);
        config_show(c, &config_keys[i], &value);
        const char *text = buf_cstr(&value);
        put_padded(out, config_keys[i].name, 25);
        (void)buf_puts(out, "= ");
        put_padded(out, text ? text : "", 30);
        (void)buf_puts(out, "  # ");
        put_source(c, i, out);
        (void)buf_putc(out, '\n');
    }

    if (c->notes.len) {
        (void)buf_putc(out, '\n');
        int line_start = 1;
        for (size_t i = 0; i < c->notes.len; i++) {
            if (line_start)
                (void)buf_puts(out, "# ");
            (void)buf_putc(out, (char)c->notes.data[i]);
            line_start = c->notes.data[i] == '\n';
        }
    }
}

static void print_key_json(const struct config *c, unsigned i, struct json *j)
{
    const struct config_key *k = &config_keys[i];
    auto_buf value = BUF_INIT(1u << 18), source = BUF_INIT(8192), valid = BUF_INIT(1024);

    config_show(c, k, &value);
    put_source(c, i, &source);
    config_show_valid(k, &valid);
    json_open(j, '{');
    json_key(j, "key");
    json_cstr(j, k->name);
    json_key(j, "value");
    json_cstr(j, buf_cstr(&value));
    json_key(j, "source");
    json_cstr(j, buf_cstr(&source));
    json_key(j, "default");
    json_cstr(j, k->value);
    json_key(j, "valid");
    json_cstr(j, buf_cstr(&valid));
    json_key(j, "reloadable");
    json_bool(j, k->reloadable);
    json_key(j, "help");
    json_cstr(j, k->help);
    json_close(j, '}');
}

void config_print_json(const struct config *c, struct buf *out)
{
    struct json j = JSON_INIT(out);
    json_open(&j, '{');
    json_key(&j, "file");
    json_cstr(&j, c->file);
    json_key(&j, "keys");
    json_open(&j, '[');
    for (unsigned i = 0; i < config_key_count; i++)
        print_key_json(c, i, &j);
    json_close(&j, ']');
    json_key(&j, "notes");
    json_open(&j, '[');
    for (size_t at = 0; at < c->notes.len;) {
        const uint8_t *end = memchr(c->notes.data + at, '\n', c->notes.len - at);
        size_t n = end ? (size_t)(end - c->notes.data) - at : c->notes.len - at;
        json_str(&j, c->notes.data + at, n);
        at += n + 1;
    }

    json_close(&j, ']');
    json_close(&j, '}');
}

/* ---- help ---- */

/* Breaks a text into lines of at most 76 columns behind an indent. */
static void put_wrapped(struct buf *out, const char *text, unsigned indent)
{
    size_t column = indent;

    (void)buf_printf(out, "%*s", (int)indent, "");
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, " ");
        if (column + len > 76 && column > indent) {
            (void)buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (p > text) {
            (void)buf_putc(out, ' ');
            column++;
        }
        (void)buf_put(out, p, len);
        column += len;
        p += len;
        p += *p == ' ';
    }

    (void)buf_putc(out, '\n');
}

static int is_bounded(const struct config_key *k)
{
    return k->type != CONFIG_TEXT && (k->names || k->min != k->max);
}

static void help_flag(const struct config_key *k, const char *valid, struct buf *out)
{
    auto_buf text = BUF_INIT(1024);

    (void)buf_puts(out, "  --");
    put_dashed(out, k->name);
    (void)buf_putc(out, ' ');
    put_upper(out, config_type_name(k));
    (void)buf_putc(out, '\n');
    (void)buf_puts(&text, k->help);
    if (is_bounded(k))
        (void)buf_printf(&text, " (%s)", valid);
    if (*k->value)
        (void)buf_printf(&text, "; default %s", k->value);
    const char *whole = buf_cstr(&text);
    put_wrapped(out, whole ? whole : k->help, 6);
}

/* `code` in scdoc is *bold*; underscores there must be escaped. */
static void put_scdoc(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("_*[]<>\\", *text))
            (void)buf_putc(out, '\\');
        (void)buf_putc(out, *text == '`' ? '*' : *text);
    }
}

static void help_scdoc(const struct config_key *k, const char *valid, struct buf *out)
{
    (void)buf_putc(out, '*');
    put_scdoc(out, k->name);
    (void)buf_puts(out, "* = _");
    put_upper(out, config_type_name(k));
    (void)buf_puts(out, "_\n\t");
    put_scdoc(out, k->help);
    (void)buf_putc(out, '.');
    if (is_bounded(k)) {
        (void)buf_puts(out, " Valid: ");
        put_scdoc(out, valid);
        (void)buf_putc(out, '.');
    }

    if (*k->value) {
        (void)buf_puts(out, " Default *");
        put_scdoc(out, k->value);
        (void)buf_puts(out, "*.");
    }

    (void)buf_puts(out, k->reloadable ? "\n\n" : " Needs a restart.\n\n");
}

static void help_markdown(const struct config_key *k, const char *valid, struct buf *out)
{
    (void)buf_printf(out, "| `%s` | %s | %s%s%s | %s | %s |\n", k->name, valid,
                     *k->value ? "`" : "", k->value, *k->value ? "`" : "",
                     k->reloadable ? "yes" : "no", k->help);
}

void config_help(enum config_help how, struct buf *out)
{
    static void (*const writers[])(const struct config_key *, const char *, struct buf *) = {
        [CONFIG_HELP_FLAGS] = help_flag,
        [CONFIG_HELP_SCDOC] = help_scdoc,
        [CONFIG_HELP_MARKDOWN] = help_markdown,
    };
    for (unsigned i = 0; i < config_key_count; i++) {
        auto_buf valid = BUF_INIT(1024);
        config_show_valid(&config_keys[i], &valid);
        const char *text = buf_cstr(&valid);
        writers[how](&config_keys[i], text ? text : "", out);
    }
}
