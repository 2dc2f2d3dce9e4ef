/* The daemon: makes the parts of a server in the order in which they need each other (store, keys,
 * provider, sessions, HTTP server), and serves until a signal comes. One thread waits for signals:
 * SIGTERM drains and leaves the sandboxes to the next daemon, SIGINT ends them as well, SIGHUP
 * reads the configuration again. */
#include "access/access.h"
#include "access/links.h"
#include "access/logins.h"
#include "access/preview.h"
#include "access/quota.h"
#include "access/seal.h"
#include "access/vault.h"
#include "api/api.h"
#include "api/e2b_watchers.h"
#include "api/mcp.h"
#include "api/share.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "build/templates.h"
#include "config/config.h"
#include "core/egress.h"
#include "core/pump.h"
#include "core/secrets.h"
#include "core/sessions.h"
#include "gate/resolvers.h"
#include "provider/providers.h"
#include "router/router.h"
#include "server/serve.h"
#include "store/sqlite.h"
#include "store/store.h"
#include "telemetry/audit.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define GONE_KEPT_MS       (60ull * 60 * 1000)
#define CONTEXTS_WARM_SIZE 4096 /* 32 names of 100 characters at most */

extern char **environ;
extern const struct box_events session_box_events;

struct daemon {
    struct serve *serve;
    struct api api;
    struct store *store;
    struct pump *pump;
    struct provider_table providers;
    struct egress *egress; /* NULL: there is no gate */
    struct server *server;
    pthread_t signals;
    atomic_int interrupted;
    char contexts_warm[CONTEXTS_WARM_SIZE]; /* the setting as one text */
};

/* ---- systemd ---- */

static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (!path || strlen(path) >= sizeof a.sun_path || (path[0] != '/' && path[0] != '@'))
        return;

    memcpy(a.sun_path, path, strlen(path));
    if (path[0] == '@')
        a.sun_path[0] = 0;

    auto_fd sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock >= 0)
        (void)sendto(sock, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&a,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
}

/* ---- configuration ---- */

static struct quota_limits quota_limits_of(const struct config *c)
{
    return (struct quota_limits){.requests_per_s = (double)c->requests_per_s,
                                 .creates_per_s = (double)c->creates_per_s,
                                 .requests_burst = (unsigned)c->burst,
                                 .creates_burst = (unsigned)c->burst};
}

static struct audit_config audit_config_of(const struct daemon *d, const struct config *c)
{
    return (struct audit_config){.state_dir = d->serve->data_dir,
                                 .enabled = (int)c->audit,
                                 .max_bytes = c->audit_max_bytes,
                                 .keep = (unsigned)c->audit_keep,
                                 .metrics = d->api.metrics};
}

/* By the configuration of the moment. */
static bool image_allowed(void *arg, const char *image)
{
    const struct api *api = arg;
    const struct config *c = atomic_load(&api->config);
    return !c || config_allows_image(c, image); /* the pool starts a moment before the API */
}

/* They do not change while the server runs. */
static void join_modules(struct daemon *d, const struct config *c)
{
    auto_buf text = BUF_INIT(sizeof d->contexts_warm);
    for (unsigned i = 0; i < c->contexts_warm.count; i++)
        buf_printf(&text, "%s%s", i ? "," : "", c->contexts_warm.items[i]);
    snprintf(d->contexts_warm, sizeof d->contexts_warm, "%s",
             buf_cstr(&text) ? buf_cstr(&text) : "");
}

static struct sessions_config sessions_config_of(const struct daemon *d, const struct config *c)
{
    struct limits limits = {.memory = c->memory_bytes,
                            .pids = c->pids,
                            .cpu_milli = c->cpu_milli,
                            .disk = c->disk_bytes,
                            .files = c->files};

    return (struct sessions_config){.state_dir = d->serve->data_dir,
                                    .providers = &d->providers,
                                    .router = d->api.router,
                                    .store = d->store,
                                    .pump = d->pump,
                                    .audit = d->api.audit,
                                    .egress = d->egress,
                                    .vault = d->api.vault,
                                    .trust = c->egress_ca,
                                    .max_sessions = (unsigned)c->max_sandboxes,
                                    .max_per_tenant = (unsigned)c->max_sandboxes_per_tenant,
                                    .max_snapshots = (unsigned)c->max_snapshots_per_tenant,
                                    .kept_per_sandbox = c->output_kept_bytes,
                                    .kept_per_tenant = c->output_kept_bytes_per_tenant,
                                    .kept_in_all = c->output_kept_bytes_in_all,
                                    .queue_max = (unsigned)c->queue_max,
                                    .queue_timeout_ms = c->queue_timeout_ms,
                                    .pool_min = (unsigned)c->pool_min,
                                    .pool_max = (unsigned)c->pool_max,
                                    .image_pool = (unsigned)c->image_pool,
                                    .image_pool_max = (unsigned)c->image_pool_max,
                                    .image_pool_ttl_ms = c->image_pool_ttl_ms,
                                    .images_always_pulled = c->image_pull == CONFIG_PULL_ALWAYS,
                                    .image_pull =
                                        (enum image_pull)(IMAGE_PULL_NEVER + c->image_pull),
                                    .image_store_max = c->image_store_max,
                                    .image_allowed = image_allowed,
                                    .image_allowed_arg = (void *)&d->api,
                                    .prepare_shells = c->prepared_shell != 0,
                                    .contexts_max = (unsigned)c->contexts_max,
                                    .contexts_warm_pool = (unsigned)c->contexts_warm_pool,
                                    .contexts_warm = d->contexts_warm,
                                    .idle_timeout_ms = c->idle_timeout_ms,
                                    .max_life_ms = c->ceilings.life_ms,
                                    .gone_kept_ms = GONE_KEPT_MS,
                                    .limits = limits,
                                    .disk_roots = c->storage != CONFIG_STORAGE_MEMORY};
}

/* The rules that hold stay when the file has a mistake. True when it has none. */
static bool reload_router(struct daemon *d)
{
    struct route_provider list[PROVIDERS_MAX];
    struct pd_err e;

    int bad = router_reload(d->api.router, list, provider_table_describe(&d->providers, list), &e);
    if (bad < 0)
        log_error("router.reload", "error=%s", e.msg);
    else
        log_info("router.reload", "result=ok");
    return bad == 0;
}

static void reload(struct daemon *d)
{
    struct pd_err e;
    auto_buf report = BUF_INIT(64u << 10);
    struct config *now = d->serve->config;
    struct config_input in = {
        .environ = (const char *const *)environ, .argv = d->serve->argv, .argc = d->serve->argc};

    notify("RELOADING=1\n");

    struct config *next = config_reload(now, &in, &report, &e);
    bool routed = reload_router(d);
    metrics_add(d->api.metrics, METRIC_RELOADS, next && routed ? METRICS_OK : METRICS_FAILED, 0, 1);
    if (!next) {
        log_error("config.reload", "error=%s", e.msg);
        notify("READY=1\n");
        return;
    }

    /* Requests that are being served go on with the old one, so it is kept: a reload is rare and a
     * configuration small. */
    next->older = now;
    atomic_store(&d->api.config, next);
    d->serve->config = next;

    struct sessions_config sessions = sessions_config_of(d, next);
    struct quota_limits limits = quota_limits_of(next);
    struct audit_config audit = audit_config_of(d, next);
    sessions_reconfigure(d->api.sessions, &sessions);
    if (d->egress)
        egress_reload(d->egress, NULL);
    quota_set_limits(d->api.quota, &limits);
    audit_reconfigure(d->api.audit, &audit);
    log_set_level((enum log_level)next->log_level);
    log_set_format((enum log_format)next->log_format);

    const char *lines = buf_cstr(&report);
    log_info("config.reload", "changes=%s", lines && lines[0] ? lines : "none");
    notify("READY=1\n");
}

/* ---- metrics that others keep ---- */

_Static_assert(METRICS_PROVIDERS_MAX == PROVIDERS_MAX, "every provider has a label value");

static void collect(struct metrics *m, void *arg)
{
    struct daemon *d = arg;
    struct sessions_stats s;
    struct server_stats net;

    sessions_get_stats(d->api.sessions, &s);
    server_get_stats(d->server, &net);

    for (unsigned i = 0; i < SESSION_STATE_COUNT; i++)
        for (unsigned p = 0; p <= PROVIDERS_MAX; p++)
            metrics_set(m, METRIC_SESSIONS, i, p, s.by_provider[p][i]);
    for (unsigned i = 1; i < END_COUNT; i++)
        metrics_set(m, METRIC_SESSIONS_ENDED, i, 0, s.ended[i]);
    metrics_set(m, METRIC_BOXES, 0, 0, s.boxes);
    metrics_set(m, METRIC_BOX_MISMATCHES, 0, 0, s.box_mismatches);

    metrics_set(m, METRIC_IMAGE_PULLS, METRICS_OK, 0, s.images_pulled);
    metrics_set(m, METRIC_IMAGE_PULLS, METRICS_FAILED, 0, s.image_pulls_failed);
    metrics_set(m, METRIC_IMAGE_PULL_BYTES, 0, 0, s.image_bytes);

    metrics_set(m, METRIC_SESSIONS_REUSED, 0, 0, s.reused);
    metrics_set(m, METRIC_AUTO_RETRIES, 0, 0, s.auto_retried);
    metrics_set(m, METRIC_POOL_HITS, 0, 0, s.pool_hits);
    metrics_set(m, METRIC_POOL_MISSES, 0, 0, s.pool_misses);
    metrics_set(m, METRIC_POOL_DROPPED, 0, 0, s.pool_dropped);
    metrics_set(m, METRIC_POOL_READY, 0, 0, s.pool_ready);
    metrics_set(m, METRIC_POOL_CODE_READY, 0, 0, s.pool_code_ready);
    metrics_set(m, METRIC_POOL_FILLING, 0, 0, s.pool_filling);
    metrics_set(m, METRIC_QUEUE, 0, 0, s.queued);
    metrics_set(m, METRIC_PROCESSES, 0, 0, s.running);
    metrics_set(m, METRIC_OUTPUT_KEPT, 0, 0, s.output_kept);
    metrics_set(m, METRIC_OUTPUTS_FORGOTTEN, 0, 0, s.outputs_forgotten);
    metrics_set(m, METRIC_QUEUE_REFUSED, 0, 0, s.queue_refused);

    metrics_set(m, METRIC_CONNECTIONS, 0, 0, net.connections);
    metrics_set(m, METRIC_CONNECTIONS_ACCEPTED, 0, 0, net.accepted);
    metrics_set(m, METRIC_CONNECTIONS_REFUSED, 0, 0, net.refused);
    metrics_set(m, METRIC_REQUESTS_ACTIVE, 0, 0, net.active);
    metrics_set(m, METRIC_LOG_DROPPED, 0, 0, log_dropped());
}

/* ---- signals ---- */

/* For whoever pressed the key: what ends with the server, and what does not. */
static void say_what_ends(struct daemon *d, bool interrupted)
{
    struct sessions_stats s;
    sessions_get_stats(d->api.sessions, &s);
    unsigned live = (unsigned)(s.by_state[SESSION_CREATING] + s.by_state[SESSION_RUNNING] +
                               s.by_state[SESSION_PAUSED]);
    const char *word = live == 1 ? "sandbox" : "sandboxes";

    log_info("server.drain", "signal=%s sandboxes=%u", interrupted ? "SIGINT" : "SIGTERM", live);
    if (interrupted)
        printf("Ending %u %s and the keeper. To keep them for the next start, stop the server with "
               "SIGTERM: kill %d\n",
               live, word, (int)getppid());
    else
        printf("Ending the server. %u %s and the keeper go on; the next `paddock serve` has them, "
               "and Ctrl-C there ends them\n",
               live, word);
    fflush(stdout);
}

static void *signal_main(void *arg)
{
    struct daemon *d = arg;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);

    for (;;) {
        int number = 0;
        if (sigwait(&set, &number) != 0)
            continue;
        if (number == SIGHUP) {
            reload(d);
            continue;
        }

        if (atomic_exchange(&d->api.draining, 1))
            continue;
        if (number == SIGINT)
            atomic_store(&d->interrupted, 1);

        notify("STOPPING=1\n");
        say_what_ends(d, number == SIGINT);
        server_stop(d->server, deadline_in(d->serve->config->drain_timeout_ms * NS_PER_MS));
    }
    return NULL;
}

/* ---- the start ---- */

static int show_first_key(struct daemon *d, struct pd_err *e)
{
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];

    if (auth_count(d->api.auth))
        return 0;
    if (auth_create(d->api.auth, "default", "first start", AUTH_OPERATOR, 0, key, id, e) < 0)
        return -1;

    printf("API key, shown only now:  %s\n", key);
    fflush(stdout);
    return 0;
}

static struct store *open_store(const char *dir, struct pd_err *e)
{
    deadline d = deadline_in(SERVE_PATIENCE);

    struct store *s = store_sqlite_open(dir, 1, e);
    while (!s && e->code == PD_CONFLICT && !deadline_passed(d)) {
        usleep(5000);
        s = store_sqlite_open(dir, 1, e);
    }
    return s;
}

/* A creation may wait for an image, which can take minutes. */
static void hurry(void *arg)
{
    const struct api *api = arg;
    sessions_cancel_all(api->sessions, "the server was stopped");
}

/* Connections must leave descriptors for what they ask for. */
static unsigned connections_of(const struct config *c)
{
    uint64_t half = fd_limit() / 2;
    return (unsigned)(c->max_connections < half ? c->max_connections : half);
}

/* Whoever reads the log must not find out later that nothing is isolated. */
static void log_provider(struct provider *p)
{
    enum rung best = p->best(p);

    if (best == RUNG_NONE)
        log_warn("server.provider", "name=%s isolation=%s note=%s", p->name, rung_name(best),
                 "nothing keeps its sandboxes from this machine");
    else
        log_info("server.provider", "name=%s isolation=%s", p->name, rung_name(best));
}

/* As its broker will see it, which knows the same variable. */
static bool docker_is_far(const struct config *c)
{
    const char *given = getenv("DOCKER_HOST"), *host = c->docker_host[0] ? c->docker_host : given;
    return host && host[0] && strncmp(host, "unix://", 7) != 0;
}

static int open_providers(struct daemon *d, struct pd_err *e)
{
    const struct config *c = d->serve->config;
    struct provider_place place = {.keeper_socket = c->keeper_socket,
                                   .run_dir = c->run_dir,
                                   .data_dir = d->serve->data_dir,
                                   .image = c->default_image,
                                   .docker_is_far = docker_is_far(c),
                                   .pump = d->pump,
                                   .events = &session_box_events};
    if (providers_open(&d->providers, c->providers.items, c->providers.count, c->sandbox_mode,
                       &place, e) < 0)
        return -1;

    for (unsigned i = 0; i < d->providers.count; i++) {
        struct provider *p = d->providers.list[i];
        metrics_name_provider(d->api.metrics, i, p->name);
        log_provider(p);
    }
    d->api.providers = &d->providers;
    return 0;
}

/* ---- the gate ---- */

/* By the configuration of the moment: a reload replaces it, and the old one stays. */
static int egress_ceiling(void *arg, const char *tenant, struct buf *out)
{
    const struct daemon *d = arg;
    const struct config *now = atomic_load(&d->api.config), *c = now ? now : d->serve->config;

    config_egress_policy(c, tenant, out);
    if (!c->egress_resolvers.count)
        resolvers_read(out);
    return 0;
}

/* By the words of the gate (gate/flow.c, gate/dns.c); whoever is at an address that is never
 * dialled is told why in many. */
static unsigned why_class(const struct gate_record *r)
{
    if (!strcmp(r->why, "no rule allows it"))
        return METRICS_WHY_RULE;
    if (!strcmp(r->why, "the network is off"))
        return METRICS_WHY_OFF;
    if (!strncmp(r->why, "its first bytes", 15))
        return METRICS_WHY_FIRST_BYTES;
    return r->kind == GATE_DNS ? METRICS_WHY_OTHER : METRICS_WHY_ADDRESS;
}

static void egress_told(void *arg, const char *sandbox, const struct gate_record *r)
{
    struct daemon *d = arg;

    metrics_add(d->api.metrics, METRIC_EGRESS, r->result, 0, 1);
    if (r->result == GATE_REFUSED)
        metrics_add(d->api.metrics, METRIC_EGRESS_REFUSED, why_class(r), 0, 1);
    metrics_add(d->api.metrics, METRIC_EGRESS_BYTES, 0, 0, r->up);
    metrics_add(d->api.metrics, METRIC_EGRESS_BYTES, 1, 0, r->down);
    sessions_note_egress(d->api.sessions, sandbox, r);
}

static int egress_secrets(void *arg, const char *id, const char *tenant, const char *rules,
                          struct buf *out, struct pd_err *e)
{
    const struct daemon *d = arg;
    return secrets_seal(d->api.vault, id, tenant, rules, out, e);
}

static int egress_open_rule(void *arg, const char *tenant, const char *sealed, size_t len,
                            struct buf *out, struct pd_err *e)
{
    const struct daemon *d = arg;
    return vault_open_rule(d->api.vault, tenant, sealed, len, out, e);
}

static int open_vault(struct daemon *d, struct pd_err *e)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/" SEAL_FILE, d->serve->data_dir);
    d->api.vault = vault_new(d->store, file, e);
    return d->api.vault ? 0 : -1;
}

static int open_egress(struct daemon *d, struct pd_err *e)
{
    struct egress_config c = {.socket = d->serve->helpers[HELPER_GATE].socket,
                              .ceiling = egress_ceiling,
                              .secrets = egress_secrets,
                              .open_rule = egress_open_rule,
                              .told = egress_told,
                              .arg = d};
    if (!c.socket[0])
        return 0;
    d->egress = d->api.egress = egress_new(&c, e);
    return d->egress ? 0 : -1;
}

static int open_router(struct daemon *d, struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    char file[4200];
    unsigned count = provider_table_describe(&d->providers, list);

    snprintf(file, sizeof file, "%s/router.json", d->serve->data_dir);
    d->api.router = router_new(file, (const char *const *)environ, list, count, e);
    return d->api.router ? 0 : -1;
}

static int set_up(struct daemon *d, struct pd_err *e)
{
    struct serve *s = d->serve;
    struct config *c = s->config;
    struct api *api = &d->api;

    if (!(d->store = open_store(s->data_dir, e)) ||
        !(api->auth = auth_new(d->store, getenv("PADDOCK_API_KEY"), e)) ||
        !(api->logins = logins_new(d->store, api->auth, e)) ||
        !(api->links = links_new(d->store, e)) || !(api->tickets = tickets_new(api->auth, e)) ||
        !(api->preview = preview_new(d->store, e)) || !(api->access = access_new(d->store, e)))
        return -1;
    if (!(api->watchers = watchers_new(e)))
        return -1;

    api->metrics = metrics_new();
    struct quota_limits limits = quota_limits_of(c);
    api->quota = quota_new(&limits, NULL);
    struct audit_config audit = audit_config_of(d, c);
    api->shares = shares_new();
    api->mcp = mcp_new();
    api->version = PADDOCK_VERSION;
    if (!api->quota || !api->shares || !api->mcp)
        return pd_fail(e, PD_CAPACITY, "no memory");

    if (!(api->audit = audit_new(&audit, e)) || !(d->pump = pump_new(e)) ||
        open_providers(d, e) < 0 || open_router(d, e) < 0 || open_vault(d, e) < 0 ||
        open_egress(d, e) < 0)
        return -1;

    join_modules(d, c);
    struct sessions_config sessions = sessions_config_of(d, c);
    if (!(api->sessions = sessions_new(&sessions, e)) || sessions_adopt(api->sessions, e) < 0 ||
        (d->egress && egress_start(d->egress, e) < 0) || sessions_start(api->sessions, e) < 0)
        return -1;

    struct templates_config templates = {.sessions = api->sessions,
                                         .store = d->store,
                                         .providers = &d->providers,
                                         .state_dir = s->data_dir};
    if (!(api->templates = templates_new(&templates, e)) || templates_adopt(api->templates, e) < 0)
        return -1;

    atomic_store(&api->config, c);
    struct server_config server = {.handle = api_handle,
                                   .hurry = hurry,
                                   .arg = api,
                                   .max_active = (unsigned)c->max_active,
                                   .max_connections = connections_of(c)};
    if (!(d->server = server_new(&server, e)))
        return -1;

    if (api->metrics && metrics_collect(api->metrics, collect, d) < 0)
        return pd_fail(e, PD_INTERNAL, "too many collectors");
    for (unsigned i = 0; i < s->listener_count; i++)
        if (server_listen(d->server, s->listeners[i], s->speaks_tls[i] ? s->tls : NULL, e) < 0)
            return -1;
    return show_first_key(d, e);
}

/* An address as it was told, but with the port that the kernel chose where it was told 0. */
static void put_address(const char *scheme, const char *address, int listener)
{
    struct sockaddr_storage bound = {0};
    socklen_t len = sizeof bound;
    const char *port = strrchr(address, ':');

    if (!port || strcmp(port, ":0") != 0 || getsockname(listener, (void *)&bound, &len) < 0) {
        printf("Listening on %s%s\n", scheme, address);
        return;
    }

    in_port_t chosen = bound.ss_family == AF_INET6
                           ? ((const struct sockaddr_in6 *)(const void *)&bound)->sin6_port
                           : ((const struct sockaddr_in *)(const void *)&bound)->sin_port;
    printf("Listening on %s%.*s:%u\n", scheme, (int)(port - address), address, ntohs(chosen));
}

/* Listeners are in the order of the settings: see serve.c. */
static void announce(const struct serve *s)
{
    if (s->activated) {
        printf("Listening on what the service manager opened\n");
        fflush(stdout);
        return;
    }

    const struct config *c = s->config;
    for (unsigned i = 0; i < c->listen.count; i++) {
        const char *address = c->listen.items[i];
        int is_unix = !strncmp(address, "unix:", 5);
        put_address(is_unix                    ? ""
                    : serve_is_tls(s, address) ? "https://"
                                               : "http://",
                    address, s->listeners[i]);
    }
    for (unsigned i = 0; i < c->listen_tls.count; i++)
        put_address("https://", c->listen_tls.items[i], s->listeners[c->listen.count + i]);

    if (c->unix_socket[0])
        printf("Listening on unix:%s\n", c->unix_socket);
    fflush(stdout);
}

/* How many sandboxes the descriptors suffice for. Server and keeper have as many each. */
static void log_files(const struct config *c)
{
    uint64_t limit = fd_limit(), most = ceilings_sandboxes(limit);

    log_info("server.files", "limit=%ju reserve=%ju sandboxes=%ju", (uintmax_t)limit,
             (uintmax_t)ceilings_files_reserve(limit), (uintmax_t)most);
    if (most < c->max_sandboxes)
        log_warn("server.files", "max_sandboxes=%ju possible=%ju remedy=%s",
                 (uintmax_t)c->max_sandboxes, (uintmax_t)most,
                 "raise LimitNOFILE of the unit, or the hard limit of open files");
}

/* The most that one sandbox may ask for, which may follow from the machine. */
static void log_ceilings(const struct config *c)
{
    const struct ceilings *m = &c->ceilings;

    log_info("server.ceilings",
             "max_memory_bytes=%ju max_pids=%ju max_cpu=%g max_disk_bytes=%ju max_life_s=%g",
             (uintmax_t)m->memory, (uintmax_t)m->pids, (double)m->cpu_milli / 1000,
             (uintmax_t)m->disk, (double)m->life_ms / 1000);
}

int daemon_run(struct serve *s)
{
    static struct daemon d;
    struct pd_err e;

    d.serve = s;
    prctl(PR_SET_NAME, "paddockd", 0, 0, 0);

    (void)fd_limit_raise(s->config->max_open_files); /* as root, if that is who started it */
    slice_shorten();

    int r = serve_drop(s, &e);
    if (r == 0) {
        /* After the change of user, which clears it. */
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != s->guardian) {
            log_error("server.start", "error=%s", "the guardian has ended");
            return 125;
        }
        int filter = self_filter_load();
        if (filter < 0)
            log_warn("server.filter", "errno=%d", -filter);
    }

    if (r == 0)
        r = set_up(&d, &e);
    if (r == 0 && (errno = pthread_create(&d.signals, NULL, signal_main, &d)) != 0)
        r = pd_fail_sys(&e, "start the thread for signals");
    if (r < 0) {
        fprintf(stderr, "paddock: %s\n", e.msg);
        return pd_code_exit(e.code);
    }

    announce(s);
    notify("READY=1\n");
    log_info("server.start", "version=%s uid=%u", PADDOCK_VERSION, (unsigned)geteuid());
    log_ceilings(s->config);
    log_files(s->config);

    if (server_run(d.server, &e) < 0) {
        log_error("server.run", "error=%s", e.msg);
        return 125;
    }

    templates_stop(d.api.templates);
    if (atomic_load(&d.interrupted))
        sessions_end_all(d.api.sessions, "the server was stopped");

    watchers_free(d.api.watchers);
    sessions_stop(d.api.sessions);
    egress_free(d.egress);
    d.store->free(d.store);
    log_info("server.end", "sandboxes=%s", atomic_load(&d.interrupted) ? "ended" : "kept");
    return 0;
}
