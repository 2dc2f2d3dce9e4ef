/* Bodies and answers of Cloud Run. Numbers of 64 bits are texts there, and what is zero or empty is
 * left out. Of names only the last part is used: a project has a name and a number, and answers may
 * have either. */
#include "engine/cloudrun_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "base/parse.h"
#include "engine/http.h"
#include "engine/rented_text.h"

#include <stdio.h>
#include <string.h>

#define LABEL "label="

/* ---- names ---- */

static bool is_name(const char *text, const char *more, size_t most)
{
    size_t len = 0;

    while ((text[len] >= 'a' && text[len] <= 'z') || (text[len] >= '0' && text[len] <= '9') ||
           (text[len] && strchr(more, text[len])))
        len++;
    return len > 0 && len <= most && !text[len] && text[0] != '-' && text[0] != '.';
}

int cloudrun_check_place(const struct cloudrun_place *p, struct pd_err *e)
{
    if (!p->project[0] || !p->job[0])
        return pd_fail(e, PD_INVALID, "provider cloudrun needs cloudrun_%s: %s",
                       p->project[0] ? "job" : "project",
                       p->project[0] ? "sandboxes are executions of it"
                                     : "the project of the job (or set SANDBOX_GCP_PROJECT)");
    if (!is_name(p->project, "-.:", 63))
        return pd_fail(e, PD_INVALID, "cloudrun_project = %.80s: use the id of a project",
                       p->project);
    if (!is_name(p->region, "-", 39))
        return pd_fail(e, PD_INVALID, "cloudrun_region = %.60s: use a region such as us-central1",
                       p->region);
    if (!is_name(p->job, "-", 63))
        return pd_fail(e, PD_INVALID, "cloudrun_job = %.80s: use the name of a job", p->job);
    return 0;
}

/* The last part of a name. It becomes a part of a path. */
static bool take_id(const char *name, char ret[CLOUDRUN_ID])
{
    const char *slash = name ? strrchr(name, '/') : NULL;
    const char *id = slash ? slash + 1 : name ? name : "";

    ret[0] = 0;
    if (!is_name(id, "-_.ABCDEFGHIJKLMNOPQRSTUVWXYZ", CLOUDRUN_ID - 1))
        return false;
    snprintf(ret, CLOUDRUN_ID, "%s", id);
    return true;
}

void cloudrun_job_target(struct buf *out, const struct cloudrun_place *p, const char *rest)
{
    buf_printf(out, "/v2/projects/%s/locations/%s/jobs/%s%s", p->project, p->region, p->job, rest);
}

void cloudrun_operation_target(struct buf *out, const struct cloudrun_place *p, const char *id)
{
    buf_printf(out, "/v2/projects/%s/locations/%s/operations/%s", p->project, p->region, id);
}

void cloudrun_list_target(struct buf *out, const struct cloudrun_place *p, const char *next)
{
    cloudrun_job_target(out, p, "/executions?pageSize=");
    buf_printf(out, "%u", CLOUDRUN_PAGE);
    if (next[0]) {
        buf_puts(out, "&pageToken=");
        http_escape(out, next);
    }
}

/* ---- bodies ---- */

static void write_variable(struct json *j, const char *name, const char *value)
{
    json_open(j, '{');
    json_member_cstr(j, "name", name);
    json_member_cstr(j, "value", value);
    json_close(j, '}');
}

void cloudrun_run_body(struct buf *out, const struct cloudrun_plan *p)
{
    struct json j = JSON_INIT(out);
    char timeout[32];

    json_open(&j, '{');
    json_key(&j, "overrides");
    json_open(&j, '{');
    json_key(&j, "containerOverrides");
    json_open(&j, '[');
    json_open(&j, '{');
    if (p->container[0])
        json_member_cstr(&j, "name", p->container);
    json_key(&j, "args");
    json_open(&j, '[');
    for (const char *const *word = p->words; *word; word++)
        json_cstr(&j, *word);
    json_close(&j, ']');
    json_key(&j, "env");
    json_open(&j, '[');
    write_variable(&j, p->variable, p->value);
    if (p->more)
        write_variable(&j, p->more, p->more_value);
    json_close(&j, ']');
    json_close(&j, '}');
    json_close(&j, ']');

    snprintf(timeout, sizeof timeout, "%llus", (unsigned long long)p->timeout_s);
    json_member_int(&j, "taskCount", 1);
    json_member_cstr(&j, "timeout", timeout);
    json_close(&j, '}');
    json_close(&j, '}');
}

/* ---- answers ---- */

static const char *text_of(json_t *j, const char *name)
{
    const char *text = json_string_value(json_object_get(j, name));
    return text ? text : "";
}

/* A number that may be a text, or missing. */
static uint64_t number_of(json_t *j, const char *name)
{
    json_t *n = json_object_get(j, name);
    uint64_t number = 0;

    if (json_is_integer(n) && json_integer_value(n) > 0)
        return (uint64_t)json_integer_value(n);
    return json_is_string(n) &&
                   parse_u64(name, json_string_value(n), 0, UINT32_MAX, &number, NULL) == 0
               ? number
               : 0;
}

/* What is shown to people, or nothing. */
static void copy_plain(char *out, size_t size, const char *text)
{
    size_t len = 0;

    for (; *text && len + 1 < size; text++)
        if (*text >= ' ' && *text < 127)
            out[len++] = *text;
    out[len] = 0;
}

int cloudrun_read_job(const void *json, size_t len, struct cloudrun_job *ret, struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    json_t *task = json_object_get(json_object_get(j, "template"), "template");
    json_t *containers = json_object_get(task, "containers");
    json_t *first = json_array_get(containers, 0);

    *ret = (struct cloudrun_job){.containers = (unsigned)json_array_size(containers)};
    if (!first)
        return pd_fail(e, PD_PROTOCOL, "Cloud Run tells of a job without a container");
    if (is_name(text_of(first, "name"), "-", sizeof ret->container - 1))
        snprintf(ret->container, sizeof ret->container, "%s", text_of(first, "name"));
    copy_plain(ret->image, sizeof ret->image, text_of(first, "image"));
    copy_plain(ret->account, sizeof ret->account, text_of(task, "serviceAccount"));
    json_t *entry = json_array_get(json_object_get(first, "command"), 0);
    copy_plain(ret->entry, sizeof ret->entry,
               json_is_string(entry) ? json_string_value(entry) : "");
    ret->retries = number_of(task, "maxRetries");
    return 0;
}

/* The member of this name in a list of objects, or NULL. */
static json_t *named(json_t *list, const char *member, const char *name)
{
    json_t *one;
    size_t i;

    json_array_foreach(list, i, one)
    {
        if (!strcmp(text_of(one, member), name))
            return one;
    }
    return NULL;
}

/* A directory that becomes a word of a box's. */
static bool is_directory(const char *path)
{
    size_t len = strlen(path);
    return len > 1 && len < CLOUDRUN_MOUNT && path[0] == '/' && path[len - 1] != '/' &&
           !strstr(path, "..") &&
           strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") ==
               len;
}

int cloudrun_read_mount(const void *json, size_t len, const char *bucket, const char *container,
                        char ret[CLOUDRUN_MOUNT], struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    json_t *task = json_object_get(json_object_get(j, "template"), "template");
    json_t *containers = json_object_get(task, "containers"), *volume;
    json_t *c = container[0] ? named(containers, "name", container) : json_array_get(containers, 0);
    size_t i;

    json_array_foreach(json_object_get(task, "volumes"), i, volume)
    {
        json_t *gcs = json_object_get(volume, "gcs");
        json_t *mount = named(json_object_get(c, "volumeMounts"), "name", text_of(volume, "name"));
        const char *path = text_of(mount, "mountPath");
        if (strcmp(text_of(gcs, "bucket"), bucket) != 0 || !mount)
            continue;
        if (json_is_true(json_object_get(gcs, "readOnly")))
            return pd_fail(e, PD_INVALID, "the job has the bucket '%.80s' only to read", bucket);
        if (!is_directory(path))
            return pd_fail(e, PD_INVALID,
                           "the job has the bucket '%.80s' at '%.80s': use a plain path of at most "
                           "%u characters",
                           bucket, path, CLOUDRUN_MOUNT - 1);
        snprintf(ret, CLOUDRUN_MOUNT, "%s", path);
        return 0;
    }
    return pd_fail(e, PD_INVALID,
                   "no volume of the job is the bucket '%.80s' (cloudrun_bucket): add one of Cloud "
                   "Storage and mount it in the container",
                   bucket);
}

/* "label=OWNER/BOX" among the arguments of its containers. */
static void take_label(json_t *execution, struct cloudrun_execution *ret)
{
    json_t *containers = json_object_get(json_object_get(execution, "template"), "containers"), *c,
           *a;
    size_t i, k;

    json_array_foreach(containers, i, c)
    {
        json_array_foreach(json_object_get(c, "args"), k, a)
        {
            const char *text = json_is_string(a) ? json_string_value(a) : "";
            const char *slash = strchr(text, '/');
            size_t owner = slash ? (size_t)(slash - text) : 0;
            if (strncmp(text, LABEL, sizeof LABEL - 1) != 0 || owner < sizeof LABEL ||
                owner - (sizeof LABEL - 1) >= sizeof ret->owner ||
                !is_name(slash + 1, "-_.", sizeof ret->box - 1))
                continue;
            snprintf(ret->owner, sizeof ret->owner, "%.*s", (int)(owner - (sizeof LABEL - 1)),
                     text + sizeof LABEL - 1);
            snprintf(ret->box, sizeof ret->box, "%s", slash + 1);
            return;
        }
    }
}

/* The words of the condition that says how it ended. */
static void say_end(json_t *execution, char *out, size_t size)
{
    json_t *conditions = json_object_get(execution, "conditions"), *c;
    char words[120] = "", reason[60] = "";
    size_t i;

    json_array_foreach(conditions, i, c)
    {
        if (strcmp(text_of(c, "type"), "Completed") != 0)
            continue;
        copy_plain(words, sizeof words, text_of(c, "message"));
        copy_plain(reason, sizeof reason,
                   text_of(c, text_of(c, "executionReason")[0] ? "executionReason" : "reason"));
    }
    snprintf(out, size, "the execution has ended%s%s%s%s", reason[0] ? " (" : "", reason,
             reason[0] ? ")" : "", "");
    size_t at = strlen(out);
    if (words[0] && at + 4 < size)
        snprintf(out + at, size - at, ": %.*s", (int)(size - at - 3), words);
}

static bool take_execution(json_t *j, struct cloudrun_execution *ret)
{
    *ret = (struct cloudrun_execution){.owner = ""};
    if (!take_id(text_of(j, "name"), ret->id))
        return false;
    take_label(j, ret);
    ret->over = text_of(j, "completionTime")[0] || text_of(j, "deleteTime")[0];
    if (ret->over)
        say_end(j, ret->why, sizeof ret->why);
    return true;
}

int cloudrun_read_execution(const void *json, size_t len, struct cloudrun_execution *ret,
                            struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);

    return take_execution(j, ret)
               ? 0
               : pd_fail(e, PD_PROTOCOL, "Cloud Run tells of an execution without a name");
}

int cloudrun_read_list(const void *json, size_t len, char next[CLOUDRUN_NEXT], cloudrun_each *each,
                       void *context, struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    json_t *x;
    size_t i;

    next[0] = 0;
    if (!json_is_object(j) || strlen(text_of(j, "nextPageToken")) >= CLOUDRUN_NEXT)
        return pd_fail(e, PD_PROTOCOL, "Cloud Run's list of executions cannot be read");
    json_array_foreach(json_object_get(j, "executions"), i, x)
    {
        struct cloudrun_execution one;
        if (!take_execution(x, &one) || !one.box[0])
            continue;
        int r = each(context, &one, e);
        if (r)
            return r;
    }
    snprintf(next, CLOUDRUN_NEXT, "%s", text_of(j, "nextPageToken"));
    return 0;
}

/* The codes of google.rpc.Code. */
static enum pd_code code_of(json_int_t code)
{
    switch (code) {
    case 5:
        return PD_NOT_FOUND;
    case 7:
    case 16:
        return PD_DENIED;
    case 8:
        return PD_CAPACITY;
    default:
        return PD_BAD_GATEWAY;
    }
}

int cloudrun_read_operation(const void *json, size_t len, struct cloudrun_operation *ret,
                            struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    json_t *failed = json_object_get(j, "error");
    char words[140];

    *ret = (struct cloudrun_operation){.done = json_is_true(json_object_get(j, "done"))};
    if (json_is_object(failed)) {
        copy_plain(words, sizeof words, text_of(failed, "message"));
        return pd_fail(e, code_of(json_integer_value(json_object_get(failed, "code"))),
                       "Cloud Run did not run the job: %s", words[0] ? words : "no words");
    }
    if (!take_id(text_of(j, "name"), ret->id))
        return pd_fail(e, PD_PROTOCOL, "Cloud Run's answer is no operation");
    if (!take_id(text_of(json_object_get(j, "response"), "name"), ret->execution))
        (void)take_id(text_of(json_object_get(j, "metadata"), "name"), ret->execution);
    return 0;
}
