/* Latencies of one client on one connection, in turns with the same work done without a server. */
#include "server_bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#define EXEC_TRUE    "{\"argv\":[\"/bin/true\"]}"
#define EXEC_COMMAND "{\"command\":\"true\"}"
#define EXEC_LS      "{\"command\":\"ls /\"}"
#define EXEC_ECHO    "{\"argv\":[\"/bin/echo\",\"x\"]}"
#define CREATE_WARM  "{}"
/* A sandbox of other limits than usual cannot come from the pool. */
#define CREATE_COLD "{\"limits\":{\"memory_bytes\":500000000}}"
#define ACCEPT      "Accept: text/event-stream\r\n"
#define FEW         1u
/* The pool is filled again after each creation; one that comes too early is a miss. */
#define REFILL_USEC 20000u

static const struct {
    const char *name, *what;
    unsigned floor;
} names[V_COUNT] = {
    [V_TRUE] = {"spawn-true", "`posix_spawn` of `/bin/true`", V_TRUE},
    [V_EXEC] = {"exec", "exec of `/bin/true` over HTTP, kept connection", V_TRUE},
    [V_EXEC_NEXT] = {"exec-next", "the same right behind another one", V_TRUE},
    [V_INSIDE] = {"exec-inside", "of exec: what the server reports", V_TRUE},
    [V_GET] = {"get", "a request that runs nothing (`GET /v1/sandboxes/{id}`)", V_TRUE},
    [V_SH] = {"spawn-sh", "`posix_spawn` of `/bin/sh -c true`", V_SH},
    [V_BASH] = {"spawn-bash", "`posix_spawn` of `bash -c true`", V_SH},
    [V_COMMAND] = {"command", "exec of the line `true` over HTTP", V_SH},
    [V_SH_LS] = {"spawn-sh-ls", "`posix_spawn` of `/bin/sh -c 'ls /'`, output read", V_SH_LS},
    [V_LS] = {"command-ls", "exec of the line `ls /` over HTTP", V_SH_LS},
    [V_ECHO] = {"spawn-echo", "`posix_spawn` of `/bin/echo x` until its first byte", V_ECHO},
    [V_WARM] = {"warm", "create from the pool and exec until its first byte", V_ECHO},
    [V_WARM_MAKE] = {"warm-create", "of that: create", V_ECHO},
    [V_COLD] = {"cold", "create without the pool and exec until its first byte", V_ECHO},
    [V_COLD_MAKE] = {"cold-create", "of that: create", V_ECHO},
    [V_DELETE] = {"delete", "delete", V_ECHO},
};

struct context {
    struct server_latency *l;
    struct server_place *s;
    struct http h;
    char id[32];
};

void server_latency_init(struct server_latency *l)
{
    for (unsigned i = 0; i < V_COUNT; i++)
        l->series[i] =
            (struct series){.name = names[i].name, .what = names[i].what, .room = 0, .count = 0};
}

unsigned server_latency_floor(unsigned series)
{
    return names[series].floor;
}

void server_latency_done(struct server_latency *l)
{
    for (unsigned i = 0; i < V_COUNT; i++)
        series_done(&l->series[i]);
}

int sandbox_make(struct http *h, const struct server_place *s, const char *body, char id[32],
                 int *ret_warm, struct pd_err *e)
{
    char warm[8] = "";
    const char *text = http_call(h, s, "POST", "/v1/sandboxes", body, 201, e);
    if (!text)
        return -1;
    if (json_find(text, "id", id, 32) < 0 || strlen(id) != 20)
        return pd_fail(e, PD_PROTOCOL, "create: no id in %.100s", text);
    (void)json_find(text, "from_pool", warm, sizeof warm);
    if (ret_warm)
        *ret_warm = !strcmp(warm, "true");
    return 0;
}

int sandbox_unmake(struct http *h, const struct server_place *s, const char *id, struct pd_err *e)
{
    char path[80];
    snprintf(path, sizeof path, "/v1/sandboxes/%s", id);
    return http_call(h, s, "DELETE", path, NULL, 204, e) ? 0 : -1;
}

int sandbox_exec(struct http *h, const struct server_place *s, const char *id, const char *body,
                 uint64_t *ret_inside, struct pd_err *e)
{
    char path[80], value[32];
    snprintf(path, sizeof path, "/v1/sandboxes/%s/exec", id);
    const char *text = http_call(h, s, "POST", path, body, 200, e);
    if (!text)
        return -1;
    if (json_find(text, "exit_code", value, sizeof value) < 0 || strcmp(value, "0") != 0)
        return pd_fail(e, PD_INTERNAL, "exec: %.200s", text);
    if (ret_inside && json_find(text, "execution_time_ms", value, sizeof value) == 0)
        *ret_inside = (uint64_t)(strtod(value, NULL) * 1e6);
    return 0;
}

/* ---- steps ---- */

static int spawn(struct context *c, unsigned series, const char *const *argv, struct pd_err *e)
{
    int status;
    uint64_t began = clock_now();
    if (place_spawn(&c->s->p, argv, -1, NULL, &status, e) < 0)
        return -1;
    series_add(&c->l->series[series], clock_now() - began);
    return status ? pd_fail(e, PD_INTERNAL, "%s: status %d", argv[0], status) : 0;
}

static int run_true(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/true", NULL};
    return spawn(c, V_TRUE, argv, e);
}

static int run_sh(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/sh", "-c", "true", NULL};
    return spawn(c, V_SH, argv, e);
}

static int run_bash(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/bash", "-c", "true", NULL};
    return spawn(c, V_BASH, argv, e);
}

/* A program whose output is read. The environment has what a sandbox's has: with another LANG the
 * program would do other work. `whole`: the clock runs until it has ended, or only until its first
 * byte. */
static int spawn_and_read(struct context *c, unsigned series, const char *const *argv, int whole,
                          struct pd_err *e)
{
    char *const env[] = {(char *)"PATH=/usr/bin:/bin", (char *)"LANG=C.UTF-8", NULL};
    int pipes[2], status = 0;
    char bytes[4096];
    pid_t pid;

    uint64_t began = clock_now();
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "pipe");
    auto_fd in = pipes[0], out = pipes[1];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    int r = posix_spawn(&pid, argv[0], &actions, NULL, (char *const *)argv, env);
    posix_spawn_file_actions_destroy(&actions);
    fd_done(&out);
    if (r) {
        errno = r;
        return pd_fail_sys(e, "start %s", argv[0]);
    }

    ssize_t first = read(in, bytes, sizeof bytes);
    uint64_t heard = clock_now();
    while (read(in, bytes, sizeof bytes) > 0)
        ;
    waitpid(pid, &status, 0);
    uint64_t ended = clock_now();

    if (first <= 0 || status)
        return pd_fail(e, PD_INTERNAL, "%s: %zd bytes, status %d", argv[0], first, status);
    series_add(&c->l->series[series], (whole ? ended : heard) - began);
    return 0;
}

static int run_echo(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/echo", "x", NULL};
    return spawn_and_read(c, V_ECHO, argv, 0, e);
}

static int run_sh_ls(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/sh", "-c", "ls /", NULL};
    return spawn_and_read(c, V_SH_LS, argv, 1, e);
}

static int run_exec(struct context *c, struct pd_err *e)
{
    uint64_t inside = 0, began = clock_now();
    if (sandbox_exec(&c->h, c->s, c->id, EXEC_TRUE, &inside, e) < 0)
        return -1;
    uint64_t ended = clock_now();
    series_add(&c->l->series[V_EXEC], ended - began);
    series_add(&c->l->series[V_INSIDE], inside);
    if (sandbox_exec(&c->h, c->s, c->id, EXEC_TRUE, NULL, e) < 0)
        return -1;
    series_add(&c->l->series[V_EXEC_NEXT], clock_now() - ended);
    return 0;
}

static int run_get(struct context *c, struct pd_err *e)
{
    char path[80];
    snprintf(path, sizeof path, "/v1/sandboxes/%s", c->id);
    uint64_t began = clock_now();
    if (!http_call(&c->h, c->s, "GET", path, NULL, 200, e))
        return -1;
    series_add(&c->l->series[V_GET], clock_now() - began);
    return 0;
}

static int timed_exec(struct context *c, unsigned series, const char *body, struct pd_err *e)
{
    uint64_t began = clock_now();
    if (sandbox_exec(&c->h, c->s, c->id, body, NULL, e) < 0)
        return -1;
    series_add(&c->l->series[series], clock_now() - began);
    return 0;
}

static int run_command(struct context *c, struct pd_err *e)
{
    return timed_exec(c, V_COMMAND, EXEC_COMMAND, e);
}

static int run_ls(struct context *c, struct pd_err *e)
{
    return timed_exec(c, V_LS, EXEC_LS, e);
}

/* Reads events until the first with output; then, after the clock is read, the rest. */
static int first_byte(struct http *h, uint64_t *ret_when, struct pd_err *e)
{
    char text[8192] = "";
    size_t len = 0;
    const uint8_t *piece;
    ssize_t n;

    *ret_when = 0;
    while ((n = http_piece(h, &piece, e)) > 0) {
        size_t room = sizeof text - 1 - len, take = (size_t)n < room ? (size_t)n : room;
        memcpy(text + len, piece, take);
        text[len += take] = 0;
        if (!*ret_when && strstr(text, "\"text\":\"x"))
            *ret_when = clock_now();
    }

    if (n < 0)
        return -1;
    if (!*ret_when || !strstr(text, "\"exit_code\":0"))
        return pd_fail(e, PD_PROTOCOL, "exec as events: %.200s", text);
    return 0;
}

static int birth(struct context *c, const char *body, int warm, struct pd_err *e)
{
    char id[32], path[80];
    int from_pool = 0;
    uint64_t began = clock_now(), heard;
    if (sandbox_make(&c->h, c->s, body, id, &from_pool, e) < 0)
        return -1;

    uint64_t made = clock_now();
    snprintf(path, sizeof path, "/v1/sandboxes/%s/exec", id);
    if (http_send(&c->h, c->s, "POST", path, ACCEPT, EXEC_ECHO, e) < 0 ||
        http_answer(&c->h, e) < 0 || first_byte(&c->h, &heard, e) < 0)
        return -1;

    if (warm && !from_pool) {
        c->l->pool_misses++;
    } else {
        series_add(&c->l->series[warm ? V_WARM : V_COLD], heard - began);
        series_add(&c->l->series[warm ? V_WARM_MAKE : V_COLD_MAKE], made - began);
    }

    uint64_t before = clock_now();
    if (sandbox_unmake(&c->h, c->s, id, e) < 0)
        return -1;
    series_add(&c->l->series[V_DELETE], clock_now() - before);
    place_pause(REFILL_USEC);
    return 0;
}

static int run_warm(struct context *c, struct pd_err *e)
{
    return birth(c, CREATE_WARM, 1, e);
}

static int run_cold(struct context *c, struct pd_err *e)
{
    return birth(c, CREATE_COLD, 0, e);
}

static int (*const steps[])(struct context *c, struct pd_err *e) = {
    run_true, run_exec,  run_sh, run_command, run_bash, run_get,
    run_echo, run_sh_ls, run_ls, run_warm,    run_cold,
};
#define STEPS (sizeof steps / sizeof *steps)

void server_latency_measure(struct server_latency *l, struct server_place *s, unsigned rounds,
                            unsigned pause_usec, unsigned patience_ms)
{
    struct context c = {.l = l, .s = s, .h = HTTP_EMPTY};
    struct pd_err e;
    if (http_open(&c.h, s, &e) < 0 || sandbox_make(&c.h, s, CREATE_WARM, c.id, NULL, &e) < 0) {
        place_error(&s->p, "a sandbox for exec", &e);
        http_done(&c.h);
        return;
    }

    for (unsigned round = 0; round < rounds + 3; round++) {
        if (round == 3) /* the first are for caches */
            for (unsigned i = 0; i < V_COUNT; i++)
                l->series[i].count = 0;

        for (size_t i = 0; i < STEPS; i++) {
            place_calm(&s->p, pause_usec, patience_ms);
            if (steps[(round + i) % STEPS](&c, &e) == 0)
                continue;
            place_error(&s->p, "latency", &e);
            http_done(&c.h); /* what is still to come on it belongs to nobody */
            if (http_open(&c.h, s, &e) < 0 || s->p.errors > 20) {
                http_done(&c.h);
                return;
            }
        }
    }

    if (sandbox_unmake(&c.h, s, c.id, &e) < 0)
        place_error(&s->p, "delete the sandbox for exec", &e);
    http_done(&c.h);
}

/* ---- many sandboxes ---- */

static int level_measure(struct level *v, struct server_place *s, struct http *h, const char *id,
                         unsigned rounds, unsigned pause_usec, unsigned patience_ms,
                         struct pd_err *e)
{
    static const char *const argv[] = {"/bin/true", NULL};
    for (unsigned i = 0; i < rounds; i++) {
        int status;
        place_calm(&s->p, pause_usec, patience_ms);
        uint64_t began = clock_now();
        if (sandbox_exec(h, s, id, EXEC_TRUE, NULL, e) < 0)
            return -1;
        series_add(&v->exec, clock_now() - began);
        place_calm(&s->p, pause_usec, patience_ms);
        began = clock_now();
        if (place_spawn(&s->p, argv, -1, NULL, &status, e) < 0)
            return -1;
        series_add(&v->floor, clock_now() - began);
    }

    return 0;
}

static int64_t available(void)
{
    char text[8192];
    const char *at = NULL;
    if (fd_read_file(AT_FDCWD, "/proc/meminfo", text, sizeof text) > 0)
        at = strstr(text, "MemAvailable:");
    return at ? strtoll(at + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

static int crowd(struct crowding *c, struct server_place *s, struct http *h, char (*ids)[32],
                 unsigned rounds, unsigned pause_usec, unsigned patience_ms, struct pd_err *e)
{
    struct usage u;
    if (sandbox_make(h, s, CREATE_WARM, ids[0], NULL, e) < 0)
        return -1;
    c->few = FEW;
    place_pause(500000); /* for the pool */
    if (level_measure(&c->at_few, s, h, ids[0], rounds, pause_usec, patience_ms, e) < 0 ||
        server_usage(s, &u, e) < 0)
        return -1;
    c->rss_few = u.rss;

    int64_t before = available();
    uint64_t began = clock_now();
    for (c->many = FEW; c->many < c->asked; c->many++)
        if (sandbox_make(h, s, CREATE_WARM, ids[c->many], NULL, e) < 0)
            break;
    c->creation_ns = clock_now() - began;
    if (c->many < c->asked && c->many < 10)
        return -1;
    if (c->many < c->asked)
        place_error(&s->p, "sandbox", e);
    place_pause(1000000);
    c->per_sandbox = (before - available()) / (int64_t)(c->many - FEW);
    if (server_usage(s, &u, e) < 0 ||
        level_measure(&c->at_many, s, h, ids[0], rounds, pause_usec, patience_ms, e) < 0)
        return -1;
    c->rss_many = u.rss;
    began = clock_now();
    for (unsigned i = FEW; i < c->many; i++)
        if (sandbox_unmake(h, s, ids[i], e) < 0)
            return -1;
    c->deletion_ns = clock_now() - began;
    place_pause(3000000); /* the rest of them goes in the background */
    return level_measure(&c->at_few_again, s, h, ids[0], rounds, pause_usec, patience_ms, e);
}

void crowding_measure(struct crowding *c, struct server_place *s, const char *storage,
                      unsigned many, unsigned rounds, unsigned pause_usec, unsigned patience_ms)
{
    struct http h = HTTP_EMPTY;
    struct pd_err e;
    char(*ids)[32] = calloc(many + 1, sizeof *ids);
    snprintf(c->storage, sizeof c->storage, "%s", storage);
    c->asked = many;
    if (!ids)
        return;
    if (server_start(s, storage, many + 50, &e) < 0 || http_open(&h, s, &e) < 0 ||
        crowd(c, s, &h, ids, rounds, pause_usec, patience_ms, &e) < 0)
        place_error(&s->p, "idle sandboxes", &e);
    http_done(&h);
    free(ids);

    if (server_stop(s, &e) < 0)
        place_error(&s->p, "end the server", &e);
}

static void level_done(struct level *v)
{
    series_done(&v->exec);
    series_done(&v->floor);
}

void crowding_done(struct crowding *c)
{
    level_done(&c->at_few);
    level_done(&c->at_many);
    level_done(&c->at_few_again);
}
