/* What comes from a cluster, or from a kubeconfig: no bytes break a reader, a refusal leaves the
 * output alone, YAML that is read is read the same as the JSON of its tree, and names that become
 * parts of a path have no other characters. */
#include "base/buf.h"
#include "base/err.h"
#include "engine/kube_api.h"
#include "engine/kube_config.h"
#include "engine/kube_stream.h"
#include "engine/yaml.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *name)
{
    if (strchr(name, '/') || strchr(name, ' ') || strlen(name) > 63)
        abort();
}

static int each_pod(void *context, const struct kube_pod *p, struct pd_err *e)
{
    (void)context, (void)e;
    check_name(p->name);
    check_name(p->box);
    if (p->running && p->over)
        abort();
    return 0;
}

static void try_yaml(const char *text, size_t size)
{
    json_t *tree = yaml_read(text, size, NULL);
    char *json = tree && json_is_object(tree) ? json_dumps(tree, JSON_COMPACT) : NULL;
    json_t *again = json ? yaml_read(json, strlen(json), NULL) : NULL;

    if (json && (!again || !json_equal(tree, again)))
        abort();
    json_decref(again);
    free(json);
    json_decref(tree);
}

static void try_config(const char *text, size_t size)
{
    struct kube_config c = KUBE_CONFIG_INIT;
    struct pd_err e;

    if (kube_config_read(text, size, "", "/d", &c, &e) < 0 && (c.server[0] || c.token.data))
        abort();
    if (c.server[0] && strncmp(c.server, "https://", 8) != 0 &&
        strncmp(c.server, "http://", 7) != 0)
        abort();
    if (c.token.len && memchr(c.token.data, '\n', c.token.len))
        abort();
    kube_config_done(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    char next[KUBE_CONTINUE_MAX], words[64] = "";
    struct kube_pod p;
    const uint8_t *part;
    size_t len;

    try_yaml(text, size);
    try_config(text, size);
    if (kube_read_pod(data, size, &p, NULL) == 0)
        each_pod(NULL, &p, NULL);
    (void)kube_read_list(data, size, each_pod, NULL, next, NULL);
    (void)kube_read_review(data, size, NULL);
    (void)kube_read_version(data, size, words, sizeof words, NULL);
    (void)kube_fail(500, data, size, "fuzz", NULL);
    kube_read_end(data, size, words, sizeof words);
    if (kube_message(data, size, &part, &len) >= 0 && len + 1 != size)
        abort();
    return 0;
}
