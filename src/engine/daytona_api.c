/* Writers and readers of Daytona's API. Objects have members that nobody here asks for: what is
 * read has to be of its form, the rest may be anything. */
#include "engine/daytona_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define IMAGE_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@-"
#define NAME_LETTERS  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

/* ---- making one ---- */

uint32_t daytona_minutes(uint64_t s)
{
    uint64_t minutes = (s + 59) / 60;
    return minutes > UINT32_MAX ? UINT32_MAX : (uint32_t)minutes;
}

bool daytona_is_image(const char *text)
{
    size_t len = strlen(text);
    return len && text[0] != '-' && strspn(text, IMAGE_LETTERS) == len;
}

/* What it is made from. Sizes can be said of an image only: a snapshot has its own. */
static void put_source(struct json *j, const struct daytona_plan *p)
{
    if (!p->image[0]) {
        if (p->snapshot[0])
            json_member_cstr(j, "snapshot", p->snapshot);
        return;
    }

    json_key(j, "buildInfo");
    json_open(j, '{');
    json_key(j, "dockerfileContent");
    json_str_begin(j);
    json_str_more(j, "FROM ", 5);
    json_str_more(j, p->image, strlen(p->image));
    json_str_more(j, "\n", 1);
    json_str_end(j);
    json_close(j, '}');
    if (p->cpu)
        json_member_uint(j, "cpu", p->cpu);
    if (p->memory_gb)
        json_member_uint(j, "memory", p->memory_gb);
    if (p->disk_gb)
        json_member_uint(j, "disk", p->disk_gb);
}

void daytona_create_body(struct buf *out, const struct daytona_plan *p)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "name", p->name);
    put_source(&j, p);
    if (p->target[0])
        json_member_cstr(&j, "target", p->target);
    json_key(&j, "labels");
    json_open(&j, '{');
    json_member_cstr(&j, DAYTONA_OWNER, p->owner);
    json_member_cstr(&j, DAYTONA_BOX, p->box);
    json_member_cstr(&j, DAYTONA_LINK, p->link);
    json_close(&j, '}');

    json_member_bool(&j, "public", 0);
    if (p->git_host[0])
        json_member_cstr(&j, "domainAllowList", p->git_host);
    else
        json_member_bool(&j, "networkBlockAll", 1);
    json_member_uint(&j, "autoStopInterval", p->stop_min);
    json_member_uint(&j, "autoDeleteInterval", 0); /* at once when it stops */
    if (p->life_min)
        json_member_uint(&j, "ttlMinutes", p->life_min);
    json_close(&j, '}');
}

/* ---- what there is ---- */

/* Anybody's labels: one that is too long is not ours. */
static void copy_label(char *out, size_t size, const json_t *labels, const char *name)
{
    const char *text = json_string_value(json_object_get(labels, name));
    snprintf(out, size, "%s", text && strlen(text) < size ? text : "");
}

static enum daytona_state read_state(const json_t *j)
{
    static const struct {
        const char *name;
        enum daytona_state state;
    } known[] = {
        {"started", DAYTONA_RUNS},        {"error", DAYTONA_FAILED},
        {"build_failed", DAYTONA_FAILED}, {"stopped", DAYTONA_STOPPED},
        {"stopping", DAYTONA_STOPPED},    {"archived", DAYTONA_STOPPED},
        {"archiving", DAYTONA_STOPPED},   {"paused", DAYTONA_STOPPED},
        {"pausing", DAYTONA_STOPPED},     {"destroyed", DAYTONA_GONE},
        {"destroying", DAYTONA_GONE},
    };
    const char *state = json_string_value(json_object_get(j, "state"));
    const char *wanted = json_string_value(json_object_get(j, "desiredState"));

    if (wanted && !strcmp(wanted, "destroyed"))
        return DAYTONA_GONE;
    for (size_t i = 0; state && i < sizeof known / sizeof *known; i++)
        if (!strcmp(state, known[i].name))
            return known[i].state;
    return DAYTONA_COMES;
}

/* An address of an answer is no setting of anybody's. */
static int read_url(const char *what, const char *text, struct rented_url *ret, struct pd_err *e)
{
    struct pd_err why;
    return rented_url_read(what, text, ret, &why) < 0 ? pd_fail(e, PD_PROTOCOL, "%s", why.msg) : 0;
}

static int read_one(const json_t *j, struct daytona_sandbox *ret, struct pd_err *e)
{
    struct daytona_sandbox s = {.state = read_state(j)};
    const json_t *labels = json_object_get(j, "labels");
    const char *toolbox = json_string_value(json_object_get(j, "toolboxProxyUrl"));
    const char *why = json_string_value(json_object_get(j, "errorReason"));

    if (rented_json_text(s.id, sizeof s.id, json_object_get(j, "id"), rented_is_id) < 0 || !s.id[0])
        return pd_fail(e, PD_PROTOCOL, "Daytona tells of a sandbox whose id is none");
    if (toolbox && toolbox[0] && read_url("Daytona's toolboxProxyUrl", toolbox, &s.toolbox, e) < 0)
        return -1;
    copy_label(s.owner, sizeof s.owner, labels, DAYTONA_OWNER);
    copy_label(s.box, sizeof s.box, labels, DAYTONA_BOX);
    copy_label(s.link, sizeof s.link, labels, DAYTONA_LINK);
    s.is_blocked = json_is_true(json_object_get(j, "networkBlockAll"));
    rented_words(why, why ? strlen(why) : 0, NULL, s.why, sizeof s.why);
    *ret = s;
    return 0;
}

int daytona_read_sandbox(const void *json, size_t len, struct daytona_sandbox *ret,
                         struct pd_err *e)
{
    auto_json *j = rented_json("Daytona", "a request for a sandbox", json, len, e);
    return j ? read_one(j, ret, e) : -1;
}

/* Names of keepers have no character that would need to be encoded. */
void daytona_list_target(struct buf *out, const char *owner, const char *cursor)
{
    buf_printf(out, "/sandbox?limit=%u&labels=%%7B%%22" DAYTONA_OWNER "%%22%%3A%%22%s%%22%%7D",
               DAYTONA_PAGE, owner);
    if (cursor[0])
        buf_puts(out, "&cursor=");
    for (; *cursor; cursor++)
        buf_printf(out, "%%%02X", (unsigned)(unsigned char)*cursor);
}

int daytona_read_list(const void *json, size_t len, daytona_each *each, void *context,
                      char ret_cursor[DAYTONA_CURSOR], struct pd_err *e)
{
    auto_json *j = rented_json("Daytona", "the request for a list", json, len, e);
    const json_t *items = json_object_get(j, "items");
    char cursor[DAYTONA_CURSOR];

    if (!j)
        return -1;
    if (!json_is_array(items) ||
        rented_json_text(cursor, sizeof cursor, json_object_get(j, "nextCursor"), rented_is_token) <
            0)
        return pd_fail(e, PD_PROTOCOL, "Daytona's list of sandboxes is none");

    for (size_t i = 0; i < json_array_size(items); i++) {
        struct daytona_sandbox s;
        if (read_one(json_array_get(items, i), &s, e) < 0)
            return -1;
        if (s.owner[0] && s.box[0] && each(context, &s, e) < 0)
            return -1;
    }
    memcpy(ret_cursor, cursor, sizeof cursor);
    return 0;
}

int daytona_read_preview(const void *json, size_t len, struct daytona_preview *ret,
                         struct pd_err *e)
{
    auto_json *j = rented_json("Daytona", "the request for a preview", json, len, e);
    const char *url = json_string_value(json_object_get(j, "url"));
    struct daytona_preview p;

    if (!j)
        return -1;
    if (rented_json_text(p.token, sizeof p.token, json_object_get(j, "token"), rented_is_token) <
            0 ||
        !url)
        return pd_fail(e, PD_PROTOCOL, "Daytona tells a preview whose address or token is none");
    if (read_url("Daytona's preview", url, &p.url, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

/* ---- in it ---- */

void daytona_execute_body(struct buf *out, const char *lines, unsigned timeout_s)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "command", lines);
    json_member_uint(&j, "timeout", timeout_s);
    json_close(&j, '}');
}

int daytona_read_executed(const void *json, size_t len, const char *what, struct pd_err *e)
{
    auto_json *j = rented_json("Daytona", "a command", json, len, e);
    const json_t *code = json_object_get(j, "exitCode");
    const char *result = json_string_value(json_object_get(j, "result"));
    char words[160];

    if (!j)
        return -1;
    if (!json_is_integer(code))
        return pd_fail(e, PD_PROTOCOL, "Daytona does not say how the command to %s ended", what);
    if (!json_integer_value(code))
        return 0;
    rented_words(result, result ? strlen(result) : 0, NULL, words, sizeof words);
    return pd_fail(e, PD_LOST, "the sandbox cannot %s (exit code %lld)%s%s", what,
                   (long long)json_integer_value(code), words[0] ? ": " : "", words);
}

int daytona_read_port(const void *json, size_t len, bool *ret, struct pd_err *e)
{
    auto_json *j = rented_json("Daytona", "the question for a port", json, len, e);
    const json_t *used = json_object_get(j, "isInUse");

    if (!j)
        return -1;
    if (!json_is_boolean(used))
        return pd_fail(e, PD_PROTOCOL, "Daytona does not say whether a port is in use");
    *ret = json_is_true(used);
    return 0;
}

/* ---- a repository ---- */

int daytona_git_read(const char *url, struct daytona_git *ret, struct pd_err *e)
{
    struct daytona_git g;
    struct rented_url u;

    if (rented_url_read("git_url", url, &u, e) < 0)
        return -1;
    const char *slash = strrchr(u.path, '/'), *name = slash ? slash + 1 : "";
    size_t len = strlen(name);
    if (len > 4 && !strcmp(name + len - 4, ".git"))
        len -= 4;
    if (!len || name[0] == '.' || name[0] == '-' || len >= sizeof g.name ||
        strspn(name, NAME_LETTERS) < len || strlen(url) >= sizeof g.url)
        return pd_fail(e, PD_INVALID,
                       "git_url '%.80s': its last part names the directory: use "
                       "https://HOST/PATH/NAME",
                       url);

    snprintf(g.url, sizeof g.url, "%s", url);
    snprintf(g.host, sizeof g.host, "%s", strstr(u.base, "://") + 3);
    snprintf(g.name, sizeof g.name, "%.*s", (int)len, name);
    *ret = g;
    return 0;
}

bool daytona_git_allowed(const struct daytona_git *g, const char *hosts)
{
    size_t len = strlen(g->host);

    while (*hosts) {
        hosts += strspn(hosts, ", ");
        size_t n = strcspn(hosts, ", ");
        if (n == len && n && !strncasecmp(hosts, g->host, n))
            return true;
        hosts += n;
    }
    return false;
}

int daytona_options_read(const char *options, char ret_url[DAYTONA_URL], struct pd_err *e)
{
    ret_url[0] = 0;
    if (!options[0])
        return 0;

    auto_json *j = json_loads(options, JSON_REJECT_DUPLICATES, NULL);
    const json_t *url = json_object_get(j, "git_url");
    if (!json_is_object(j) || json_object_size(j) != (url ? 1u : 0u) ||
        (url && (!json_is_string(url) || json_string_length(url) >= DAYTONA_URL)))
        return pd_fail(e, PD_INVALID, "options '%.60s': provider daytona takes git_url alone",
                       options);
    if (url)
        snprintf(ret_url, DAYTONA_URL, "%s", json_string_value(url));
    return 0;
}

void daytona_clone_body(struct buf *out, const struct daytona_git *g)
{
    struct json j = JSON_INIT(out);
    char path[sizeof g->name + 16];

    snprintf(path, sizeof path, "/workspace/%s", g->name);
    json_open(&j, '{');
    json_member_cstr(&j, "url", g->url);
    json_member_cstr(&j, "path", path);
    json_close(&j, '}');
}
