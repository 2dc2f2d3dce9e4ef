/* The bodies of requests to the API of Kubernetes: the template of a pod, of the policy that keeps
 * it from the network, and small ones. Only image, limits, names, lease and profile differ from one
 * pod to the next.
 *
 * How paddock-box comes into a pod of any image: an init container of an image that has it copies
 * it into a volume in memory, which the sandbox's container sees read-only. */
#include "engine/kube_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

#define GRACE_S    2u
#define MIB        (1ull << 20)
#define PROGRAM_IN "/.paddock"

static void put_object(struct json *j, const char *key)
{
    if (key)
        json_key(j, key);
    json_open(j, '{');
}

static void put_list(struct json *j, const char *key)
{
    json_key(j, key);
    json_open(j, '[');
}

/* ---- security ---- */

static void put_seccomp(struct json *j)
{
    put_object(j, "seccompProfile");
    json_member_cstr(j, "type", "RuntimeDefault");
    json_close(j, '}');
}

/* What `restricted` asks of each container. */
static void put_container_security(struct json *j, bool read_only)
{
    put_object(j, "securityContext");
    json_member_bool(j, "allowPrivilegeEscalation", 0);
    json_member_bool(j, "privileged", 0);
    json_member_bool(j, "runAsNonRoot", 1);
    json_member_uint(j, "runAsUser", KUBE_UID);
    json_member_uint(j, "runAsGroup", KUBE_UID);
    if (read_only)
        json_member_bool(j, "readOnlyRootFilesystem", 1);

    put_object(j, "capabilities");
    put_list(j, "drop");
    json_cstr(j, "ALL");
    json_close(j, ']');
    json_close(j, '}');
    put_seccomp(j);
    json_close(j, '}');
}

static void put_pod_security(struct json *j)
{
    put_object(j, "securityContext");
    json_member_bool(j, "runAsNonRoot", 1);
    json_member_uint(j, "runAsUser", KUBE_UID);
    json_member_uint(j, "runAsGroup", KUBE_UID);
    json_member_uint(j, "fsGroup", KUBE_UID);
    put_seccomp(j);
    json_close(j, '}');
}

/* ---- volumes ---- */

static void put_volume(struct json *j, const char *name, uint64_t bytes, bool memory)
{
    char size[24];

    json_open(j, '{');
    json_member_cstr(j, "name", name);
    put_object(j, "emptyDir");
    if (memory)
        json_member_cstr(j, "medium", "Memory");
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    if (bytes)
        json_member_cstr(j, "sizeLimit", size);
    json_close(j, '}');
    json_close(j, '}');
}

static void put_mount(struct json *j, const char *name, const char *path, bool read_only)
{
    json_open(j, '{');
    json_member_cstr(j, "name", name);
    json_member_cstr(j, "mountPath", path);
    if (read_only)
        json_member_bool(j, "readOnly", 1);
    json_close(j, '}');
}

/* ---- containers ---- */

static void put_amounts(struct json *j, const char *key, uint64_t memory, uint64_t cpu_milli,
                        uint64_t disk)
{
    char text[32];

    put_object(j, key);
    snprintf(text, sizeof text, "%llu", (unsigned long long)memory);
    json_member_cstr(j, "memory", text);
    snprintf(text, sizeof text, "%llum", (unsigned long long)cpu_milli);
    json_member_cstr(j, "cpu", text);
    snprintf(text, sizeof text, "%llu", (unsigned long long)disk);
    if (disk)
        json_member_cstr(j, "ephemeral-storage", text);
    json_close(j, '}');
}

/* Memory is asked for as a whole, because it is not given back; processor time is shared. */
static void put_resources(struct json *j, uint64_t memory, uint64_t cpu_milli, uint64_t disk)
{
    put_object(j, "resources");
    put_amounts(j, "limits", memory, cpu_milli, disk);
    put_amounts(j, "requests", memory, cpu_milli / 4 ? cpu_milli / 4 : 1, 0);
    json_close(j, '}');
}

static void put_init_container(struct json *j, const struct kube_style *s)
{
    json_open(j, '{');
    json_member_cstr(j, "name", "paddock");
    json_member_cstr(j, "image", s->box_image);
    json_member_cstr(j, "imagePullPolicy", s->pull);
    put_list(j, "command");
    json_cstr(j, "/paddock-box");
    json_cstr(j, "put");
    json_cstr(j, PROGRAM_IN);
    json_close(j, ']');
    put_resources(j, 32 * MIB, 100, 0);
    put_container_security(j, true);
    put_list(j, "volumeMounts");
    put_mount(j, "paddock", PROGRAM_IN, false);
    json_close(j, ']');
    json_close(j, '}');
}

static void put_container(struct json *j, const struct remote_plan *p, const struct kube_style *s)
{
    struct remote_words words;

    json_open(j, '{');
    json_member_cstr(j, "name", KUBE_CONTAINER);
    json_member_cstr(j, "image", p->spec->image);
    json_member_cstr(j, "imagePullPolicy", s->pull);
    remote_run_words(p, "-", &words);
    put_list(j, "command");
    json_cstr(j, KUBE_BOX);
    json_cstr(j, "run");
    for (unsigned i = 0; i < words.count; i++)
        json_cstr(j, words.text[i]);
    json_close(j, ']');
    put_list(j, "args");
    json_close(j, ']');
    put_resources(j, p->spec->limits.memory, p->spec->limits.cpu_milli, s->disk);
    put_container_security(j, false);

    put_list(j, "volumeMounts");
    put_mount(j, "paddock", PROGRAM_IN, true);
    put_mount(j, "workspace", "/workspace", false);
    put_mount(j, "home", "/home/user", false);
    json_close(j, ']');
    json_close(j, '}');
}

/* ---- the pod ---- */

static void put_labels(struct json *j, const struct remote_plan *p)
{
    put_object(j, "labels");
    json_member_cstr(j, "app.kubernetes.io/name", "sandbox");
    json_member_cstr(j, "app.kubernetes.io/managed-by", "paddock");
    json_member_cstr(j, KUBE_LABEL_INSTANCE, p->instance);
    json_member_cstr(j, KUBE_LABEL_BOX, p->name);
    json_member_cstr(j, KUBE_LABEL_NETWORK, "none");
    json_close(j, '}');

    put_object(j, "annotations");
    json_member_cstr(j, KUBE_NOTE_BOX, p->box);
    json_member_cstr(j, KUBE_NOTE_LINK, p->link);
    json_close(j, '}');
}

/* KEY=VALUE,KEY=VALUE, which was checked. */
static void put_selector(struct json *j, const struct kube_style *s)
{
    const char *at = s->node_selector;

    put_object(j, "nodeSelector");
    json_member_cstr(j, "kubernetes.io/os", "linux");
    json_member_cstr(j, "kubernetes.io/arch", s->arch);
    while (*at) {
        char key[320];
        size_t key_len = strcspn(at, "="), all = strcspn(at, ",");
        snprintf(key, sizeof key, "%.*s", (int)key_len, at);
        json_key(j, key);
        json_str(j, at + key_len + 1, all - key_len - 1);
        at += all + (at[all] ? 1 : 0);
    }
    json_close(j, '}');
}

static void put_references(struct json *j, const struct kube_style *s)
{
    if (s->runtime_class[0])
        json_member_cstr(j, "runtimeClassName", s->runtime_class);
    if (s->service_account[0])
        json_member_cstr(j, "serviceAccountName", s->service_account);
    if (s->max_life)
        json_member_uint(j, "activeDeadlineSeconds", s->max_life);
    if (!s->pull_secret[0])
        return;
    put_list(j, "imagePullSecrets");
    json_open(j, '{');
    json_member_cstr(j, "name", s->pull_secret);
    json_close(j, '}');
    json_close(j, ']');
}

static void put_spec(struct json *j, const struct remote_plan *p, const struct kube_style *s)
{
    put_object(j, "spec");
    json_member_cstr(j, "restartPolicy", "Never");
    json_member_bool(j, "automountServiceAccountToken", 0);
    json_member_bool(j, "enableServiceLinks", 0);
    json_member_bool(j, "hostNetwork", 0);
    json_member_bool(j, "hostPID", 0);
    json_member_bool(j, "hostIPC", 0);
    json_member_cstr(j, "hostname", "sandbox");
    json_member_uint(j, "terminationGracePeriodSeconds", GRACE_S);
    put_references(j, s);
    put_selector(j, s);
    put_pod_security(j);

    put_list(j, "initContainers");
    put_init_container(j, s);
    json_close(j, ']');
    put_list(j, "containers");
    put_container(j, p, s);
    json_close(j, ']');

    put_list(j, "volumes");
    put_volume(j, "paddock", 16 * MIB, true);
    put_volume(j, "workspace", s->disk, false);
    put_volume(j, "home", s->disk, false);
    json_close(j, ']');
    json_close(j, '}');
}

void kube_pod_body(struct buf *out, const struct remote_plan *p, const struct kube_style *s)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "apiVersion", "v1");
    json_member_cstr(&j, "kind", "Pod");
    put_object(&j, "metadata");
    json_member_cstr(&j, "name", p->name);
    put_labels(&j, p);
    json_close(&j, '}');
    put_spec(&j, p, s);
    json_close(&j, '}');
}

/* ---- others ---- */

/* A label's key: [PREFIX/]NAME. */
static bool is_label(const char *text, size_t len, bool key)
{
    static const char chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";

    for (size_t i = 0; i < len; i++)
        if (!memchr(chars, text[i], sizeof chars - (key ? 1 : 2)))
            return false;
    return len <= (key ? 317u : 63u) && (len || !key);
}

int kube_check_selector(const char *text, struct pd_err *e)
{
    for (const char *at = text; *at;) {
        size_t key = strcspn(at, "=,"), all = strcspn(at, ",");
        if (key >= all || !is_label(at, key, true) || !is_label(at + key + 1, all - key - 1, false))
            return pd_fail(e, PD_INVALID,
                           "kubernetes_node_selector: '%.*s' is no KEY=VALUE of a label",
                           all < 100 ? (int)all : 100, at);
        at += all + (at[all] ? 1 : 0);
    }
    return 0;
}

void kube_policy_body(struct buf *out)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "apiVersion", "networking.k8s.io/v1");
    json_member_cstr(&j, "kind", "NetworkPolicy");
    put_object(&j, "metadata");
    json_member_cstr(&j, "name", KUBE_POLICY);
    put_object(&j, "labels");
    json_member_cstr(&j, "app.kubernetes.io/managed-by", "paddock");
    json_close(&j, '}');
    json_close(&j, '}');

    put_object(&j, "spec");
    put_object(&j, "podSelector");
    put_object(&j, "matchLabels");
    json_member_cstr(&j, KUBE_LABEL_NETWORK, "none");
    json_close(&j, '}');
    json_close(&j, '}');
    put_list(&j, "policyTypes");
    json_cstr(&j, "Ingress");
    json_cstr(&j, "Egress");
    json_close(&j, ']');
    json_close(&j, '}');
    json_close(&j, '}');
}

void kube_delete_body(struct buf *out, unsigned grace_s)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "apiVersion", "v1");
    json_member_cstr(&j, "kind", "DeleteOptions");
    json_member_uint(&j, "gracePeriodSeconds", grace_s);
    json_close(&j, '}');
}

void kube_review_body(struct buf *out, const char *namespace, const char *group,
                      const char *resource, const char *sub, const char *verb)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "apiVersion", "authorization.k8s.io/v1");
    json_member_cstr(&j, "kind", "SelfSubjectAccessReview");
    put_object(&j, "spec");
    put_object(&j, "resourceAttributes");
    json_member_cstr(&j, "namespace", namespace);
    json_member_cstr(&j, "group", group);
    json_member_cstr(&j, "resource", resource);
    json_member_cstr(&j, "subresource", sub);
    json_member_cstr(&j, "verb", verb);
    json_close(&j, '}');
    json_close(&j, '}');
    json_close(&j, '}');
}
