/* What the API of Kubernetes answers. Everything is bounded and optional: a field that is missing
 * or of another kind is as if it were empty. Words that are shown to people lose what is not plain.
 */
#include "engine/kube_api.h"

#include "base/banned.h"
#include "base/err.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char *text_at(const json_t *map, const char *key)
{
    const char *text = json_string_value(json_object_get(map, key));
    return text ? text : "";
}

static long long int_at(const json_t *map, const char *key)
{
    return json_integer_value(json_object_get(map, key));
}

/* Text of the engine's for people: on one line, cut where it is too long. */
static void copy_words(char *out, size_t size, const char *text)
{
    size_t n = 0;

    for (; *text && n + 1 < size; text++)
        out[n++] = (unsigned char)*text < ' ' || *text == 127 ? ' ' : *text;
    while (n && ((unsigned char)out[n - 1] & 0xc0) == 0x80 && *text)
        n--; /* a character that was cut */
    out[n] = 0;
}

/* A name that becomes part of a path again: "" when it is none. */
static void copy_name(char *out, size_t size, const char *text)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-._");
    snprintf(out, size, "%s", text[len] || len >= size ? "" : text);
}

static json_t *load(const void *json, size_t len, struct pd_err *e)
{
    json_t *root = json_loadb(json ? json : "", len, JSON_REJECT_DUPLICATES, NULL);

    if (root && json_is_object(root))
        return root;
    json_decref(root);
    pd_fail(e, PD_PROTOCOL, "the cluster's answer is no JSON object");
    return NULL;
}

/* ---- pods ---- */

/* What ended a container, in words. */
static void say_terminated(const json_t *t, char *out, size_t size)
{
    const char *reason = text_at(t, "reason");
    long long code = int_at(t, "exitCode"), signal = int_at(t, "signal");
    char words[100];

    if (!strcmp(reason, "OOMKilled"))
        snprintf(out, size, "out of memory");
    else if (!strcmp(reason, "ContainerCannotRun") || !strcmp(reason, "StartError")) {
        copy_words(words, sizeof words, text_at(t, "message"));
        snprintf(out, size, "it could not begin: %s", words);
    } else if (code > 128 && code < 128 + 65)
        snprintf(out, size, "killed by signal %lld", signal ? signal : code - 128);
    else
        snprintf(out, size, "its first process ended with exit code %lld", code);
}

/* A condition that says why the cluster itself ended the pod. */
static bool say_disruption(const json_t *status, char *out, size_t size)
{
    static const struct {
        const char *reason, *words;
    } known[] = {
        {"PreemptionByScheduler", "the cluster gave its node to a pod of higher priority"},
        {"DeletionByTaintManager", "the cluster has lost its node"},
        {"EvictionByEvictionAPI", "it was evicted, as when a node is drained"},
        {"DeletionByPodGC", "the cluster has lost its node"},
        {"TerminationByKubelet", "its node ended it, for want of resources or to shut down"}};
    size_t i;
    json_t *c;

    json_array_foreach(json_object_get(status, "conditions"), i, c)
    {
        if (strcmp(text_at(c, "type"), "DisruptionTarget") != 0 ||
            strcmp(text_at(c, "status"), "True") != 0)
            continue;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strcmp(text_at(c, "reason"), known[k].reason)) {
                snprintf(out, size, "%s", known[k].words);
                return true;
            }
        snprintf(out, size, "the cluster ended it (%.60s)", text_at(c, "reason"));
        return true;
    }
    return false;
}

/* The pod's own reason goes before that of its container, and the cluster's before both. */
static void say_end(const json_t *status, const json_t *terminated, struct kube_pod *p)
{
    const char *reason = text_at(status, "reason");
    char words[110];

    copy_words(words, sizeof words, text_at(status, "message"));
    if (!strcmp(reason, "Evicted"))
        snprintf(p->why, sizeof p->why, "evicted: %s",
                 words[0] ? words : "its node was short of something");
    else if (!strcmp(reason, "DeadlineExceeded"))
        snprintf(p->why, sizeof p->why, "its longest life was over (kubernetes_max_life_s)");
    else if (say_disruption(status, p->why, sizeof p->why))
        return;
    else if (!strcmp(reason, "NodeLost") || !strcmp(reason, "NodeShutdown") ||
             !strcmp(reason, "Terminated") || !strcmp(reason, "Shutdown"))
        snprintf(p->why, sizeof p->why, "its node is gone or was shut down");
    else if (terminated)
        say_terminated(terminated, p->why, sizeof p->why);
    else if (p->deleting)
        snprintf(p->why, sizeof p->why, "somebody has deleted its pod");
    else if (reason[0] || words[0])
        snprintf(p->why, sizeof p->why, "%.40s: %s", reason, words);
}

static void note_waiting(const json_t *state, struct kube_pod *p)
{
    const json_t *w = json_object_get(state, "waiting");
    const char *reason = text_at(w, "reason");

    /* That they are being made is no trouble. */
    if (!reason[0] || !strcmp(reason, "PodInitializing") || !strcmp(reason, "ContainerCreating"))
        return;
    copy_words(p->waiting, sizeof p->waiting, reason);
    copy_words(p->words, sizeof p->words, text_at(w, "message"));
}

/* The init container only matters where it is in the way. */
static const json_t *read_containers(const json_t *status, struct kube_pod *p)
{
    size_t i;
    json_t *c;
    const json_t *terminated = NULL;

    json_array_foreach(json_object_get(status, "initContainerStatuses"), i, c)
    {
        const json_t *state = json_object_get(c, "state"),
                     *t = json_object_get(state, "terminated");
        note_waiting(state, p);
        if (t && int_at(t, "exitCode") != 0)
            terminated = t;
    }
    json_array_foreach(json_object_get(status, "containerStatuses"), i, c)
    {
        const json_t *state = json_object_get(c, "state");
        if (strcmp(text_at(c, "name"), KUBE_CONTAINER) != 0)
            continue;
        note_waiting(state, p);
        p->running = json_is_object(json_object_get(state, "running"));
        if (json_is_object(json_object_get(state, "terminated")))
            terminated = json_object_get(state, "terminated");
    }
    return terminated;
}

static void read_conditions(const json_t *status, struct kube_pod *p)
{
    size_t i;
    json_t *c;

    json_array_foreach(json_object_get(status, "conditions"), i, c)
    {
        if (strcmp(text_at(c, "type"), "PodScheduled") != 0 ||
            strcmp(text_at(c, "status"), "False") != 0 ||
            strcmp(text_at(c, "reason"), "Unschedulable") != 0)
            continue;
        p->unschedulable = true;
        copy_words(p->words, sizeof p->words, text_at(c, "message"));
    }
}

static void read_pod(const json_t *root, struct kube_pod *ret)
{
    const json_t *meta = json_object_get(root, "metadata"),
                 *status = json_object_get(root, "status");
    const json_t *labels = json_object_get(meta, "labels");
    const json_t *notes = json_object_get(meta, "annotations");
    struct kube_pod p = {.running = false};

    copy_name(p.name, sizeof p.name, text_at(meta, "name"));
    copy_name(p.instance, sizeof p.instance, text_at(labels, KUBE_LABEL_INSTANCE));
    copy_name(p.box, sizeof p.box, text_at(notes, KUBE_NOTE_BOX));
    copy_name(p.link, sizeof p.link, text_at(notes, KUBE_NOTE_LINK));
    copy_words(p.phase, sizeof p.phase, text_at(status, "phase"));
    p.deleting = text_at(meta, "deletionTimestamp")[0] != 0;

    const json_t *terminated = read_containers(status, &p);
    p.over = !strcmp(p.phase, "Failed") || !strcmp(p.phase, "Succeeded") || terminated;
    read_conditions(status, &p);
    if (p.over)
        p.running = false;
    if (p.over || p.deleting)
        say_end(status, terminated, &p);
    *ret = p;
}

int kube_read_pod(const void *json, size_t len, struct kube_pod *ret, struct pd_err *e)
{
    json_t *root = load(json, len, e);
    struct kube_pod p;

    if (!root)
        return -1;
    read_pod(root, &p);
    json_decref(root);
    if (!p.name[0])
        return pd_fail(e, PD_PROTOCOL, "the cluster's answer is no pod");
    *ret = p;
    return 0;
}

int kube_read_list(const void *json, size_t len, kube_each *each, void *context,
                   char ret_next[KUBE_CONTINUE_MAX], struct pd_err *e)
{
    json_t *root = load(json, len, e), *item;
    const char *next = text_at(json_object_get(root, "metadata"), "continue");
    size_t i;
    int r = 0;

    if (!root)
        return -1;
    if (!json_is_array(json_object_get(root, "items")) || strlen(next) >= KUBE_CONTINUE_MAX)
        r = pd_fail(e, PD_PROTOCOL, "the cluster's answer is no list of pods");
    else
        snprintf(ret_next, KUBE_CONTINUE_MAX, "%s", next);

    json_array_foreach(json_object_get(root, "items"), i, item)
    {
        struct kube_pod p;
        read_pod(item, &p);
        if (r == 0 && p.name[0])
            r = each(context, &p, e);
    }
    json_decref(root);
    return r;
}

bool kube_wait_is_final(const char *waiting)
{
    static const char *const final[] = {"ImagePullBackOff",    "InvalidImageName",
                                        "ErrImageNeverPull",   "CreateContainerConfigError",
                                        "CrashLoopBackOff",    "RunContainerError",
                                        "CreateContainerError"};

    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        if (!strcmp(waiting, final[i]))
            return true;
    return false;
}

/* ---- others ---- */

int kube_read_review(const void *json, size_t len, struct pd_err *e)
{
    json_t *root = load(json, len, e);
    const json_t *allowed = json_object_get(json_object_get(root, "status"), "allowed");
    int r = json_is_boolean(allowed) ? json_is_true(allowed) : -1;

    json_decref(root);
    return r >= 0 || !root ? r : pd_fail(e, PD_PROTOCOL, "the cluster's answer is no review");
}

int kube_read_version(const void *json, size_t len, char *out, size_t size, struct pd_err *e)
{
    json_t *root = load(json, len, e);
    int r = root ? 0 : -1;

    if (root && !text_at(root, "gitVersion")[0])
        r = pd_fail(e, PD_PROTOCOL, "who answers is no Kubernetes");
    if (r == 0)
        copy_words(out, size, text_at(root, "gitVersion"));
    json_decref(root);
    return r;
}

static enum pd_code code_of(int status, const char *reason)
{
    if (status == 401)
        return PD_UNAUTHENTICATED;
    if (status == 403)
        return strstr(reason, "exceeded quota") ? PD_CAPACITY : PD_DENIED;
    if (status == 404)
        return PD_NOT_FOUND;
    if (status == 409)
        return PD_CONFLICT;
    if (status == 429)
        return PD_RATE;
    if (status == 400 || status == 413 || status == 422)
        return PD_INVALID;
    return status >= 500 ? PD_BAD_GATEWAY : PD_PROTOCOL;
}

int kube_fail(int status, const void *body, size_t len, const char *what, struct pd_err *e)
{
    json_t *root = json_loadb(body ? body : "", len, 0, NULL);
    char words[150];

    copy_words(words, sizeof words, text_at(root, "message"));
    enum pd_code code = code_of(status, text_at(root, "message"));
    json_decref(root);
    if (code == PD_UNAUTHENTICATED)
        return pd_fail(
            e, PD_BAD_GATEWAY,
            "the cluster does not know this server (401): is the token or certificate of "
            "kubernetes_config still good?");
    if (code == PD_DENIED)
        return pd_fail(e, PD_BAD_GATEWAY, "the cluster does not allow to %s: %s", what, words);
    return pd_fail(e, code, "%s: the cluster answers %d%s%s", what, status, words[0] ? ": " : "",
                   words);
}
