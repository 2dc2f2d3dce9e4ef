/* How an image is fetched. The registry's API (v2) is three requests: a manifest by tag or digest,
 * a manifest by digest, a blob by digest.
 *
 *   401       the registry says how it wants to be asked (registry_text.h): with a password, or
 * with a token, for which another server is asked with the password. Once. 30x       where a blob
 * really is. Another server gets no password and no token. Five times. 200, 206  the bytes, from
 * the beginning or from where it was asked. Who ignores that sends all, and the beginning is passed
 * over.
 *
 * Unless the operator has said where the registry is, only public addresses are dialled: a name in
 * a request must not lead to a server of the operator's own network. The texts of an image are put
 * together as the archive that they would be in, and read by what reads those (image/plan.c). */
#include "engine/registry.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/sha256.h"
#include "engine/http.h"
#include "engine/registry_text.h"
#include "image/image.h"
#include "image/manifest.h"
#include "wire/image_ref.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NOBODY        65534u
#define REDIRECTS_MAX 5
#define DEPTH_MAX     3 /* an index in an index, and the manifest */
#define TEXT_PATIENCE (60 * NS_PER_S)
#define BLOB_PATIENCE (6 * 3600 * NS_PER_S)
#define AUTH_MAX      (256u << 10)
#define BLOB_SIZE_MAX (UINT64_C(1) << 40)
#define RATE_LEAST    1000 /* bytes in a second, for a minute: who sends less has stopped */
#define ACCEPT                                                                                     \
    "Accept: application/vnd.oci.image.index.v1+json, "                                            \
    "application/vnd.docker.distribution.manifest.list.v2+json, "                                  \
    "application/vnd.oci.image.manifest.v1+json, "                                                 \
    "application/vnd.docker.distribution.manifest.v2+json"

struct registry {
    struct image_ref ref;
    char base[512];
    bool is_named;                        /* by the operator: private addresses are dialled */
    char password[8192];                  /* base64 of USER:PASSWORD, or "" */
    char header[REGISTRY_TOKEN_MAX + 64]; /* "Authorization: ...", or "" */
};

/* Where bytes go. */
struct sink {
    int fd;
    const struct http_heads *heads; /* of the answer that comes */
    uint64_t from;                  /* where it was asked for */
    uint64_t skip;                  /* so many first: they are known */
    bool has_begun;
};

/* --- asking --------------------------------------------------------------------------------- */

static int take_bytes(void *context, const void *data, size_t len, struct pd_err *e)
{
    struct sink *s = context;
    if (!s->has_begun) /* 206: the rest; 200: all of it, the beginning is passed over */
        s->skip = s->heads->status == 206 ? 0 : s->from;
    s->has_begun = true;
    size_t known = s->skip < len ? (size_t)s->skip : len;

    s->skip -= known;
    int r = fd_write_all(s->fd, (const char *)data + known, len - known);
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "write what the registry sends") : 0;
}

struct question {
    const char *target;
    const char *accept; /* a header, or NULL */
    uint64_t from;
    struct sink *sink; /* NULL: the body is collected */
    struct buf *body;
    deadline deadline;
};

/* One request, with one answer. */
static int ask_once(const struct registry *r, const struct registry_url *at, bool is_own,
                    const struct question *q, struct http_heads *heads, int *ret_status,
                    struct pd_err *e)
{
    struct http_place place = {.base = at->base, .public_only = !r->is_named};
    struct http *h = http_new(&place, e);
    char range[64];
    const char *headers[4] = {NULL};
    unsigned n = 0;
    if (!h)
        return -1;

    snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)q->from);
    if (q->accept)
        headers[n++] = q->accept;
    if (q->from)
        headers[n++] = range;
    if (is_own && r->header[0])
        headers[n++] = r->header;

    buf_clear(q->body);
    *heads = (struct http_heads){0};
    struct http_request request = {.method = "GET",
                                   .target = at->target,
                                   .headers = headers,
                                   .take = q->sink ? take_bytes : NULL,
                                   .context = q->sink,
                                   .stream_max = BLOB_SIZE_MAX,
                                   .heads = heads,
                                   .rate_least = RATE_LEAST,
                                   .deadline = q->deadline};
    struct http_answer answer = {.body = q->body};
    if (q->sink)
        *q->sink = (struct sink){.fd = q->sink->fd, .heads = heads, .from = q->from};
    int failed = http_ask(h, &request, &answer, e);
    http_free(h);
    *ret_status = answer.status;
    return failed;
}

static int denied(const struct registry *r, struct pd_err *e)
{
    return pd_fail(e, PD_DENIED, "%.100s does not give %.100s%s", r->ref.registry,
                   r->ref.repository,
                   r->password[0] ? ": it does not take the credentials"
                                  : " to everybody: name a file with credentials, --auth");
}

/* A token, from whom the registry says: the password goes there as well. */
static int fetch_token(struct registry *r, const struct challenge *c, struct pd_err *e)
{
    auto_buf target = BUF_INIT(2 * REGISTRY_URL_MAX), body = BUF_INIT(64u << 10);
    static char token[REGISTRY_TOKEN_MAX + 1];
    struct registry_url at;
    struct http_heads heads;
    int status;

    if (registry_url_read(c->realm, NULL, &at, e) < 0)
        return -1;
    if (!strncmp(r->base, "https://", 8) && strncmp(at.base, "https://", 8) != 0)
        return pd_fail(e, PD_DENIED,
                       "the registry wants its password sent in clear text, to %.100s", at.base);

    buf_printf(&target, "%s%cscope=repository%%3A", at.target, strchr(at.target, '?') ? '&' : '?');
    http_escape(&target, r->ref.repository);
    buf_puts(&target, "%3Apull");
    if (c->service[0]) {
        buf_puts(&target, "&service=");
        http_escape(&target, c->service);
    }
    const char *text = buf_cstr(&target);
    if (!text || snprintf(at.target, sizeof at.target, "%s", text) >= (int)sizeof at.target)
        return pd_fail(e, PD_PROTOCOL, "the registry's address for tokens is too long");

    r->header[0] = 0;
    if (r->password[0])
        snprintf(r->header, sizeof r->header, "Authorization: Basic %s", r->password);
    struct question q = {.body = &body, .deadline = deadline_in(TEXT_PATIENCE)};
    int failed = ask_once(r, &at, true, &q, &heads, &status, e);
    r->header[0] = 0;
    if (failed)
        return -1;
    if (status == 401 || status == 403)
        return denied(r, e);
    if (status != 200)
        return pd_fail(e, PD_BAD_GATEWAY, "%.100s gives no token for %.100s: it answers %d",
                       at.base, r->ref.repository, status);
    if (token_read(body.data, body.len, token, e) < 0)
        return -1;
    snprintf(r->header, sizeof r->header, "Authorization: Bearer %s", token);
    return 0;
}

static int answer_challenge(struct registry *r, const char *text, struct pd_err *e)
{
    static struct challenge c;

    if (r->header[0]) /* it was asked so already */
        return denied(r, e);
    if (challenge_read(text, &c, e) < 0)
        return -1;
    if (c.kind == CHALLENGE_BEARER)
        return fetch_token(r, &c, e);
    if (!r->password[0])
        return denied(r, e);
    snprintf(r->header, sizeof r->header, "Authorization: Basic %s", r->password);
    return 0;
}

/* Until the bytes are there. */
static int ask(struct registry *r, const struct question *q, struct pd_err *e)
{
    static struct registry_url at, next;
    static struct http_heads heads;
    bool is_own = true;
    int status = 0;

    snprintf(at.base, sizeof at.base, "%s", r->base);
    snprintf(at.target, sizeof at.target, "%s", q->target);
    for (int moves = 0; moves <= REDIRECTS_MAX;) {
        if (ask_once(r, &at, is_own, q, &heads, &status, e) < 0)
            return -1;
        if (status == 401 && is_own) {
            if (answer_challenge(r, heads.challenge, e) < 0)
                return -1;
            continue;
        }
        if (status < 300 || status >= 400)
            break;

        if (registry_url_read(heads.location, at.base, &next, e) < 0)
            return -1;
        if (!strncmp(at.base, "https://", 8) && strncmp(next.base, "https://", 8) != 0)
            return pd_fail(e, PD_DENIED, "the registry leads from https to %.100s", next.base);
        is_own = is_own && !strcmp(next.base, r->base);
        at = next;
        if (++moves > REDIRECTS_MAX)
            return pd_fail(e, PD_PROTOCOL, "the registry leads to another place %d times",
                           REDIRECTS_MAX);
    }

    if (status == 200 || (status == 206 && q->from))
        return 0;
    if (status == 403)
        return denied(r, e);
    return pd_fail(e, status == 404 ? PD_NOT_FOUND : PD_BAD_GATEWAY, "%.100s has no %.120s: %d",
                   r->ref.registry, q->target, status);
}

/* --- texts ---------------------------------------------------------------------------------- */

static int fetch_text(struct registry *r, const char *kind, const char *name, size_t max,
                      struct buf *out, struct pd_err *e)
{
    char target[512];
    auto_buf body = BUF_INIT(max + 1);

    snprintf(target, sizeof target, "/v2/%s/%s/%s", r->ref.repository, kind, name);
    struct question q = {.target = target,
                         .accept = !strcmp(kind, "manifests") ? ACCEPT : NULL,
                         .body = &body,
                         .deadline = deadline_in(TEXT_PATIENCE)};
    if (ask(r, &q, e) < 0)
        return -1;
    if (buf_put(out, body.data, body.len) < 0)
        return pd_fail(e, PD_TOO_LARGE, "'%.100s' is larger than %zu bytes", target, max);
    return 0;
}

/* The image as the archive that it would be: texts that are there, layers of which the size is. */
struct collection {
    struct archive archive;
    struct archive_member members[DEPTH_MAX + IMAGE_LAYERS_MAX + 4];
};

static void collect_done(struct collection *c)
{
    for (uint32_t i = 0; i < c->archive.count; i++) {
        free(c->members[i].name);
        free(c->members[i].text);
    }
}

static int collect(struct collection *c, const char *name, const void *text, uint64_t size,
                   struct pd_err *e)
{
    struct archive_member *m = &c->members[c->archive.count];
    *m = (struct archive_member){.name = strdup(name), .size = size};
    if (text && (m->text = malloc((size_t)size + 1)))
        memcpy(m->text, text, (size_t)size);
    c->archive.members = c->members;
    c->archive.count++;
    return m->name && (!text || m->text) ? 0 : pd_fail(e, PD_CAPACITY, "out of memory");
}

static int collect_blob(struct collection *c, const char *hex, const void *text, uint64_t size,
                        struct pd_err *e)
{
    char name[96];
    snprintf(name, sizeof name, "blobs/sha256/%.64s", hex);
    return collect(c, name, text, size, e);
}

/* The list of an archive's images, which a registry does not have: one, by digest. */
static int collect_top(struct collection *c, const char *hex, bool is_index, size_t size,
                       struct pd_err *e)
{
    char text[400];
    int n = snprintf(text, sizeof text,
                     "{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"application/"
                     "vnd.oci.image.%s.v1+json\","
                     "\"digest\":\"sha256:%s\",\"size\":%zu}]}",
                     is_index ? "index" : "manifest", hex, size);
    return collect(c, "index.json", text, (uint64_t)n, e);
}

static int collect_layers(struct registry *r, struct collection *c, const struct manifest *m,
                          struct pd_err *e)
{
    auto_buf config = BUF_INIT(MANIFEST_CONFIG_MAX + 1);
    char name[80];

    snprintf(name, sizeof name, "sha256:%s", m->config);
    if (fetch_text(r, "blobs", name, MANIFEST_CONFIG_MAX, &config, e) < 0 ||
        collect_blob(c, m->config, config.data, config.len, e) < 0)
        return -1;
    for (uint32_t i = 0; i < m->layer_count; i++)
        if (collect_blob(c, m->layers[i].blob, NULL, m->layers[i].size, e) < 0)
            return -1;
    return 0;
}

/* The manifest that the reference means, and those that lead to it. */
static int collect_image(struct registry *r, struct collection *c, const char *machine,
                         struct pd_err *e)
{
    static struct manifest m;
    static struct index x;
    char name[160], hex[IMAGE_HEX_LEN + 1];

    snprintf(name, sizeof name, "%s", r->ref.digest[0] ? r->ref.digest : r->ref.tag);
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        auto_buf text = BUF_INIT(MANIFEST_TEXT_MAX + 1);
        if (fetch_text(r, "manifests", name, MANIFEST_TEXT_MAX, &text, e) < 0)
            return -1;

        sha256_hex(text.data, text.len, hex);
        if (!strncmp(name, "sha256:", 7) && strcmp(name + 7, hex) != 0)
            return pd_fail(e, PD_INVALID, "the registry has sent sha256:%.64s as %.80s", hex, name);
        bool is_index = index_read(text.data, text.len, &x, NULL) == 0;
        if (depth == 0 && collect_top(c, hex, is_index, text.len, e) < 0)
            return -1;
        if (collect_blob(c, hex, text.data, text.len, e) < 0)
            return -1;

        if (!is_index)
            return manifest_read(text.data, text.len, &m, e) < 0 ? -1 : collect_layers(r, c, &m, e);
        const struct descriptor *chosen = index_choose(&x, machine, e);
        if (!chosen)
            return -1;
        snprintf(name, sizeof name, "sha256:%s", chosen->digest);
    }
    return pd_fail(e, PD_INVALID, "the image's indexes are nested deeper than %d", DEPTH_MAX);
}

/* --- commands ------------------------------------------------------------------------------- */

static int plan(struct registry *r, struct pd_err *e)
{
    static struct collection c;
    auto_buf out = BUF_INIT(IMAGE_RECORD_MAX + 4);
    struct utsname machine;

    if (uname(&machine) < 0)
        return pd_fail_sys(e, "ask for this machine's kind");
    int failed = collect_image(r, &c, machine.machine, e) < 0 ||
                 plan_make(&c.archive, machine.machine, &out, e) < 0;
    collect_done(&c);
    if (failed)
        return -1;

    int w = fd_write_all(STDOUT_FILENO, out.data, out.len);
    errno = -w;
    return w < 0 ? pd_fail_sys(e, "write the plan") : 0;
}

static int blob(struct registry *r, const char *hex, const char *from, struct pd_err *e)
{
    struct sink sink = {.fd = STDOUT_FILENO};
    auto_buf body = BUF_INIT(64u << 10);
    char target[512];
    uint64_t at;

    if (!image_is_hex(hex))
        return pd_fail(e, PD_INVALID, "'%.70s' is no digest", hex);
    if (parse_u64("from", from, 0, BLOB_SIZE_MAX, &at, e) < 0)
        return -1;
    snprintf(target, sizeof target, "/v2/%s/blobs/sha256:%s", r->ref.repository, hex);
    struct question q = {.target = target,
                         .from = at,
                         .sink = &sink,
                         .body = &body,
                         .deadline = deadline_in(BLOB_PATIENCE)};
    return ask(r, &q, e);
}

static int read_password(struct registry *r, struct pd_err *e)
{
    auto_buf file = BUF_INIT(AUTH_MAX);
    ssize_t n = 1;

    while (n > 0) {
        uint8_t *at = buf_reserve(&file, 4096);
        n = at ? pread(REGISTRY_AUTH_FD, at, 4096, (off_t)file.len) : -1; /* others have it, too */
        if (n < 0 && errno == EBADF)
            return 0; /* there is none */
        if (n < 0 && errno == ESPIPE)
            return pd_fail(e, PD_INVALID,
                           "credentials are read from a file, and this is a pipe: --auth - takes "
                           "a redirected file, --auth FILE one by its name");
        if (n < 0)
            return pd_fail(e, PD_INVALID,
                           "the file with credentials cannot be read, or is larger "
                           "than %u bytes",
                           AUTH_MAX);
        file.len += (size_t)n;
    }
    return credentials_read(file.data, file.len, r->ref.registry, r->password, sizeof r->password,
                            e);
}

/* Whoever starts it may be root: the bytes of a stranger are read by nobody. */
static int give_up_power(struct pd_err *e)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return pd_fail_sys(e, "give up new privileges");
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
                           setresuid(NOBODY, NOBODY, NOBODY) < 0))
        return pd_fail_sys(e, "become nobody");
    /* The change of uid has set both anew. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return pd_fail_sys(e, "end with whoever started it");
    return 0;
}

static int open_registry(struct registry *r, const char *ref, const char *url, struct pd_err *e)
{
    struct registry_url at;

    if (image_ref_parse(ref, &r->ref, e) < 0)
        return -1;
    r->is_named = strcmp(url, "-") != 0;
    if (r->is_named) {
        if (registry_url_read(url, NULL, &at, NULL) < 0 || strcmp(at.target, "/") != 0)
            return pd_fail(e, PD_INVALID,
                           "--registry: '%.100s' is no address such as "
                           "https://HOST:PORT",
                           url);
        snprintf(r->base, sizeof r->base, "%s", at.base);
    } else {
        snprintf(r->base, sizeof r->base, "https://%s",
                 strcmp(r->ref.registry, "docker.io") != 0 ? r->ref.registry
                                                           : "registry-1.docker.io");
    }
    return read_password(r, e) < 0 ? -1 : give_up_power(e);
}

int registry_main(int argc, char **argv)
{
    static struct registry r;
    struct pd_err e;
    bool plans = argc == 4 && !strcmp(argv[1], "plan");
    int failed;

    if (!plans && (argc != 6 || strcmp(argv[1], "blob") != 0))
        failed =
            pd_fail(&e, PD_INVALID, "registry plan REF URL|-, or registry blob REF URL|- HEX FROM");
    else if ((failed = open_registry(&r, argv[2], argv[3], &e)) == 0)
        failed = plans ? plan(&r, &e) : blob(&r, argv[4], argv[5], &e);

    if (failed)
        fprintf(stderr, "%s\n", e.msg);
    return failed ? REGISTRY_STATUS + (int)e.code : 0;
}
