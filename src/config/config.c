/* How this works: a new struct gets every key's default, then each source in turn sets what it
 * names; where a value came from is kept beside it. What is left empty is then worked out from the
 * host, and the whole is checked. */
#include "config/config.h"

#include "base/banned.h"
#include "base/fd.h"
#include "config/config_table.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>

#define NOTES_MAX 16384
#define WHAT_MAX  160
#define PREFIX    "PADDOCK_"

static unsigned index_of(const struct config_key *k)
{
    return (unsigned)(k - config_keys);
}

static void note_origin(struct config *c, const struct config_key *k, enum config_source source,
                        unsigned line, const char *alias)
{
    c->origin[index_of(k)].source = source;
    c->origin[index_of(k)].line = line;
    c->origin[index_of(k)].alias = alias;
}

static enum config_source source_of(const struct config *c, const struct config_key *k)
{
    return c->origin[index_of(k)].source;
}

static const struct config_key *key_named(const char *name)
{
    return config_find(name, strlen(name), 0);
}

/* ---- the file ---- */

struct reading {
    struct config *config;
    const char *name;
};

/* The last part of a path, so that errors have room for the rest. */
static const char *short_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int set_from_file(void *arg, unsigned line, const char *key, const char *value,
                         struct pd_err *e)
{
    struct reading *r = arg;
    struct config *c = r->config;

    const struct config_key *k = key_named(key);
    char what[WHAT_MAX];
    if (!k) {
        const char *near = config_nearest(key);
        return pd_fail(e, PD_INVALID,
                       "%.80s:%u: unknown key '%.40s'%s%s%s; `paddock config` lists the valid keys",
                       r->name, line, key, near ? ": did you mean " : "", near ? near : "",
                       near ? "?" : "");
    }

    (void)snprintf(what, sizeof what, "%.80s:%u: %s", r->name, line, key);
    int again = source_of(c, k) == CONFIG_FROM_FILE;
    if (again && k->type != CONFIG_LIST)
        return pd_fail(e, PD_INVALID, "%s is given twice, first in line %u", what,
                       c->origin[index_of(k)].line);
    if (again ? config_add(c, k, what, value, e) < 0 : config_set(c, k, what, value, e) < 0)
        return -1;

    note_origin(c, k, CONFIG_FROM_FILE, line, NULL);
    return 0;
}

/* A configuration is a plain file; a FIFO or a device must not hang the start. */
static int read_file(const char *path, struct buf *text, struct pd_err *e)
{
    struct stat st;

    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "read the configuration %.120s", path);
    if (!S_ISREG(st.st_mode))
        return pd_fail(e, PD_INVALID, "the configuration %.120s is not a regular file", path);

    for (;;) {
        uint8_t *to = buf_reserve(text, 4096);
        if (!to)
            return pd_fail(e, PD_INVALID, "the configuration %.120s is larger than %u bytes", path,
                           CONFIG_FILE_MAX);
        ssize_t n = read(fd, to, 4096);
        if (n < 0)
            return pd_fail_sys(e, "read the configuration %.120s", path);
        if (n == 0)
            return 0;
        text->len += (size_t)n;
    }
}

static int load_file(struct config *c, const char *path, int must_exist, struct pd_err *e)
{
    if (!must_exist && access(path, F_OK) < 0)
        return 0;

    auto_buf text = BUF_INIT(CONFIG_FILE_MAX + 4096);
    struct reading r = {.config = c, .name = short_name(path)};
    if (read_file(path, &text, e) < 0 ||
        config_parse(r.name, (const char *)text.data, text.len, set_from_file, &r, e) < 0)
        return -1;

    c->file = strdup(path);
    return c->file ? 0 : pd_fail(e, PD_CAPACITY, "no memory for the configuration");
}

/* ---- the environment ---- */

/* The value of a variable; NULL when it is not set or empty, as in `NAME=` of a .env file. */
static const char *variable(const char *const *environ_list, const char *name)
{
    size_t len = strlen(name);
    for (; environ_list && *environ_list; environ_list++)
        if (!strncmp(*environ_list, name, len) && (*environ_list)[len] == '=')
            return (*environ_list)[len + 1] ? *environ_list + len + 1 : NULL;
    return NULL;
}

static void variable_name(const struct config_key *k, char *out, size_t size)
{
    (void)snprintf(out, size, PREFIX "%s", k->name);
    for (char *p = out; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
}

/* SANDBOX_MODE also tells clients whether to use a server at all: that is not for the server. */
static int is_for_clients(const char *name, const char *value)
{
    return !strcmp(name, "SANDBOX_MODE") && (!strcmp(value, "local") || !strcmp(value, "remote"));
}

/* What a value of an older name is in the words of its key. A switch says whether to pull at all.
 */
static const char *value_of_alias(const char *name, const char *value)
{
    static const struct {
        const char *given, *word;
    } pulls[] = {{"true", "missing"}, {"1", "missing"}, {"yes", "missing"}, {"on", "missing"},
                 {"false", "never"},  {"0", "never"},   {"no", "never"},    {"off", "never"}};

    for (size_t i = 0; i < sizeof pulls / sizeof *pulls; i++)
        if (!strcmp(name, "STIGMER_SANDBOX_AUTO_PULL") && !strcasecmp(value, pulls[i].given))
            return pulls[i].word;
    return value;
}

static int load_aliases(struct config *c, const struct config_key *k,
                        const char *const *environ_list, struct pd_err *e)
{
    const size_t max = sizeof k->aliases / sizeof *k->aliases;

    for (size_t i = 0; i < max && k->aliases[i]; i++) {
        const char *value = variable(environ_list, k->aliases[i]);
        char what[WHAT_MAX];
        if (!value)
            continue;
        if (is_for_clients(k->aliases[i], value)) {
            (void)buf_printf(&c->notes, "%s=%s is for clients: ignored\n", k->aliases[i], value);
            continue;
        }
        if (source_of(c, k) == CONFIG_FROM_ALIAS) {
            (void)buf_printf(&c->notes, "%s is ignored: %s is set, too\n", k->aliases[i],
                             c->origin[index_of(k)].alias);
            continue;
        }
        (void)snprintf(what, sizeof what, "%s (older name of %s)", k->aliases[i], k->name);
        if (config_set(c, k, what, value_of_alias(k->aliases[i], value), e) < 0)
            return -1;
        note_origin(c, k, CONFIG_FROM_ALIAS, 0, k->aliases[i]);
        (void)buf_printf(&c->notes, "%s is an older name: use %s\n", k->aliases[i], k->name);
    }

    return 0;
}

/* Names that begin as ours and are no key are told, not refused: they may be another program's. */
static void note_strangers(struct config *c, const char *const *environ_list)
{
    static const char *const known[] = {"CONFIG=", "URL=", "API_KEY=", "KEEPER=", "WALL_OFF="};

    for (; environ_list && *environ_list; environ_list++) {
        const char *name = *environ_list;
        if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        int is_known = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= !strncmp(name + strlen(PREFIX), known[i], strlen(known[i]));
        for (unsigned i = 0; i < config_key_count && !is_known; i++) {
            char own[WHAT_MAX];
            variable_name(&config_keys[i], own, sizeof own);
            is_known = !strncmp(name, own, strlen(own)) && name[strlen(own)] == '=';
        }
        if (!is_known)
            (void)buf_printf(&c->notes, "%.*s is ignored: there is no such key\n",
                             (int)(strcspn(name, "=") < 60 ? strcspn(name, "=") : 60), name);
    }
}

static int load_environment(struct config *c, const char *const *environ_list, struct pd_err *e)
{
    for (unsigned i = 0; i < config_key_count; i++) {
        const struct config_key *k = &config_keys[i];
        char name[WHAT_MAX];
        if (load_aliases(c, k, environ_list, e) < 0)
            return -1;
        variable_name(k, name, sizeof name);
        const char *value = variable(environ_list, name);
        if (!value)
            continue;
        if (config_set(c, k, name, value, e) < 0)
            return -1;
        note_origin(c, k, CONFIG_FROM_ENVIRONMENT, 0, NULL);
    }

    for (unsigned i = 0; i < config_other_count; i++)
        if (variable(environ_list, config_others[i].name))
            (void)buf_printf(&c->notes, "%s is ignored: it %s\n", config_others[i].name,
                             config_others[i].why);
    note_strangers(c, environ_list);

    return 0;
}

/* ---- flags ---- */

struct flag {
    const char *name; /* behind the dashes */
    size_t len;
    const char *value;
};

/* Reads the flag at argv[*i] and moves behind it. */
static int next_flag(const struct config_input *in, int *i, struct flag *ret, struct pd_err *e)
{
    const char *arg = in->argv[*i];

    if (strncmp(arg, "--", 2) != 0 || !arg[2])
        return pd_fail(e, PD_INVALID, "unexpected argument '%.60s': options begin with --", arg);

    ret->name = arg + 2;
    ret->len = strcspn(ret->name, "=");
    ret->value = ret->name[ret->len] ? ret->name + ret->len + 1 : NULL;
    (*i)++;
    if (ret->value)
        return 0;
    if (*i >= in->argc || !in->argv[*i])
        return pd_fail(e, PD_INVALID, "%.60s needs a value", arg);

    ret->value = in->argv[(*i)++];
    return 0;
}

static int is_config_flag(const struct flag *f)
{
    return f->len == strlen("config") && !strncmp(f->name, "config", f->len);
}

static int unknown_flag(const struct flag *f, struct pd_err *e)
{
    char name[61];

    (void)snprintf(name, sizeof name, "%.*s", (int)(f->len < 60 ? f->len : 60), f->name);
    const char *near = config_nearest(name);
    char shown[64] = "";
    if (near)
        (void)snprintf(shown, sizeof shown, "%s", near);
    for (char *p = shown; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return pd_fail(e, PD_INVALID,
                   "unknown option '--%s'%s%s%s; `paddock serve --help` lists the valid ones", name,
                   near ? ": did you mean --" : "", shown, near ? "?" : "");
}

/* A path on the command line is one of the shell's directory. */
static int set_from_flag(struct config *c, const struct config_key *k, const char *what,
                         const char *value, struct pd_err *e)
{
    int again = source_of(c, k) == CONFIG_FROM_FLAG;

    if (again && k->type == CONFIG_LIST)
        return config_add(c, k, what, value, e);
    if (k->type == CONFIG_PATH && *value && *value != '/' && strcmp(value, "none") != 0) {
        auto_buf path = BUF_INIT(8192);
        char here[4096];
        if (!getcwd(here, sizeof here))
            return pd_fail_sys(e, "%s: find the working directory", what);
        (void)buf_printf(&path, "%s/%s", here, value);
        const char *full = buf_cstr(&path);
        if (!full || path.overflow)
            return pd_fail(e, PD_INVALID, "%s: '%.80s' is too long", what, value);
        return config_set(c, k, what, full, e);
    }

    return config_set(c, k, what, value, e);
}

static int load_flags(struct config *c, const struct config_input *in, struct pd_err *e)
{
    for (int i = 0; in->argv && i < in->argc;) {
        struct flag f;
        if (next_flag(in, &i, &f, e) < 0)
            return -1;
        if (is_config_flag(&f))
            continue;
        const struct config_key *k = config_find(f.name, f.len, 1);
        char what[WHAT_MAX];
        if (!k)
            return unknown_flag(&f, e);
        (void)snprintf(what, sizeof what, "--%.*s", (int)f.len, f.name);
        if (set_from_flag(c, k, what, f.value, e) < 0)
            return -1;
        note_origin(c, k, CONFIG_FROM_FLAG, 0, NULL);
    }

    return 0;
}

/* Which file: said by the caller, by a flag, by the environment. */
static int find_file(const struct config_input *in, const char **ret, struct pd_err *e)
{
    *ret = in->file ? in->file : variable(in->environ, PREFIX "CONFIG");
    for (int i = 0; in->argv && i < in->argc && !in->file;) {
        struct flag f;
        if (next_flag(in, &i, &f, e) < 0)
            return -1;
        if (is_config_flag(&f))
            *ret = f.value;
    }

    return 0;
}

/* ---- what follows from the rest ---- */

static int derive(struct config *c, const char *name, const char *dir, const char *file,
                  struct pd_err *e)
{
    const struct config_key *k = key_named(name);
    auto_buf path = BUF_INIT(8192), now = BUF_INIT(8192);
    config_show(c, k, &now);
    const char *value = buf_cstr(&now);
    if (value && *value && strcmp(value, "none") != 0)
        return 0;

    (void)buf_printf(&path, "%s%s%s", dir, *file ? "/" : "", file);
    const char *text = buf_cstr(&path);
    if (!text || config_set(c, k, name, text, e) < 0)
        return -1;

    note_origin(c, k, CONFIG_FROM_OTHERS, 0, NULL);
    return 0;
}

/* Where something is if nobody says otherwise: root has a place of its own, others have one in a
 * directory that a variable names. */
static void usual_dir(const char *for_root, const char *const *environ_list, const char *base,
                      const char *below, char *out, size_t size)
{
    const char *dir = variable(environ_list, base);

    if (geteuid() == 0)
        (void)snprintf(out, size, "%s", for_root);
    else if (dir && *dir == '/')
        (void)snprintf(out, size, "%s/%s", dir, below);
    else
        (void)snprintf(out, size, "/tmp/paddock-%u/%s", geteuid(), below);
}

/* A server with a state directory of its own has a run directory, and so a keeper, of its own. */
static int derive_dirs(struct config *c, const char *const *environ_list, struct pd_err *e)
{
    char state[4096], run[4096];

    usual_dir("/var/lib/paddock", environ_list, "HOME", ".local/share/paddock", state,
              sizeof state);
    usual_dir("/run/paddock", environ_list, "XDG_RUNTIME_DIR", "paddock", run, sizeof run);

    if (derive(c, "state_dir", state, "", e) < 0)
        return -1;
    if (!strcmp(c->state_dir, state))
        return derive(c, "run_dir", run, "", e);

    return derive(c, "run_dir", c->state_dir, "run", e);
}

static int derive_all(struct config *c, const char *const *environ_list, struct pd_err *e)
{
    if (derive_dirs(c, environ_list, e) < 0 ||
        derive(c, "keeper_socket", c->run_dir, "keeper.sock", e) < 0)
        return -1;

    char *const none[] = {c->unix_socket, c->tls_cert, c->tls_key};
    int no_socket = !strcmp(c->unix_socket, "none");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (!strcmp(none[i], "none"))
            none[i][0] = 0;
    return no_socket ? 0 : derive(c, "unix_socket", c->run_dir, "paddock.sock", e);
}

static int check(struct config *c, struct pd_err *e)
{
    if (!*c->tls_cert != !*c->tls_key)
        return pd_fail(e, PD_INVALID, "tls_cert and tls_key go together: %s is missing",
                       *c->tls_cert ? "tls_key" : "tls_cert");
    if (c->pool_min > c->pool_max) {
        const struct config_key *k = key_named("pool_min");
        /* An operator who sets the maximum alone, as MAX_POOL_SIZE does, need not know of the
         * minimum. */
        if (source_of(c, k) != CONFIG_FROM_DEFAULT)
            return pd_fail(e, PD_INVALID, "pool_min (%ju) must not be larger than pool_max (%ju)",
                           (uintmax_t)c->pool_min, (uintmax_t)c->pool_max);
        c->pool_min = c->pool_max;
        note_origin(c, k, CONFIG_FROM_OTHERS, 0, NULL);
    }

    if (!c->listen.count && !c->listen_tls.count && !*c->unix_socket)
        return pd_fail(e, PD_INVALID,
                       "nothing to listen on: set listen, listen_tls or unix_socket");

    return config_check(c, e);
}

/* ---- all of it ---- */

void config_free(struct config *c)
{
    while (c) {
        struct config *older = c->older;
        for (unsigned i = 0; i < config_key_count; i++)
            config_clear(c, &config_keys[i]);
        recipes_done(&c->recipes);
        buf_done(&c->notes);
        free(c->file);
        free(c);
        c = older;
    }
}

static int load(struct config *c, const struct config_input *in, struct pd_err *e)
{
    const char *file = NULL;

    for (unsigned i = 0; i < config_key_count; i++) {
        const struct config_key *k = &config_keys[i];
        if (config_is_derived(k))
            continue;
        if (config_set(c, k, k->name, k->value, e) < 0)
            return -1;
    }

    if (find_file(in, &file, e) < 0 ||
        load_file(c, file ? file : CONFIG_DEFAULT_FILE, !!file, e) < 0 ||
        load_environment(c, in->environ, e) < 0 || load_flags(c, in, e) < 0)
        return -1;

    if (derive_all(c, in->environ, e) < 0)
        return -1;

    config_derive_ceilings(c);
    return check(c, e) < 0 ? -1 : recipes_load(c->template_dir, &c->recipes, e);
}

struct config *config_load(const struct config_input *in, struct pd_err *e)
{
    struct config *c = calloc(1, sizeof *c);
    if (!c) {
        pd_fail(e, PD_CAPACITY, "no memory for the configuration");
        return NULL;
    }

    c->notes = BUF_INIT(NOTES_MAX);
    if (load(c, in, e) == 0)
        return c;

    config_free(c);
    return NULL;
}

/* Compares one key; keeps the old value where a restart is needed. */
static int reload_key(struct config *c, const struct config *now, const struct config_key *k,
                      struct buf *report, struct pd_err *e)
{
    auto_buf before = BUF_INIT(1u << 18), after = BUF_INIT(1u << 18);

    config_show(now, k, &before);
    config_show(c, k, &after);
    const char *old = buf_cstr(&before), *new = buf_cstr(&after);
    if (!old || !new)
        return pd_fail(e, PD_CAPACITY, "no memory for the configuration");
    if (!strcmp(old, new))
        return 0;
    if (report->len)
        (void)buf_putc(report, '\n');
    if (k->reloadable) {
        (void)buf_printf(report, "%s: '%s' is now '%s'", k->name, old, new);
        return 0;
    }

    (void)buf_printf(report, "%s: '%s' needs a restart; it stays '%s'", k->name, new, old);
    c->origin[index_of(k)] = now->origin[index_of(k)];

    return config_copy(c, now, k, e);
}

struct config *config_reload(const struct config *now, const struct config_input *in,
                             struct buf *report, struct pd_err *e)
{
    struct config *c = config_load(in, e);
    for (unsigned i = 0; c && i < config_key_count; i++)
        if (reload_key(c, now, &config_keys[i], report, e) < 0) {
            config_free(c);
            return NULL;
        }
    return c;
}

const char *config_notes(struct config *c)
{
    const char *text = buf_cstr(&c->notes);
    return text ? text : "";
}
