/* server_bench: what the server costs, beside the same work done without one.
 *
 * The rules are those of bench.h: everything in turns, ratios of one run, a slow result is a result
 * and no failure. A wrong answer, a byte too few or a process that is left is a failure. */
#pragma once

#include "bench.h"

#include "base/buf.h"

#include <stdbool.h>

/* ---- server_place.c: a server of our own, and a client ---- */

struct server_place {
    struct place p;
    pid_t program; /* `paddock serve` */
    pid_t daemon;  /* the process that answers; the same one when nothing guards it */
    unsigned port;
    char key[48];
    char storage[16];
    bool has_docker; /* the next one makes sandboxes in the engine of `p`, too */
};

/* Starts `paddock serve` with room for `sandboxes` and waits until it is ready. */
int server_start(struct server_place *s, const char *storage, unsigned sandboxes, struct pd_err *e);
/* Ends it with its sandboxes; -1 when a process of it is left. */
int server_stop(struct server_place *s, struct pd_err *e);

struct usage {
    uint64_t rss, peak; /* bytes */
    uint64_t cpu_ns;
};
/* Of the daemon. The peak is that since the last usage_reset_peak. */
int server_usage(const struct server_place *s, struct usage *ret, struct pd_err *e);
void server_reset_peak(const struct server_place *s);

/* A connection. What comes in is in `in`; a body is read piece by piece with http_piece. */
struct http {
    int fd;
    struct buf in;
    size_t at;      /* of `in`: what is before has been read */
    uint64_t left;  /* of the body or of the chunk */
    int chunked;    /* 1 before a chunk, 2 in one */
    int status;     /* of the last answer */
    int no_wait;    /* what has not come in is PD_TIMEOUT */
    char path[160]; /* of the last request, for errors */
};
#define HTTP_EMPTY ((struct http){.fd = -1})

int http_open(struct http *h, const struct server_place *s, struct pd_err *e);
void http_done(struct http *h);
/* `body` may be NULL; `more` is header lines, each with its end, or "". */
int http_send(struct http *h, const struct server_place *s, const char *method, const char *path,
              const char *more, const char *body, struct pd_err *e);
/* Reads the head of an answer. */
int http_answer(struct http *h, struct pd_err *e);
/* The next bytes of the body: how many, 0 at its end, -1. They are valid until the next call. */
ssize_t http_piece(struct http *h, const uint8_t **ret, struct pd_err *e);
/* The rest of the body as a text, or NULL: it is in h->in and at most 1 MiB. */
const char *http_text(struct http *h, struct pd_err *e);
/* All of it; -1 as well when the status is another one. */
const char *http_call(struct http *h, const struct server_place *s, const char *method,
                      const char *path, const char *body, int status, struct pd_err *e);
/* The value of a field of an answer, as text; -1 when it has none. */
int json_find(const char *text, const char *key, char *out, size_t size);

/* ---- server_latency.c ---- */

/* A sandbox, and a command in it that has to end with 0. `ret_warm` (may be NULL): it came from the
 * pool; `ret_inside` (may be NULL): what the server says the command took. */
int sandbox_make(struct http *h, const struct server_place *s, const char *body, char id[32],
                 int *ret_warm, struct pd_err *e);
int sandbox_exec(struct http *h, const struct server_place *s, const char *id, const char *body,
                 uint64_t *ret_inside, struct pd_err *e);
int sandbox_unmake(struct http *h, const struct server_place *s, const char *id, struct pd_err *e);

enum {
    V_TRUE,      /* posix_spawn of /bin/true */
    V_EXEC,      /* over HTTP */
    V_EXEC_NEXT, /* the same, right behind another one */
    V_INSIDE,    /* of V_EXEC: what the server says it took */
    V_GET,       /* a request that does nothing */
    V_SH,        /* posix_spawn of /bin/sh -c true */
    V_BASH,      /* and of bash */
    V_COMMAND,   /* a line for the session's shell */
    V_SH_LS,     /* posix_spawn of /bin/sh -c 'ls /', its output read */
    V_LS,        /* the same as a line for the session's shell */
    V_ECHO,      /* posix_spawn of /bin/echo until its first byte */
    V_WARM,      /* create from the pool until the first byte of an exec */
    V_WARM_MAKE, /* of that: create */
    V_COLD,      /* create with limits of its own until the same */
    V_COLD_MAKE,
    V_DELETE,
    V_COUNT
};

struct server_latency {
    struct series series[V_COUNT];
    unsigned pool_misses;
};

void server_latency_init(struct server_latency *l);
/* The series that this one is a multiple of. */
unsigned server_latency_floor(unsigned series);
void server_latency_measure(struct server_latency *l, struct server_place *s, unsigned rounds,
                            unsigned pause_usec, unsigned patience_ms);
void server_latency_done(struct server_latency *l);

/* Commands while so many sandboxes are idle, in turns with the floor. */
struct level {
    struct series exec, floor;
};

struct crowding {
    char storage[16];
    unsigned few, many, asked;
    struct level at_few, at_many, at_few_again;
    uint64_t creation_ns, deletion_ns; /* of all */
    uint64_t rss_few, rss_many;
    int64_t per_sandbox; /* bytes of MemAvailable */
};

/* With a server of its own, of that storage. */
void crowding_measure(struct crowding *c, struct server_place *s, const char *storage,
                      unsigned many, unsigned rounds, unsigned pause_usec, unsigned patience_ms);
void crowding_done(struct crowding *c);

/* ---- server_docker.c ---- */

enum {
    D_JAIL_ARGV,
    D_ARGV,
    D_JAIL_LINE,
    D_LINE,
    D_ENGINE, /* `docker exec` */
    D_COUNT
};

struct docker_latency {
    struct series series[D_COUNT];
    char skipped[200]; /* why there are none */
};

void docker_latency_init(struct docker_latency *l);
/* The series that this one is a multiple of: the jail's. */
unsigned docker_latency_floor(unsigned series);
/* With a server of its own. */
void docker_latency_measure(struct docker_latency *l, struct server_place *s, const char *storage,
                            unsigned rounds, unsigned pause_usec, unsigned patience_ms);
void docker_latency_done(struct docker_latency *l);

/* ---- server_load.c ---- */

struct streams {
    unsigned count;
    uint64_t bytes, wanted; /* of all together */
    uint64_t ns;            /* from the first request to the last end */
    uint64_t ideal_ns;      /* what one producer takes alone */
    uint64_t pieces;
    struct usage before, during, after;
};
void streams_measure(struct streams *r, struct server_place *s, unsigned count);

struct output {
    uint64_t bytes, wanted, ns, per_second;
    struct usage before, during, after;
};
void output_measure(struct output *r, struct server_place *s, uint64_t bytes, uint64_t per_second);

struct files {
    uint64_t bytes;
    unsigned rounds;
    struct series cat, upload, download;
    struct usage before, after;
};
void files_measure(struct files *r, struct server_place *s, uint64_t bytes, unsigned rounds);
void files_done(struct files *r);

struct connections {
    unsigned count, asked;
    uint64_t ns;
    unsigned answered_again;
    struct usage before, during, after;
};
void connections_measure(struct connections *r, struct server_place *s, unsigned count);
