/* Files for E2B's clients, by Connect: what a path is, directories, moving and removing. Contents
 * are e2b_files.c, changes e2b_watch.c. */
#include "api/connect.h"
#include "api/e2b.h"
#include "api/e2b_entry.h"
#include "api/e2b_handlers.h"

#include "base/banned.h"
#include "base/json.h"

#define LIST_MAX      50000u
#define LIST_JSON_MAX (16u << 20)
#define DEPTH_MAX     1000000u
#define ENTRY_MAX     (512u << 10) /* as text: every byte of a name may take six */

/* A request of this service: its JSON body, and the user it is for. */
struct fs_request {
    struct buf text;
    struct fields f;
    char user[FILE_USER_SIZE];
};
#define FS_REQUEST_INIT ((struct fs_request){.text = BUF_INIT(API_BODY_MAX)})

static void fs_request_done(struct fs_request *q)
{
    fields_done(&q->f);
    buf_done(&q->text);
}
#define auto_fs_request __attribute__((cleanup(fs_request_done))) struct fs_request

static int fs_request_read(struct call *c, struct fs_request *q, struct pd_err *e)
{
    return e2b_user(c, q->user, e) < 0 || connect_read(c, &q->text, &q->f, e) < 0 ? -1 : 0;
}

/* A path that is not there is "": the home. */
static int read_path(struct fs_request *q, const char *name, char out[FILE_PATH_SIZE],
                     struct pd_err *e)
{
    const char *path = "";
    fields_str(&q->f, name, FIELD_OPTIONAL, 0, FILE_PATH_MAX, &path);
    return fields_finish(&q->f, e) < 0 ? -1 : e2b_path(q->user, path, out, e);
}

/* Runs an operation that answers with one DETAIL, and answers with it. */
static int answer_entry(struct call *c, const char *user, const char *const *words,
                        struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    auto_buf text = BUF_INIT(ENTRY_MAX);
    struct json j = JSON_INIT(&text);
    struct record r;

    if (worker_begin(&w, c, user, WORKER_REACH, words, e) < 0)
        return -1;

    w.must_finish = true;
    if (worker_expect(&w, RECORD_DETAIL, &r, e) < 0)
        return -1;
    w.ended = 1;

    json_open(&j, '{');
    json_key(&j, "entry");
    e2b_entry_json(&j, &r.detail);
    json_close(&j, '}');
    return connect_answer(c, &text);
}

int rpc_fs_stat(struct call *c, struct pd_err *e)
{
    auto_fs_request q = FS_REQUEST_INIT;
    char path[FILE_PATH_SIZE];

    if (fs_request_read(c, &q, e) < 0 || read_path(&q, "path", path, e) < 0)
        return -1;

    const char *const words[] = {"stat", path, "1", NULL};
    return answer_entry(c, q.user, words, e);
}

int rpc_fs_make_dir(struct call *c, struct pd_err *e)
{
    auto_fs_request q = FS_REQUEST_INIT;
    char path[FILE_PATH_SIZE];

    if (fs_request_read(c, &q, e) < 0 || read_path(&q, "path", path, e) < 0)
        return -1;

    file_note(c, "", path);
    const char *const words[] = {"mkdir", path, "2", "0755", "1", NULL};
    return answer_entry(c, q.user, words, e);
}

int rpc_fs_move(struct call *c, struct pd_err *e)
{
    auto_fs_request q = FS_REQUEST_INIT;
    char from[FILE_PATH_SIZE], to[FILE_PATH_SIZE];

    if (fs_request_read(c, &q, e) < 0 || read_path(&q, "source", from, e) < 0 ||
        read_path(&q, "destination", to, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%.140s -> %.140s", from, to);
    const char *const words[] = {"move", from, to, "2", "1", NULL};
    return answer_entry(c, q.user, words, e);
}

int rpc_fs_remove(struct call *c, struct pd_err *e)
{
    auto_fs_request q = FS_REQUEST_INIT;
    char path[FILE_PATH_SIZE];
    struct record r;

    if (fs_request_read(c, &q, e) < 0 || read_path(&q, "path", path, e) < 0)
        return -1;

    file_note(c, "", path);
    const char *const words[] = {"remove", path, "1", NULL};
    auto_worker w = WORKER_INIT;
    struct pd_err why;
    if (worker_begin(&w, c, q.user, WORKER_REACH, words, e) < 0)
        return -1;

    w.quiet_ns = WORKER_WHOLE_NS;
    if (worker_expect(&w, RECORD_END, &r, &why) < 0) {
        /* A path that is not there counts as removed. */
        if (why.code == PD_NOT_FOUND)
            return connect_answer(c, NULL);
        *e = why;
        return -1;
    }

    w.ended = 1;
    return connect_answer(c, NULL);
}

/* Every entry, or an error: the protocol has no second page. */
static int take_entries(struct worker_run *w, struct buf *text, const char *path, struct pd_err *e)
{
    struct json j = JSON_INIT(text);
    struct record r;
    unsigned told = 0;
    int got;

    json_open(&j, '{');
    json_key(&j, "entries");
    json_open(&j, '[');

    while ((got = worker_next(w, &r, e)) != 0) {
        if (got < 0)
            return -1;
        if (r.kind != RECORD_MORE && (r.kind != RECORD_DETAIL || ++told > LIST_MAX))
            return pd_fail(e, PD_PROTOCOL, "a worker lists what nobody asked for");

        if (r.kind == RECORD_DETAIL)
            e2b_entry_json(&j, &r.detail);
        if (r.kind == RECORD_MORE || text->overflow)
            return pd_fail(e, PD_TOO_LARGE,
                           "'%.100s' has more entries than one answer may hold (%u, or %u MiB); "
                           "list its directories one by one, or with a smaller depth",
                           path, LIST_MAX, LIST_JSON_MAX >> 20);
    }

    json_close(&j, ']');
    json_close(&j, '}');
    return 0;
}

int rpc_fs_list_dir(struct call *c, struct pd_err *e)
{
    auto_fs_request q = FS_REQUEST_INIT;
    char path[FILE_PATH_SIZE], deep[24], many[24];
    uint64_t depth = 0;

    if (fs_request_read(c, &q, e) < 0)
        return -1;

    fields_u64(&q.f, "depth", FIELD_OPTIONAL, 0, UINT32_MAX, &depth);
    if (read_path(&q, "path", path, e) < 0)
        return -1;

    if (!depth)
        depth = 1;
    snprintf(deep, sizeof deep, "%llu",
             (unsigned long long)(depth < DEPTH_MAX ? depth : DEPTH_MAX));
    snprintf(many, sizeof many, "%u", LIST_MAX);

    const char *const words[] = {"list", path, deep, many, "", "1", NULL};
    auto_worker w = WORKER_INIT;
    auto_buf text = BUF_INIT(LIST_JSON_MAX);
    if (worker_begin(&w, c, q.user, WORKER_REACH, words, e) < 0 ||
        take_entries(&w, &text, path, e) < 0)
        return -1;

    return connect_answer(c, &text);
}
