/* Reads what docker's API answers. Every reader takes a whole JSON text (of a pull: lines, as they
 * come), copies what it needs into fixed places and checks ids before they become parts of paths.
 */
#include "engine/docker_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <jansson.h>
#include <string.h>

#define API_MINOR_MIN   40 /* 1.40: docker 19.03 */
#define LAYER_BYTES_MAX (INT64_C(1) << 48)

static void json_unref(json_t **j)
{
    json_decref(*j);
}
#define auto_json __attribute__((cleanup(json_unref))) json_t

static json_t *load(const void *json, size_t len, const char *what, struct pd_err *e)
{
    json_error_t error;
    json_t *j = json_loadb(json, len, 0, &error);

    if (!j)
        pd_fail(e, PD_PROTOCOL, "the engine's answer to %s is no JSON: %.80s", what, error.text);
    return j;
}

/* Copies a text; what is no text or too long is "". */
static void copy_text(char *out, size_t size, const json_t *j)
{
    const char *text = json_string_value(j);
    size_t len = text ? json_string_length(j) : 0;

    if (!text || len >= size || strlen(text) != len)
        len = 0;
    if (len)
        memcpy(out, text, len);
    out[len] = 0;
}

/* The same, cut off where it is too long: for texts that people read. */
static void copy_words(char *out, size_t size, const json_t *j)
{
    const char *text = json_string_value(j);
    snprintf(out, size, "%s", text ? text : "");
}

static int copy_id(char out[65], const json_t *j, struct pd_err *e)
{
    char id[65];

    copy_text(id, sizeof id, j);
    size_t len = strspn(id, "0123456789abcdef");
    if (len < 12 || id[len])
        return pd_fail(e, PD_PROTOCOL, "the engine tells a container without an id");
    memcpy(out, id, sizeof id);
    return 0;
}

static void copy_labels(struct docker_container *c, const json_t *labels)
{
    copy_text(c->owner, sizeof c->owner, json_object_get(labels, LABEL_OWNER));
    copy_text(c->box, sizeof c->box, json_object_get(labels, LABEL_BOX));
    copy_text(c->store, sizeof c->store, json_object_get(labels, LABEL_STORE));
    copy_text(c->root, sizeof c->root, json_object_get(labels, LABEL_ROOT));
}

/* The place of the first volume. */
static void copy_volume(struct docker_container *c, const json_t *mounts)
{
    for (size_t i = 0; i < json_array_size(mounts) && !c->volume[0]; i++) {
        const json_t *m = json_array_get(mounts, i);
        const char *type = json_string_value(json_object_get(m, "Type"));
        if (type && !strcmp(type, "volume"))
            copy_words(c->volume, sizeof c->volume, json_object_get(m, "Destination"));
    }
}

static int small_number(const json_t *j)
{
    json_int_t n = json_integer_value(j);
    return n < 0 || n > INT32_MAX ? 0 : (int)n;
}

int docker_read_container(const void *json, size_t len, struct docker_container *ret,
                          struct pd_err *e)
{
    struct docker_container c = {0};
    auto_json *j = load(json, len, "inspect", e);

    if (!j || copy_id(c.id, json_object_get(j, "Id"), e) < 0)
        return -1;

    const json_t *state = json_object_get(j, "State");
    c.running = json_is_true(json_object_get(state, "Running"));
    c.paused = json_is_true(json_object_get(state, "Paused"));
    c.oom_killed = json_is_true(json_object_get(state, "OOMKilled"));
    c.pid = c.running ? small_number(json_object_get(state, "Pid")) : 0;
    c.exit_code = small_number(json_object_get(state, "ExitCode"));
    copy_text(c.status, sizeof c.status, json_object_get(state, "Status"));
    copy_words(c.error, sizeof c.error, json_object_get(state, "Error"));
    copy_labels(&c, json_object_get(json_object_get(j, "Config"), "Labels"));
    copy_volume(&c, json_object_get(j, "Mounts"));
    copy_words(c.image, sizeof c.image, json_object_get(j, "Image"));
    copy_words(c.from, sizeof c.from, json_object_get(json_object_get(j, "Config"), "Image"));

    *ret = c;
    return 0;
}

int docker_read_image_id(const void *json, size_t len, char *ret, size_t size, struct pd_err *e)
{
    auto_json *j = load(json, len, "inspect", e);
    if (!j)
        return -1;

    copy_words(ret, size, json_object_get(j, "Id"));
    return ret[0] ? 0 : pd_fail(e, PD_PROTOCOL, "the engine does not tell an image's id");
}

int docker_read_exec_id(const void *json, size_t len, char ret[65], struct pd_err *e)
{
    auto_json *j = load(json, len, "exec", e);
    if (!j)
        return -1;

    copy_words(ret, 65, json_object_get(j, "Id"));
    if (ret[0] && !ret[strspn(ret, "0123456789abcdef")])
        return 0;
    return pd_fail(e, PD_PROTOCOL, "the engine tells '%.20s' as the id of an exec", ret);
}

int docker_read_layers(const void *json, size_t len, struct pd_err *e)
{
    auto_json *j = load(json, len, "inspect", e);
    if (!j)
        return -1;

    const json_t *layers = json_object_get(json_object_get(j, "RootFS"), "Layers");
    if (!json_is_array(layers) || json_array_size(layers) > INT32_MAX)
        return pd_fail(e, PD_PROTOCOL, "the engine does not tell an image's layers");
    return (int)json_array_size(layers);
}

void docker_read_log(const void *log, size_t len, char *out, size_t size)
{
    const uint8_t *at = log;
    size_t used = 0;

    /* Each frame has a head of eight bytes, the last four of which are its length. */
    while (len > 8) {
        size_t piece =
            (size_t)at[4] << 24 | (size_t)at[5] << 16 | (size_t)at[6] << 8 | (size_t)at[7];
        at += 8;
        len -= 8;
        if (piece > len)
            piece = len;
        for (size_t i = 0; i < piece && used + 1 < size; i++)
            out[used++] = at[i] < ' ' || at[i] == 127 ? ' ' : (char)at[i];
        at += piece;
        len -= piece;
    }

    while (used && out[used - 1] == ' ')
        used--;
    out[used] = 0;
}

void docker_say_end(const struct docker_container *c, char *out, size_t size)
{
    if (c->oom_killed)
        snprintf(out, size, "the container was out of memory (OOMKilled)");
    else if (c->error[0])
        snprintf(out, size, "the engine says: %s", c->error);
    else if (c->running)
        snprintf(out, size, "the container runs, its init does not answer");
    else if (c->exit_code == 137)
        snprintf(out, size, "the container was killed from outside (exit code 137)");
    else
        snprintf(out, size, "the container ended with exit code %d", c->exit_code);
}

int docker_read_list(const void *json, size_t len, docker_each *each, void *context,
                     struct pd_err *e)
{
    auto_json *list = load(json, len, "list", e);

    if (!list)
        return -1;
    if (!json_is_array(list))
        return pd_fail(e, PD_PROTOCOL, "the engine's list of containers is no list");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i);
        struct docker_container c = {0};
        if (copy_id(c.id, json_object_get(j, "Id"), e) < 0)
            return -1;
        copy_text(c.status, sizeof c.status, json_object_get(j, "State"));
        c.paused = !strcmp(c.status, "paused");
        c.running = c.paused || !strcmp(c.status, "running");
        copy_labels(&c, json_object_get(j, "Labels"));
        if (each(context, &c, e) < 0)
            return -1;
    }
    return 0;
}

/* "1.41": its second number, or -1. */
static int minor_of(const char *version)
{
    uint64_t minor;
    if (strncmp(version, "1.", 2) != 0 || parse_u64("", version + 2, 0, 9999, &minor, NULL) < 0)
        return -1;
    return (int)minor;
}

int docker_read_version(const void *json, size_t len, char ret[16], struct pd_err *e)
{
    char api[16], least[16], engine[40];
    auto_json *j = load(json, len, "version", e);

    if (!j)
        return -1;
    copy_text(api, sizeof api, json_object_get(j, "ApiVersion"));
    copy_text(least, sizeof least, json_object_get(j, "MinAPIVersion"));
    copy_words(engine, sizeof engine, json_object_get(j, "Version"));

    int most = minor_of(api), min = minor_of(least);
    if (most < 0)
        return pd_fail(e, PD_PROTOCOL, "the engine's API version is '%.15s'", api);
    if (most < API_MINOR_MIN)
        return pd_fail(e, PD_UNSUPPORTED, "the engine (%s) speaks API %s; 1.%d or later is needed",
                       engine, api, API_MINOR_MIN);

    /* The oldest that both have: what we say is all in it, and engines only add. */
    snprintf(ret, 16, "1.%d", min > API_MINOR_MIN ? min : API_MINOR_MIN);
    return 0;
}

static bool has_option(const json_t *options, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < json_array_size(options); i++) {
        const char *text = json_string_value(json_array_get(options, i));
        if (text && !strncmp(text, "name=", 5) && !strncmp(text + 5, name, len) &&
            (text[5 + len] == 0 || text[5 + len] == ','))
            return true;
    }
    return false;
}

int docker_read_info(const void *json, size_t len, const char *runtime, struct docker_info *ret,
                     struct pd_err *e)
{
    struct docker_info i = {0};
    auto_json *j = load(json, len, "info", e);

    if (!j)
        return -1;
    if (!json_is_object(j))
        return pd_fail(e, PD_PROTOCOL, "the engine's answer to info is no object");

    const json_t *options = json_object_get(j, "SecurityOptions");
    copy_words(i.version, sizeof i.version, json_object_get(j, "ServerVersion"));
    copy_words(i.driver, sizeof i.driver, json_object_get(j, "Driver"));
    copy_words(i.cgroup_driver, sizeof i.cgroup_driver, json_object_get(j, "CgroupDriver"));

    const char *v = json_string_value(json_object_get(j, "CgroupVersion"));
    i.cgroup_version = v && v[0] == '2' ? 2 : 1;
    i.seccomp = has_option(options, "seccomp");
    i.userns = has_option(options, "userns");
    i.rootless = has_option(options, "rootless") ||
                 json_is_true(json_object_get(j, "Rootless")); /* podman */
    i.apparmor = has_option(options, "apparmor");
    i.selinux = has_option(options, "selinux");

    i.memory_limit = json_is_true(json_object_get(j, "MemoryLimit"));
    i.pids_limit = json_is_true(json_object_get(j, "PidsLimit"));
    i.cpu_limit = json_is_true(json_object_get(j, "CpuCfsQuota"));
    i.has_runtime = !runtime[0] || json_object_get(json_object_get(j, "Runtimes"), runtime);

    *ret = i;
    return 0;
}

static bool has_text(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *is = json_string_value(json_array_get(list, i));
        if (is && !strcmp(is, text))
            return true;
    }
    return false;
}

int docker_read_controllers(const void *json, size_t len, struct docker_info *i, struct pd_err *e)
{
    auto_json *j = load(json, len, "libpod/info", e);

    if (!j)
        return -1;
    const json_t *list = json_object_get(json_object_get(j, "host"), "cgroupControllers");
    if (!json_is_array(list))
        return pd_fail(e, PD_PROTOCOL, "the engine tells no cgroupControllers in libpod/info");

    i->memory_limit = i->memory_limit && has_text(list, "memory");
    i->pids_limit = i->pids_limit && has_text(list, "pids");
    i->cpu_limit = i->cpu_limit && has_text(list, "cpu");
    return 0;
}

int docker_check_limits(const char *provider, const struct docker_info *i, struct pd_err *e)
{
    if (i->memory_limit && i->pids_limit && i->cpu_limit)
        return 0;
    return pd_fail(e, PD_UNSUPPORTED,
                   "provider %s: this engine would not hold the limits of%s%s%s: it has no cgroup "
                   "controllers for them. %s",
                   provider, i->memory_limit ? "" : " memory", i->pids_limit ? "" : " processes",
                   i->cpu_limit ? "" : " processor",
                   i->rootless ? "Delegate them to its user (systemd: Delegate=yes), or run it as "
                                 "root"
                               : "Mount them, or use provider jail");
}

/* ---- pulling ---- */

void docker_pull_done(struct docker_pull *p)
{
    buf_done(&p->line);
}

/* The layer of this id; `add`: a new one where there is none. NULL: there is none, or no room. */
static struct docker_layer *layer_of(struct docker_pull *p, const char *id, bool add)
{
    size_t len = strlen(id);
    for (unsigned i = 0; i < p->count; i++)
        if (!strcmp(p->layers[i].id, id))
            return &p->layers[i];
    if (!add || !len || len >= sizeof p->layers->id || p->count == DOCKER_LAYERS_MAX)
        return NULL;

    struct docker_layer *l = &p->layers[p->count++];
    *l = (struct docker_layer){0};
    memcpy(l->id, id, len + 1);
    return l;
}

/* A number of bytes, or 0 for what cannot be one. */
static uint64_t bytes_of(const json_t *detail, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(detail, name));
    return n > 0 && n < LAYER_BYTES_MAX ? (uint64_t)n : 0;
}

/* docker tells of a layer as it is fetched and then unpacked, podman ends with its fetching. */
static void layer_line(struct docker_pull *p, const char *status, const char *id,
                       const json_t *detail)
{
    bool there = !strcmp(status, "Already exists");
    struct docker_layer *l = layer_of(p, id, there || !strcmp(status, "Pulling fs layer"));
    if (!l)
        return;

    if (!strcmp(status, "Downloading") && bytes_of(detail, "total")) {
        l->total = bytes_of(detail, "total");
        l->bytes = bytes_of(detail, "current");
        if (l->bytes > l->total)
            l->bytes = l->total;
    }
    if (there || !strcmp(status, "Pull complete"))
        l->done = true;
    if (l->done || !strcmp(status, "Download complete"))
        l->bytes = l->total;
}

struct msg_progress docker_pull_progress(const struct docker_pull *p)
{
    struct msg_progress m = {.layers = p->count};
    for (unsigned i = 0; i < p->count; i++) {
        m.layers_done += p->layers[i].done;
        m.bytes_done += p->layers[i].bytes;
        m.bytes += p->layers[i].total;
    }
    return m;
}

static int pull_line(struct docker_pull *p, struct pd_err *e)
{
    if (p->line.len == 0)
        return 0;
    auto_json *j = load(p->line.data, p->line.len, "pull", e);
    if (!j)
        return -1;

    const json_t *error = json_object_get(json_object_get(j, "errorDetail"), "message");
    if (!error)
        error = json_object_get(j, "error");
    if (error && !p->failed) {
        p->failed = true;
        copy_words(p->error, sizeof p->error, error);
        return 0;
    }

    const char *status = json_string_value(json_object_get(j, "status"));
    if (!status)
        return 0;
    const char *id = json_string_value(json_object_get(j, "id"));
    if (id)
        layer_line(p, status, id, json_object_get(j, "progressDetail"));
    if (!strncmp(status, "Digest: sha256:", 15) && strlen(status) == 8 + 71)
        memcpy(p->digest, status + 8, sizeof p->digest);
    return 0;
}

int docker_pull_take(void *pull, const void *data, size_t len, struct pd_err *e)
{
    struct docker_pull *p = pull;
    const char *at = data, *end = at + len;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t piece = (size_t)((stop ? stop : end) - at);
        if (buf_put(&p->line, at, piece) < 0)
            return pd_fail(e, PD_PROTOCOL, "the engine tells of a pull in lines that are too long");
        if (!stop)
            return 0;

        /* Lines end with CR LF. */
        if (p->line.len && p->line.data[p->line.len - 1] == '\r')
            p->line.len--;
        int r = pull_line(p, e);
        buf_clear(&p->line);
        if (r < 0)
            return -1;
        at = stop + 1;
    }
    return 0;
}
