/* Files as E2B's clients write them. upload is a write with extended attributes, and the file is
 * the writer's afterwards, whoever owned the one before. compose puts one file together from
 * others, which are removed when it is there. */
#include "init/path.h"
#include "init/save.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>

int worker_attributes(int fd, const char *path, char **attributes, struct pd_err *e)
{
    for (char **a = attributes; a && a[0]; a += 2) {
        const char *name = a[0], *value = a[1];
        if (strncmp(name, "user.", 5) != 0 || !name[5])
            return pd_fail(e, PD_INVALID, "attribute '%.60s': the name must begin with 'user.'",
                           name);

        if (fsetxattr(fd, name, value, strlen(value), 0) == 0)
            continue;
        if (errno == EOPNOTSUPP)
            return pd_fail(e, PD_UNSUPPORTED,
                           "'%.120s': the file system keeps no attributes of files; write it "
                           "without them",
                           path);
        if (errno == E2BIG || errno == ERANGE)
            return pd_fail(e, PD_TOO_LARGE, "attribute '%.60s' of '%.120s' is too large", name,
                           path);
        return path_fail(e, path);
    }
    return 0;
}

int worker_upload(struct worker_job *w, struct pd_err *e)
{
    struct worker_new n = {.path = w->argv[1],
                           .mkdirs = 1,
                           .has_length = strcmp(w->argv[2], "-") != 0,
                           .is_writers = 1,
                           .attributes = w->argv + 3};

    if (w->argc % 2 == 0)
        return pd_fail(e, PD_INVALID, "the last attribute has no value");
    if (n.has_length && worker_number("length", w->argv[2], 0, INT64_MAX, &n.length, e) < 0)
        return -1;

    return worker_save(w, &n, e);
}

/* Opens all sources before the first byte is moved: each must be a regular file, and not the
 * destination. */
static int open_sources(struct worker_job *w, const struct place *to, int *fds, struct pd_err *e)
{
    struct stat st;

    for (unsigned i = 2; i < w->argc; i++) {
        fds[i] = path_open_file(w, w->argv[i], &st, e);
        if (fds[i] < 0)
            return -1;
        if (to->exists && st.st_dev == to->st.st_dev && st.st_ino == to->st.st_ino)
            return pd_fail(e, PD_INVALID, "'%.140s' is both a source and the destination",
                           w->argv[i]);
    }
    return 0;
}

static int fail_no(struct pd_err *e, const char *path, int error)
{
    errno = error;
    return path_fail(e, path);
}

/* The sources are gone when the new file is there. Descriptors go with the process. */
int worker_compose(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    auto_place p = PLACE_INIT;
    struct stat st;
    int *fds = calloc(w->argc, sizeof *fds);
    if (!fds)
        return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");

    if (path_place(w, path, PLACE_FOLLOW | PLACE_MKDIRS, &p, e) < 0)
        return -1;
    if (p.exists && !S_ISREG(p.st.st_mode))
        return path_fail_type(e, path, p.st.st_mode, "a regular file");
    if (open_sources(w, &p, fds, e) < 0)
        return -1;

    auto_save s = SAVE_INIT;
    int r = save_begin(&s, p.dir);
    if (r < 0)
        return fail_no(e, path, -r);

    for (unsigned i = 2; i < w->argc; i++) {
        int64_t moved = worker_move(fds[i], s.fd, INT64_MAX);
        if (moved < 0)
            return fail_no(e, path, (int)-moved);
    }

    if (fchmod(s.fd, p.exists ? p.st.st_mode & 0777 : 0644) < 0)
        return path_fail(e, path);
    r = save_commit(&s, p.name, 1);
    if (r < 0)
        return fail_no(e, path, -r);

    for (unsigned i = 2; i < w->argc; i++)
        (void)unlink(w->argv[i]);
    char *absolute = path_absolute(w, path);
    if (fstat(s.fd, &st) < 0 || !absolute)
        return path_fail(e, path);
    worker_put_entry(w, &st, absolute, NULL);
    free(absolute);
    return 0;
}
