/* Trees as tar archives. They are made and unpacked inside the sandbox: here pass only bytes. */
#include "api/handlers.h"
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"

#include <sys/ioctl.h>

/* Sends what the worker writes until it ends. Whether that is the whole archive is told by how it
 * ended; if not, the answer is broken off, so that the client knows, too. */
static int send_archive(struct worker_run *w, struct call *c, struct pd_err *e)
{
    worker_widen(w->call.out);

    for (;;) {
        int r = worker_wait(w, deadline_in(WORKER_QUIET_NS), e), ready = 0;
        if (r <= 0)
            return r < 0 ? -1 : pd_fail(e, PD_TIMEOUT, "the archive stopped coming");

        if (ioctl(w->call.out, FIONREAD, &ready) < 0)
            return pd_fail_sys(e, "look into a pipe");
        if (ready <= 0)
            return worker_exit(w, e);
        if (reply_write_pipe(c->r, w->call.out, (uint64_t)ready, e) < 0)
            return -1;
    }
}

int archive_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    struct record r;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, ".", path, e) < 0 ||
        file_query_user(c, user, e) < 0)
        return -1;

    const char *const words[] = {"tar", path, NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, user, 0, words, e) < 0 || worker_expect(&w, RECORD_ENTRY, &r, e) < 0)
        return -1;

    if (reply_begin(c->r, 200, "application/x-tar", REPLY_CHUNKED, e) < 0)
        return -1;
    if (c->r->head.method != HTTP_HEAD && send_archive(&w, c, e) < 0)
        return -1;
    return reply_end(c->r, e);
}

int archive_put(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    struct record r;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, ".", path, e) < 0 ||
        file_query_user(c, user, e) < 0)
        return -1;

    const char *const words[] = {"untar", path, NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, user, WORKER_INPUT, words, e) < 0)
        return -1;

    w.must_finish = true;
    worker_widen(w.call.in);
    if (worker_feed(&w, e) < 0 || worker_expect(&w, RECORD_TAR_DONE, &r, e) < 0)
        return -1;
    w.ended = 1;

    auto_buf text = BUF_INIT(4096);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_key(&j, "entries");
    json_uint(&j, r.tar_done.entries);
    json_close(&j, '}');
    return call_json(c, 200, &text);
}
