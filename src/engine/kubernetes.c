/* Sandboxes in pods. How one is made:
 *
 *   a NetworkPolicy that denies pods with our label everything is there, or is made
 *   the pod is created under the box's name; one of that name that an answer was lost of is found
 *   its init container copies paddock-box into a volume, its own container starts that
 *   an exec of `paddock-box key` says the key of the link: it stands in no record of the cluster
 *
 * The link is an exec of `paddock-box join`, made anew for each connection. A pod that has ended is
 * kept by the cluster, so its reason can be told; it is deleted with its sandbox. Pods are found by
 * labels, and end themselves by lease and by activeDeadlineSeconds. */
#include "engine/kubernetes.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "engine/kube_api.h"
#include "engine/kube_client.h"
#include "engine/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLICY_TRIES 2
#define TRIES        4
#define LOOK_FIRST   (150 * NS_PER_MS)
#define LOOK_LAST    NS_PER_S
#define KEY_PATIENCE (10 * NS_PER_S)
#define DEFAULT_WAIT 60u /* s, for a node */
#define GRACE_S      1u
#define PAGE         250u
#ifdef __aarch64__
#define ARCH "arm64" /* of paddock-box, as a cluster calls it */
#else
#define ARCH "amd64"
#endif

struct kubernetes {
    struct remote remote;
    struct kube kube;
    struct kube_style style;
    uint64_t wait; /* ns for a node that takes a pod */
    bool has_policy, own_policy;
};

static struct kubernetes *of(struct remote *r)
{
    return (struct kubernetes *)r;
}

/* ---- settings ---- */

static const char *const words[] = {
    "config",          "context",        "namespace",  "box_image", "pull_secret",
    "runtime_class",   "node_selector",  "max_life_s", "wait_s",    "disk_bytes",
    "service_account", "network_policy", NULL};

static int read_number(const struct broker_config *c, const char *word, uint64_t most,
                       uint64_t *ret, struct pd_err *e)
{
    const char *text = broker_setting(c, word);
    return text[0] ? parse_u64(word, text, 0, most, ret, e) : 0;
}

/* A name of a thing in the cluster: it stands in the body of a pod. */
static int check_name(const char *word, const char *text, struct pd_err *e)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.");
    if (text[len] || len > 253)
        return pd_fail(e, PD_INVALID, "kubernetes_%s '%.80s' is no name of a thing in a cluster",
                       word, text);
    return 0;
}

static int read_style(struct kubernetes *k, const struct broker_config *c, struct pd_err *e)
{
    static const char *const pulls[PULL_COUNT] = {"Never", "IfNotPresent", "Always"};
    static const char *const names[] = {"pull_secret", "runtime_class", "service_account"};
    uint64_t wait = DEFAULT_WAIT;

    k->style = (struct kube_style){.box_image = broker_setting(c, "box_image"),
                                   .pull = pulls[c->pull],
                                   .pull_secret = broker_setting(c, "pull_secret"),
                                   .runtime_class = broker_setting(c, "runtime_class"),
                                   .service_account = broker_setting(c, "service_account"),
                                   .node_selector = broker_setting(c, "node_selector"),
                                   .arch = ARCH};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (check_name(names[i], broker_setting(c, names[i]), e) < 0)
            return -1;
    if (kube_check_selector(k->style.node_selector, e) < 0 ||
        read_number(c, "max_life_s", 10 * 365 * 86400ull, &k->style.max_life, e) < 0 ||
        read_number(c, "wait_s", 86400, &wait, e) < 0 ||
        read_number(c, "disk_bytes", SPEC_DISK_MAX, &k->style.disk, e) < 0)
        return pd_wrap(e, "kubernetes");
    if (!k->style.box_image[0])
        return pd_fail(e, PD_INVALID,
                       "kubernetes_box_image is not set: an image that has /paddock-box "
                       "(docs/backends.md says how to make it)");

    k->wait = wait * NS_PER_S;
    k->own_policy = strcmp(broker_setting(c, "network_policy"), "off") != 0;
    return spec_check_image(k->style.box_image, e) < 0 ? pd_wrap(e, "kubernetes_box_image") : 0;
}

static struct remote *open_cluster(const struct broker_config *c, struct pd_err *e)
{
    struct kubernetes *k = calloc(1, sizeof *k);

    if (!k) {
        pd_fail(e, PD_CAPACITY, "no memory for a cluster");
        return NULL;
    }
    if (read_style(k, c, e) == 0 && kube_open(&k->kube, c, e) == 0)
        return &k->remote;
    free(k);
    return NULL;
}

static void close_cluster(struct remote *r)
{
    if (r)
        kube_close(&of(r)->kube);
    free(r);
}

/* ---- pods ---- */

static void pod_target(const struct kubernetes *k, struct buf *out, const char *pod)
{
    buf_printf(out, "/api/v1/namespaces/%s/pods%s%s", k->kube.namespace, pod[0] ? "/" : "", pod);
}

static int get_pod(struct kubernetes *k, const char *name, struct kube_pod *ret, deadline t,
                   struct pd_err *e)
{
    auto_kube_call c = KUBE_CALL("GET", t);

    pod_target(k, &c.target, name);
    if (kube_ask(&k->kube, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return pd_fail(
            e, PD_NOT_FOUND,
            "its pod is gone: somebody has deleted it, or the cluster has, as with a node "
            "that was drained or lost");
    if (c.status != 200)
        return kube_refused(&c, "look at the pod", e);
    return kube_read_pod(c.out.data, c.out.len, ret, e);
}

static int delete_pod(struct kubernetes *k, const char *name, deadline t, struct pd_err *e)
{
    auto_kube_call c = KUBE_CALL("DELETE", t);

    pod_target(k, &c.target, name);
    kube_delete_body(&c.in, GRACE_S);
    if (kube_ask(&k->kube, &c, e) < 0)
        return -1;
    return c.status == 200 || c.status == 202 || c.status == 404
               ? 0
               : kube_refused(&c, "delete the pod", e);
}

/* A moment, longer each time. False when nobody waits any more. */
static bool rest(struct kubernetes *k, uint64_t *pause, deadline t)
{
    if (deadline_passed(t) || !remote_is_wanted(&k->remote))
        return false;
    usleep((useconds_t)(*pause / 1000));
    *pause = *pause * 3 / 2 < LOOK_LAST ? *pause * 3 / 2 : LOOK_LAST;
    return true;
}

/* Until the name is free again. */
static int await_gone(struct kubernetes *k, const char *name, deadline t, struct pd_err *e)
{
    struct kube_pod p;
    uint64_t pause = LOOK_FIRST;

    while (get_pod(k, name, &p, t, e) == 0)
        if (!rest(k, &pause, t))
            return pd_fail(e, PD_TIMEOUT, "a pod of the name %s does not go away", name);
    return e->code == PD_NOT_FOUND ? 0 : -1;
}

/* One of this name is there already: made by a request of ours whose answer was lost, or left. */
static int take_over(struct kubernetes *k, const struct remote_plan *p, bool *ret_made, deadline t,
                     struct pd_err *e)
{
    struct kube_pod pod;

    if (get_pod(k, p->name, &pod, t, e) < 0)
        return e->code == PD_NOT_FOUND ? 0 : -1;
    if (strcmp(pod.instance, p->instance) != 0)
        return pd_fail(e, PD_CONFLICT, "a pod %s is there that is not this server's", p->name);
    if (!strcmp(pod.link, p->link) && !pod.deleting) {
        *ret_made = true;
        return 0;
    }
    return delete_pod(k, p->name, t, e) < 0 ? -1 : await_gone(k, p->name, t, e);
}

static bool is_lost(const struct pd_err *e)
{
    return e->code == PD_BAD_GATEWAY || e->code == PD_TIMEOUT;
}

/* Asks for the pod, and looks for it before it asks again. */
static int post_pod(struct kubernetes *k, const struct remote_plan *p, deadline t, struct pd_err *e)
{
    bool made = false;

    for (int i = 0; i < TRIES && !made; i++) {
        auto_kube_call c = KUBE_CALL("POST", t);
        pod_target(k, &c.target, "");
        kube_pod_body(&c.in, p, &k->style);
        int r = kube_ask(&k->kube, &c, e);
        if (r == 0 && c.status == 201)
            return 0;
        if (r < 0 && !is_lost(e))
            return -1;
        bool twice =
            r == 0 && c.status == 409 && memmem(c.out.data, c.out.len, "AlreadyExists", 13);
        if (r == 0 && !twice && c.status < 500)
            return kube_refused(&c, "create a pod", e);
        if (r == 0 && !twice)
            (void)kube_refused(&c, "create a pod", e);
        if (!remote_is_wanted(&k->remote) || deadline_passed(t) || take_over(k, p, &made, t, e) < 0)
            return -1;
    }
    return made ? 0 : -1;
}

/* Why a pod that does not run will not; 0 when it still may. */
static int judge(struct kubernetes *k, const struct kube_pod *p, deadline node, struct pd_err *e)
{
    if (p->over || p->deleting)
        return pd_fail(e, PD_LOST, "the pod ended before it could be used: %s",
                       p->why[0] ? p->why : "the cluster does not say why");
    if (kube_wait_is_final(p->waiting))
        return pd_fail(e, strstr(p->waiting, "Image") ? PD_INVALID : PD_BAD_GATEWAY, "%s: %s",
                       p->waiting, p->words);
    if (p->unschedulable && deadline_passed(node))
        return pd_fail(e, PD_CAPACITY, "no node takes the pod (kubernetes_wait_s): %s", p->words);
    (void)k;
    return 0;
}

static int await_running(struct kubernetes *k, const char *name, deadline t, struct pd_err *e)
{
    struct kube_pod p = {.running = false};
    uint64_t pause = LOOK_FIRST;
    deadline node = deadline_in(k->wait);

    for (;;) {
        int r = get_pod(k, name, &p, t, e);
        if (r < 0 && !is_lost(e))
            return -1;
        if (r == 0 && p.running && !p.deleting)
            return 0;
        if (r == 0 && judge(k, &p, node, e) < 0)
            return -1;
        if (!rest(k, &pause, t))
            return pd_fail(e, PD_TIMEOUT, "the pod does not run in time%s%s",
                           p.words[0] ? ": " : "", p.words);
    }
}

/* ---- the key ---- */

/* What the program says within the time; -1 when its stream ends without. */
static int await_heard(struct byte_stream *s, deadline t)
{
    char said[64] = "";

    for (;;) {
        char piece[32];
        ssize_t n = byte_stream_read(s, piece, sizeof piece);
        if (n > 0)
            byte_stream_note(said, sizeof said, piece, (size_t)n);
        if (strstr(said, "heard"))
            return 0;
        if (n == 0 || (n < 0 && n != -EAGAIN))
            return -1;
        struct pollfd p = {.fd = s->kind->fd(s), .events = POLLIN};
        if (n == -EAGAIN && poll(&p, 1, deadline_poll_ms(t)) == 0)
            return -1;
    }
}

static int write_key(struct byte_stream *s, const uint8_t *key, deadline t)
{
    for (size_t at = 0; at < REMOTE_KEY;) {
        ssize_t n = byte_stream_write(s, key + at, REMOTE_KEY - at);
        struct pollfd p = {.fd = s->kind->fd(s), .events = POLLOUT};
        if (n < 0 && (n != -EAGAIN || poll(&p, 1, deadline_poll_ms(t)) == 0))
            return -1;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* The box takes one key, and then listens no more. Where an answer was lost it may have it already:
 * whether it has, its link shows. */
static int say_key(struct kubernetes *k, const struct remote_plan *p, deadline t, struct pd_err *e)
{
    static const char *const key[] = {KUBE_BOX, "key", NULL};
    uint64_t pause = LOOK_FIRST;
    bool sent = false;

    for (int i = 0; i < TRIES; i++) {
        int status;
        struct byte_stream *s = kube_exec(&k->kube, p->name, KUBE_CONTAINER, key,
                                          deadline_in(KEY_PATIENCE), &status, e);
        if (s) {
            deadline answer = deadline_in(KEY_PATIENCE);
            int r = write_key(s, p->key, answer) < 0 ? -1 : await_heard(s, answer);
            sent = true;
            if (r < 0)
                pd_fail(e, PD_BAD_GATEWAY, "the pod does not take the key of its link: %.150s",
                        byte_stream_words(s));
            s->kind->free(s);
            if (r == 0)
                return 0;
        }
        if (!rest(k, &pause, t))
            return -1;
    }
    return sent ? 0 : -1;
}

/* ---- the kind ---- */

static int make_policy(struct kubernetes *k, deadline t, struct pd_err *e)
{
    auto_kube_call get = KUBE_CALL("GET", t), post = KUBE_CALL("POST", t);

    buf_printf(&post.target, "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
               k->kube.namespace);
    buf_printf(&get.target, "%s/%s", buf_cstr(&post.target), KUBE_POLICY);
    if (kube_ask(&k->kube, &get, e) < 0)
        return -1;
    if (get.status == 404) {
        kube_policy_body(&post.in);
        if (kube_ask(&k->kube, &post, e) < 0)
            return -1;
        if (post.status != 201 && post.status != 409)
            return kube_refused(&post, "make the network policy", e);
    } else if (get.status != 200) {
        return kube_refused(&get, "look at the network policy", e);
    }
    return 0;
}

/* Once for all pods. An answer that got lost is no answer: it is looked for again. */
static int need_policy(struct kubernetes *k, deadline t, struct pd_err *e)
{
    for (int tries = 0; k->own_policy && !k->has_policy; tries++) {
        k->has_policy = make_policy(k, t, e) == 0;
        if (!k->has_policy && (tries == POLICY_TRIES || e->code != PD_BAD_GATEWAY))
            return -1;
    }
    return 0;
}

static void tell_state(const struct kube_pod *p, struct remote_state *ret)
{
    *ret = (struct remote_state){.running = !p->over && !p->deleting};
    snprintf(ret->place, sizeof ret->place, "%s", p->name);
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    snprintf(ret->why, sizeof ret->why, "%s", p->why);
}

static int create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                  deadline t, struct pd_err *e)
{
    struct kubernetes *k = of(r);

    k->kube.is_wanted = remote_is_wanted;
    k->kube.context = r;
    int failed = need_policy(k, t, e) < 0 || post_pod(k, p, t, e) < 0 ||
                 await_running(k, p->name, t, e) < 0 || say_key(k, p, t, e) < 0;
    k->kube.is_wanted = NULL;
    if (failed)
        return -1;

    *ret = (struct remote_state){.running = true};
    snprintf(ret->place, sizeof ret->place, "%s", p->name);
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    return 0;
}

static int find(struct remote *r, const char *instance, const char *box, struct remote_state *ret,
                deadline t, struct pd_err *e)
{
    char name[REMOTE_NAME_MAX + 1];
    struct kube_pod p;

    remote_name(instance, box, name);
    if (get_pod(of(r), name, &p, t, e) < 0)
        return -1;
    tell_state(&p, ret);
    return 0;
}

static int end(struct remote *r, const char *instance, const char *box, deadline t,
               struct pd_err *e)
{
    char name[REMOTE_NAME_MAX + 1];

    remote_name(instance, box, name);
    return delete_pod(of(r), name, t, e);
}

struct each {
    remote_each *call;
    void *context;
};

/* One that goes already costs no second request. */
static int each_pod(void *context, const struct kube_pod *p, struct pd_err *e)
{
    const struct each *w = context;
    struct remote_state s;

    if (p->deleting || !p->box[0])
        return 0;
    tell_state(p, &s);
    return w->call(w->context, &s, e);
}

static int each(struct remote *r, const char *instance, remote_each *call, void *context,
                deadline t, struct pd_err *e)
{
    struct kubernetes *k = of(r);
    struct each w = {.call = call, .context = context};
    char next[KUBE_CONTINUE_MAX] = "";

    do {
        auto_kube_call c = KUBE_CALL("GET", t);
        pod_target(k, &c.target, "");
        buf_printf(&c.target, "?limit=%u&labelSelector=" KUBE_LABEL_INSTANCE "%%3D%s", PAGE,
                   instance);
        if (next[0]) {
            buf_puts(&c.target, "&continue=");
            http_escape(&c.target, next);
        }
        if (kube_ask(&k->kube, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return kube_refused(&c, "list the pods", e);
        if (kube_read_list(c.out.data, c.out.len, each_pod, &w, next, e) < 0)
            return -1;
    } while (next[0]);
    return 0;
}

static struct byte_stream *reach(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    static const char *const join[] = {KUBE_BOX, "join", NULL};
    struct kubernetes *k = of(r);
    struct kube_pod p;
    struct pd_err why;
    int status;

    struct byte_stream *s = kube_exec(&k->kube, place, KUBE_CONTAINER, join, t, &status, e);
    if (s)
        return s;

    /* Only the cluster's own word tells a pod that has ended from one that cannot be reached. */
    if (get_pod(k, place, &p, t, &why) < 0) {
        if (why.code == PD_NOT_FOUND)
            pd_fail(e, PD_NOT_FOUND, "%s", why.msg);
    } else if (p.over || p.deleting) {
        pd_fail(e, PD_LOST, "%s", p.why[0] ? p.why : "the pod has ended");
    }
    return NULL;
}

/* ---- a check ---- */

static const struct {
    const char *group, *resource, *sub, *verb;
} needs[] = {{"", "pods", "", "create"},
             {"", "pods", "", "get"},
             {"", "pods", "", "list"},
             {"", "pods", "", "delete"},
             {"", "pods", "exec", "get"},
             {"", "pods", "exec", "create"},
             {"networking.k8s.io", "networkpolicies", "", "get"},
             {"networking.k8s.io", "networkpolicies", "", "create"}};

static int may(struct kubernetes *k, size_t i, deadline t, struct pd_err *e)
{
    auto_kube_call c = KUBE_CALL("POST", t);

    buf_puts(&c.target, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    kube_review_body(&c.in, k->kube.namespace, needs[i].group, needs[i].resource, needs[i].sub,
                     needs[i].verb);
    if (kube_ask(&k->kube, &c, e) < 0)
        return -1;
    if (c.status != 201)
        return kube_refused(&c, "ask what is allowed", e);
    return kube_read_review(c.out.data, c.out.len, e);
}

static int check_rights(struct kubernetes *k, remote_tell *tell, void *context, deadline t,
                        struct pd_err *e)
{
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        char name[80];
        if (needs[i].group[0] && !k->own_policy)
            continue;
        int allowed = may(k, i, t, e);
        if (allowed < 0)
            return -1;
        snprintf(name, sizeof name, "may-%s-%s%s%s", needs[i].verb, needs[i].resource,
                 needs[i].sub[0] ? "/" : "", needs[i].sub);
        tell(context, name, allowed ? "yes" : "no");
        if (!allowed)
            return pd_fail(
                e, PD_DENIED,
                "in namespace %s it is not allowed to %s %s%s%s: deploy/kubernetes has a "
                "role that is enough",
                k->kube.namespace, needs[i].verb, needs[i].resource, needs[i].sub[0] ? "/" : "",
                needs[i].sub);
    }
    return 0;
}

static int check(struct remote *r, remote_tell *tell, void *context, deadline t, struct pd_err *e)
{
    struct kubernetes *k = of(r);
    auto_kube_call c = KUBE_CALL("GET", t);
    char version[64];

    buf_puts(&c.target, "/version");
    if (kube_ask(&k->kube, &c, e) < 0)
        return -1;
    if (c.status != 200)
        return kube_refused(&c, "ask for its version", e);
    if (kube_read_version(c.out.data, c.out.len, version, sizeof version, e) < 0)
        return -1;
    tell(context, "version", version);
    tell(context, "place", k->kube.at.server);
    tell(context, "namespace", k->kube.namespace);
    return check_rights(k, tell, context, t, e);
}

const struct remote_kind kubernetes_remote = {.name = "kubernetes",
                                              .rung = RUNG_BASIC,
                                              .needs_image = true,
                                              .settings = words,
                                              .open = open_cluster,
                                              .close = close_cluster,
                                              .create = create,
                                              .find = find,
                                              .end = end,
                                              .each = each,
                                              .reach = reach,
                                              .check = check};
