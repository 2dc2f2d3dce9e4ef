/* Calls of docker's API. The version to speak is asked for at the first call and after every answer
 * that got lost, and likewise whether limits are held: the engine may be another one after its
 * restart. A lost answer leaves open whether the engine did what it was asked; so what was to be
 * made is looked for, and only made again when it is not there. */
#include "engine/docker_client.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "engine/docker_call.h"
#include "engine/http.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AUTH_MAX     65536u
#define TRIES        3
#define END_PATIENCE (5 * NS_PER_S)

const char *docker_kind(const struct docker *d)
{
    return d->config->podman ? "podman" : "docker";
}

static const char *or_variable(const char *given, const char *name)
{
    return given[0] ? given : getenv(name);
}

/* The address of the engine and its certificates, in the words of docker's own variables. */
static struct docker_words words_of(const struct broker_config *c)
{
    const char *usual =
        c->podman ? "unix:///run/podman/podman.sock" : "unix:///var/run/docker.sock";
    struct docker_words w = {.host =
                                 or_variable(c->host, c->podman ? "CONTAINER_HOST" : "DOCKER_HOST"),
                             .cert_path = or_variable(c->cert_path, "DOCKER_CERT_PATH"),
                             .tls_verify = getenv("DOCKER_TLS_VERIFY"),
                             .home = getenv("HOME")};

    if (!w.host || !w.host[0])
        w.host = usual;
    return w;
}

struct http *docker_dial(const struct docker *d, struct pd_err *e)
{
    struct http_place place = {.socket = d->at.socket,
                               .base = d->at.base,
                               .ca_file = d->at.ca,
                               .cert_file = d->at.cert,
                               .key_file = d->at.key};
    return http_new(&place, e);
}

int docker_open(struct docker *d, const struct broker_config *c, struct pd_err *e)
{
    struct docker_words w = words_of(c);

    *d = (struct docker){.config = c};
    snprintf(d->place, sizeof d->place, "%s", w.host);
    if (docker_place_read(&w, &d->at, e) < 0)
        return -1;
    d->is_far = docker_place_is_far(&d->at);
    if (d->is_far && c->podman)
        return pd_fail(e, PD_UNSUPPORTED,
                       "docker_host '%.100s': podman is only used on this machine, unix://PATH",
                       w.host);

    d->http = docker_dial(d, e);
    return d->http ? 0 : -1;
}

void docker_close(struct docker *d)
{
    http_free(d->http);
    d->http = NULL;
}

/* Puts the setting to look at behind an error of the connection. */
static int not_reachable(const struct docker *d, const struct pd_err *why, struct pd_err *e)
{
    if (why->code == PD_TIMEOUT)
        return pd_fail(e, PD_TIMEOUT, "the engine at %.100s does not answer in time", d->place);
    return pd_fail(e, PD_BAD_GATEWAY,
                   "%s is not reachable at %.80s: is it running, and is docker_host right? (%.80s)",
                   docker_kind(d), d->place, why->msg);
}

static int ask_raw(struct docker *d, struct http_request *r, struct buf *body, int *ret_status,
                   struct pd_err *e)
{
    struct http_answer answer = {.body = body};
    struct pd_err why;

    buf_clear(body);
    if (http_ask(d->http, r, &answer, &why) < 0) {
        d->api[0] = 0;
        d->holds_limits = false;
        return why.code == PD_BAD_GATEWAY || why.code == PD_TIMEOUT
                   ? not_reachable(d, &why, e)
                   : pd_fail(e, why.code, "%s", why.msg);
    }
    *ret_status = answer.status;
    return 0;
}

/* The version is asked for once. */
static int need_version(struct docker *d, deadline t, struct pd_err *e)
{
    auto_buf body = BUF_INIT(DOCKER_ANSWER_MAX);
    struct http_request r = {.method = "GET", .target = "/version", .deadline = t};
    int status = 0;

    if (d->api[0])
        return 0;
    if (ask_raw(d, &r, &body, &status, e) < 0)
        return -1;
    if (status != 200)
        return docker_fail(status, body.data, body.len, "version", e);
    return docker_read_version(body.data, body.len, d->api, e);
}

void docker_call_done(struct docker_call *c)
{
    buf_done(&c->target);
    buf_done(&c->in);
    buf_done(&c->out);
}

int docker_ask(struct docker *d, struct docker_call *c, struct pd_err *e)
{
    auto_buf target = BUF_INIT(8300);

    if (need_version(d, c->deadline, e) < 0)
        return -1;
    buf_printf(&target, "/v%s%s", d->api, buf_cstr(&c->target));
    if (!buf_cstr(&target) || target.overflow || c->target.overflow || c->in.overflow)
        return pd_fail(e, PD_INVALID, "a request to the engine is too long");

    struct http_request r = {.method = c->method,
                             .target = buf_cstr(&target),
                             .headers = c->headers,
                             .body = c->in.data,
                             .body_len = c->in.len,
                             .take = c->take,
                             .is_wanted = c->is_wanted,
                             .context = c->context,
                             .deadline = c->deadline};
    return ask_raw(d, &r, &c->out, &c->status, e);
}

int docker_refused(const struct docker_call *c, const char *what, struct pd_err *e)
{
    return docker_fail(c->status, c->out.data, c->out.len, what, e);
}

/* ---- containers ---- */

int docker_inspect(struct docker *d, const char *name, struct docker_container *ret, deadline t,
                   struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);

    buf_printf(&c.target, "/containers/%s/json", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    if (c.status != 200)
        return docker_refused(&c, "inspect", e);
    return docker_read_container(c.out.data, c.out.len, ret, e);
}

static int start(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);

    buf_printf(&c.target, "/containers/%s/start", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 204 || c.status == 304 ? 0 : docker_refused(&c, "start the container", e);
}

/* Is the containers' kernel known to be this one, and does it have IPv6? */
static bool has_ipv6(const struct docker *d)
{
    return !d->is_far && !d->config->runtime[0] && access("/proc/sys/net/ipv6", F_OK) == 0;
}

static int create_once(struct docker *d, const char *name, const struct docker_plan *p, deadline t,
                       struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);
    struct docker_plan plan = *p;
    plan.ipv6 = has_ipv6(d);

    buf_printf(&c.target, "/containers/create?name=%s", name);
    docker_create_body(&c.in, &plan);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 201 ? 0 : docker_refused(&c, "create the container", e);
}

void docker_last_words(struct docker *d, const char *name, char *out, size_t size, deadline t)
{
    auto_call c = DOCKER_CALL("GET", t);

    out[0] = 0;
    buf_printf(&c.target, "/containers/%s/logs?stderr=1&tail=3", name);
    if (docker_ask(d, &c, NULL) == 0 && c.status == 200)
        docker_read_log(c.out.data, c.out.len, out, size);
}

int docker_inspect_ours(struct docker *d, const char *name, const char *owner, const char *box,
                        struct docker_container *ret, deadline t, struct pd_err *e)
{
    if (docker_inspect(d, name, ret, t, e) < 0)
        return -1;
    if (strcmp(ret->owner, owner) != 0 || strcmp(ret->box, box) != 0)
        return pd_fail(e, PD_CONFLICT,
                       "the container '%.80s' (%.12s) is in the way, and not one of this server: "
                       "remove it with `%s rm -f %.80s`, or give it another name",
                       name, ret->id, docker_kind(d), name);
    return 0;
}

/* Whether what is there under the name is what was to be made. */
static int is_ours(struct docker *d, const char *name, const struct docker_plan *p, deadline t,
                   struct docker_container *ret, struct pd_err *e)
{
    return docker_inspect_ours(d, name, p->owner, p->box, ret, t, e);
}

/* The answer is lost, or the engine is on its way to another one: worth another try. */
static bool is_lost(const struct pd_err *e)
{
    return e->code == PD_BAD_GATEWAY || e->code == PD_PROTOCOL;
}

int docker_create(struct docker *d, const char *name, const struct docker_plan *p,
                  struct docker_container *ret, deadline t, struct pd_err *e)
{
    struct docker_container c;
    int r = -1;

    for (int i = 0; i < TRIES; i++) {
        r = create_once(d, name, p, t, e);
        if (r == 0 || (!is_lost(e) && e->code != PD_CONFLICT))
            break;

        /* Somebody made it, maybe we; or nobody did, and it can be tried again. A conflict is told
         * only where somebody else's is seen: the caller has asked for no name. */
        struct pd_err why = *e;
        if (why.code == PD_CONFLICT)
            why.code = PD_BAD_GATEWAY;
        r = is_ours(d, name, p, t, &c, e);
        if (r == 0 || e->code != PD_NOT_FOUND) {
            if (r < 0 && is_lost(e))
                *e = why;
            break;
        }
        *e = why;
    }
    if (r < 0 || (p->far && docker_put_box(d, name, p->far, t, e) < 0))
        return -1;

    for (int i = 0; i < TRIES; i++) {
        r = start(d, name, t, e);
        if (r == 0 || !is_lost(e))
            break;
        struct pd_err why = *e;
        if (is_ours(d, name, p, t, &c, e) == 0 && c.running) {
            r = 0;
            break;
        }
        *e = why;
    }
    if (r < 0 || is_ours(d, name, p, t, &c, e) < 0)
        return -1;

    if (!c.pid) {
        char why[160], words[160];
        docker_say_end(&c, why, sizeof why);
        docker_last_words(d, name, words, sizeof words, t);
        return pd_fail(e, PD_LOST, "the container ended as soon as it began: %s%s%s", why,
                       words[0] ? ": " : "", words);
    }
    *ret = c;
    return 0;
}

int docker_kill(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);

    buf_printf(&c.target, "/containers/%s/kill?signal=SIGKILL", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;

    /* 409: it does not run; podman says 500 for the same. */
    bool over = c.status == 204 || c.status == 404 || c.status == 409;
    struct docker_container now;
    if (!over && docker_inspect(d, name, &now, t, NULL) == 0 && !now.running)
        over = true;
    return over ? 0 : docker_refused(&c, "kill the container", e);
}

int docker_remove(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    struct pd_err own;

    if (!e)
        e = &own; /* what to do next depends on it */
    for (int i = 0;; i++) {
        auto_call c = DOCKER_CALL("DELETE", t);
        buf_printf(&c.target, "/containers/%s?force=true&v=true", name);
        int r = docker_ask(d, &c, e);
        if (r == 0 && (c.status == 204 || c.status == 200 || c.status == 404))
            return 0;

        /* 409: somebody else removes it just now. */
        bool again = r < 0 ? is_lost(e) : c.status == 409;
        if (r == 0)
            (void)docker_refused(&c, "remove the container", e);
        if (!again || i >= TRIES)
            return -1;
        usleep(50000u << i);
    }
}

int docker_list(struct docker *d, const char *label, const char *value, docker_each *each,
                void *context, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);
    auto_buf filter = BUF_INIT(512);

    struct json j = JSON_INIT(&filter);
    char pair[160];
    snprintf(pair, sizeof pair, "%s=%s", label, value);
    json_open(&j, '{');
    json_key(&j, "label");
    json_open(&j, '[');
    json_cstr(&j, pair);
    json_close(&j, ']');
    json_close(&j, '}');

    buf_puts(&c.target, "/containers/json?all=1&filters=");
    http_escape(&c.target, buf_cstr(&filter));
    if (docker_ask(d, &c, e) < 0)
        return -1;
    if (c.status != 200)
        return docker_refused(&c, "list containers", e);
    return docker_read_list(c.out.data, c.out.len, each, context, e);
}

/* Of podman alone. */
static int read_controllers(struct docker *d, struct docker_info *i, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);

    buf_puts(&c.target, "/libpod/info");
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 200 ? docker_read_controllers(c.out.data, c.out.len, i, e)
                           : docker_refused(&c, "libpod/info", e);
}

int docker_info(struct docker *d, struct docker_info *ret, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);

    buf_puts(&c.target, "/info");
    if (docker_ask(d, &c, e) < 0)
        return -1;
    if (c.status != 200)
        return docker_refused(&c, "info", e);
    if (docker_read_info(c.out.data, c.out.len, d->config->runtime, ret, e) < 0)
        return -1;
    /* Root has every controller that the machine has, which is what was just told. */
    return d->config->podman && ret->rootless ? read_controllers(d, ret, t, e) : 0;
}

int docker_need_limits(struct docker *d, deadline t, struct pd_err *e)
{
    struct docker_info i;

    /* Podman takes seconds for this answer: it is asked for once, as the version is. */
    if (d->holds_limits)
        return 0;
    if (docker_info(d, &i, t, e) < 0 || docker_check_limits(docker_kind(d), &i, e) < 0)
        return -1;
    d->holds_limits = true;
    return 0;
}

/* ---- images ---- */

int docker_has_image(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);

    buf_printf(&c.target, "/images/%s/json", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    if (c.status == 200 || c.status == 404)
        return c.status == 200;
    return docker_refused(&c, "inspect the image", e);
}

/* Engines tell ids with and without the name of their hash. */
static const char *bare_id(const char *id)
{
    return strncmp(id, "sha256:", 7) == 0 ? id + 7 : id;
}

int docker_is_current(struct docker *d, const struct docker_container *c, deadline t,
                      struct pd_err *e)
{
    auto_call call = DOCKER_CALL("GET", t);
    struct image_ref r;
    char name[IMAGE_TEXT_MAX], id[80];

    /* It is the engine's word and becomes a part of a path. */
    if (image_ref_parse(c->from, &r, e) < 0)
        return -1;
    image_ref_text(&r, name);
    buf_printf(&call.target, "/images/%s/json", name);
    if (docker_ask(d, &call, e) < 0)
        return -1;
    if (call.status == 404)
        return 0;
    if (call.status != 200)
        return docker_refused(&call, "inspect the image", e);
    if (docker_read_image_id(call.out.data, call.out.len, id, sizeof id, e) < 0)
        return -1;
    return !strcmp(bare_id(id), bare_id(c->image));
}

int docker_count_layers(struct docker *d, const char *id, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("GET", t);

    /* It is the engine's word and becomes a part of a path. */
    if (!id[0] || id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789:")])
        return pd_fail(e, PD_PROTOCOL, "the engine tells '%.70s' as the id of an image", id);
    buf_printf(&c.target, "/images/%s/json", id);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 200 ? docker_read_layers(c.out.data, c.out.len, e)
                           : docker_refused(&c, "inspect the image", e);
}

/* The header with the registry's credentials; empty without any. Read anew for each pull. */
static int read_auth(const struct docker *d, const char *registry, struct buf *out,
                     struct pd_err *e)
{
    const char *path = d->config->auth_file;
    auto_buf file = BUF_INIT(AUTH_MAX);

    if (!path[0])
        return 0;
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pd_fail_sys(e, "registry_auth %s", path);
    for (;;) {
        uint8_t *at = buf_reserve(&file, 4096);
        ssize_t n = at ? read(fd, at, 4096) : 0;
        if (!at)
            return pd_fail(e, PD_INVALID, "registry_auth %s: more than %u bytes", path, AUTH_MAX);
        if (n <= 0)
            break;
        file.len += (size_t)n;
    }

    buf_puts(out, "X-Registry-Auth: ");
    auto_buf value = BUF_INIT(16384);
    if (docker_read_auth(file.data, file.len, registry, &value, e) < 0)
        return pd_wrap(e, "registry_auth %s", path);
    if (value.len == 0)
        buf_clear(out);
    else
        buf_put(out, value.data, value.len);
    return 0;
}

/* A pull on its way. */
struct pulling {
    struct docker *docker;
    struct docker_pull lines;
    struct msg_progress said;
    deadline next; /* not before this is the next one said */
};

static void pulling_tell(struct pulling *p)
{
    struct msg_progress now = docker_pull_progress(&p->lines);
    if (!p->docker->told || !deadline_passed(p->next) || !memcmp(&now, &p->said, sizeof now))
        return;

    p->said = now;
    p->next = deadline_in(NS_PER_S);
    p->docker->told(p->docker->told_context, &now);
}

/* Not every engine tells the end of each layer. */
static void pulling_tell_end(struct pulling *p)
{
    struct msg_progress now = docker_pull_progress(&p->lines);
    now.layers_done = now.layers;
    now.bytes_done = now.bytes;
    if (p->docker->told && now.layers)
        p->docker->told(p->docker->told_context, &now);
}

static int pulling_take(void *context, const void *data, size_t len, struct pd_err *e)
{
    struct pulling *p = context;
    if (docker_pull_take(&p->lines, data, len, e) < 0)
        return -1;
    pulling_tell(p);
    return 0;
}

static bool pulling_is_wanted(void *context)
{
    const struct pulling *p = context;
    return !p->docker->is_wanted || p->docker->is_wanted(p->docker->told_context);
}

static int pull(struct docker *d, const struct image_ref *r, const char *text, deadline t,
                struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);
    auto_buf auth = BUF_INIT(20000);
    char name[IMAGE_NAME_MAX], what[200];

    if (read_auth(d, r->registry, &auth, e) < 0)
        return -1;
    image_ref_name(r, name);
    buf_puts(&c.target, "/images/create?fromImage=");
    http_escape(&c.target, name);
    buf_puts(&c.target, "&tag=");
    http_escape(&c.target, r->digest[0] ? r->digest : r->tag);

    const char *headers[] = {auth.len ? buf_cstr(&auth) : NULL, NULL};
    struct pulling p = {.docker = d, .lines = DOCKER_PULL_INIT};
    c.headers = headers;
    c.take = pulling_take;
    c.is_wanted = pulling_is_wanted;
    c.context = &p;

    snprintf(what, sizeof what, "pull image %.120s", text);
    int status = docker_ask(d, &c, e);
    if (status == 0 && c.status != 200)
        status = docker_refused(&c, what, e);
    else if (status == 0 && p.lines.failed)
        status = docker_fail_text(500, p.lines.error, what, e);
    if (status == 0)
        pulling_tell_end(&p);
    docker_pull_done(&p.lines);
    return status;
}

int docker_need_image(struct docker *d, const char *image, char ret_name[IMAGE_TEXT_MAX],
                      deadline t, struct pd_err *e)
{
    struct image_ref r;

    if (image_ref_parse(image, &r, e) < 0)
        return -1;
    image_ref_text(&r, ret_name);

    int there = docker_has_image(d, ret_name, t, e);
    if (there < 0)
        return -1;
    if (there && (d->config->pull != PULL_ALWAYS || r.digest[0]))
        return 0;
    if (d->config->pull == PULL_NEVER)
        return pd_fail(e, PD_NOT_FOUND,
                       "image '%.150s' is not on this machine and image_pull is never: pull it, or "
                       "set image_pull = missing",
                       image);

    if (pull(d, &r, image, t, e) < 0)
        return -1;
    there = docker_has_image(d, ret_name, t, e);
    return there > 0 ? 0
                     : (there < 0 ? -1
                                  : pd_fail(e, PD_NOT_FOUND,
                                            "image '%.150s' is not there after its pull", image));
}

int docker_commit(struct docker *d, const char *container, const char *repository, const char *tag,
                  bool pause, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);

    buf_printf(&c.target, "/commit?container=%s&repo=%s&tag=%s&pause=%s", container, repository,
               tag, pause ? "true" : "false");
    /* A container that somebody makes of it by hand must not pass for one of ours. */
    buf_puts(&c.in, "{\"Labels\":{\"" LABEL_OWNER "\":\"\",\"" LABEL_BOX "\":\"\",\"" LABEL_STORE
                    "\":\"\",\"" LABEL_ROOT "\":\"\"}}");
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 201 ? 0 : docker_refused(&c, "commit the container", e);
}

int docker_tag(struct docker *d, const char *image, const char *repository, const char *tag,
               deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("POST", t);

    buf_printf(&c.target, "/images/%s/tag?repo=%s&tag=%s", image, repository, tag);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 201 ? 0 : docker_refused(&c, "name the image", e);
}

int docker_remove_image(struct docker *d, const char *name, deadline t, struct pd_err *e)
{
    auto_call c = DOCKER_CALL("DELETE", t);

    buf_printf(&c.target, "/images/%s?force=true", name);
    if (docker_ask(d, &c, e) < 0)
        return -1;
    return c.status == 200 || c.status == 404 ? 0 : docker_refused(&c, "remove the image", e);
}

void docker_await_end(struct docker *d, struct docker_container *c)
{
    deadline t = deadline_in(END_PATIENCE);

    while (!d->is_far && c->running && !deadline_passed(t)) {
        auto_fd process = (int)syscall(SYS_pidfd_open, c->pid, 0);
        struct pollfd ended = {.fd = process, .events = POLLIN};
        if (process >= 0 && poll(&ended, 1, 0) == 0)
            return; /* it lives */
        usleep(20000);
        if (docker_inspect(d, c->id, c, t, NULL) < 0)
            return;
    }
}
