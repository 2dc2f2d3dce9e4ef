/* How this works: the text is cut into instructions first: a line with those that it is continued
 * on, without comments. An instruction is its word and the rest, and each word has a function that
 * reads the rest and appends steps.
 *
 * docker begins as root in "/", and here as user at home: steps for that stand in front, and what a
 * file leaves open ends where sandboxes are used to be. */
#include "client/dockerfile.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#define WORDS_MAX 128u

struct reading {
    unsigned line; /* where the instruction begins */
    json_t *steps;
    json_t *entrypoint, *cmd; /* strings: command lines; or NULL */
    bool cmd_is_words;        /* cmd was a list: it is what the entrypoint gets */
    char image[512];
    bool has_user, has_workdir;
};

static int refuse(const struct reading *r, struct pd_err *e, const char *what, const char *text)
{
    return pd_fail(e, PD_INVALID, "line %u: %s%s%.80s", r->line, what, text[0] ? ": " : "", text);
}

static int add_step(struct reading *r, const char *type, json_t *args, json_t *sources,
                    struct pd_err *e)
{
    json_t *step = json_pack("{ssso}", "type", type, "args", args);
    int bad = !step || (sources && json_object_set_new(step, "sources", sources) < 0) ||
              json_array_append_new(r->steps, step) < 0;
    if (bad)
        return pd_fail(e, PD_CAPACITY, "no memory for the steps");
    return json_array_size(r->steps) > DOCKERFILE_STEPS
               ? refuse(r, e, "there are too many instructions", "")
               : 0;
}

/* ---- words ---- */

/* A JSON list of strings, if it is one; else NULL. */
static json_t *read_list(const char *rest)
{
    json_t *list = rest[0] == '[' ? json_loads(rest, 0, NULL) : NULL;
    size_t i;
    json_t *one;

    json_array_foreach(list, i, one)
    {
        if (!json_is_string(one)) {
            json_decref(list);
            return NULL;
        }
    }
    if (list && json_is_array(list) && json_array_size(list) > 0)
        return list;
    json_decref(list);
    return NULL;
}

/* As one word of a shell. */
static void put_quoted(struct buf *b, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    if (text[0] && text[strspn(text, plain)] == 0) {
        buf_puts(b, text);
        return;
    }
    buf_putc(b, '\'');
    for (const char *at = text; *at; at++) {
        if (*at == '\'')
            buf_puts(b, "'\\''");
        else
            buf_putc(b, *at);
    }
    buf_putc(b, '\'');
}

/* A command: a list of words, or a line. A new string, or NULL. */
static json_t *read_command(const char *rest, bool *ret_is_words)
{
    auto_buf line = BUF_INIT(2 * DOCKERFILE_MAX);
    json_t *list = read_list(rest), *one;
    size_t i;

    if (ret_is_words)
        *ret_is_words = list != NULL;
    json_array_foreach(list, i, one)
    {
        if (i)
            buf_putc(&line, ' ');
        put_quoted(&line, json_string_value(one));
    }
    json_decref(list);
    if (!list)
        buf_puts(&line, rest);
    return line.overflow || !buf_cstr(&line) ? NULL : json_string((const char *)line.data);
}

/* The next word of the rest: up to a blank, with quotes and backslashes taken away. A variable's
 * dollar that was escaped stays so. 1, 0 at the end, -1. */
static int next_word(const struct reading *r, const char **at, struct buf *word, struct pd_err *e)
{
    char quote = 0;

    buf_clear(word);
    while (isspace((unsigned char)**at))
        ++*at;
    if (!**at)
        return 0;
    for (; **at && (quote || !isspace((unsigned char)**at)); ++*at) {
        char c = **at;
        if (quote ? c == quote : c == '"' || c == '\'') {
            quote = quote ? 0 : c;
        } else if (c == '\\' && quote != '\'' && (*at)[1]) {
            ++*at;
            if (**at == '$')
                buf_putc(word, '\\');
            buf_putc(word, **at);
        } else if (c == '$' && quote == '\'') {
            buf_puts(word, "\\$");
        } else {
            buf_putc(word, c);
        }
    }
    if (quote)
        return refuse(r, e, "a quote has no end", "");
    return buf_cstr(word) ? 1 : pd_fail(e, PD_TOO_LARGE, "line %u is too long", r->line);
}

/* ---- instructions ---- */

static int read_from(struct reading *r, const char *rest, struct pd_err *e)
{
    auto_buf word = BUF_INIT(sizeof r->image);
    const char *at = rest;

    if (r->image[0])
        return refuse(r, e, "there is one stage alone: a second FROM cannot be built", rest);
    int got = next_word(r, &at, &word, e);
    if (got <= 0)
        return got < 0 ? -1 : refuse(r, e, "FROM wants an image", "");
    const char *name = (const char *)word.data;
    if (name[0] == '-')
        return refuse(r, e, "FROM has no options here", name);
    if (strchr(name, '$'))
        return refuse(r, e, "variables of ARG are not known here", name);
    snprintf(r->image, sizeof r->image, "%s", name);

    got = next_word(r, &at, &word, e);
    if (got > 0 && strcasecmp((const char *)word.data, "as") != 0)
        return refuse(r, e, "FROM wants an image, and maybe AS NAME", rest);

    if (got < 0 || add_step(r, "USER", json_pack("[s]", "root"), NULL, e) < 0)
        return -1;
    return add_step(r, "WORKDIR", json_pack("[s]", "/"), NULL, e);
}

static int read_run(struct reading *r, const char *rest, struct pd_err *e)
{
    if (rest[0] == '-' && rest[1] == '-')
        return refuse(r, e, "RUN has no options here", rest);
    if (!strncmp(rest, "<<", 2))
        return refuse(r, e, "RUN with a text of its own (<<) is not known here", rest);
    json_t *line = rest[0] ? read_command(rest, NULL) : NULL;
    if (!line)
        return refuse(r, e, "RUN wants a command", "");
    return add_step(r, "RUN", json_pack("[o]", line), NULL, e);
}

struct copying {
    json_t *sources;
    char owner[80], mode[16], to[4096];
};

/* One word of COPY: an option, or a name; the last name is where it goes. */
static int copy_word(struct reading *r, struct copying *c, const char *word, bool may_option,
                     struct pd_err *e)
{
    if (may_option && !strncmp(word, "--chown=", 8)) {
        snprintf(c->owner, sizeof c->owner, "%s", word + 8);
        return 0;
    }
    if (may_option && !strncmp(word, "--chmod=", 8)) {
        snprintf(c->mode, sizeof c->mode, "%s", word + 8);
        return 0;
    }
    if (may_option && !strncmp(word, "--", 2))
        return refuse(r, e, "COPY has --chown and --chmod alone here", word);
    if (strchr(word, '$'))
        return refuse(r, e, "variables in names are not known here", word);
    if (strlen(word) >= sizeof c->to)
        return refuse(r, e, "a name is too long", word);

    if (c->to[0] && json_array_append_new(c->sources, json_string(c->to)) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for the steps");
    snprintf(c->to, sizeof c->to, "%s", word);
    return 0;
}

static int copy_words(struct reading *r, struct copying *c, const char *rest, struct pd_err *e)
{
    auto_buf word = BUF_INIT(8192);
    json_t *list = read_list(rest), *one;
    size_t i;
    int bad = 0;

    json_array_foreach(list, i, one) if (!bad) bad =
        copy_word(r, c, json_string_value(one), false, e);
    if (list) {
        json_decref(list);
        return bad;
    }

    const char *at = rest;
    int got;
    while ((got = next_word(r, &at, &word, e)) > 0)
        if (copy_word(r, c, (const char *)word.data, !c->to[0], e) < 0)
            return -1;
    return got;
}

static int read_copy(struct reading *r, const char *rest, struct pd_err *e)
{
    struct copying c = {.sources = json_array()};
    if (!c.sources)
        return pd_fail(e, PD_CAPACITY, "no memory for the steps");

    int bad = copy_words(r, &c, rest, e);
    size_t count = json_array_size(c.sources), len = strlen(c.to);
    if (!bad && !count)
        bad = refuse(r, e, "COPY wants a source and a destination", rest);
    if (!bad && count > 1 && c.to[len - 1] != '/')
        bad = refuse(r, e, "several sources go into a directory, written with a '/' at its end",
                     c.to);
    if (bad) {
        json_decref(c.sources);
        return -1;
    }
    /* As docker has it: whoever the user of the moment is, files are root's. */
    json_t *args = json_pack("[ssss]", "", c.to, c.owner[0] ? c.owner : "root:root", c.mode);
    return add_step(r, "COPY", args, c.sources, e);
}

/* NAME=VALUE ..., or NAME and the rest of the line. */
static int read_env(struct reading *r, const char *rest, struct pd_err *e)
{
    auto_buf word = BUF_INIT(DOCKERFILE_MAX);
    json_auto_t *args = json_array();
    const char *at = rest, *blank = rest + strcspn(rest, " \t"), *equals = strchr(rest, '=');
    int got = 0, bad = !args;

    if (!equals || equals > blank) {
        size_t len = (size_t)(blank - rest);
        blank += strspn(blank, " \t");
        if (!len || !*blank)
            return refuse(r, e, "ENV wants NAME=VALUE", rest);
        bad |= json_array_append_new(args, json_stringn(rest, len)) < 0 ||
               json_array_append_new(args, json_string(blank)) < 0;
    } else {
        while (!bad && (got = next_word(r, &at, &word, e)) > 0) {
            const char *pair = (const char *)word.data, *value = strchr(pair, '=');
            if (!value || value == pair)
                return refuse(r, e, "ENV wants NAME=VALUE", pair);
            bad |= json_array_append_new(args, json_stringn(pair, (size_t)(value - pair))) < 0 ||
                   json_array_append_new(args, json_string(value + 1)) < 0;
        }
    }
    if (got < 0)
        return -1;
    if (bad || !json_array_size(args))
        return refuse(r, e, "ENV wants NAME=VALUE, as UTF-8", rest);
    return add_step(r, "ENV", json_incref(args), NULL, e);
}

static int read_word_step(struct reading *r, const char *type, const char *rest, struct pd_err *e)
{
    auto_buf word = BUF_INIT(4096);
    const char *at = rest;
    int got = next_word(r, &at, &word, e);

    if (got < 0)
        return -1;
    const char *text = got ? (const char *)word.data : "";
    at += strspn(at, " \t");
    if (!text[0] || *at)
        return refuse(r, e, "one word is wanted", rest);
    if (strchr(text, '$'))
        return refuse(r, e, "variables are not known here", text);
    return add_step(r, type, json_pack("[s]", text), NULL, e);
}

/* The group is the user's own here. */
static int read_user(struct reading *r, const char *rest, struct pd_err *e)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, ":"), rest);
    r->has_user = true;
    const char *known = !strcmp(name, "0") ? "root" : !strcmp(name, "1000") ? "user" : name;
    return read_word_step(r, "USER", known, e);
}

static int read_instruction(struct reading *r, const char *name, const char *rest, struct pd_err *e)
{
    static const char *const ignored[] = {"LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL",
                                          "HEALTHCHECK"};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (!strcasecmp(name, ignored[i]))
            return 0;

    if (!strcasecmp(name, "FROM"))
        return read_from(r, rest, e);
    if (!r->image[0])
        return refuse(r, e, "FROM comes first", name);
    if (!strcasecmp(name, "RUN"))
        return read_run(r, rest, e);
    if (!strcasecmp(name, "COPY"))
        return read_copy(r, rest, e);
    if (!strcasecmp(name, "ENV"))
        return read_env(r, rest, e);
    if (!strcasecmp(name, "USER"))
        return read_user(r, rest, e);
    if (!strcasecmp(name, "WORKDIR")) {
        r->has_workdir = true;
        return read_word_step(r, "WORKDIR", rest, e);
    }
    if (!strcasecmp(name, "CMD") || !strcasecmp(name, "ENTRYPOINT")) {
        bool is_cmd = !strcasecmp(name, "CMD");
        json_t **to = is_cmd ? &r->cmd : &r->entrypoint;
        json_decref(*to);
        *to = rest[0] ? read_command(rest, is_cmd ? &r->cmd_is_words : NULL) : NULL;
        return *to ? 0 : refuse(r, e, "a command is wanted", rest);
    }
    return refuse(r, e,
                  "not known here are all but FROM, RUN, COPY, ENV, WORKDIR, USER, CMD and "
                  "ENTRYPOINT",
                  name);
}

/* ---- the text ---- */

/* The next instruction: its lines in one. 1, 0 at the end, -1. */
static int next_instruction(struct reading *r, const char **at, const char *end, unsigned *line,
                            struct buf *out, struct pd_err *e)
{
    bool more = false;

    buf_clear(out);
    while (*at < end) {
        const char *eol = memchr(*at, '\n', (size_t)(end - *at));
        const char *begin = *at, *stop = eol ? eol : end;
        *at = eol ? eol + 1 : end;
        ++*line;
        while (begin < stop && isspace((unsigned char)*begin))
            begin++;
        while (stop > begin && isspace((unsigned char)stop[-1]))
            stop--;
        if (begin == stop || *begin == '#')
            continue; /* also between lines that belong together */

        if (!more)
            r->line = *line;
        more = stop[-1] == '\\';
        if (buf_put(out, begin, (size_t)(stop - begin) - more) < 0)
            return pd_fail(e, PD_TOO_LARGE, "line %u is too long", r->line);
        if (!more)
            break;
        buf_putc(out, ' ');
    }
    return out->len && buf_cstr(out) ? 1 : 0;
}

/* What sandboxes are to run: not a shell that would wait for somebody. */
static json_t *start_of(const struct reading *r)
{
    auto_buf line = BUF_INIT(4 * DOCKERFILE_MAX);
    const char *cmd = json_string_value(r->cmd), *entry = json_string_value(r->entrypoint);
    const char *shells[] = {"bash", "sh", "/bin/bash", "/bin/sh"};

    if (entry)
        buf_printf(&line, "%s%s%s", entry, cmd && r->cmd_is_words ? " " : "",
                   cmd && r->cmd_is_words ? cmd : "");
    else if (cmd)
        buf_puts(&line, cmd);
    const char *text = buf_cstr(&line);
    for (size_t i = 0; text && i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(text, shells[i]))
            return NULL;
    return text && text[0] ? json_string(text) : NULL;
}

static json_t *finish(struct reading *r, struct pd_err *e)
{
    if (!r->image[0]) {
        refuse(r, e, "there is no FROM", "");
        return NULL;
    }
    if ((!r->has_user && add_step(r, "USER", json_pack("[s]", "user"), NULL, e) < 0) ||
        (!r->has_workdir && add_step(r, "WORKDIR", json_pack("[s]", "/home/user"), NULL, e) < 0))
        return NULL;

    json_t *start = start_of(r);
    json_t *body = json_pack("{sssO}", "image", r->image, "steps", r->steps);
    if (body && start)
        (void)json_object_set(body, "start", start);
    json_decref(start);
    if (!body)
        pd_fail(e, PD_INVALID, "the text is not UTF-8");
    return body;
}

json_t *dockerfile_read(const char *text, size_t len, struct pd_err *e)
{
    struct reading r = {.line = 1, .steps = json_array()};
    json_auto_t *whole = json_stringn(text, len); /* is it UTF-8? */
    auto_buf one = BUF_INIT(DOCKERFILE_MAX + 2);
    const char *at = text, *end = text + len;
    unsigned line = 0;
    int got = -1;

    if (len > DOCKERFILE_MAX)
        pd_fail(e, PD_TOO_LARGE, "it is longer than %u bytes", DOCKERFILE_MAX);
    else if (!whole || memchr(text, 0, len))
        pd_fail(e, PD_INVALID, "it is no text in UTF-8");
    else
        while ((got = next_instruction(&r, &at, end, &line, &one, e)) > 0) {
            char *rest = (char *)one.data + strcspn((char *)one.data, " \t");
            if (*rest)
                *rest++ = 0;
            rest += strspn(rest, " \t");
            if (read_instruction(&r, (char *)one.data, rest, e) < 0) {
                got = -1;
                break;
            }
        }

    json_t *body = got == 0 ? finish(&r, e) : NULL;
    json_decref(r.steps);
    json_decref(r.cmd);
    json_decref(r.entrypoint);
    return body;
}
