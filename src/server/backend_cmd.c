/* paddock backend: tries a backend elsewhere with the server's settings, whether the server runs or
 * not. The broker's program does it, because only it reads credentials; what it says is shown as it
 * is. Here are the words that a backend's settings become, for this command and for the keepers
 * that the guardian starts. */
#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/options.h"
#include "client/client.h"
#include "config/config.h"
#include "provider/providers.h"
#include "server/serve.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

extern char **environ;

#define WORDS_MAX 128u
#define WORD_SIZE 640u

const char backend_usage[] =
    "usage: paddock backend check NAME [--image IMAGE] [--config FILE]\n\n"
    "Tries the backend of that name with the server's settings: its credentials and permissions,\n"
    "then one sandbox that is made, reached and ended. Each step is a line; the first that fails "
    "says\n"
    "what is wrong. Run it as the user that starts the server: it reads the same files.\n\n"
    "  --image IMAGE  what the sandbox is made from (default: default_image, where one is needed)\n"
    "  --config FILE  the server's configuration file\n";

static void tell_setting(void *context, const char *name, const char *value)
{
    char pair[WORD_SIZE];
    const struct serve_told *told = context;

    snprintf(pair, sizeof pair, "%.40s=%.590s", name, value);
    told->each(told->context, "set", pair);
}

void serve_backend_options(const struct config *c, const char *kind, const struct serve_told *told)
{
    static const char *const pulls[] = {"never", "missing", "always"};
    char lease[24], prefix[40];

    snprintf(lease, sizeof lease, "%ju", (uintmax_t)c->box_lease_ms / 1000);
    told->each(told->context, "lease", lease);
    told->each(told->context, "pull", pulls[c->image_pull]);
    if (!strcmp(kind, "docker") || !strcmp(kind, "podman")) {
        told->each(told->context, "host", c->docker_host);
        told->each(told->context, "certs", c->docker_cert_path);
        told->each(told->context, "runtime", c->docker_runtime);
        told->each(told->context, "auth", c->registry_auth);
        return;
    }
    snprintf(prefix, sizeof prefix, "%.30s_", kind);
    config_each_of(c, prefix, tell_setting, (void *)(uintptr_t)told);
}

/* ---- the command ---- */

struct words {
    const char *argv[WORDS_MAX];
    unsigned count;
    char text[WORDS_MAX][WORD_SIZE];
};

static void add_word(struct words *w, const char *prefix, const char *word)
{
    if (w->count + 1 == WORDS_MAX)
        return;
    snprintf(w->text[w->count], WORD_SIZE, "%s%.600s", prefix, word);
    w->argv[w->count] = w->text[w->count];
    w->count++;
}

static void add_option(void *context, const char *name, const char *value)
{
    add_word(context, "--", name);
    add_word(context, "", value);
}

static int unknown_backend(const char *name, struct pd_err *e)
{
    char valid[160] = "";

    for (unsigned i = 0; provider_kind_at(i); i++) {
        const char *kind = provider_kind_at(i)->name;
        size_t at = strlen(valid);
        if (provider_has_broker(kind))
            snprintf(valid + at, sizeof valid - at, "%s%s", at ? ", " : "", kind);
    }
    return pd_fail(e, PD_INVALID, "backend check '%.40s': valid are %s", name, valid);
}

int cmd_backend(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    const char *image = NULL, *file = NULL;

    o.mixed = 1;
    while (options_next(&o)) {
        const char *v = options_value(&o, &e);
        if (!v)
            return usage_fail(&e);
        if (options_is(&o, NULL, "--image"))
            image = v;
        else if (options_is(&o, NULL, "--config"))
            file = v;
        else {
            (void)usage_unknown(&o, &e);
            return usage_fail(&e);
        }
    }

    int count;
    char **words = options_arguments(&o, &count);
    if (count != 2 || strcmp(words[0], "check") != 0) {
        pd_fail(&e, PD_INVALID, "backend: check NAME");
        return usage_fail(&e);
    }
    if (!provider_has_broker(words[1])) {
        (void)unknown_backend(words[1], &e);
        return usage_fail(&e);
    }

    struct config_input in = {.file = file, .environ = (const char *const *)environ};
    struct config *c = config_load(&in, &e);
    if (!c)
        return usage_fail(&e);

    static struct words w;
    const struct serve_told told = {.each = add_option, .context = &w};
    add_word(&w, "", "paddock-remote");
    add_word(&w, "", "check");
    add_word(&w, "", words[1]);
    serve_backend_options(c, words[1], &told);
    const struct provider_kind *kind = provider_kind_find(words[1]);
    add_word(&w, "", image ? image : kind && kind->needs_image ? c->default_image : "");
    config_free(c);

    exec_beside("paddock-remote", w.argv);
    pd_fail(&e, PD_NOT_FOUND, "backend check needs the program paddock-remote beside paddockd");
    return usage_fail(&e);
}
