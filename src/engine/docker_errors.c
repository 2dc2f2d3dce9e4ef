/* Refusals of an engine, translated for whoever asked for a sandbox. Engines tell their reasons in
 * words only, and the status beside them differs from engine to engine; so the words that matter
 * are looked for, and each gets its code and its remedy. */
#include "engine/docker_api.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"

#include <jansson.h>
#include <string.h>

/* What is told of an engine's words, and how much of that is the beginning of longer ones. */
#define SAID_MAX   140
#define SAID_BEGIN 30

static const struct {
    const char *words;
    enum pd_code code;
    const char *remedy;
} reasons[] = {
    {"no space left on device", PD_NO_SPACE, "; free some with `docker system prune`"},
    {"disk quota exceeded", PD_NO_SPACE, "; raise the quota of the engine's directory"},
    {"pull access denied", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"unauthorized", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"authentication required", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"no basic auth credentials", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"denied: permission denied", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"permission denied", PD_BAD_GATEWAY,
     "; the engine's user may not do that: run it as root, or the server as that user"},
    {"denied", PD_DENIED, "; name a file with credentials in registry_auth"},
    {"manifest unknown", PD_NOT_FOUND, "; check its name and tag"},
    {"not found: manifest", PD_NOT_FOUND, "; check its name and tag"},
    {"No such image", PD_NOT_FOUND, ""},
    {"image not known", PD_NOT_FOUND, ""},
    {"connection refused", PD_BAD_GATEWAY, "; is the registry up?"},
    {"no such host", PD_BAD_GATEWAY, "; is the registry's name right?"},
    {"server gave HTTP response to HTTPS", PD_BAD_GATEWAY,
     "; add it to the engine's insecure-registries"},
    {"certificate signed by unknown authority", PD_BAD_GATEWAY,
     "; add its authority to the engine's certs.d"},
    {"unknown or invalid runtime", PD_INVALID, "; check docker_runtime"},
    {"unknown runtime", PD_INVALID, "; check docker_runtime"},
    {"oci runtime error", PD_INTERNAL, ""},
};

static enum pd_code code_of(int status)
{
    switch (status) {
    case 400:
        return PD_INVALID;
    case 401:
    case 403:
        return PD_DENIED;
    case 404:
        return PD_NOT_FOUND;
    case 409:
        return PD_CONFLICT;
    case 429:
        return PD_RATE;
    default:
        return PD_BAD_GATEWAY;
    }
}

/* An engine's words on one line. They end with the cause, often behind long paths: of a long text
 * the beginning and the end are told. */
static void shorten(const char *said, char out[SAID_MAX])
{
    size_t len = strlen(said);

    if (len < SAID_MAX)
        snprintf(out, SAID_MAX, "%s", said);
    else
        snprintf(out, SAID_MAX, "%.*s ... %s", SAID_BEGIN, said,
                 said + len - (SAID_MAX - SAID_BEGIN - sizeof " ... "));

    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
}

int docker_fail_text(int status, const char *said, const char *what, struct pd_err *e)
{
    char text[SAID_MAX];

    shorten(said, text);
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strcasestr(said, reasons[i].words))
            return pd_fail(e, reasons[i].code, "%s: %s%s", what, text, reasons[i].remedy);
    return pd_fail(e, code_of(status), "%s: %s", what, text);
}

int docker_fail(int status, const void *body, size_t len, const char *what, struct pd_err *e)
{
    json_t *j = json_loadb(body, len, 0, NULL);
    const char *message = json_string_value(json_object_get(j, "message"));
    char text[SAID_MAX];

    /* Some say it plainly, and a proxy in between says anything. */
    if (!message || !message[0]) {
        snprintf(text, sizeof text, "the engine answers %d%s%.*s", status, len ? ": " : "",
                 (int)(len < 100 ? len : 100), (const char *)body);
        message = text;
    }

    int r = docker_fail_text(status, message, what, e);
    json_decref(j);
    return r;
}

/* docker.io's entry has an older name. */
static const json_t *entry_of(const json_t *auths, const char *registry)
{
    const json_t *entry = json_object_get(auths, registry);

    if (!entry && !strcmp(registry, "docker.io"))
        entry = json_object_get(auths, "https://index.docker.io/v1/");
    return entry;
}

int docker_read_auth(const void *json, size_t len, const char *registry, struct buf *out,
                     struct pd_err *e)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    const json_t *auths = json_object_get(j, "auths");
    auto_buf plain = BUF_INIT(4096), text = BUF_INIT(8192);

    if (!json_is_object(auths)) {
        json_decref(j);
        return pd_fail(e, PD_INVALID, "a file with credentials has an object \"auths\"");
    }

    const json_t *entry = entry_of(auths, registry);
    const char *auth = json_string_value(json_object_get(entry, "auth"));
    const char *token = json_string_value(json_object_get(entry, "identitytoken"));
    int r = 0;

    if (auth || token) {
        struct json w = JSON_INIT(&text);
        char *colon = NULL;
        json_open(&w, '{');
        if (token && token[0]) {
            json_member_cstr(&w, "identitytoken", token);
        } else if (auth && base64_decode(&plain, auth, strlen(auth), NULL) == BASE64_GOOD &&
                   buf_cstr(&plain) && (colon = strchr((char *)plain.data, ':'))) {
            *colon = 0;
            json_member_cstr(&w, "username", (const char *)plain.data);
            json_member_cstr(&w, "password", colon + 1);
        } else {
            r = pd_fail(e, PD_INVALID, "the credentials for '%.80s' are no base64 of USER:PASSWORD",
                        registry);
        }
        json_member_cstr(&w, "serveraddress", registry);
        json_close(&w, '}');

        /* The alphabet for URLs. */
        if (r == 0 && base64_encode(out, text.data, text.len) == 0)
            for (size_t i = 0; i < out->len; i++)
                out->data[i] = out->data[i] == '+' ? '-' : out->data[i] == '/' ? '_' : out->data[i];
    }

    json_decref(j);
    return r;
}
