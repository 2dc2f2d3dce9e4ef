/* How an archive of files from outside gets into the sandbox of a build: it is read here, and taken
 * out of gzip if its first two bytes say so; init unpacks it. */
#include "build/unpack.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "build/templates_in.h"
#include "core/worker_run.h"
#include "net/gunzip.h"

#include <errno.h>
#include <unistd.h>

#define CHUNK 65536u

struct unpacking {
    struct job *job;
    struct worker_run *worker;
    struct gunzip *gunzip; /* or NULL */
};

static int give_plain(struct unpacking *u, const void *data, size_t len, struct pd_err *e)
{
    if (atomic_load(&u->job->cancelled))
        return pd_fail(e, PD_LOST, "the build was cancelled");
    return worker_write(u->worker, data, len, e);
}

static int give(struct unpacking *u, const uint8_t *data, size_t len, struct pd_err *e)
{
    uint8_t out[CHUNK];

    if (!u->gunzip)
        return give_plain(u, data, len, e);
    for (;;) {
        size_t used, got;
        if (gunzip_next(u->gunzip, data, len, out, sizeof out, &used, &got, e) < 0)
            return -1;
        if (got && give_plain(u, out, got, e) < 0)
            return -1;
        data += used;
        len -= used;
        if (!used && !got)
            return 0;
    }
}

static int feed(struct unpacking *u, int file, struct pd_err *e)
{
    uint8_t bytes[CHUNK];
    ssize_t n;

    while ((n = read(file, bytes, sizeof bytes)) > 0)
        if (give(u, bytes, (size_t)n, e) < 0)
            return -1;
    if (n < 0)
        return pd_fail_sys(e, "read the files of a build");
    return u->gunzip ? gunzip_finish(u->gunzip, e) : 0;
}

int unpack_file(struct job *j, int file, const char *to, struct pd_err *e)
{
    const char *const words[] = {"untar", to, NULL};
    bool root = j->plan->profile == PROFILE_DEV;
    uint8_t magic[2] = {0};
    auto_gunzip gunzip = NULL;
    auto_worker w = WORKER_INIT;
    struct record done;

    if (pread(file, magic, sizeof magic, 0) < 0)
        return pd_fail_sys(e, "read the files of a build");
    if (magic[0] == 0x1f && magic[1] == 0x8b &&
        !(gunzip = gunzip_new(GUNZIP_FREE_BYTES, GUNZIP_RATIO, e)))
        return -1;
    if (worker_run_begin(&w, j->session, j->wake, root ? "root" : "user", WORKER_INPUT, words, e) <
        0)
        return -1;

    struct unpacking u = {.job = j, .worker = &w, .gunzip = gunzip};
    worker_widen(w.call.in);
    struct pd_err why;
    if (feed(&u, file, &why) < 0) {
        *e = why;
        return -1; /* the worker is killed before its input ends */
    }
    fd_done(&w.call.in);
    if (worker_expect(&w, RECORD_TAR_DONE, &done, e) < 0)
        return -1;
    w.ended = true;
    return 0;
}
