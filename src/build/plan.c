/* Plans are lists of words; keys are digests over them, with lengths in front so that no two lists
 * are alike. */
#include "build/plan.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Another one when a build of the same plan leaves something else. */
#define KEY_VERSION "paddock build 1"

static const char *const kinds[STEP_KIND_COUNT] = {"RUN", "COPY", "ENV", "WORKDIR", "USER"};

const char *step_kind_name(enum step_kind k)
{
    return kinds[k];
}

struct build_plan *plan_new(void)
{
    struct build_plan *p = calloc(1, sizeof *p);
    if (p)
        p->context = BUILD_CONTEXT_INIT;
    return p;
}

void plan_free(struct build_plan *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->count; i++)
        msg_list_writer_done(&p->steps[i].args);
    build_context_done(&p->context);
    if (p->image_login)
        explicit_bzero(p->image_login, strlen(p->image_login));
    free(p->image_from);
    free(p->image_login);
    free(p->network);
    free(p->start);
    free(p->ready);
    free(p);
}

/* ---- steps ---- */

bool plan_is_name(const char *text, size_t len)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return len > 0 && len <= 63 && strspn(text, valid) >= len && !strchr("._-", text[0]);
}

static bool is_hash(const char *text)
{
    return strlen(text) == 64 && text[strspn(text, "0123456789abcdef")] == 0;
}

static bool is_variable(const char *s)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return s[0] && !(s[0] >= '0' && s[0] <= '9') && s[strspn(s, valid)] == 0;
}

static bool is_mode(const char *s)
{
    size_t len = strlen(s);
    return len > 0 && len <= 5 && s[strspn(s, "01234567")] == 0;
}

static bool is_owner(const char *s)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:";
    return strlen(s) <= 64 && s[strspn(s, valid)] == 0 && s[0] != '-' && s[0] != ':';
}

static const char *word(const struct msg_list *l, unsigned n)
{
    uint32_t pos = 0;
    const char *text = NULL;
    for (unsigned i = 0; i <= n; i++)
        if (!(text = msg_list_next(l, &pos)))
            return "";
    return text;
}

static int check_env(const struct msg_list *args, struct pd_err *e)
{
    uint32_t pos = 0;
    if (!args->count || args->count % 2)
        return pd_fail(e, PD_INVALID, "ENV wants names, each with a value");
    for (const char *name; (name = msg_list_next(args, &pos));) {
        if (!is_variable(name))
            return pd_fail(e, PD_INVALID, "ENV '%.60s' is no name of a variable", name);
        (void)msg_list_next(args, &pos);
    }
    return 0;
}

static int check_copy(const struct msg_list *args, const char *files, struct pd_err *e)
{
    char path[SPEC_PATH_MAX];
    if (args->count < 2 || args->count > 4)
        return pd_fail(e, PD_INVALID, "COPY wants a source and a destination");
    if (!files || !is_hash(files))
        return pd_fail(e, PD_INVALID,
                       "COPY wants filesHash: the 64 hex digits (small letters) under "
                       "which its files were sent");
    if (plan_source(word(args, 0), path, e) < 0 || plan_path("/", word(args, 1), path, e) < 0)
        return -1;
    if (!word(args, 1)[0])
        return pd_fail(e, PD_INVALID, "COPY wants a destination");
    if (!is_owner(word(args, 2)))
        return pd_fail(e, PD_INVALID, "COPY: '%.60s' is no owner, such as user:user",
                       word(args, 2));
    if (word(args, 3)[0] && !is_mode(word(args, 3)))
        return pd_fail(e, PD_INVALID, "COPY: '%.60s' is no mode, such as 0644", word(args, 3));
    return 0;
}

static int check_step(enum step_kind kind, const struct msg_list *args, const char *files,
                      struct pd_err *e)
{
    char path[SPEC_PATH_MAX];

    if (kind != STEP_COPY && files)
        return pd_fail(e, PD_INVALID, "%s has no files", kinds[kind]);
    switch (kind) {
    case STEP_RUN:
        if (!args->count || args->count > 2 || !word(args, 0)[0])
            return pd_fail(e, PD_INVALID, "RUN wants a command, and maybe a user");
        return 0;
    case STEP_COPY:
        return check_copy(args, files, e);
    case STEP_ENV:
        return check_env(args, e);
    case STEP_WORKDIR:
        if (args->count != 1 || !word(args, 0)[0])
            return pd_fail(e, PD_INVALID, "WORKDIR wants a directory");
        return plan_path("/", word(args, 0), path, e);
    case STEP_USER:
    case STEP_KIND_COUNT:
        break;
    }
    /* A second word is E2B's "may use sudo", which both users here may where there is a root. */
    if (!args->count || args->count > 2 || !word(args, 0)[0] ||
        strlen(word(args, 0)) >= PLAN_USER_MAX)
        return pd_fail(e, PD_INVALID, "USER wants a name");
    return 0;
}

int plan_add_step(struct build_plan *p, const char *type, const struct msg_list *args,
                  const char *files, bool force, struct pd_err *e)
{
    unsigned kind = 0;
    uint32_t pos = 0;
    while (kind < STEP_KIND_COUNT && strcasecmp(type, kinds[kind]) != 0)
        kind++;
    if (kind == STEP_KIND_COUNT)
        return pd_fail(e, PD_INVALID,
                       "step '%.40s' is not known: RUN, COPY, ENV, WORKDIR and USER are", type);
    if (p->count == PLAN_STEPS_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a build has at most %u steps", PLAN_STEPS_MAX);
    if (args->count > PLAN_ARGS_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a step has at most %u words", PLAN_ARGS_MAX);
    if (files && !files[0])
        files = NULL;
    if (check_step((enum step_kind)kind, args, files, e) < 0)
        return -1;

    struct build_step *s = &p->steps[p->count];
    *s = (struct build_step){
        .kind = (enum step_kind)kind, .args = MSG_LIST_WRITER_INIT, .force = force};
    for (const char *text; (text = msg_list_next(args, &pos));) {
        size_t len = strlen(text);
        if (len > PLAN_ARG_MAX || (p->text += len) > PLAN_TEXT_MAX ||
            msg_list_add(&s->args, text) < 0) {
            msg_list_writer_done(&s->args);
            return pd_fail(e, PD_TOO_LARGE,
                           "the steps are too long: at most %u bytes a word, and "
                           "%u in all",
                           PLAN_ARG_MAX, PLAN_TEXT_MAX);
        }
    }
    if (files)
        memcpy(s->files, files, sizeof s->files);
    p->count++;
    return 0;
}

/* ---- paths ---- */

int plan_path(const char *workdir, const char *path, char ret[SPEC_PATH_MAX], struct pd_err *e)
{
    const char *parts[2] = {path[0] == '/' ? "" : workdir, path};
    char out[SPEC_PATH_MAX];
    size_t len = 0;

    for (unsigned i = 0; i < 2; i++)
        for (const char *at = parts[i]; *at;) {
            size_t n = strcspn(at, "/");
            if (n == 2 && !memcmp(at, "..", 2)) {
                while (len && out[--len] != '/')
                    ;
            } else if (n && !(n == 1 && at[0] == '.')) {
                if (len + n + 2 > sizeof out)
                    return pd_fail(e, PD_INVALID, "the path '%.60s...' is too long", path);
                out[len++] = '/';
                memcpy(out + len, at, n);
                len += n;
            }
            at += n + (at[n] == '/');
        }

    if (!len)
        out[len++] = '/';
    out[len] = 0;
    memcpy(ret, out, len + 1);
    return 0;
}

int plan_source(const char *source, char ret[SPEC_PATH_MAX], struct pd_err *e)
{
    char out[SPEC_PATH_MAX];
    size_t len = 0;

    if (source[0] == '/')
        return pd_fail(e, PD_INVALID,
                       "COPY: '%.80s': a source is relative to the directory that is "
                       "sent",
                       source);
    for (const char *at = source; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 2 && !memcmp(at, "..", 2))
            return pd_fail(e, PD_INVALID, "COPY: '%.80s' leaves the directory that is sent",
                           source);
        if (strcspn(at, "*?[{") < n)
            break;
        if (n && !(n == 1 && at[0] == '.')) {
            if (len + n + 2 > sizeof out)
                return pd_fail(e, PD_INVALID, "COPY: the source '%.60s...' is too long", source);
            if (len)
                out[len++] = '/';
            memcpy(out + len, at, n);
            len += n;
        }
        at += n + (at[n] == '/');
    }
    /* Behind a pattern it may not leave either. */
    for (const char *at = source; *at; at += strspn(at, "/")) {
        size_t n = strcspn(at, "/");
        if (n == 2 && !memcmp(at, "..", 2))
            return pd_fail(e, PD_INVALID, "COPY: '%.80s' leaves the directory that is sent",
                           source);
        at += n;
    }
    out[len] = 0;
    memcpy(ret, out, len + 1);
    return 0;
}

/* ---- keys ---- */

static void put_text(struct sha256 *h, const char *text)
{
    uint64_t len = strlen(text);
    uint8_t head[8];
    for (unsigned i = 0; i < 8; i++)
        head[i] = (uint8_t)(len >> (8 * i));
    sha256_put(h, head, sizeof head);
    sha256_put(h, text, len);
}

void plan_key_base(const struct build_plan *p, char ret[SHA256_HEX_SIZE])
{
    struct sha256 h = SHA256_INIT;
    put_text(&h, KEY_VERSION);
    put_text(&h, p->base);
    put_text(&h, p->snapshot);
    put_text(&h, profile_name(p->profile));
    sha256_end_hex(&h, ret);
}

void plan_key_step(const struct build_step *s, const char *before, char ret[SHA256_HEX_SIZE])
{
    struct sha256 h = SHA256_INIT;
    struct msg_list args = msg_list_of(&s->args);
    uint32_t pos = 0;

    put_text(&h, before);
    put_text(&h, kinds[s->kind]);
    put_text(&h, s->digest);
    for (const char *text; (text = msg_list_next(&args, &pos));)
        put_text(&h, text);
    sha256_end_hex(&h, ret);
}

void plan_key_end(const struct build_plan *p, const char *before, char ret[SHA256_HEX_SIZE])
{
    struct sha256 h = SHA256_INIT;
    put_text(&h, before);
    put_text(&h, "end");
    put_text(&h, p->start ? p->start : "");
    put_text(&h, p->ready ? p->ready : "");
    sha256_end_hex(&h, ret);
}

/* ---- what holds for commands ---- */

void build_context_done(struct build_context *c)
{
    msg_list_writer_done(&c->env);
}

int build_context_set(struct build_context *c, const char *name, const char *value,
                      struct pd_err *e)
{
    struct msg_list_writer next = MSG_LIST_WRITER_INIT;
    struct msg_list old = msg_list_of(&c->env);
    auto_buf pair = BUF_INIT(PLAN_ENV_MAX);
    size_t len = strlen(name), total = len + strlen(value) + 2;
    uint32_t pos = 0;
    int bad = 0;

    for (const char *v; (v = msg_list_next(&old, &pos));)
        if (strncmp(v, name, len) != 0 || v[len] != '=') {
            total += strlen(v) + 1;
            bad |= msg_list_add(&next, v);
        }
    bad |= buf_printf(&pair, "%s=%s", name, value);
    const char *text = buf_cstr(&pair);
    bad |= !text || msg_list_add(&next, text);

    if (bad || total > PLAN_ENV_MAX) {
        msg_list_writer_done(&next);
        return pd_fail(e, PD_TOO_LARGE, "the variables are longer than %u bytes", PLAN_ENV_MAX);
    }
    msg_list_writer_done(&c->env);
    c->env = next;
    return 0;
}

int build_context_write(const struct build_context *c, struct buf *out)
{
    struct json j = JSON_INIT(out);
    struct msg_list env = msg_list_of(&c->env);
    uint32_t pos = 0;

    json_open(&j, '{');
    json_key(&j, "env");
    json_open(&j, '[');
    for (const char *v; (v = msg_list_next(&env, &pos));)
        json_cstr(&j, v);
    json_close(&j, ']');
    json_member_cstr(&j, "user", c->user);
    json_member_cstr(&j, "workdir", c->workdir);
    json_close(&j, '}');
    return out->overflow ? -1 : 0;
}

int build_context_read(struct build_context *c, const char *text)
{
    json_auto_t *all = json_loads(text, 0, NULL);
    const char *user = json_string_value(json_object_get(all, "user"));
    const char *workdir = json_string_value(json_object_get(all, "workdir"));
    struct build_context got = BUILD_CONTEXT_INIT;
    size_t i;
    json_t *v;

    if (!user || !workdir || strlen(user) >= sizeof got.user ||
        strlen(workdir) >= sizeof got.workdir)
        return -1;
    json_array_foreach(json_object_get(all, "env"), i, v)
    {
        const char *pair = json_string_value(v);
        if (!pair || msg_list_add(&got.env, pair) < 0) {
            build_context_done(&got);
            return -1;
        }
    }
    snprintf(got.user, sizeof got.user, "%s", user);
    snprintf(got.workdir, sizeof got.workdir, "%s", workdir);
    build_context_done(c);
    *c = got;
    return 0;
}
