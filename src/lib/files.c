/* Files of a sandbox. Each call is one operation of a worker inside it; only bytes and records pass
 * here. A write changes the file when all of it has come and was committed, or not at all. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/fd.h"
#include "core/worker_run.h"

#define WIDE_FROM (64u << 10) /* what fits a pipe as it is made */
#define READ_MAX  (1ull << 30)
#define LIST_PAGE "5000"

static int check_path(const char *path, const char *what, struct paddock_error *e)
{
    if (!path || !*path)
        return lib_refuse(e, PD_INVALID, "%s is empty: name a file, such as /workspace/a.txt",
                          what);
    if (strlen(path) > FILE_PATH_MAX)
        return lib_refuse(e, PD_INVALID, "%s is longer than %d bytes", what, FILE_PATH_MAX);
    return 0;
}

static int tell_entry(const struct record_entry *r, paddock_entry_fn each, void *arg)
{
    struct paddock_entry entry = {.size_of_struct = sizeof entry,
                                  .path = r->path,
                                  .target = r->target,
                                  .mode = r->mode & 07777,
                                  .uid = r->uid,
                                  .gid = r->gid,
                                  .size = r->size,
                                  .mtime_ns = r->mtime_ns};

    snprintf(entry.type, sizeof entry.type, "%s", entry_type_name(r->type));
    return each ? each(arg, &entry) : 0;
}

/* An operation that answers with one ENTRY. `cancel`: it may take long, and be given up. */
static int one_entry(struct paddock_sandbox *s, const char *user, const char *const *words,
                     int takes_long, struct paddock_cancel *cancel, paddock_entry_fn each,
                     void *arg, struct paddock_error *e)
{
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;

    if (takes_long)
        w.quiet_ns = WORKER_WHOLE_NS;
    if (worker_run_begin(&w, s->session, lib_cancel_fd(cancel), user, 0, words, &why) < 0 ||
        worker_expect(&w, RECORD_ENTRY, &r, &why) < 0)
        return lib_fail_or_cancelled(e, &why, cancel);

    w.ended = 1;
    (void)tell_entry(&r.entry, each, arg);
    return 0;
}

/* ---- reading ---- */

static int read_bytes(struct worker_run *w, char *out, size_t len, struct pd_err *e)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = worker_read(w, out + at, len - at, e);
        if (n < 0)
            return -1;
        if (n == 0)
            return pd_fail(e, PD_LOST, "the sandbox broke its answer off");
        at += (size_t)n;
    }
    return 0;
}

int paddock_file_read(struct paddock_sandbox *s, const char *path, const char *user,
                      uint64_t offset, uint64_t length, struct paddock_cancel *cancel, void **ret,
                      size_t *ret_len, uint64_t *ret_size, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE], from[24], count[24];
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0 || check_path(path, "path", e) < 0)
        return -1;

    if (offset > INT64_MAX)
        offset = INT64_MAX;
    file_path(full, path);
    snprintf(from, sizeof from, "%llu", (unsigned long long)offset);
    snprintf(count, sizeof count, "%llu",
             (unsigned long long)(length > INT64_MAX ? INT64_MAX : length));

    const char *const words[] = {"read", full, from, count, NULL};
    if (worker_run_begin(&w, s->session, lib_cancel_fd(cancel), user, 0, words, &why) < 0 ||
        worker_expect(&w, RECORD_ENTRY, &r, &why) < 0)
        return lib_fail_or_cancelled(e, &why, cancel);

    uint64_t size = r.entry.size;
    uint64_t left = offset >= size ? 0 : size - offset < length ? size - offset : length;
    if (left > READ_MAX)
        return lib_refuse(e, PD_TOO_LARGE, "'%.100s' has %llu bytes: read it in pieces", path,
                          (unsigned long long)size);
    if (left > WIDE_FROM)
        worker_widen(w.call.out);

    char *out = malloc((size_t)left + 1);
    if (!out)
        return lib_refuse(e, PD_CAPACITY, "no memory for %llu bytes", (unsigned long long)left);

    if (read_bytes(&w, out, (size_t)left, &why) < 0) {
        free(out);
        return lib_fail_or_cancelled(e, &why, cancel);
    }

    w.ended = 1; /* with the last byte, or it will notice that nobody listens */
    out[left] = 0;
    *ret = out;
    *ret_len = (size_t)left;
    if (ret_size)
        *ret_size = size;
    return 0;
}

/* ---- writing ---- */

struct paddock_writer {
    struct paddock *lib;
    struct worker_run run;
};

static int begin_write(struct worker_run *w, struct paddock_sandbox *s, const char *path,
                       const struct paddock_write_options *options, uint64_t len, int len_known,
                       struct paddock_error *e)
{
    struct paddock_write_options o;
    char full[FILE_PATH_SIZE], mode[8] = "-", length[24] = "-";
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0 || check_path(path, "path", e) < 0 ||
        lib_take(&o, sizeof o, options, "paddock_write_options", e) < 0)
        return -1;

    if (o.mode < 0 || o.mode > 0777)
        return lib_refuse(e, PD_INVALID, "mode %o has more than the bits 0777", (unsigned)o.mode);

    file_path(full, path);
    if (o.mode)
        snprintf(mode, sizeof mode, "%04o", (unsigned)o.mode & 0777);
    if (len_known)
        snprintf(length, sizeof length, "%llu", (unsigned long long)len);

    const char *const words[] = {"write", full, mode, o.mkdirs ? "1" : "0", length, NULL};
    if (worker_run_begin(w, s->session, -1, o.user, WORKER_INPUT | WORKER_COMMIT, words, &why) < 0)
        return lib_fail(e, &why);

    w->must_finish = 1;
    if (!len_known || len > WIDE_FROM)
        worker_widen(w->call.in);
    return 0;
}

static int put(struct worker_run *w, const void *data, size_t len, struct paddock_error *e)
{
    struct pipe_guard guard;
    struct pd_err why;

    pipe_guard_begin(&guard);
    int r = worker_write(w, data, len, &why);
    pipe_guard_end(&guard);
    return r < 0 ? lib_fail(e, &why) : 0;
}

/* All of it is there: now the file may change. If the worker has ended, it has said why. */
static int commit(struct worker_run *w, paddock_entry_fn each, void *arg, struct paddock_error *e)
{
    struct record r;
    struct pd_err why;
    struct pipe_guard guard;

    fd_done(&w->call.in);
    pipe_guard_begin(&guard);
    worker_commit(w);
    pipe_guard_end(&guard);

    if (worker_expect(w, RECORD_ENTRY, &r, &why) < 0)
        return lib_fail(e, &why);
    (void)tell_entry(&r.entry, each, arg); /* its strings are gone with the next record */
    if (worker_expect(w, RECORD_REPLACED, &r, &why) < 0)
        return lib_fail(e, &why);
    w->ended = 1;
    return 0;
}

int paddock_file_write(struct paddock_sandbox *s, const char *path, const void *data, size_t len,
                       const struct paddock_write_options *o, paddock_entry_fn each, void *arg,
                       struct paddock_error *e)
{
    auto_worker w = WORKER_INIT;
    if (begin_write(&w, s, path, o, len, 1, e) < 0 || put(&w, data, len, e) < 0)
        return -1;
    return commit(&w, each, arg, e);
}

struct paddock_writer *paddock_writer_open(struct paddock_sandbox *s, const char *path,
                                           const struct paddock_write_options *o,
                                           struct paddock_error *e)
{
    struct paddock_writer *w = malloc(sizeof *w);
    if (!w) {
        lib_refuse(e, PD_CAPACITY, "no memory for a writer");
        return NULL;
    }

    w->run = WORKER_INIT;
    if (begin_write(&w->run, s, path, o, 0, 0, e) < 0) {
        worker_done(&w->run);
        free(w);
        return NULL;
    }

    w->lib = lib_ref(s->lib);
    return w;
}

int paddock_writer_write(struct paddock_writer *w, const void *data, size_t len,
                         struct paddock_error *e)
{
    w->run.whole = deadline_in(WORKER_WHOLE_NS); /* a writer may take its time between pieces */
    return lib_usable(w->lib, e) < 0 ? -1 : put(&w->run, data, len, e);
}

int paddock_writer_finish(struct paddock_writer *w, int do_commit, paddock_entry_fn each, void *arg,
                          struct paddock_error *e)
{
    int r = 0;

    if (!w)
        return 0;

    w->run.whole = deadline_in(WORKER_WHOLE_NS);
    if (do_commit)
        r = lib_usable(w->lib, e) < 0 ? -1 : commit(&w->run, each, arg, e);

    if (!atomic_load(&w->lib->forked))
        worker_done(&w->run);
    lib_unref(w->lib);
    free(w);
    return r;
}

/* ---- looking ---- */

/* One page; the cursor of the next is written to `cursor`, "" behind the last. 1: told to stop. */
static int list_page(struct paddock_sandbox *s, const char *path, const char *user,
                     const char *deep, struct buf *cursor, struct paddock_cancel *cancel,
                     paddock_entry_fn each, void *arg, struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    struct record r;
    int got;
    const char *from = buf_cstr(cursor);
    const char *const words[] = {"list", path, deep, LIST_PAGE, from ? from : "", NULL};

    if (worker_run_begin(&w, s->session, lib_cancel_fd(cancel), user, 0, words, e) < 0)
        return -1;

    buf_clear(cursor);
    while ((got = worker_next(&w, &r, e)) > 0) {
        if (r.kind == RECORD_MORE) {
            w.ended = 1;
            buf_puts(cursor, r.more.cursor);
            return 0;
        }
        if (r.kind != RECORD_ENTRY)
            return pd_fail(e, PD_PROTOCOL, "a worker lists what nobody asked for");
        if (tell_entry(&r.entry, each, arg))
            return 1;
    }
    return got;
}

int paddock_file_list(struct paddock_sandbox *s, const char *path, const char *user, unsigned depth,
                      struct paddock_cancel *cancel, paddock_entry_fn each, void *arg,
                      struct paddock_error *e)
{
    char full[FILE_PATH_SIZE], deep[16];
    auto_buf cursor = BUF_INIT(2 * RECORD_PATH_MAX);
    struct pd_err why;
    int r;

    if (lib_usable(s->lib, e) < 0 || check_path(path, "path", e) < 0)
        return -1;

    if (depth < 1 || depth > 64)
        return lib_refuse(e, PD_INVALID, "depth %u: 1 to 64", depth);

    file_path(full, path);
    snprintf(deep, sizeof deep, "%u", depth);
    do
        r = list_page(s, full, user, deep, &cursor, cancel, each, arg, &why);
    while (r == 0 && cursor.len && !cursor.overflow);

    return r < 0 ? lib_fail_or_cancelled(e, &why, cancel) : 0;
}

int paddock_file_stat(struct paddock_sandbox *s, const char *path, const char *user,
                      paddock_entry_fn each, void *arg, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE];
    const char *const words[] = {"stat", full, NULL};

    if (check_path(path, "path", e) < 0)
        return -1;

    file_path(full, path);
    return one_entry(s, user, words, 0, NULL, each, arg, e);
}

/* ---- names and modes ---- */

int paddock_file_mkdir(struct paddock_sandbox *s, const char *path, const char *user, int parents,
                       unsigned mode, paddock_entry_fn each, void *arg, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE], bits[8];
    const char *const words[] = {"mkdir", full, parents ? "1" : "0", bits, NULL};

    if (check_path(path, "path", e) < 0)
        return -1;
    if (mode > 0777)
        return lib_refuse(e, PD_INVALID, "mode %o has more than the bits 0777", mode);

    file_path(full, path);
    snprintf(bits, sizeof bits, "%04o", mode ? mode & 0777 : 0755);
    return one_entry(s, user, words, 0, NULL, each, arg, e);
}

int paddock_file_move(struct paddock_sandbox *s, const char *from, const char *to, const char *user,
                      int overwrite, paddock_entry_fn each, void *arg, struct paddock_error *e)
{
    char source[FILE_PATH_SIZE], target[FILE_PATH_SIZE];
    const char *const words[] = {"move", source, target, overwrite ? "1" : "0", NULL};

    if (check_path(from, "from", e) < 0 || check_path(to, "to", e) < 0)
        return -1;

    file_path(source, from);
    file_path(target, to);
    return one_entry(s, user, words, 0, NULL, each, arg, e);
}

int paddock_file_copy(struct paddock_sandbox *s, const char *from, const char *to, const char *user,
                      int recursive, struct paddock_cancel *cancel, paddock_entry_fn each,
                      void *arg, struct paddock_error *e)
{
    char source[FILE_PATH_SIZE], target[FILE_PATH_SIZE];
    const char *const words[] = {"copy", source, target, recursive ? "1" : "0", NULL};

    if (check_path(from, "from", e) < 0 || check_path(to, "to", e) < 0)
        return -1;

    file_path(source, from);
    file_path(target, to);
    return one_entry(s, user, words, 1, cancel, each, arg, e);
}

int paddock_file_chmod(struct paddock_sandbox *s, const char *path, const char *user, unsigned mode,
                       paddock_entry_fn each, void *arg, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE], bits[8];
    const char *const words[] = {"chmod", full, bits, NULL};

    if (check_path(path, "path", e) < 0)
        return -1;
    if (mode > 0777)
        return lib_refuse(e, PD_INVALID, "mode %o has more than the bits 0777", mode);

    file_path(full, path);
    snprintf(bits, sizeof bits, "%04o", mode & 0777);
    return one_entry(s, user, words, 0, NULL, each, arg, e);
}

int paddock_file_remove(struct paddock_sandbox *s, const char *path, const char *user,
                        int recursive, struct paddock_cancel *cancel, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE];
    const char *const words[] = {"remove", full, recursive ? "1" : "0", NULL};
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0 || check_path(path, "path", e) < 0)
        return -1;

    file_path(full, path);
    w.quiet_ns = WORKER_WHOLE_NS;
    if (worker_run_begin(&w, s->session, lib_cancel_fd(cancel), user, 0, words, &why) < 0 ||
        worker_expect(&w, RECORD_END, &r, &why) < 0)
        return lib_fail_or_cancelled(e, &why, cancel);

    w.ended = 1;
    return 0;
}
