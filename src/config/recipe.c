/* Reading the file of a template. How it works: the text is copied once and cut into lines in
 * place; each `key = value`, with the lines that belong to it, goes to the row of its key, and what
 * the recipe keeps are pointers into the copy. */
#include "config/recipe.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/parse.h"
#include "gate/rules.h"

#define INDENT       4
#define WITHIN_USUAL (60 * UINT64_C(1000))
#define WITHIN_MAX   (600 * UINT64_C(1000))
#define TITLE_MAX    200u

struct reading {
    struct recipe *recipe;
    const char *where;
    unsigned line; /* of the key that is read */
    const char *key;
};

static int refuse(const struct reading *r, struct pd_err *e, const char *why)
{
    return pd_fail(e, PD_INVALID, "%.80s:%u: %s: %.140s", r->where, r->line, r->key, why);
}

/* ---- values ---- */

static int add(const struct reading *r, struct recipe_list *list, const char *text,
               struct pd_err *e)
{
    if (list->count == RECIPE_ITEMS_MAX)
        return refuse(r, e, "there are more than 32");
    list->items[list->count++] = text;
    return 0;
}

/* Each of the words of a value. */
typedef int word_reader(const struct reading *r, char *word, struct pd_err *e);

static int each_word(const struct reading *r, char *value, word_reader *f, struct pd_err *e)
{
    char *rest = value;
    for (char *word; (word = strtok_r(NULL, " \t\n", &rest));)
        if (f(r, word, e) < 0)
            return -1;
    return 0;
}

static int once(const struct reading *r, const char **place, char *value, struct pd_err *e)
{
    if (*place)
        return refuse(r, e, "is given twice");
    *place = value;
    return 0;
}

static int read_title(const struct reading *r, char *value, struct pd_err *e)
{
    if (strlen(value) > TITLE_MAX || strchr(value, '\n'))
        return refuse(r, e, "is one line of at most 200 bytes");
    return once(r, &r->recipe->title, value, e);
}

static int read_from(const struct reading *r, char *value, struct pd_err *e)
{
    static const char *const bases[] = {"default", "base", "restricted"};
    struct recipe *t = r->recipe;
    struct pd_err why;

    if (!strncmp(value, "image:", 6)) {
        if (spec_check_image(value + 6, &why) < 0)
            return refuse(r, e, why.msg);
        t->image = value + 6;
        return once(r, &t->from, (char *)"base", e);
    }
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (!strcmp(value, bases[i]))
            return once(r, &t->from, value, e);
    return refuse(r, e, "is default, base, restricted, or image: and a name");
}

static int add_program(const struct reading *r, char *word, struct pd_err *e)
{
    static const char valid[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-/";
    if (strspn(word, valid) != strlen(word) || word[0] == '-')
        return refuse(r, e, "names of programs have letters, digits and ._+-/");
    return add(r, &r->recipe->programs, word, e);
}

/* What goes to a package client as one of its words; never an option. */
static int add_package(const struct reading *r, char *word, struct pd_err *e)
{
    static const char valid[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-/@=<>~^[],";
    const char *colon = strchr(word, ':');
    size_t kind = colon ? (size_t)(colon - word) : 0;

    if (kind != 3 || (strncmp(word, "npm", 3) != 0 && strncmp(word, "pip", 3) != 0 &&
                      strncmp(word, "apt", 3) != 0))
        return refuse(r, e, "packages are npm:NAME, pip:NAME or apt:NAME");
    if (!colon[1] || colon[1] == '-' || strspn(colon + 1, valid) != strlen(colon + 1))
        return refuse(r, e, "this is no name of a package");
    return add(r, &r->recipe->packages, word, e);
}

static int check_rule(const struct reading *r, const char *word, struct pd_err *e)
{
    char name[RULES_NAME_MAX + 1];
    struct rule rule;
    struct pd_err why;
    return rule_parse(word, &rule, name, &why) < 0 ? refuse(r, e, why.msg) : 0;
}

static int add_allow(const struct reading *r, char *word, struct pd_err *e)
{
    return check_rule(r, word, e) < 0 ? -1 : add(r, &r->recipe->allow, word, e);
}

static int add_packages_from(const struct reading *r, char *word, struct pd_err *e)
{
    return check_rule(r, word, e) < 0 ? -1 : add(r, &r->recipe->packages_from, word, e);
}

/* ENV NAME HOST; a secret with several hosts has a line for each. */
static int read_secret(const struct reading *r, char *value, struct pd_err *e)
{
    struct recipe_list *list = &r->recipe->secrets;
    struct secret_rule rule, other;
    struct pd_err why;

    if (strchr(value, '\n'))
        return refuse(r, e, "is one line: VARIABLE NAME HOST");
    if (secret_rule_parse(value, &rule, &why) < 0)
        return refuse(r, e, why.msg);

    for (unsigned i = 0; i < list->count; i++) {
        if (secret_rule_parse(list->items[i], &other, NULL) < 0 || strcmp(rule.env, other.env) != 0)
            continue;
        if (strcmp(rule.name, other.name) != 0)
            return refuse(r, e, "this variable has another secret already");
        if (!strcmp(rule.host, other.host) && rule.port == other.port)
            return refuse(r, e, "is given twice");
    }
    return add(r, list, value, e);
}

static int read_env(const struct reading *r, char *value, struct pd_err *e)
{
    static const char valid[] = "_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    size_t len = strspn(value, valid);
    if (len == 0 || value[len] != '=' || (value[0] >= '0' && value[0] <= '9'))
        return refuse(r, e, "is NAME=VALUE, with a name of letters, digits and _");
    return add(r, &r->recipe->env, value, e);
}

static int read_start(const struct reading *r, char *value, struct pd_err *e)
{
    return once(r, &r->recipe->start, value, e);
}

static int read_port_number(const struct reading *r, char *text, unsigned *ret, struct pd_err *e)
{
    uint64_t port;
    struct pd_err why;
    if (parse_u64("the port", text, 1, 65535, &port, &why) < 0)
        return refuse(r, e, why.msg);
    *ret = (unsigned)port;
    return 0;
}

static int read_ready(const struct reading *r, char *value, struct pd_err *e)
{
    struct recipe *t = r->recipe;
    if (t->ready_port)
        return refuse(r, e, "is given twice");
    if (strncmp(value, "port ", 5) != 0)
        return once(r, &t->ready, value, e);
    return t->ready ? refuse(r, e, "is given twice")
                    : read_port_number(r, value + 5, &t->ready_port, e);
}

static int read_within(const struct reading *r, char *value, struct pd_err *e)
{
    uint64_t ns;
    struct pd_err why;
    if (r->recipe->ready_within_ms)
        return refuse(r, e, "is given twice");
    if (parse_duration("the time", value, WITHIN_MAX * NS_PER_MS, &ns, &why) < 0)
        return refuse(r, e, why.msg);
    r->recipe->ready_within_ms = ns < NS_PER_MS ? 1 : ns / NS_PER_MS;
    return 0;
}

static int read_port(const struct reading *r, char *value, struct pd_err *e)
{
    struct recipe *t = r->recipe;
    char *title = value + strcspn(value, " ");
    unsigned number;

    if (*title)
        *title++ = 0;
    if (strchr(title, '\n'))
        return refuse(r, e, "is one line: a number and a title");
    if (read_port_number(r, value, &number, e) < 0)
        return -1;
    for (unsigned i = 0; i < t->port_count; i++)
        if (t->ports[i].number == number)
            return refuse(r, e, "this one is given twice");
    if (t->port_count == RECIPE_ITEMS_MAX)
        return refuse(r, e, "there are more than 32");
    t->ports[t->port_count++] = (struct recipe_port){.number = number, .title = title};
    return 0;
}

/* The value is the path, and what is below it the content. */
static int read_file(const struct reading *r, char *value, struct pd_err *e)
{
    struct recipe *t = r->recipe;
    char *content = strchr(value, '\n');

    if (content)
        *content++ = 0;
    if ((value[0] != '/' && strncmp(value, "~/", 2) != 0) || strlen(value) >= SPEC_PATH_MAX ||
        strstr(value, "/../") || value[strlen(value) - 1] == '/')
        return refuse(r, e, "is a path that begins with / or ~/, without ..");
    if (t->file_count == RECIPE_ITEMS_MAX)
        return refuse(r, e, "there are more than 32");
    t->files[t->file_count++] =
        (struct recipe_file){.path = value, .content = content ? content : ""};
    return 0;
}

static int read_programs(const struct reading *r, char *value, struct pd_err *e)
{
    return each_word(r, value, add_program, e);
}

static int read_packages(const struct reading *r, char *value, struct pd_err *e)
{
    return each_word(r, value, add_package, e);
}

static int read_packages_from(const struct reading *r, char *value, struct pd_err *e)
{
    return each_word(r, value, add_packages_from, e);
}

static int read_allow(const struct reading *r, char *value, struct pd_err *e)
{
    return each_word(r, value, add_allow, e);
}

static int read_limit(const struct reading *r, const char *value, uint64_t *place, struct pd_err *e)
{
    struct recipe *t = r->recipe;
    struct pd_err why;
    int bad = *place ? pd_fail(&why, PD_INVALID, "is given twice")
              : place == &t->memory
                  ? parse_size("the size", value, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX, place, &why)
              : place == &t->disk
                  ? parse_size("the size", value, SPEC_DISK_MIN, SPEC_DISK_MAX, place, &why)
              : place == &t->pids
                  ? parse_u64("the number", value, SPEC_PIDS_MIN, SPEC_PIDS_MAX, place, &why)
                  : parse_milli("the number", value, SPEC_CPU_MIN, SPEC_CPU_MAX, place, &why);
    return bad < 0 ? refuse(r, e, why.msg) : 0;
}

static int read_memory(const struct reading *r, char *value, struct pd_err *e)
{
    return read_limit(r, value, &r->recipe->memory, e);
}

static int read_cpu(const struct reading *r, char *value, struct pd_err *e)
{
    return read_limit(r, value, &r->recipe->cpu_milli, e);
}

static int read_pids(const struct reading *r, char *value, struct pd_err *e)
{
    return read_limit(r, value, &r->recipe->pids, e);
}

static int read_disk(const struct reading *r, char *value, struct pd_err *e)
{
    return read_limit(r, value, &r->recipe->disk, e);
}

static const struct {
    const char *name;
    int (*read)(const struct reading *r, char *value, struct pd_err *e);
} keys[] = {
    {"title", read_title},
    {"from", read_from},
    {"programs", read_programs},
    {"packages", read_packages},
    {"packages_from", read_packages_from},
    {"allow", read_allow},
    {"secret", read_secret},
    {"env", read_env},
    {"file", read_file},
    {"start", read_start},
    {"ready", read_ready},
    {"ready_within", read_within},
    {"port", read_port},
    {"memory", read_memory},
    {"cpu", read_cpu},
    {"pids", read_pids},
    {"disk", read_disk},
};

/* ---- lines ---- */

/* Takes the lines that belong to a value behind it, without their indentation. Both are in the same
 * text, so there is always room. Gives where the rest begins. */
static char *join_lines(char *value, char *rest, unsigned *line)
{
    char *to = value + strlen(value), *kept = to;

    while (*rest && (!strncmp(rest, "    ", INDENT) || *rest == '\n')) {
        size_t blank = *rest == '\n' ? 0 : INDENT;
        size_t len = strcspn(rest + blank, "\n");
        char *next = rest + blank + len + (rest[blank + len] == '\n');

        *to++ = '\n';
        memmove(to, rest + blank, len);
        to += len;
        if (blank)
            kept = to; /* empty lines count between others only */
        (*line)++;
        rest = next;
    }

    *kept = 0;
    return rest;
}

static int read_key(struct reading *r, char *text, char **rest, unsigned *line, struct pd_err *e)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    char *sign = text + len + strspn(text + len, " \t");

    r->line = *line;
    if (len == 0 || *sign != '=')
        return pd_fail(e, PD_INVALID, "%.80s:%u: '%.40s' is not `key = value`", r->where, *line,
                       text);

    char *value = sign + 1 + strspn(sign + 1, " \t");
    char *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    text[len] = 0;
    r->key = text;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(keys[i].name, text) != 0)
            continue;
        *rest = join_lines(value, *rest, line);
        if (!*value)
            return refuse(r, e, "has no value");
        return keys[i].read(r, value, e);
    }
    return pd_fail(
        e, PD_INVALID,
        "%.80s:%u: there is no key '%.40s': docs/templates.md lists those that there are", r->where,
        *line, text);
}

static int read_lines(struct reading *r, char *text, struct pd_err *e)
{
    unsigned line = 0;

    for (char *at = text; *at;) {
        size_t len = strcspn(at, "\n");
        char *rest = at + len + (at[len] == '\n');
        at[len] = 0;
        line++;

        size_t blank = strspn(at, " \t");
        if (at[blank] && at[blank] != '#') {
            if (blank > 0)
                return pd_fail(e, PD_INVALID,
                               "%.80s:%u: a line that begins with blanks belongs to a value, and "
                               "there is none above it",
                               r->where, line);
            if (read_key(r, at, &rest, &line, e) < 0)
                return -1;
        }
        at = rest;
    }
    return 0;
}

/* ---- the whole ---- */

bool recipe_is_name(const char *text)
{
    static const char *const taken[] = {"default", "base", "restricted"};
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-");

    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(taken[i], text))
            return false;
    return len > 0 && len <= RECIPE_NAME_MAX && !text[len] && text[0] != '-';
}

/* What is right by itself, and wrong beside the rest or without it. */
static int check_whole(struct recipe *t, const char *where, struct pd_err *e)
{
    if (t->packages.count && !t->programs.count)
        return pd_fail(e, PD_INVALID,
                       "%.80s: packages: say by programs what they bring, so that it is known when "
                       "they are missing",
                       where);
    if (t->packages_from.count && !t->packages.count)
        return pd_fail(e, PD_INVALID, "%.80s: packages_from: there are no packages", where);
    if ((t->ready || t->ready_port || t->ready_within_ms) && !t->start)
        return pd_fail(e, PD_INVALID, "%.80s: ready: there is nothing to start", where);

    if (!t->ready_within_ms)
        t->ready_within_ms = WITHIN_USUAL;
    if (!t->title)
        t->title = "";
    if (!t->from)
        t->from = "default";
    return 0;
}

static int check_bytes(const char *where, const char *text, size_t len, struct pd_err *e)
{
    unsigned line = 1;

    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
            return pd_fail(e, PD_INVALID, "%.80s:%u: has a control character", where, line);
        line += c == '\n';
    }
    return 0;
}

struct recipe *recipe_parse(const char *where, const char *name, const char *text, size_t len,
                            struct pd_err *e)
{
    if (!recipe_is_name(name)) {
        pd_fail(e, PD_INVALID,
                "%.80s: '%.63s' is no name for a template: 1 to 63 of a-z 0-9 - _, and not one of "
                "default, base, restricted",
                where, name);
        return NULL;
    }
    if (len > RECIPE_TEXT_MAX) {
        pd_fail(e, PD_INVALID, "%.80s: is larger than %u bytes", where, RECIPE_TEXT_MAX);
        return NULL;
    }
    if (check_bytes(where, text, len, e) < 0)
        return NULL;

    struct recipe *t = calloc(1, sizeof *t);
    char *copy = t ? malloc(len + 1) : NULL;
    if (!copy) {
        free(t);
        pd_fail(e, PD_CAPACITY, "no memory for %.80s", where);
        return NULL;
    }
    memcpy(copy, text, len);
    copy[len] = 0;
    t->text = copy;
    snprintf(t->name, sizeof t->name, "%s", name);

    struct reading r = {.recipe = t, .where = where};
    if (read_lines(&r, copy, e) == 0 && check_whole(t, where, e) == 0)
        return t;
    recipe_free(t);
    return NULL;
}

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    free(r->text);
    free(r);
}
